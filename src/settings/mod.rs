//! Builds an engine from a configuration: the composition root of provider and command line.
//!
//! There are three steps: the configured values ([`Input`]), their meaning with environment and
//! files, and the engine's parts.

mod default_store;
mod error;
mod gates;
mod identity;
mod input;
mod secrets;
mod store;
pub mod variables;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    backend::{
        gate_plug::GatePlugin as _,
        kubernetes_node,
        plug::{Connected, Problem},
    },
    clock::{Clock, SystemClock},
    engine::{Engine, Parts, Tuning},
    files::PathTrust,
    maintenance::power::Limits,
    probe::{HttpProbe, ProbeSettings},
    store::{MemoryStore, StoppableStore, Store},
};

pub use crate::backend::plug::Warning;
pub use default_store::{SECOND_STORE, second_store};
pub use error::SettingsError;
pub use gates::GateBlocks;
pub use identity::{CiJob, Environment, ci_job, runner};
pub use input::{BackendInput, Input};
pub use secrets::image_addresses;
pub use store::{MissingStore, missing_store, open_store};

/// The default owner of maintenances.
pub const DEFAULT_OWNER: &str = "default";

/// The default of `history_days`.
const HISTORY_DAYS: u32 = 365;

/// An engine with warnings for its user.
#[derive(Debug)]
pub struct Built {
    /// The engine.
    pub engine: Engine,
    /// Warnings for the user.
    pub warnings: Vec<Warning>,
}

/// Returns all problems that can be found without environment, files or network, for `validate`.
#[must_use]
pub fn check(input: &Input) -> Vec<SettingsError> {
    let url = input.coordination_url.as_deref().and_then(|url| store::check_url(url).err());
    let backend = &input.backend;
    let of_block = |problem| of_block(backend.plugin.name(), problem);
    let of_backend = backend.plugin.check(&backend.block).into_iter().map(of_block);
    url.into_iter().chain(of_backend).chain(gates::check(&input.gates)).collect()
}

/// Converts a block's problem.
fn of_block(block: &str, problem: Problem) -> SettingsError {
    let attribute = std::iter::once(block.to_owned()).chain(problem.at).collect();
    SettingsError::Value { attribute, problem: problem.problem }
}

fn image_probe(input: &Input, trust: PathTrust) -> Result<HttpProbe, SettingsError> {
    let attribute = || vec!["image_ca_certificate_file".to_owned()];
    let mut probe =
        ProbeSettings { allow_local_redirects: input.allow_local_image_redirects, ..ProbeSettings::default() };
    if let Some(path) = &input.image_ca_certificate_file {
        probe.ca_certificate_pem = Some(secrets::read_file(path, attribute(), trust)?);
    }
    HttpProbe::new(&probe).map_err(|problem| SettingsError::Value { attribute: attribute(), problem })
}

/// Builds the engine; `stop` ends its work. Opens the store; does not contact any BMC.
pub async fn build(input: Input, env: &Environment, stop: &CancellationToken) -> Result<Built, SettingsError> {
    env.check()?;
    let env = &env.clone().with_path_trust(input.trust_world_writable_paths);
    let trust = env.path_trust()?;
    env.check_authorities()?;
    if let Some(problem) = check(&input).into_iter().next() {
        return Err(problem);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let not_text = Mutex::default();
    let variable = |name: &str| env.lookup(name, &not_text);
    let all_text = || match not_text.lock().unwrap_or_else(PoisonError::into_inner).first() {
        Some(name) => Err(SettingsError::NotText { variable: name.clone() }),
        None => Ok(()),
    };
    let plugin = input.backend.plugin;
    let connected = plugin.connect(&input.backend.block, &variable, &clock);
    all_text()?;
    let Connected { backend, mut warnings } = connected.map_err(|problem| of_block(plugin.name(), problem))?;
    let probe = image_probe(&input, trust)?;
    let missing =
        if input.makes_no_store { store::missing_store(input.coordination_url.as_deref(), env)? } else { None };
    let (store, embedded) = match missing {
        Some(_) => (Arc::new(MemoryStore::new(Arc::clone(&clock))) as Arc<dyn Store>, true),
        None => store::open_store(input.coordination_url.as_deref(), env, Arc::clone(&clock)).await?,
    };
    if let Some(detail) = store::unverified(input.coordination_url.as_deref(), env)? {
        warnings.push(Warning { summary: "The coordination store is not verified", detail });
    }
    if embedded && ci_job(env).is_some() {
        warnings.push(Warning {
            summary: "The lock covers this machine only",
            detail: format!(
                "This looks like a CI runner, and the coordination store is a file on it ({}): a run on another \
                 machine does not see its locks and can change the same servers. Set coordination_url to a store \
                 that all runs share.",
                store.address()
            ),
        });
    }
    if let Some(detail) = store.reach_warning() {
        warnings.push(Warning { summary: "The lock covers this machine only", detail });
    }
    let runner = runner(env, input.run);
    let mut reasons = default_store::second_store(input.coordination_url.as_deref(), env);
    reasons.extend(default_store::of_this_run(store.as_ref(), backend.as_ref()));
    if !reasons.is_empty() {
        warnings.push(Warning { summary: SECOND_STORE, detail: default_store::detail(&store.address(), &reasons) });
    }
    if missing.is_none() {
        tracing::info!("the coordination store is {}", store.address());
    }
    let of_store = store::cluster(input.coordination_url.as_deref(), env)?;
    let block = |name: &str| input.gates.get(name);
    let (leases, drains) = (block(kubernetes_node::Leases.name()), block(kubernetes_node::Drains.name()));
    let nodes = gates::nodes(kubernetes_node::connect(leases, drains, of_store, &variable, &clock));
    let gates = gates::connect(&input.gates, &variable, &clock);
    all_text()?;
    let mut tuning = Tuning::default();
    tuning.aging = input.aging.unwrap_or(tuning.aging);
    tuning.history = match input.history_days.unwrap_or(HISTORY_DAYS) {
        0 => None,
        days => Some(Duration::from_hours(24 * u64::from(days))),
    };
    let limits = Limits::default();
    tuning.limits = Limits {
        graceful_shutdown: input.graceful_shutdown_timeout.unwrap_or(limits.graceful_shutdown),
        power_change: input.power_timeout.unwrap_or(limits.power_change),
        ..limits
    };
    let owner = input.owner.or_else(|| env.get(variables::OWNER).map(str::to_owned));
    if owner.is_none() && !embedded {
        warnings.push(Warning {
            summary: "No owner is set",
            detail: format!(
                "The coordination store {} is shared. Without owner (or METAL_OWNER) this configuration acts for \
                 {DEFAULT_OWNER:?}, as does every other configuration without one: each of them can continue, change \
                 and end the others' maintenance and claims. Set owner to your team's name.",
                store.address()
            ),
        });
    }
    let store = Arc::new(StoppableStore::new(store, stop.clone(), Arc::clone(&clock)));
    let engine = Engine::new(Parts {
        store,
        backend,
        probe: Arc::new(probe),
        clock,
        runner,
        owner: owner.unwrap_or_else(|| DEFAULT_OWNER.to_owned()),
        windows: input.windows,
        always_perform: input.always_perform_maintenance,
        nodes,
        gates,
        tuning,
    });
    Ok(Built { engine, warnings })
}
