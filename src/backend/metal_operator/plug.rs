//! The `metal_operator` block.

use std::{path::PathBuf, sync::Arc};

use crate::{
    backend::{
        plug::{BackendPlugin, Block, Connected, Kind, Problem, Setting, Variables, check_request_timeout},
        redfish::{certificate_trust, several_trusts},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings},
};

use super::{MetalOperatorBackend, MetalOperatorSettings};

/// Servers that IronCore's metal-operator manages.
#[derive(Debug)]
pub struct Plugin;

const SETTINGS: &[Setting] = &[
    Setting {
        name: "kubeconfig",
        kind: Kind::Text,
        text: "A kubeconfig file; its users may be certificates, tokens, token files and exec plugins. Default: `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
    },
    Setting {
        name: "context",
        kind: Kind::Name,
        text: "Which of its contexts. Default: `METAL_KUBE_CONTEXT`, else the current one.",
    },
    Setting {
        name: "host",
        kind: Kind::Name,
        text: "The API server's address, for example `https://10.0.0.1:6443`, instead of a kubeconfig.",
    },
    Setting {
        name: "token_file",
        kind: Kind::Text,
        text: "With `host`: a file with a bearer token. It is read again when it changes.",
    },
    Setting {
        name: "ca_certificate_file",
        kind: Kind::Text,
        text: "With `host`: the authority that signed the API server's certificate, as PEM.",
    },
    Setting {
        name: "node_kubeconfig",
        kind: Kind::Text,
        text: "For `metal_maintenance_approval` with `node`: a kubeconfig file of the cluster whose Nodes run on the servers. Default: the servers' own cluster.",
    },
    Setting { name: "node_context", kind: Kind::Text, text: "Which of its contexts. Default: the current one." },
    Setting {
        name: "namespace",
        kind: Kind::Name,
        text: "The namespace in which our ServerMaintenances and Secrets are made. Default: `METAL_KUBE_NAMESPACE`, else `default`.",
    },
    Setting {
        name: "request_timeout",
        kind: Kind::Duration,
        text: "Time limit of one request to the API server. Default: `\"10s\"`; at most `\"15s\"`.",
    },
    Setting {
        name: "bmc_ca_certificate_file",
        kind: Kind::Text,
        text: "The authority that signed the BMCs' certificates, as PEM. BMCs are asked directly where the cluster does not drive a server in maintenance.",
    },
    Setting { name: "bmc_insecure", kind: Kind::Flag, text: "Trust any certificate of any BMC. Default: `false`." },
];

impl BackendPlugin for Plugin {
    fn name(&self) -> &'static str {
        "metal_operator"
    }

    fn description(&self) -> &'static str {
        "Servers that IronCore's metal-operator manages in a Kubernetes cluster. What the cluster has is discovered; see the guide about metal-operator. Exactly one backend per provider configuration."
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn check(&self, block: &Block) -> Vec<Problem> {
        let mut problems: Vec<Problem> = check_request_timeout(block).into_iter().collect();
        if block.has("host") && (block.has("kubeconfig") || block.has("context")) {
            let problem = "host is instead of a kubeconfig: leave out kubeconfig and context, or host";
            problems.push(Problem::of(&["host"], problem));
        }
        if !block.has("host") {
            for name in ["token_file", "ca_certificate_file"].into_iter().filter(|name| block.has(name)) {
                problems.push(Problem::of(&[name], "it belongs to host; a kubeconfig names its own"));
            }
        }
        let authority = block.text("bmc_ca_certificate_file");
        let trusts =
            several_trusts(block.flag("bmc_insecure"), None, authority.as_deref(), &["bmc_ca_certificate_file"]);
        problems.extend(trusts.err());
        problems
    }

    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem> {
        let authority = block.text("bmc_ca_certificate_file");
        let trust =
            certificate_trust(block.flag("bmc_insecure"), None, authority.as_deref(), &["bmc_ca_certificate_file"])?;
        let path = |text: Option<String>| text.map(PathBuf::from);
        let request_timeout = block.duration("request_timeout");
        let cluster = ClusterSettings {
            kubeconfig: path(block.text("kubeconfig").or_else(|| env("METAL_KUBECONFIG"))),
            context: block.text("context").or_else(|| env("METAL_KUBE_CONTEXT")),
            host: block.text("host"),
            token_file: path(block.text("token_file")),
            ca_certificate_file: path(block.text("ca_certificate_file")),
            request_timeout,
        };
        let (node_kubeconfig, node_context) = (block.text("node_kubeconfig"), block.text("node_context"));
        let nodes = (node_kubeconfig.is_some() || node_context.is_some()).then(|| ClusterSettings {
            kubeconfig: path(node_kubeconfig),
            context: node_context,
            request_timeout,
            ..ClusterSettings::default()
        });
        let namespace = block.text("namespace").or_else(|| env("METAL_KUBE_NAMESPACE"));
        let settings = MetalOperatorSettings {
            cluster: Cluster::new(cluster, Arc::clone(clock)),
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            trust,
            nodes: nodes.map(|nodes| Cluster::new(nodes, Arc::clone(clock))),
        };
        Ok(Connected::quiet(MetalOperatorBackend::new(settings, clock)))
    }

    fn reach(&self) -> &'static str {
        "--metal-operator, and METAL_KUBECONFIG or METAL_KUBE_CONTEXT of that cluster"
    }

    fn has_own_claims(&self) -> bool {
        true
    }
}
