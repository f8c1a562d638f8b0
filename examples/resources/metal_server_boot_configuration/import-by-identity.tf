# Terraform 1.12 and newer, OpenTofu 1.12.
import {
  to = metal_server_boot_configuration.rescue
  identity = {
    namespace = "ops"
    name      = "rescue.boot"
  }
}

resource "metal_server_boot_configuration" "rescue" {
  server         = "rack1-node7"
  maintenance_id = "ops/rescue"
  method         = "pxe"
}
