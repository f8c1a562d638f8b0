# The server is in use; whoever needs it asks us.
resource "metal_server_claim" "db" {
  server    = "rack1-node7"
  namespace = "db"
  name      = "primary"
  contact   = "#db-oncall"
}

output "asked_of_us" {
  value = metal_server_claim.db.pending
}
