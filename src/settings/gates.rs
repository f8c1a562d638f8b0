//! Gates in front of any backend's servers.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    backend::{
        GateKind,
        gate_plug::GATES,
        kubernetes_node::Minded,
        plug::{Block, Variables},
    },
    clock::Clock,
    engine::Nodes,
};

use super::{SettingsError, of_block};

/// Gate blocks by name.
pub type GateBlocks = BTreeMap<&'static str, Block>;

/// Returns every problem in the blocks.
pub(super) fn check(blocks: &GateBlocks) -> Vec<SettingsError> {
    let mut problems = Vec::new();
    let mut drained = BTreeMap::new();
    for (plugin, block) in GATES.iter().filter_map(|plugin| Some((plugin, blocks.get(plugin.name())?))) {
        problems.extend(plugin.check(block).into_iter().map(|problem| of_block(plugin.name(), problem)));
        for (server, attribute) in plugin.drains(block) {
            drained.entry(server).or_insert_with(Vec::new).push((plugin.name(), attribute));
        }
    }
    problems.extend(drained.into_iter().filter_map(|(server, gates)| {
        let [(first, attribute), (second, _), ..] = gates[..] else { return None };
        Some(SettingsError::Value {
            problem: format!(
                "The server {server:?} is in {first} and in {second}, but only one of them can drain its Node: \
                 remove the server from one"
            ),
            attribute: [first, attribute, &server].map(str::to_owned).to_vec(),
        })
    }));
    problems
}

/// Connects the gates that external systems control.
pub(super) fn connect(blocks: &GateBlocks, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Vec<Arc<dyn GateKind>> {
    GATES.iter().filter_map(|plugin| plugin.connect(blocks.get(plugin.name()), env, clock)).collect()
}

/// Converts the gates' Node settings for the engine.
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
            "kubernetes_node.nodes.four: A Node's name must not be empty",
            "node_leases.nodes.five: A Node's name must not be empty",
            "cluster_api.machines.three: The server \"three\" is in cluster_api and in kubernetes_node",
        ];
        assert_eq!(told.len(), begins.len(), "{told:?}");
        for (told, begin) in told.iter().zip(begins) {
            assert!(told.starts_with(begin), "{told}");
        }
        assert_eq!(check(&GateBlocks::from([("cluster_api", block("machines", &machines[..1]))])), []);
    }
}
