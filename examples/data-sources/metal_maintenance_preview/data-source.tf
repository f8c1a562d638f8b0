data "metal_maintenance_preview" "bios" {
  servers      = ["rack1-node7", "rack1-node8"]
  policy       = "OwnerApproval"
  server_power = "Off"
  timeout      = "6h"
}

output "in_the_way" {
  value = { for preview in data.metal_maintenance_preview.bios.previews : preview.server => preview.problems }
}
