list "metal_server_maintenance" "lost" {
  provider = metal
}

# What holds a server now, of every owner, with all attributes.
list "metal_server_maintenance" "holders" {
  provider         = metal
  include_resource = true
  limit            = 500

  config {
    owner  = "*"
    states = ["Preparing", "InMaintenance", "Releasing"]
  }
}
