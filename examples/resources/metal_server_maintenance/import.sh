# By its namespace and name.
tofu import metal_server_maintenance.bios ops/bios-2-19
