//! The `metal3` block.

use std::{path::PathBuf, sync::Arc};

use crate::{
    backend::{
        plug::{BackendPlugin, Block, Connected, Kind, Problem, Setting, Variables, check_request_timeout},
        redfish::{certificate_trust, several_trusts},
    },
    clock::Clock,
    kubernetes::{Cluster, ClusterSettings},
};

use super::{Hold, Metal3Backend, Metal3Settings};

/// Servers that Metal3's baremetal-operator manages.
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
        name: "namespace",
        kind: Kind::Name,
        text: "The namespace of the BareMetalHosts. Default: `METAL_KUBE_NAMESPACE`, else `default`.",
    },
    Setting {
        name: "hold",
        kind: Kind::Name,
        text: "How a host is held: `\"detach\"` (default) detaches it from the operator, and Redfish drives power and boot; `\"power_off\"` only keeps it off, by a reboot annotation.",
    },
    Setting {
        name: "lock_keys",
        kind: Kind::Texts,
        text: "Lock keys by host name, instead of the system UUID that the BMC reports. Needed for a host whose BMC is not reached by Redfish.",
    },
    Setting {
        name: "request_timeout",
        kind: Kind::Duration,
        text: "Time limit of one request to the API server. Default: `\"10s\"`; at most `\"15s\"`.",
    },
    Setting {
        name: "bmc_ca_certificate_file",
        kind: Kind::Text,
        text: "The authority that signed the BMCs' certificates, as PEM. A host with `disableCertificateVerification` trusts any certificate.",
    },
    Setting { name: "bmc_insecure", kind: Kind::Flag, text: "Trust any certificate of any BMC. Default: `false`." },
];

impl BackendPlugin for Plugin {
    fn name(&self) -> &'static str {
        "metal3"
    }

    fn description(&self) -> &'static str {
        "BareMetalHosts that Metal3's baremetal-operator manages in a Kubernetes cluster; see the guide about Metal3. Exactly one backend per provider configuration."
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
        if let Some(hold) = block.text("hold").filter(|hold| Hold::named(hold).is_none()) {
            problems.push(Problem::of(
                &["hold"],
                format!("{hold:?} is not a valid hold. Write \"detach\" or \"power_off\""),
            ));
        }
        for (name, _) in block.texts("lock_keys").iter().filter(|(_, key)| key.trim().is_empty()) {
            problems.push(Problem::of(&["lock_keys", name], "a lock key may not be empty"));
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
        let cluster = ClusterSettings {
            kubeconfig: path(block.text("kubeconfig").or_else(|| env("METAL_KUBECONFIG"))),
            context: block.text("context").or_else(|| env("METAL_KUBE_CONTEXT")),
            host: block.text("host"),
            token_file: path(block.text("token_file")),
            ca_certificate_file: path(block.text("ca_certificate_file")),
            request_timeout: block.duration("request_timeout"),
        };
        let namespace = block.text("namespace").or_else(|| env("METAL_KUBE_NAMESPACE"));
        let settings = Metal3Settings {
            cluster: Cluster::new(cluster, Arc::clone(clock)),
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            hold: block.text("hold").and_then(|hold| Hold::named(&hold)).unwrap_or_default(),
            trust,
            lock_keys: block.texts("lock_keys"),
        };
        Ok(Connected::quiet(Metal3Backend::new(settings, clock)))
    }

    fn reach(&self) -> &'static str {
        "--backend metal3, and METAL_KUBECONFIG or METAL_KUBE_CONTEXT, and METAL_KUBE_NAMESPACE of its hosts"
    }
}
