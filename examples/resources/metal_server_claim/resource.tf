# This server is in use; other teams need our approval.
resource "metal_server_claim" "db" {
  server    = "rack1-node7"
  namespace = "db"
  name      = "primary"
  contact   = "#db-oncall"
}

output "asked_of_us" {
  value = metal_server_claim.db.pending
}
