data "metal_maintenance_window" "weekend" {
  window = {
    schedule  = "0 22 * * SAT"
    duration  = "4h"
    time_zone = "Europe/Berlin"
    exclude   = ["2026-12-24/2027-01-06"]
  }
  limit = 3
}

output "next_weekends" {
  value = data.metal_maintenance_window.weekend.openings[*].local_start
}
