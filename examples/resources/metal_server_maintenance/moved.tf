# Terraform 1.8 and newer, OpenTofu 1.10 and newer. Drops the old resource without running its provisioners.
moved {
  from = terraform_data.bios
  to   = metal_server_maintenance.bios
}

resource "metal_server_maintenance" "bios" {
  server    = "rack1-node7"
  namespace = "ops"
  name      = "bios-2-19"
  policy    = "Enforced"

  server_power = "Off"
}
