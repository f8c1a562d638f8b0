//! The commands.

use std::{io::Write, time::Duration};

use jiff::SpanRelativeTo;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{BackendError, plug::plugin},
    engine::{Control, Engine, EngineError, ReconcileResult},
    maintenance::{
        decide::Finish,
        gate,
        ids::MaintenanceId,
        lock::Refusal,
        restore,
        spec::MaintenanceKind,
        state::{Maintenance, PriorState},
    },
    settings::{self, BackendInput, Environment, Input, SettingsError},
    shown::OneLine,
    store::StoreError,
};

use super::{
    Cli, Command, GlobalArgs, StoreCommand, approvals, audit, check, drive, prune,
    release::{self, ReleaseArgs},
    servers, shape, show, stores,
    table::{self, QueueFormat},
    watch::{self, WatchOutput},
    why,
};

/// A command's error.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("{0}")]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Engine(EngineError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{text:?} is not a valid maintenance: it {problem}")]
    Id { text: String, problem: String },
    #[error("{text:?} is not a valid duration; write for example 30m")]
    Duration { text: String },
    #[error(
        "{id} is in use by {by}. Nothing was done. To end it by force: terraform-provider-metal release {id} \
         --force --generation {generation} --reason TEXT"
    )]
    Attended { id: MaintenanceId, by: String, generation: u64 },
    #[error("releasing {id} failed: {cause}\nThe server stays held. Fix the cause and run the command again")]
    Stuck { id: MaintenanceId, cause: String },
    #[error("{id} has ended, but {server} was not restored: {cause}. {observed} Power and boot were not changed")]
    NotRestored { id: MaintenanceId, server: String, cause: String, observed: String },
    #[error(
        "{id} belongs to owner {existing:?}, and this command acts for {asked:?} (--owner or METAL_OWNER). Nothing \
         was done. In agreement with its owner, add --as-owner {existing:?} and --reason; the audit log records both"
    )]
    OtherOwner { id: MaintenanceId, existing: String, asked: String },
    #[error("{0}. Nothing was done. {1}")]
    Elsewhere(Box<Refusal>, String),
    #[error(
        "no coordination store exists yet at {0}: this user has not requested maintenance here. Runs on other \
         machines have their own stores, unless --coordination-url or METAL_COORDINATION_URL names a shared one"
    )]
    NoStore(String),
    #[error(
        "{store} does not contain a server {server:?} of owner {owner:?}: no maintenance was ever requested for it. \
         Check its name, --owner and --coordination-url"
    )]
    UnknownServer { store: String, server: String, owner: String },
    /// Some Nodes stay cordoned. The error contains everything that was done to Nodes.
    #[error("{text}")]
    NodesKept { text: String, answer: Map<String, Value> },
    #[error("{0}")]
    Other(String),
}

impl CommandError {
    /// Returns the error for `--json`, with the answer that the command still has.
    pub(super) fn json(&self) -> Value {
        let mut fields = match self {
            Self::NodesKept { answer, .. } => answer.clone(),
            _ => Map::new(),
        };
        fields.insert("error".to_owned(), json!(self.to_string()));
        Value::Object(fields)
    }
}

impl From<EngineError> for CommandError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refusal) => match &refusal {
                Refusal::Elsewhere { recorded, .. } => {
                    let advice = match plugin(recorded.backend.name()) {
                        Some(plugin) => format!("Run it with {}", plugin.reach()),
                        None => format!(
                            "Backend {} is not supported: run the version that requested the maintenance",
                            recorded.backend
                        ),
                    };
                    Self::Elsewhere(Box::new(refusal), advice)
                }
                Refusal::OtherOwner { id, existing, asked } => {
                    Self::OtherOwner { id: id.clone(), existing: existing.to_string(), asked: asked.clone() }
                }
                _ => Self::Engine(EngineError::Refused(refusal)),
            },
            EngineError::Machine(error @ BackendError::UnknownServer { advice, .. }) => {
                Self::Other(format!("{error}. Nothing was done. {advice}"))
            }
            error => Self::Engine(error),
        }
    }
}

