list "metal_maintenance_approval" "lost" {
  provider = metal

  config {
    states = ["InForce"]
  }
}
