# By the id that the resource and the queue show: under a maintenance, or in its own turn.
tofu import metal_server_boot_configuration.rescue ops/rescue.boot
tofu import metal_server_boot_configuration.pxe boot-configuration/default.rack1-node7
