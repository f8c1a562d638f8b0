# Detaches and locks a BareMetalHost of Metal3 from apply to destroy.

terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

variable "host" {
  description = "The name of the BareMetalHost"
  type        = string
}

variable "namespace" {
  description = "Its namespace"
  type        = string
  default     = "metal3"
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
  metal3 = {
    kubeconfig   = var.kubeconfig
    namespace    = var.namespace
    bmc_networks = var.bmc_networks
  }
}

resource "metal_server_maintenance" "disk" {
  server    = var.host
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
