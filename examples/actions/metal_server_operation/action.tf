# By hand: terraform apply -invoke=action.metal_server_operation.restart
action "metal_server_operation" "restart" {
  config {
    server    = "rack1-node7"
    namespace = "ops"
    name      = "restart"
    operation = "GracefulRestart"
    policy    = "OwnerApproval"
    reason    = "hangs"
  }
}

# After each change of a resource: exactly once per version, even if a run is killed.
resource "terraform_data" "firmware" {
  input = "2.19"

  lifecycle {
    action_trigger {
      events  = [after_create, after_update]
      actions = [action.metal_server_operation.cycle]
    }
  }
}

action "metal_server_operation" "cycle" {
  config {
    server    = "rack1-node7"
    namespace = "ops"
    name      = "cycle-after-firmware"
    operation = "PowerCycle"
    policy    = "OwnerApproval"
    reason    = "new firmware"
    proof     = "boot"
    triggers  = { firmware = "2.19" }
  }
}
