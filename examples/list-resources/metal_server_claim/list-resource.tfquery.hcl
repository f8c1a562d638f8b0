list "metal_server_claim" "lost" {
  provider = metal

  config {
    namespace = "db"
  }
}
