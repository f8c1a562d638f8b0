tofu import metal_server_claim.db db/primary
