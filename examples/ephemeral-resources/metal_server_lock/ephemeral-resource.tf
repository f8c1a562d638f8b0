# Locks the server while this apply works on it. A plan does not lock it.
ephemeral "metal_server_lock" "run" {
  server    = "rack1-node7"
  namespace = "ops"
  name      = "nightly-checks"
  policy    = "Enforced"
  reason    = "nightly checks"
  applying  = terraform.applying
}

resource "terraform_data" "checks" {
  depends_on       = [ephemeral.metal_server_lock.run]
  triggers_replace = timestamp()

  provisioner "local-exec" {
    command = "echo checks run while the server is locked"
  }
}

# Under the lock, which stays open until the operation has ended.
action "metal_server_operation" "cycle" {
  config {
    server         = "rack1-node7"
    namespace      = "ops"
    name           = "nightly-cycle"
    operation      = "PowerCycle"
    maintenance_id = ephemeral.metal_server_lock.run.id
  }
}
