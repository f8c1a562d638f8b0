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

variable "bmc_networks" {
  description = "The networks of the BMCs, such as 10.0.0.0/24. Default: METAL_BMC_NETWORKS."
  type        = list(string)
  default     = null
}

provider "metal" {
  metal_operator = {
    kubeconfig   = var.kubeconfig
    bmc_networks = var.bmc_networks
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
