//! The `metal3` block.

use std::sync::Arc;

use crate::{
    backend::{
        cluster_block,
        plug::{AttributeKind, BackendPlugin, Block, Connected, ExternalBootMethod, Problem, Setting, Variables},
    },
    clock::Clock,
    kubernetes::Cluster,
};

use super::{Hold, Metal3Backend, Metal3Settings, host::DETACHED};

/// The `metal3` block's plugin.
#[derive(Debug)]
pub struct Plugin;

const SETTINGS: &[Setting] = &[
    cluster_block::KUBECONFIG,
    cluster_block::CONTEXT,
    cluster_block::HOST,
    cluster_block::TOKEN_FILE,
    cluster_block::CA_CERTIFICATE_FILE,
    cluster_block::namespace_setting("The BareMetalHosts' namespace."),
    Setting::new(
        "hold",
        AttributeKind::Name,
        "How a host is held. `\"detach\"` (the default) detaches it from the operator, and Redfish controls power and \
         boot. `\"power_off\"` only keeps it off, by a reboot annotation. `\"image\"` leaves an available host with \
         its operator, which boots it from the image in a boot configuration with `method = \"boot_operator\"`.",
    ),
    Setting::new(
        "lock_keys",
        AttributeKind::Texts,
        "Lock keys by host name, instead of the system UUID that the BMC reports. Needed for a host whose BMC the provider cannot reach by Redfish.",
    ),
    cluster_block::REQUEST_TIMEOUT,
    cluster_block::BMC_NETWORKS,
    cluster_block::authority_setting(
        "The authority that signed the BMCs' certificates, as PEM. A host's `disableCertificateVerification` is then \
         ignored.",
    ),
    cluster_block::BMC_INSECURE,
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
        let mut problems = cluster_block::check(block);
        if let Some(hold) = block.text("hold").filter(|hold| Hold::named(hold).is_none()) {
            problems.push(Problem::of(
                &["hold"],
                format!("{hold:?} is not a valid hold. Write \"detach\", \"power_off\" or \"image\""),
            ));
        }
        for (name, _) in block.texts("lock_keys").iter().filter(|(_, key)| key.trim().is_empty()) {
            problems.push(Problem::of(&["lock_keys", name], "a lock key must not be empty"));
        }
        problems
    }

    fn connect(&self, block: &Block, env: Variables<'_>, clock: &Arc<dyn Clock>) -> Result<Connected, Problem> {
        let cluster = cluster_block::cluster(block, env);
        let settings = Metal3Settings {
            cluster: Cluster::new(cluster, Arc::clone(clock)),
            namespace: cluster_block::namespace(block, env),
            hold: block.text("hold").and_then(|hold| Hold::named(&hold)).unwrap_or_default(),
            trust: cluster_block::bmc_trust(block, env)?,
            bmc_networks: cluster_block::bmc_networks(block, env)?,
            lock_keys: block.texts("lock_keys"),
        };
        Ok(Connected::quiet(Metal3Backend::new(settings, clock)))
    }

    fn by_hand(&self, server: &str) -> Option<String> {
        Some(format!(
            "kubectl get baremetalhost -A -o yaml shows its annotations; for a host that this provider detached: kubectl annotate \
             baremetalhost {server} {DETACHED}-, in its namespace"
        ))
    }

    fn boot_methods(&self) -> &'static [&'static ExternalBootMethod] {
        &[&cluster_block::BOOT_OPERATOR]
    }

    fn reach(&self) -> String {
        let namespace = cluster_block::namespace_setting("").variable();
        format!("--backend metal3, and {}, and {namespace} of its hosts", cluster_block::variables())
    }
}
