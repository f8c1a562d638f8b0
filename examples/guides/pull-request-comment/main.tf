terraform {
  required_providers {
    metal = { source = "localhost/metal-maintenance/metal" }
  }
}

variable "inventory_file" {
  type = string
}

variable "bmc_ca_certificate_file" {
  type = string
}

variable "servers" {
  type = set(string)
}

provider "metal" {
  # Account: METAL_REDFISH_USERNAME and METAL_REDFISH_PASSWORD.
  redfish = {
    inventory_file      = var.inventory_file
    ca_certificate_file = var.bmc_ca_certificate_file
  }
}

resource "metal_server_maintenance" "bios" {
  for_each     = var.servers
  server       = each.key
  namespace    = "ops"
  name         = "bios-${each.key}"
  policy       = "OwnerApproval"
  reason       = "BIOS 2.19"
  server_power = "Off"
}

# The same as data, for the comment.
data "metal_maintenance_preview" "bios" {
  servers      = var.servers
  policy       = "OwnerApproval"
  server_power = "Off"
}
