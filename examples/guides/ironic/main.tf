# Locks a node of OpenStack Ironic from apply to destroy.

terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

variable "server" {
  description = "The name or UUID of the node"
  type        = string
}

variable "endpoint" {
  description = "Ironic's address; default: METAL_IRONIC_ENDPOINT or OS_CLOUD"
  type        = string
  default     = null
}

variable "lock_keys" {
  description = "System UUIDs of nodes whose inspection did not record one, by node name"
  type        = map(string)
  default     = {}
}

provider "metal" {
  ironic = {
    endpoint  = var.endpoint
    lock_keys = var.lock_keys
  }
}

resource "metal_server_maintenance" "disk" {
  server    = var.server
  namespace = "ops"
  name      = "disk-swap"
  policy    = "Enforced"
  reason    = "swap disk 3"

  server_power  = "Off"
  expires_after = "4h"
}

output "state" {
  value = metal_server_maintenance.disk.state
}
