resource "metal_server_maintenance" "bios" {
  server    = "rack1-node7"
  namespace = "ops"
  name      = "bios-2-19"
  policy    = "Enforced"
  reason    = "BIOS 2.19"
  ticket    = "https://tickets.example/4711"

  server_power  = "Off"
  expires_after = "12h"

  timeouts = {
    create = "6h"
    delete = "30m"
  }
}
