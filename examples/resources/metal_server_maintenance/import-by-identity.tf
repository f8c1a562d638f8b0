# Terraform 1.12 and newer, OpenTofu 1.12.
import {
  to = metal_server_maintenance.bios
  identity = {
    namespace = "ops"
    name      = "bios-2-19"
  }
}

resource "metal_server_maintenance" "bios" {
  server    = "rack1-node7"
  namespace = "ops"
  name      = "bios-2-19"
  policy    = "Enforced"
}
