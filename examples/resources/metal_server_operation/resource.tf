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
