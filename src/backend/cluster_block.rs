//! Settings, validation and connection shared by every backend that uses a Kubernetes cluster.

use std::path::PathBuf;

use crate::{
    kubernetes::ClusterSettings,
    outbound::{Network, Route, Within},
};

use super::{
    plug::{AttributeKind, Block, ExternalBootMethod, Problem, Setting, Variables, check_request_timeout, path_trust},
    redfish::{Trust, certificate_trust, several_trusts},
};

/// The boot method in which a cluster operator boots the server.
pub(super) const BOOT_OPERATOR: ExternalBootMethod = ExternalBootMethod {
    name: "boot_operator",
    text: "`boot_operator` if a cluster's operator boots the server (`metal_operator` up to v0.7, `metal3` with `hold = \"image\"`)",
    image: "For `boot_operator`: the image's name in its registry.",
    takes_ignition: true,
};

pub(super) const KUBECONFIG: Setting = Setting::new(
    "kubeconfig",
    AttributeKind::Text,
    "A kubeconfig file. Its users can be certificates, tokens, token files and exec plugins, which run without a terminal.",
)
.or_env("METAL_KUBECONFIG", ", `KUBECONFIG`, `~/.kube/config`, and inside a pod its service account");

pub(super) const CONTEXT: Setting = Setting::new("context", AttributeKind::Name, "The kubeconfig's context.")
    .or_env("METAL_KUBE_CONTEXT", ", else the current context");

pub(super) const HOST: Setting = Setting::new(
    "host",
    AttributeKind::Name,
    "The API server's address, for example `https://10.0.0.1:6443`, instead of a kubeconfig.",
);

pub(super) const TOKEN_FILE: Setting = Setting::new(
    "token_file",
    AttributeKind::Text,
    "With `host`: a file with a bearer token. The provider reads it again when it changes.",
);

pub(super) const CA_CERTIFICATE_FILE: Setting = Setting::new(
    "ca_certificate_file",
    AttributeKind::Text,
    "With `host`: the authority that signed the API server's certificate, as PEM.",
);

pub(super) const REQUEST_TIMEOUT: Setting = Setting::new(
    "request_timeout",
    AttributeKind::Duration,
    "Time limit for a request to the API server. Default: `\"10s\"`; at most `\"15s\"`.",
);

pub(super) const BMC_NETWORKS: Setting = Setting::new(
    "bmc_networks",
    AttributeKind::List,
    "The networks of the BMCs, for example `[\"10.0.0.0/24\"]`. The cluster's BMC credentials go only to addresses within them, because everyone who can write the cluster's objects chooses those addresses.",
)
.or_env("METAL_BMC_NETWORKS", ", separated by commas, else no network");

pub(super) const BMC_INSECURE: Setting = Setting::new(
    "bmc_insecure",
    AttributeKind::Flag,
    "Within `bmc_networks`, trust any certificate of any BMC and allow `http`.",
)
.or_env("METAL_BMC_INSECURE", " (`true`), else `false`");

/// Returns the setting for the BMCs' certificate authority. `text` is its description.
pub(super) const fn authority_setting(text: &'static str) -> Setting {
    Setting::new("bmc_ca_certificate_file", AttributeKind::Text, text).or_env("METAL_BMC_CA_CERTIFICATE_FILE", "")
}

/// Returns the setting for the backend's namespace. `text` describes the namespace's content.
pub(super) const fn namespace_setting(text: &'static str) -> Setting {
    Setting::new("namespace", AttributeKind::Name, text).or_env("METAL_KUBE_NAMESPACE", ", else `default`")
}

const BMC_AUTHORITY: &str = authority_setting("").name;

/// Validates these settings without the environment or files.
pub(super) fn check(block: &Block) -> Vec<Problem> {
    let mut problems: Vec<Problem> = check_request_timeout(block).into_iter().collect();
    // An unknown value can still turn out to be null.
    if block.is_known(HOST.name) && (block.is_known(KUBECONFIG.name) || block.is_known(CONTEXT.name)) {
        let problem = "host replaces a kubeconfig: set either host, or kubeconfig and context";
        problems.push(Problem::of(&[HOST.name], problem));
    }
    if !block.has(HOST.name) {
        for name in [TOKEN_FILE.name, CA_CERTIFICATE_FILE.name].into_iter().filter(|name| block.is_known(name)) {
            problems.push(Problem::of(&[name], "it requires host; a kubeconfig contains its own"));
        }
    }
    for network in block.list(BMC_NETWORKS.name).into_iter().flatten() {
        problems.extend(network.parse::<Network>().err().map(|problem| Problem::of(&[BMC_NETWORKS.name], problem)));
    }
    let authority = block.text(BMC_AUTHORITY);
    let trusts = several_trusts(block.flag(BMC_INSECURE.name), None, authority.as_deref(), &[BMC_AUTHORITY]);
    problems.extend(trusts.err());
    problems
}

/// Returns the cluster that the settings select.
pub(super) fn cluster(block: &Block, env: Variables<'_>) -> ClusterSettings {
    let path = |text: Option<String>| text.map(PathBuf::from);
    ClusterSettings {
        kubeconfig: path(KUBECONFIG.value(block, env)),
        context: CONTEXT.value(block, env),
        host: block.text(HOST.name),
        token_file: path(block.text(TOKEN_FILE.name)),
        ca_certificate_file: path(block.text(CA_CERTIFICATE_FILE.name)),
        request_timeout: block.duration(REQUEST_TIMEOUT.name),
        trust: path_trust(env),
    }
}

/// Returns the environment variables that select the cluster, for messages.
pub(super) fn variables() -> String {
    format!("{} or {}", KUBECONFIG.variable(), CONTEXT.variable())
}

pub(super) fn namespace(block: &Block, env: Variables<'_>) -> String {
    namespace_setting("").value(block, env).unwrap_or_else(|| "default".to_owned())
}

/// Returns the networks that can receive BMC credentials.
pub(super) fn bmc_networks(block: &Block, env: Variables<'_>) -> Result<Vec<Network>, Problem> {
    let listed = BMC_NETWORKS.list(block, env);
    let parsed = listed.iter().map(|network| network.parse()).collect::<Result<_, _>>();
    parsed.map_err(|problem: String| Problem::of(&[BMC_NETWORKS.name], problem))
}

/// Returns the route of BMC credentials from a cluster. `networks` and `insecure` are the settings
/// with their block, for messages.
pub(super) fn bmc_route(allowed: &[Network], trust: &Trust, networks: &'static str, insecure: &'static str) -> Route {
    let within = Within { networks: allowed.into(), setting: networks };
    Route::new(*trust == Trust::Anything, insecure).within(within)
}

/// Returns how BMC certificates are verified. The environment counts only if the block sets
/// nothing.
pub(super) fn bmc_trust(block: &Block, env: Variables<'_>) -> Result<Trust, Problem> {
    let (mut insecure, mut authority) = (block.flag(BMC_INSECURE.name), block.text(BMC_AUTHORITY));
    if insecure.is_none() && authority.is_none() {
        insecure = BMC_INSECURE.from_env(env).map(|text| text == "true");
        authority = authority_setting("").from_env(env);
    }
    certificate_trust(insecure, None, authority.as_deref(), &[BMC_AUTHORITY], env)
}
