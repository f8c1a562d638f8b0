# Runs a firmware runbook of OpenStack Ironic once on one node, and again when `release` changes.

terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

variable "server" {
  description = "The name or UUID of an active node"
  type        = string
}

variable "runbook" {
  description = "The runbook; one of its traits, or its name, is a trait of the node"
  type        = string
}

variable "release" {
  description = "The firmware release"
  type        = string
  default     = "2.19"
}

variable "lock_keys" {
  description = "System UUIDs of nodes whose inspection did not record one, by node name"
  type        = map(string)
  default     = {}
}

provider "metal" {
  ironic = {
    lock_keys = var.lock_keys
  }
}

resource "metal_server_operation" "firmware" {
  server    = var.server
  namespace = "ops"
  name      = "firmware"
  policy    = "Enforced"
  reason    = "firmware ${var.release}"

  service  = { runbook = var.runbook }
  triggers = { release = var.release }
  timeouts = { create = "2h" }
}

output "outcome" {
  value = metal_server_operation.firmware.outcome
}
