# Approves one maintenance in its current form at the time of the apply.
resource "metal_maintenance_approval" "bios" {
  server      = "rack1-node7"
  maintenance = "ops/bios-2-19"
  expires     = "2030-01-31T00:00:00+01:00"
}
