list "metal_server_maintenance" "lost" {
  provider = metal
}

# All current holders of every owner, with all attributes.
list "metal_server_maintenance" "holders" {
  provider         = metal
  include_resource = true
  limit            = 500

  config {
    owner  = "*"
    states = ["Preparing", "InMaintenance", "Releasing"]
  }
}
