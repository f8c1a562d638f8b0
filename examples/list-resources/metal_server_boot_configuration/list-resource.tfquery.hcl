list "metal_server_boot_configuration" "lost" {
  provider = metal

  config {
    states = ["Ready", "Error"]
  }
}
