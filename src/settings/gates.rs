//! What stands before the servers of any backend.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    backend::{
        cluster_api,
        gate_plug::{GATES, GatePlugin},
        kubernetes_node::{self, Minded},
        plug::Block,
    },
    engine::Nodes,
};

use super::{SettingsError, of_block};

/// Their blocks, by name.
pub type GateBlocks = BTreeMap<&'static str, Block>;

/// Everything that is wrong with the blocks as they are written.
pub(super) fn check(blocks: &GateBlocks) -> Vec<SettingsError> {
    let given = GATES.iter().filter_map(|plugin| Some((plugin, blocks.get(plugin.name())?)));
    let mut problems: Vec<SettingsError> = given
        .flat_map(|(plugin, block)| plugin.check(block).into_iter().map(|problem| of_block(plugin.name(), problem)))
        .collect();
    let (drains, machines) = (kubernetes_node::Drains.name(), cluster_api::Plugin.name());
    if let (Some(drained), Some(asked)) = (blocks.get(drains), blocks.get(machines)) {
        let drained: Vec<String> = kubernetes_node::servers(drained).collect();
        problems.extend(cluster_api::servers(asked).filter(|server| drained.contains(server)).map(|server| {
            SettingsError::Value {
                problem: format!(
                    "The server {server:?} is in {machines} and in {drains}. The maintenance controller drains the Node of a \
                     Machine: name the server in one of the two"
                ),
                attribute: [machines, "machines", &server].map(str::to_owned).to_vec(),
            }
        }));
    }
    problems
}

/// What the engine minds of the Nodes.
pub(super) fn nodes(minded: Minded) -> Nodes {
    let Minded { leases, take, leasing, drains, drainer } = minded;
    Nodes { leases, take, leasing: Some(leasing), drains, drainer: Some(drainer as Arc<_>) }
}

#[cfg(test)]
mod tests {
    use crate::backend::plug::Given;

    use super::*;

    fn block(name: &str, texts: &[(&str, &str)]) -> Block {
        let mut block = Block::default();
        let texts = texts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        block.set(name, Given::Texts(texts.collect()));
        block
    }

    #[test]
    fn what_is_wrong_with_a_gate_is_told_at_the_name_of_its_server() {
        let machines = [("one", "namespace/machine"), ("two", "machine"), ("three", "n/m")];
        let blocks = GateBlocks::from([
            ("cluster_api", block("machines", &machines)),
            ("kubernetes_node", block("nodes", &[("three", "node-3"), ("four", "")])),
            ("node_leases", block("nodes", &[("one", "node-1"), ("five", "")])),
        ]);
        let told: Vec<String> = check(&blocks).iter().map(|it| format!("{}: {it}", it.attribute().join("."))).collect();
        let begins = [
            "cluster_api.machines.two: \"machine\" is not the namespace/name of a Machine",
            "kubernetes_node.nodes.four: The name of a Node may not be empty",
            "node_leases.nodes.five: The name of a Node may not be empty",
            "cluster_api.machines.three: The server \"three\" is in cluster_api and in kubernetes_node",
        ];
        assert_eq!(told.len(), begins.len(), "{told:?}");
        for (told, begin) in told.iter().zip(begins) {
            assert!(told.starts_with(begin), "{told}");
        }
        assert_eq!(check(&GateBlocks::from([("cluster_api", block("machines", &machines[..1]))])), []);
    }
}
