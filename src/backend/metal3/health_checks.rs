//! Cluster API MachineHealthChecks, which could replace the Machine of a host with an unreachable
//! Node.
//!
//! CAPM3 labels a host with its Machine's cluster name (`metal3machine_manager.go`), and a check
//! names its cluster. Selectors are not evaluated, because the Machine's labels are not available
//! here.

use std::collections::BTreeSet;

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};

use crate::{
    backend::{
        PlanWarning, UnaskedConsumer,
        cluster::{self, name, text},
    },
    kubernetes::ClusterError,
};

use super::{host::Host, hosts::Hosts};

/// The host label with the cluster's name.
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// The plan's text if listing the checks is not permitted.
const UNKNOWN: &str = "A MachineHealthCheck (this configuration may not list them)";

/// A namespace's checks, by cluster and name.
#[derive(Clone, Debug)]
pub(super) enum HealthChecks {
    /// The checks were read.
    Known(BTreeSet<(String, String)>),
    /// The role cannot list them, or the cluster did not answer.
    Unknown,
}

/// Reads a namespace's checks. Another component can serve the group without Cluster API, so an
/// unserved kind counts as empty.
pub(super) async fn read(hosts: &Hosts) -> HealthChecks {
    for version in ["v1beta2", "v1beta1"] {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", version, "MachineHealthCheck"));
        match cluster::list(&hosts.cluster, &kind, Some(&hosts.namespace)).await {
            Ok(all) => {
                let named = |object: &DynamicObject| {
                    (text(object, "/spec/clusterName").unwrap_or_default().to_owned(), name(object).to_owned())
                };
                return HealthChecks::Known(all.iter().map(named).collect());
            }
            Err(ClusterError::NotFound { .. }) => {}
            Err(problem) => {
                tracing::debug!("MachineHealthChecks are not known: {problem}");
                return HealthChecks::Unknown;
            }
        }
    }
    HealthChecks::Known(BTreeSet::new())
}

/// Returns the plan warnings about the Metal3Machine or HostClaim that uses a host.
pub(super) async fn unasked(hosts: &Hosts, object: &DynamicObject) -> Option<UnaskedConsumer> {
    match text(object, "/spec/consumerRef/kind") {
        Some("Metal3Machine") => {}
        Some("HostClaim") => return Some(claimed(&Host(object).consumer()?)),
        _ => return None,
    }
    let of = object.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER_NAME)).map(String::as_str);
    let remediator = remediator(hosts.health_checks().await, of, &hosts.namespace);
    let shown = Host(object).consumer()?;
    Some(UnaskedConsumer {
        undrained: warn(
            "A Node of Cluster API is not drained",
            format!(
                "{shown} uses the host. Metal3 does not drain its Node, and this configuration does not either: the Pods \
                 on the Node are stopped without eviction. Set cluster_api in the provider block, so that the maintenance \
                 controller drains the Node and approves first, or kubernetes_node, or drain the Node before apply."
            ),
        ),
        more: remediator.map(|remediator| {
            warn(
                "A health check may replace the Machine",
                format!(
                    "{remediator} may remediate the Machine of {shown} while its Node is not Ready. The Machine is then \
                     deleted, and the operator deprovisions the host: at once, or after the release where the host is detached. \
                     Set cluster_api in the provider block, so that health checks skip the Machine during the maintenance, or \
                     annotate the Machine with cluster.x-k8s.io/skip-remediation before apply."
                ),
            )
        }),
    })
}

/// Warns about a HostClaim, which leads to no Machine.
fn claimed(shown: &str) -> UnaskedConsumer {
    UnaskedConsumer {
        undrained: warn(
            "A Node of a HostClaim is not drained",
            format!(
                "{shown} uses the host. It does not lead to a Machine, so cluster_api neither drains the Node nor \
                 requests an approval. Set kubernetes_node in the provider block, or drain the Node before apply."
            ),
        ),
        more: None,
    }
}

fn warn(summary: &'static str, detail: String) -> PlanWarning {
    PlanWarning { summary, detail }
}

/// Names the checks that could replace a cluster's Machine. `of` is `None` if the host does not
/// name its cluster.
fn remediator(checks: &HealthChecks, of: Option<&str>, namespace: &str) -> Option<String> {
    let HealthChecks::Known(all) = checks else { return Some(UNKNOWN.to_owned()) };
    let mut theirs = all.iter().filter(|(cluster, _)| of.is_none_or(|of| of == cluster));
    let (_, first) = theirs.next()?;
    let more = theirs.count();
    let others = if more == 0 { String::new() } else { format!(" (and {more} more)") };
    Some(format!("MachineHealthCheck {namespace}/{first}{others}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_counts_for_the_machines_of_its_cluster() {
        let known = |all: &[(&str, &str)]| {
            HealthChecks::Known(all.iter().map(|(of, name)| ((*of).to_owned(), (*name).to_owned())).collect())
        };
        let told = |checks: &HealthChecks, of: Option<&str>| remediator(checks, of, "metal3");
        assert_eq!(told(&known(&[]), Some("a")), None);
        assert_eq!(told(&known(&[("b", "of-b")]), Some("a")), None);
        let both = known(&[("a", "nodes"), ("a", "workers"), ("b", "of-b")]);
        assert_eq!(told(&both, Some("b")).unwrap(), "MachineHealthCheck metal3/of-b");
        assert_eq!(told(&both, Some("a")).unwrap(), "MachineHealthCheck metal3/nodes (and 1 more)");
        // Each check is possible while the cluster is unknown.
        assert_eq!(told(&both, None).unwrap(), "MachineHealthCheck metal3/nodes (and 2 more)");
        assert!(told(&HealthChecks::Unknown, Some("a")).unwrap().contains("may not list"));
    }
}
