//! Warnings of a plan about a consumer of a server that is not asked.

use tf_provider::{AttributePath, Diagnostics};

use crate::{backend::UnaskedConsumer, plugin::diagnostic};

/// Says what the maintenance of a server does to its consumer. `drained`: `kubernetes_node` names
/// its Node.
pub(in crate::provider) fn warn(diags: &mut Diagnostics, server: &str, consumer: &UnaskedConsumer, drained: bool) {
    let UnaskedConsumer { shown, remediator } = consumer;
    let mut warn =
        |summary: &'static str, detail: String| diags.add_warning(diagnostic(summary, detail, AttributePath::root()));
    if !drained {
        warn(
            "A Node of Cluster API is not drained",
            format!(
                "{server}: {shown} uses the host. Metal3 does not drain its Node, and this configuration does not either: the Pods \
                 on the Node are stopped without eviction. Set cluster_api in the provider block, so that the maintenance \
                 controller drains the Node and approves first, or kubernetes_node, or drain the Node before apply."
            ),
        );
    }
    if let Some(remediator) = remediator {
        warn(
            "A health check may replace the Machine",
            format!(
                "{server}: {remediator} may remediate the Machine of {shown} while its Node is not Ready. The Machine is then \
                 deleted, and the operator deprovisions the host: at once, or after the release where the host is detached. \
                 Set cluster_api in the provider block, so that health checks skip the Machine during the maintenance, or \
                 annotate the Machine with cluster.x-k8s.io/skip-remediation before apply."
            ),
        );
    }
}
