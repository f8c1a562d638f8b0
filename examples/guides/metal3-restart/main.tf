# Restarts a provisioned BareMetalHost once under the lock, through its operator (annotation reboot.metal3.io).

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

variable "kernel" {
  description = "The reason for the restart; a new value repeats it"
  type        = string
  default     = "6.12.9"
}

provider "metal" {
  metal3 = {
    kubeconfig = var.kubeconfig
    namespace  = var.namespace
    hold       = "power_off" # the host stays with its operator
  }
}

resource "metal_server_operation" "restart" {
  server    = var.host
  namespace = "ops"
  name      = "restart-after-update"
  policy    = "OwnerApproval"
  reason    = "new kernel"

  operation = "GracefulRestart" # or ForceRestart, PowerCycle
  triggers  = { kernel = var.kernel }
}

output "outcome" {
  value = metal_server_operation.restart.outcome # Accepted: a host does not report its last reset
}
