resource "metal_server_operation" "restart" {
  server    = "rack1-node7"
  namespace = "ops"
  name      = "restart-after-update"
  operation = "GracefulRestart"
  policy    = "OwnerApproval"
  reason    = "new kernel"
  proof     = "boot"
  triggers  = { kernel = "6.12.9" }
}

# The external system does the work: service steps of OpenStack Ironic.
resource "metal_server_operation" "bios" {
  server    = "rack1-node8"
  namespace = "ops"
  name      = "bios-settings"
  policy    = "OwnerApproval"
  reason    = "enable SR-IOV"
  service = {
    steps = [{
      interface = "bios"
      step      = "apply_configuration"
      args      = jsonencode({ settings = [{ name = "SRIOV", value = "Enabled" }] })
    }]
  }
  timeouts = { create = "2h" }
}