/// A command's output.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) text: String,
    /// True if a check failed.
    pub(super) found_problems: bool,
}

impl From<String> for Printed {
    fn from(text: String) -> Self {
        Self { text, found_problems: false }
    }
}

pub(super) async fn run(cli: Cli, environment: &Environment, stop: CancellationToken) -> Result<Printed, CommandError> {
    if let Command::Check { servers } = cli.command {
        return check_servers(&cli.common, servers, environment, &stop).await;
    }
    if let Command::Store { command: StoreCommand::Roles { kind } } = cli.command {
        return Ok(stores::roles_of(kind, cli.common.coordination_url.as_deref(), environment, cli.common.json)?.into());
    }
    let touches = matches!(
        cli.command,
        Command::Drive { .. } | Command::Release(ReleaseArgs { accept_as_is: false, allow: false, .. })
    );
    // Both delete external requests, which servers of the default backend do not have.
    let deletes =
        matches!(cli.command, Command::Prune { .. } | Command::Release(ReleaseArgs { accept_as_is: true, .. }));
    let touches = touches || (deletes && cli.common.backend.plugin.name() != BackendInput::default().plugin.name());
    let drives = matches!(cli.command, Command::Release(ReleaseArgs { allow: false, .. }));
    if let Command::Show { id } = &cli.command {
        parse(id)?;
    }
    if cli.only_reads_store()
        && let Some(store) = settings::missing_store(cli.common.coordination_url.as_deref(), environment)?
    {
        let missing = CommandError::NoStore(store.address);
        return match cli.command {
            // A missing store has an empty queue; print the reason.
            Command::Queue { server: None, .. } if cli.common.json => {
                Ok(pretty(&json!({ "store": null, "queue": [] })).into())
            }
            Command::Queue { server: None, output: Some(QueueFormat::Name), .. } => Ok(String::new().into()),
            Command::Queue { server: None, .. } => Ok(format!("No queue: {missing}.\n").into()),
            _ => Err(missing),
        };
    }
    let mut common = cli.common.clone();
    if let Command::Release(ReleaseArgs { as_owner: Some(owner), .. }) = &cli.command {
        common.owner = Some(owner.clone());
    }
    let engine = engine(&common, environment, touches, &stop).await?;
    let result = Box::pin(dispatch(&engine, cli, environment, stop.clone())).await;
    // Orphaned requests block others, so commands that change servers also withdraw those.
    if drives && result.is_ok() {
        prune::requests(&engine, None, &stop).await;
    }
    engine.close().await;
    result.map(Printed::from)
}

/// Shows the queue until it is stopped.
pub(super) async fn watch(
    common: &GlobalArgs,
    server: Option<&str>,
    environment: &Environment,
    is_terminal: bool,
    stop: &CancellationToken,
    out: &mut (dyn Write + Send),
) -> Result<(), CommandError> {
    stores::refuse_missing(common, environment)?;
    let engine = engine(common, environment, false, stop).await?;
    let output = match (common.json, is_terminal) {
        (true, _) => WatchOutput::JsonLines,
        (false, true) => WatchOutput::Terminal,
        (false, false) => WatchOutput::Log,
    };
    let watched = watch::run(&engine, server, &common.repeated(), output, stop, out).await;
    engine.close().await;
    watched
}

/// Writes the audit log to `out`.
pub(super) async fn export_audit(
    common: &GlobalArgs,
    since: Option<&str>,
    follow: bool,
    environment: &Environment,
    stop: &CancellationToken,
    out: &mut (dyn Write + Send),
) -> Result<(), CommandError> {
    stores::refuse_missing(common, environment)?;
    let engine = engine(common, environment, false, stop).await?;
    let exported = audit::export(&engine, since, follow, stop, out).await;
    engine.close().await;
    exported
}

