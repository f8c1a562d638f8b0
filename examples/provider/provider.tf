terraform {
  required_providers {
    metal = {
      source = "localhost/metal-maintenance/metal"
    }
  }
}

provider "metal" {
  owner = "team-storage"

  # Account: METAL_REDFISH_USERNAME and METAL_REDFISH_PASSWORD, so that saved plans do not contain it.
  redfish = {
    ca_certificate_file = "${path.module}/bmc-ca.pem"

    servers = {
      rack1-node7 = {
        endpoint = "https://10.1.2.7"
      }
      rack1-node9 = {
        endpoint           = "https://10.1.2.9"
        certificate_sha256 = "5d1f3b0e8a7c4b2d9e6f1a0c3b5d7e9f2a4c6e8b0d1f3a5c7e9b2d4f6a8c0e1b"
      }
    }
  }
}
