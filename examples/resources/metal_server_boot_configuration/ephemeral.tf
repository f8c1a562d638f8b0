# Write-only content, absent from plans, states and records (Terraform and OpenTofu 1.11). A new version starts the update.
variable "root_password_hash" {
  type      = string
  ephemeral = true
}

resource "metal_server_boot_configuration" "rescue" {
  server         = "rack1-node7"
  maintenance_id = "ops/rescue"
  method         = "boot_operator"
  image          = "registry.example/rescue:3"
  server_power   = "On"

  ignition_wo_version = 1
  ignition_wo = jsonencode({
    ignition = { version = "3.3.0" }
    passwd   = { users = [{ name = "root", passwordHash = var.root_password_hash }] }
  })
}
