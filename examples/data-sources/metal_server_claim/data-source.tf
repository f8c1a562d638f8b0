data "metal_server_claim" "db" {
  id = "db/primary"
}

# The owner decides whether this maintenance can start.
resource "metal_server_maintenance" "bios" {
  server    = data.metal_server_claim.db.server
  namespace = "ops"
  name      = "bios-2-19"
  policy    = "OwnerApproval"
  reason    = "BIOS 2.19"
}
