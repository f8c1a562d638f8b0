data "metal_maintenance_queue" "all" {}

output "waiting" {
  value = [for entry in data.metal_maintenance_queue.all.entries : entry.id if entry.position > 0]
}
