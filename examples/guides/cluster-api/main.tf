# Locks a server of a Cluster API Machine after the maintenance controller has drained its Node.

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
  description = "A kubeconfig file of the management cluster; default: the usual files"
  type        = string
  default     = null
}

variable "workload_kubeconfig" {
  description = "A kubeconfig file of the Nodes' cluster; default: the management cluster"
  type        = string
  default     = null
}

variable "bmc_networks" {
  description = "The networks of the BMCs, such as 10.0.0.0/24. Default: METAL_BMC_NETWORKS."
  type        = list(string)
  default     = null
}

provider "metal" {
  cluster_api = {
    kubeconfig          = var.kubeconfig
    workload_kubeconfig = var.workload_kubeconfig
  }

  metal3 = {
    kubeconfig   = var.kubeconfig
    namespace    = var.namespace
    bmc_networks = var.bmc_networks
  }
}

resource "metal_server_maintenance" "bios" {
  server    = var.host
  namespace = "ops"
  name      = "bios-2-19"
  policy    = "Enforced"
  reason    = "BIOS 2.19"

  server_power  = "Off"
  expires_after = "4h"

  timeouts = {
    create = "2h" # the drain itself is unlimited
  }
}

data "metal_server" "node" {
  name = var.host
}

output "state" {
  value = metal_server_maintenance.bios.state
}

output "machine" {
  value = data.metal_server.node.gates
}
