resource "metal_server_maintenance" "rescue" {
  server    = "rack1-node7"
  namespace = "ops"
  name      = "rescue"
  policy    = "Enforced"
  reason    = "file system check"
}

resource "metal_server_boot_configuration" "rescue" {
  server         = metal_server_maintenance.rescue.server
  maintenance_id = metal_server_maintenance.rescue.id

  method       = "virtual_media"
  image        = "https://images.example/rescue.iso"
  server_power = "On"
}