/// Checks servers with the whole configuration, without creating a store.
async fn check_servers(
    common: &GlobalArgs,
    servers: Vec<String>,
    environment: &Environment,
    stop: &CancellationToken,
) -> Result<Printed, CommandError> {
    let missing = settings::missing_store(common.coordination_url.as_deref(), environment)?;
    let apart = settings::second_store(common.coordination_url.as_deref(), environment);
    let input = Input { makes_no_store: true, ..common.input() };
    let engine = settings::build(input, environment, stop).await?.engine;
    let checked = tokio::select! {
        checked = check::run(&engine, servers, (missing, apart), common.backend.plugin, common.json) => checked,
        () = stop.cancelled() => Err(CommandError::Other("interrupted: nothing was changed".to_owned())),
    };
    engine.close().await;
    checked
}

/// Builds an engine. Commands that only read the store do not need a server in the configuration.
async fn engine(
    common: &GlobalArgs,
    environment: &Environment,
    touches: bool,
    stop: &CancellationToken,
) -> Result<Engine, CommandError> {
    let mut input = common.input();
    let mut environment = environment.clone();
    if !touches && approvals::in_store(input.backend.plugin) {
        // A backend without servers.
        input.backend = BackendInput::default();
        let settings = input.backend.plugin.settings();
        environment.forget(|name| settings.iter().any(|setting| setting.variable() == name));
    }
    Ok(settings::build(input, &environment, stop).await?.engine)
}

async fn dispatch(
    engine: &Engine,
    cli: Cli,
    environment: &Environment,
    stop: CancellationToken,
) -> Result<String, CommandError> {
    let json = cli.common.json;
    match cli.command {
        Command::Queue { server, output, .. } => {
            let mut lines = engine.queue().await?;
            lines.retain(|line| server.as_ref().is_none_or(|server| line.server == *server));
            let (now, store) = (engine.now(), engine.store().address());
            if let Some(server) = server.filter(|_| lines.is_empty()) {
                servers::refuse_unknown(engine, &server).await?;
            }
            Ok(match output {
                _ if json => pretty(&shape::queue(&lines, &store)),
                Some(QueueFormat::Name) => lines.iter().map(|line| format!("{}\n", line.id)).collect(),
                Some(QueueFormat::Wide) => table::wide_queue(&lines, &store, now, &cli.common.repeated()),
                _ => table::queue(&lines, &store, now, &cli.common.repeated()),
            })
        }
        // These commands use their own engine, or none.
        Command::Check { .. }
        | Command::Watch { .. }
        | Command::Audit { .. }
        | Command::Completion { .. }
        | Command::Version => Ok(String::new()),
        Command::History { id, server, limit } => {
            let id = id.as_deref().map(parse).transpose()?;
            show::history_of(engine, id.as_ref(), server.as_deref(), limit, json).await
        }
        Command::Drive { id, timeout, image_addresses } => {
            let told =
                image_addresses.as_deref().map(|path| settings::image_addresses(path, environment)).transpose()?;
            engine.remember_addresses(told.iter().flatten().map(String::as_str));
            drive::run(engine, &parse(&id)?, &control(&timeout, stop)?, json).await
        }
        Command::Claims { server } => approvals::owner(engine).claims(server.as_deref(), json).await,
        Command::Approve { id, not_before, expires } => {
            approvals::owner(engine).approve(&parse(&id)?, approvals::Limits { not_before, expires }, json).await
        }
        Command::Withdraw { id } => approvals::owner(engine).withdraw(&parse(&id)?, json).await,
        Command::Show { id } => show::run(engine, &parse(&id)?, &cli.common).await,
        Command::Why { server } => why::run(engine, &server, &cli.common).await,
        Command::Release(arguments) => release::run(engine, arguments, json, stop).await,
        Command::Prune { nodes: true, .. } => prune::nodes(engine, json, &stop).await,
        Command::Prune { server, .. } => prune::run(engine, server.as_deref(), json, &stop).await,
        Command::Store { command } => stores::run(engine, command, json).await,
        Command::Server { command } => servers::run(engine, command, json).await,
    }
}

pub(super) fn parse(text: &str) -> Result<MaintenanceId, CommandError> {
    text.parse().map_err(|problem: crate::maintenance::ids::IdError| CommandError::Id {
        text: text.to_owned(),
        problem: problem.to_string(),
    })
}

