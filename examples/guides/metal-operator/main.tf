# Locks a server of metal-operator from apply to destroy.

terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

variable "server" {
  description = "The name of the Server object"
  type        = string
}

variable "kubeconfig" {
  description = "A kubeconfig file; default: the usual files"
  type        = string
  default     = null
}

provider "metal" {
  metal_operator = {
    kubeconfig = var.kubeconfig
  }
}

resource "metal_server_maintenance" "disk" {
  server    = var.server
  namespace = "ops"
  name      = "disk-swap"
  policy    = "OwnerApproval"
  reason    = "swap disk 3"

  server_power  = "Off"
  expires_after = "4h"
}

output "state" {
  value = metal_server_maintenance.disk.state
}
