# Takes one server out of service, boots it from a rescue image once var.image is given, and releases it at destroy.
terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

variable "inventory_file" {
  type        = string
  description = "Servers by name, as YAML. Default: METAL_REDFISH_INVENTORY_FILE."
  default     = null
}

variable "bmc_ca_certificate_file" {
  type        = string
  description = "The authority of the BMCs' certificates, as PEM. Default: METAL_REDFISH_CA_CERTIFICATE_FILE."
  default     = null
}

variable "server" {
  type    = string
  default = "rack1-node7"
}

variable "image" {
  type        = string
  description = "The address of a rescue image that the BMC can reach. Without it the server is only locked."
  default     = null
}

variable "name" {
  type        = string
  description = "A second run with another name waits for the first."
  default     = "first-maintenance"
}

provider "metal" {
  # Account: METAL_REDFISH_USERNAME and METAL_REDFISH_PASSWORD, so that saved plans do not contain it.
  redfish = {
    inventory_file      = var.inventory_file
    ca_certificate_file = var.bmc_ca_certificate_file
  }
}

resource "metal_server_maintenance" "first" {
  server        = var.server
  namespace     = "guide"
  name          = var.name
  policy        = "Enforced"
  reason        = "trying it out"
  expires_after = "2h"

  # Both are null without an image: power and boot do not change.
  server_power = var.image == null ? null : "On"
  boot_configuration = var.image == null ? null : {
    method = "virtual_media"
    image  = var.image
  }
}

output "state" {
  value = metal_server_maintenance.first.state
}

output "was" {
  value = metal_server_maintenance.first.previous_power_state
}
