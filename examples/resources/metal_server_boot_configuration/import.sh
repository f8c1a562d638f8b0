# By the id that the resource and `queue` show: under a maintenance, or without one.
tofu import metal_server_boot_configuration.rescue ops/rescue.boot
tofu import metal_server_boot_configuration.pxe boot-configuration/default.rack1-node7
