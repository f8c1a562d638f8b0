# Terraform 1.12 and newer, OpenTofu 1.12.
import {
  to = metal_server_claim.db
  identity = {
    namespace = "db"
    name      = "primary"
  }
}

resource "metal_server_claim" "db" {
  server    = "rack1-node7"
  namespace = "db"
  name      = "primary"
}
