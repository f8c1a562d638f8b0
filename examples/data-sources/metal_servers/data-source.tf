# All storage servers in rack 1. Does not read a BMC.
data "metal_servers" "storage" {
  name_pattern = "rack1-*"
  labels       = { role = "storage" }
}

resource "metal_server_maintenance" "disks" {
  for_each  = toset(data.metal_servers.storage.names)
  server    = each.key
  namespace = "ops"
  name      = "disks-${each.key}"
  policy    = "OwnerApproval"
}

# Works while a BMC or the store is unreachable: missing values are null.
data "metal_server" "storage" {
  for_each = toset(data.metal_servers.storage.names)
  name     = each.key
}

output "held_by" {
  value = {
    for name, server in data.metal_server.storage : name => try(server.holder.id, null) != null ? server.holder.id : "free or unknown"
  }
}

# For terraform-provider-metal: tofu output -raw inventory > servers.json
output "inventory" {
  value = data.metal_servers.storage.inventory
}
