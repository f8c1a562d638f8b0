# By the namespace and name under which it was asked for.
tofu import metal_server_maintenance.bios ops/bios-2-19
