# The owner's configuration: the server is in use, and other teams' nightly checks can lock it.
resource "metal_server_claim" "db" {
  server    = "rack1-node7"
  namespace = "db"
  name      = "primary"
  contact   = "#db-oncall"
}

resource "metal_maintenance_approval" "db" {
  server = metal_server_claim.db.server
  all    = true
}

# The checks' configuration: each run waits up to ten minutes for the owner's approval.
ephemeral "metal_server_lock" "checks" {
  server        = metal_maintenance_approval.db.server
  namespace     = "ops"
  name          = "nightly-checks"
  policy        = "OwnerApproval"
  require_claim = true
  reason        = "nightly checks"
  applying      = terraform.applying
  timeouts      = { open = "10m" }
}

resource "terraform_data" "checks" {
  depends_on       = [ephemeral.metal_server_lock.checks]
  triggers_replace = timestamp()

  provisioner "local-exec" {
    command = "echo checks run while the owner lends the server"
  }
}
