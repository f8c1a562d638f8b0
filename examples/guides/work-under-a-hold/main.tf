# Another provider's resource works on a held server. Here terraform_data replaces that resource.
terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

variable "inventory_file" {
  type        = string
  description = "Servers by name, as YAML."
}

variable "bmc_ca_certificate_file" {
  type    = string
  default = null
}

variable "server" {
  type    = string
  default = "rack1-node7"
}

variable "firmware" {
  type    = string
  default = "2.19"
}

provider "metal" {
  # Account: METAL_REDFISH_USERNAME and METAL_REDFISH_PASSWORD, so that saved plans do not contain it.
  redfish = {
    inventory_file      = var.inventory_file
    ca_certificate_file = var.bmc_ca_certificate_file
  }
}

data "metal_servers" "all" {}

resource "metal_server_maintenance" "bios" {
  server        = var.server
  namespace     = "ops"
  name          = "bios"
  policy        = "OwnerApproval"
  reason        = "BIOS ${var.firmware}"
  expires_after = "4h"
  triggers      = { firmware = var.firmware }

  lifecycle {
    postcondition {
      condition     = self.state == "InMaintenance"
      error_message = "${var.server} is ${self.state}: nothing may work on it yet."
    }
  }
}

resource "terraform_data" "firmware" {
  # Another Redfish provider's resource would use the endpoint.
  input = {
    endpoint = data.metal_servers.all.servers[var.server].endpoint
    version  = var.firmware
  }

  depends_on = [metal_server_maintenance.bios]

  lifecycle {
    replace_triggered_by = [metal_server_maintenance.bios.id, metal_server_maintenance.bios.started_at]
  }

  provisioner "local-exec" {
    command = "echo flashing ${self.input.version} over ${self.input.endpoint}"
  }

  provisioner "local-exec" {
    when    = destroy
    command = "echo the server is still held"
  }
}
