
resource "metal_server_maintenance" "off" {
  server        = "node1"
  namespace     = "tests"
  name          = "off"
  policy        = "Enforced"
  reason        = "BIOS 2.19"
  ticket        = "OPS-1"
  priority      = 5
  server_power  = "Off"
}

resource "metal_server_maintenance" "booted" {
  server    = "node2"
  namespace = "tests"
  name      = "booted"
  policy    = "Enforced"
}

resource "metal_server_boot_configuration" "pxe" {
  server         = metal_server_maintenance.booted.server
  maintenance_id = metal_server_maintenance.booted.id
  method         = "pxe"
  server_power   = "On"
}

resource "metal_server_claim" "owned" {
  server    = "node3"
  namespace = "tests"
  name      = "owned"
  contact   = "owners@example.org"
}

resource "metal_maintenance_approval" "all" {
  server     = "node3"
  all        = true
  depends_on = [metal_server_claim.owned]
}

resource "metal_server_maintenance" "approved" {
  server     = "node3"
  namespace  = "tests"
  name       = "approved"
  policy     = "OwnerApproval"
  depends_on = [metal_maintenance_approval.all]
}

resource "metal_server_operation" "restart" {
  server    = "node4"
  namespace = "tests"
  name      = "restart"
  operation = "ForceRestart"
  policy    = "Enforced"
}
