//! The `metal_operator` part of the provider block.

use serde::{Deserialize, Serialize};
use tf_provider::{AttributePath, Diagnostics, schema::AttributeType, value::ValueBool};

use crate::settings::MetalOperatorInput;

use super::{
    config::flag,
    schema::{object, optional},
    values::{Text, duration, given, not_empty},
};

/// `metal_operator`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MetalOperatorModel {
    kubeconfig: Text,
    context: Text,
    host: Text,
    token_file: Text,
    ca_certificate_file: Text,
    node_kubeconfig: Text,
    node_context: Text,
    namespace: Text,
    request_timeout: Text,
    bmc_ca_certificate_file: Text,
    bmc_insecure: ValueBool,
}

/// Its attributes.
pub(super) fn metal_operator_attributes() -> AttributeType {
    use AttributeType::{Bool, String};
    object([
        (
            "kubeconfig",
            optional(
                String,
                "A kubeconfig file; its users may be certificates, tokens, token files and exec plugins. Default: `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
            ),
        ),
        ("context", optional(String, "Which of its contexts. Default: `METAL_KUBE_CONTEXT`, else the current one.")),
        (
            "host",
            optional(String, "The API server's address, for example `https://10.0.0.1:6443`, instead of a kubeconfig."),
        ),
        ("token_file", optional(String, "With `host`: a file with a bearer token. It is read again when it changes.")),
        (
            "ca_certificate_file",
            optional(String, "With `host`: the authority that signed the API server's certificate, as PEM."),
        ),
        (
            "node_kubeconfig",
            optional(
                String,
                "For `metal_maintenance_approval` with `node`: a kubeconfig file of the cluster whose Nodes run on the servers. Default: the servers' own cluster.",
            ),
        ),
        ("node_context", optional(String, "Which of its contexts. Default: the current one.")),
        (
            "namespace",
            optional(
                String,
                "The namespace in which our ServerMaintenances and Secrets are made. Default: `METAL_KUBE_NAMESPACE`, else `default`.",
            ),
        ),
        (
            "request_timeout",
            optional(String, "Time limit of one request to the API server. Default: `\"10s\"`; at most `\"15s\"`."),
        ),
        (
            "bmc_ca_certificate_file",
            optional(
                String,
                "The authority that signed the BMCs' certificates, as PEM. BMCs are asked directly where the cluster does not drive a server in maintenance.",
            ),
        ),
        ("bmc_insecure", optional(Bool, "Trust any certificate of any BMC. Default: `false`.")),
    ])
}

impl MetalOperatorModel {
    pub(super) fn has_unknown(&self) -> bool {
        let texts = [
            &self.kubeconfig,
            &self.context,
            &self.host,
            &self.token_file,
            &self.ca_certificate_file,
            &self.node_kubeconfig,
            &self.node_context,
            &self.namespace,
            &self.request_timeout,
            &self.bmc_ca_certificate_file,
        ];
        self.bmc_insecure.is_unknown() || texts.iter().any(|text| text.is_unknown())
    }

    pub(super) fn check(&self, diags: &mut Diagnostics) -> MetalOperatorInput {
        let at = AttributePath::new("metal_operator");
        let text = |value: &Text| given(value).map(str::to_owned);
        for (name, value) in [("context", &self.context), ("host", &self.host), ("namespace", &self.namespace)] {
            not_empty(diags, value, at.clone().attribute(name));
        }
        MetalOperatorInput {
            kubeconfig: text(&self.kubeconfig),
            context: text(&self.context),
            host: text(&self.host),
            token_file: text(&self.token_file),
            ca_certificate_file: text(&self.ca_certificate_file),
            node_kubeconfig: text(&self.node_kubeconfig),
            node_context: text(&self.node_context),
            namespace: text(&self.namespace),
            request_timeout: duration(diags, &self.request_timeout, at.attribute("request_timeout")),
            bmc_ca_certificate_file: text(&self.bmc_ca_certificate_file),
            bmc_insecure: flag(self.bmc_insecure),
        }
    }
}
