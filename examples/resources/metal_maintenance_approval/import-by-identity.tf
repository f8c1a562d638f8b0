# Terraform 1.12 and newer, OpenTofu 1.12.
import {
  to = metal_maintenance_approval.bios
  identity = {
    id = "0199a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b"
  }
}

resource "metal_maintenance_approval" "bios" {
  server      = "rack1-node7"
  maintenance = "ops/bios-2-19"
}
