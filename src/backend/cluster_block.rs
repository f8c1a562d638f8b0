//! Settings that every backend with a Kubernetes cluster has, what is checked of them, and the cluster that they name.

use std::path::PathBuf;

use crate::kubernetes::ClusterSettings;

use super::{
    plug::{Block, Kind, Problem, Setting, Variables, check_request_timeout},
    redfish::{Trust, certificate_trust, several_trusts},
};

pub(super) const KUBECONFIG: Setting = Setting {
    name: "kubeconfig",
    kind: Kind::Text,
    text: "A kubeconfig file; its users may be certificates, tokens, token files and exec plugins, which get no terminal. Default: `METAL_KUBECONFIG`, `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account.",
};

pub(super) const CONTEXT: Setting = Setting {
    name: "context",
    kind: Kind::Name,
    text: "Which of its contexts. Default: `METAL_KUBE_CONTEXT`, else the current one.",
};

pub(super) const HOST: Setting = Setting {
    name: "host",
    kind: Kind::Name,
    text: "The API server's address, for example `https://10.0.0.1:6443`, instead of a kubeconfig.",
};

pub(super) const TOKEN_FILE: Setting = Setting {
    name: "token_file",
    kind: Kind::Text,
    text: "With `host`: a file with a bearer token. It is read again when it changes.",
};

pub(super) const CA_CERTIFICATE_FILE: Setting = Setting {
    name: "ca_certificate_file",
    kind: Kind::Text,
    text: "With `host`: the authority that signed the API server's certificate, as PEM.",
};

pub(super) const REQUEST_TIMEOUT: Setting = Setting {
    name: "request_timeout",
    kind: Kind::Duration,
    text: "Time limit of one request to the API server. Default: `\"10s\"`; at most `\"15s\"`.",
};

pub(super) const BMC_INSECURE: Setting =
    Setting { name: "bmc_insecure", kind: Kind::Flag, text: "Trust any certificate of any BMC. Default: `false`." };

/// The setting with the authority of BMCs, whose text is the backend's own.
pub(super) const BMC_AUTHORITY: &str = "bmc_ca_certificate_file";

/// What is wrong with these settings as they are written.
pub(super) fn check(block: &Block) -> Vec<Problem> {
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
    let authority = block.text(BMC_AUTHORITY);
    let trusts = several_trusts(block.flag("bmc_insecure"), None, authority.as_deref(), &[BMC_AUTHORITY]);
    problems.extend(trusts.err());
    problems
}

/// The cluster that they name.
pub(super) fn cluster(block: &Block, env: Variables<'_>) -> ClusterSettings {
    let path = |text: Option<String>| text.map(PathBuf::from);
    ClusterSettings {
        kubeconfig: path(block.text("kubeconfig").or_else(|| env("METAL_KUBECONFIG"))),
        context: block.text("context").or_else(|| env("METAL_KUBE_CONTEXT")),
        host: block.text("host"),
        token_file: path(block.text("token_file")),
        ca_certificate_file: path(block.text("ca_certificate_file")),
        request_timeout: block.duration("request_timeout"),
    }
}

/// The namespace that the backend works in.
pub(super) fn namespace(block: &Block, env: Variables<'_>) -> String {
    block.text("namespace").or_else(|| env("METAL_KUBE_NAMESPACE")).unwrap_or_else(|| "default".to_owned())
}

/// How the certificates of BMCs are judged.
pub(super) fn bmc_trust(block: &Block) -> Result<Trust, Problem> {
    let authority = block.text(BMC_AUTHORITY);
    certificate_trust(block.flag("bmc_insecure"), None, authority.as_deref(), &[BMC_AUTHORITY])
}