pub(super) fn duration(text: &str) -> Result<Duration, CommandError> {
    let wrong = || CommandError::Duration { text: text.to_owned() };
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(signed).map_err(|_| wrong())
}

pub(super) fn control(timeout: &str, stop: CancellationToken) -> Result<Control, CommandError> {
    let timeout = duration(timeout)?;
    Ok(Control { stop, timeout, release_timeout: timeout })
}

pub(super) async fn ended(engine: &Engine, driven: &ReconcileResult, json: bool) -> Result<String, CommandError> {
    let record = &driven.record;
    match &driven.finish {
        Finish::Over
            if record.prior.is_some()
                && record.spec.kind != MaintenanceKind::Operation
                && !restore::verifies(record)
                && !gate::never_ours(record) =>
        {
            let cause = gate::lost(record).map_or("an external system took the server over", OneLine::shown).to_owned();
            let observed = engine.observed(record).await.to_string();
            Err(CommandError::NotRestored {
                id: record.id.clone(),
                server: record.server().to_owned(),
                cause,
                observed,
            })
        }
        Finish::Over | Finish::Withdrawn | Finish::Reached => {
            let before = match &record.prior {
                Some(prior) => Some(power_now(engine, record, prior).await),
                None => None,
            };
            if json {
                return Ok(pretty(&json!({
                    "id": record.id, "server": record.server(), "finish": driven.finish.name(), "power": before,
                    "handed_to": record.handed_to,
                })));
            }
            let text = match (&driven.finish, before) {
                (Finish::Withdrawn, _) => {
                    format!("{} left the queue; it had not touched {}\n", record.id, record.server())
                }
                (_, Some(_)) if let Some(next) = &record.handed_to => format!(
                    "{} has ended; {next} took over {} unchanged, and its end restores the prior state\n",
                    record.id,
                    record.server()
                ),
                (_, Some(_)) if record.spec.kind != MaintenanceKind::Operation && gate::never_ours(record) => format!(
                    "{} has ended; {} had not been touched: its external system had not granted it\n",
                    record.id,
                    record.server()
                ),
                (_, Some(_)) if record.spec.kind == MaintenanceKind::Operation => {
                    format!("{} has ended; an operation does not restore {}\n", record.id, record.server())
                }
                (_, Some(power)) if record.prior.as_ref().is_some_and(|prior| prior.power.to_string() == power) => {
                    format!("{} has ended; {} is in its prior state ({power})\n", record.id, record.server())
                }
                (_, Some(power)) => {
                    format!(
                        "{} has ended; {} is restored except for its power, which stays {power}\n",
                        record.id,
                        record.server()
                    )
                }
                (_, None) => format!("{} has ended; {} had not been touched\n", record.id, record.server()),
            };
            let notes: String = record.tolerated.iter().map(|tolerated| format!("Note: {tolerated}\n")).collect();
            Ok(text + &notes)
        }
        Finish::Stuck(cause) | Finish::TimedOut(cause) | Finish::Refused(cause) | Finish::NotUpdated { cause, .. } => {
            Err(CommandError::Stuck { id: record.id.clone(), cause: cause.to_string() })
        }
        Finish::Interrupted => {
            let (id, state) = (&record.id, record.phase.name());
            Err(CommandError::Other(format!("interrupted: {id} is {state}; run the command again to resume")))
        }
        Finish::Lost => Err(CommandError::Other(format!("another process took over {}", record.id))),
    }
}

/// Returns the power after a maintenance: observed, otherwise as restored.
async fn power_now(engine: &Engine, record: &Maintenance, prior: &PriorState) -> String {
    let restored = record.phase.is_over() && restore::verifies(record);
    if !restored {
        return prior.power.to_string();
    }
    let seen = engine.observed(record).await.power.ok().filter(|power| power.restored().is_some());
    seen.map_or_else(|| restore::power_restored(record, prior), |power| power.to_string())
}

/// Formats a JSON answer.
pub(super) fn pretty(value: &Value) -> String {
    shape::document(value.clone())
}
