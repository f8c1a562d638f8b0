data "metal_server" "node7" {
  name = "rack1-node7"
}

output "who_holds_node7" {
  value = data.metal_server.node7.holder
}
