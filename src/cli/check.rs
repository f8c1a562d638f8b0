//! `check`: tests servers and the store before the first maintenance.

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    backend::plug::BackendPlugin,
    engine::{Engine, EngineError, ServerCheck},
    maintenance::{ability::Ability, machine::MediaSlot, queue::shown_time, report::QueueRow},
    settings::{MissingStore, SECOND_STORE},
};

use super::{
    commands::{CommandError, Printed, pretty},
    table,
};

/// The most servers checked concurrently.
const AT_ONCE: usize = 10;

/// The store's check result.
struct StoreCheck {
    address: String,
    exists: bool,
    reach: Option<String>,
    problem: Option<String>,
}

/// Checks the store and the named servers, or all servers.
///
/// `missing`: an embedded store that does not exist yet. `apart`: reasons why runs on the same
/// servers could use another store.
pub(super) async fn run(
    engine: &Engine,
    servers: Vec<String>,
    (missing, apart): (Option<MissingStore>, Vec<String>),
    plugin: &dyn BackendPlugin,
    json: bool,
) -> Result<Printed, CommandError> {
    let servers = if servers.is_empty() {
        engine.backend().inventory().await.map_err(EngineError::from)?.into_keys().collect()
    } else {
        servers
    };
    if servers.is_empty() {
        return Err(CommandError::Other(format!("no server is configured. Run it with {}", plugin.reach())));
    }
    // Detect unconfigured names before contacting any BMC.
    for server in &servers {
        engine.machine(server)?;
    }
    let mut store = check_store(engine, missing).await;
    store.reach = store
        .reach
        .into_iter()
        .chain((!apart.is_empty()).then(|| format!("{SECOND_STORE}: {}", apart.join(" "))))
        .reduce(|one, other| format!("{one}\n       {other}"));
    let checks: Vec<_> =
        stream::iter(servers).map(async |server| engine.check(&server).await).buffered(AT_ONCE).collect().await;
    let checks = checks.into_iter().map(|check| Ok(check?.among(engine)));
    let checks = checks.collect::<Result<Vec<_>, EngineError>>()?;
    let usable = checks.iter().all(ServerCheck::is_usable) && store.problem.is_none();
    let text = if json { pretty(&as_json(engine, &store, &checks, usable)) } else { as_text(engine, &store, &checks) };
    Ok(Printed { text, found_problems: !usable })
}

async fn check_store(engine: &Engine, missing: Option<MissingStore>) -> StoreCheck {
    if let Some(MissingStore { address, problem }) = missing {
        return StoreCheck { address, exists: false, reach: None, problem };
    }
    let reach = engine.store().reach_warning();
    let address = engine.store().address();
    let problem = engine.store().view_all().await.err().map(|error| error.to_string());
    StoreCheck { address, exists: true, reach, problem }
}

fn as_text(engine: &Engine, store: &StoreCheck, checks: &[ServerCheck]) -> String {
    let said = match (&store.problem, store.exists) {
        (Some(_), _) => store.address.clone(),
        (None, false) => format!("{}, does not exist yet: the first apply creates it", store.address),
        (None, true) => format!("{}, reached", store.address),
    };
    let problem = store.problem.as_ref().map(|problem| ("", format!("  NOT usable   {problem}")));
    let owner = ("owner", engine.owner().to_owned());
    let rows: Vec<_> = std::iter::once(("store", said)).chain(problem).chain(std::iter::once(owner)).collect();
    let mut text = table::pairs(&rows);
    if let Some(reach) = &store.reach {
        text.push_str(&format!("       {reach}\n"));
    }
    for check in checks {
        text.push('\n');
        text.push_str(&server_text(check));
    }
    text
}

fn server_text(check: &ServerCheck) -> String {
    let verdict = if check.is_usable() { "usable" } else { "NOT usable" };
    let mut rows: Vec<(&str, String)> = vec![("address", check.address.clone())];
    if let Some(certificate) = &check.certificate {
        rows.push(("certificate", format!("certificate_sha256 = \"{}\"", certificate.sha256)));
        let whose = certificate.subject.as_deref().unwrap_or("no subject");
        let issuer = certificate.issuer.as_deref().unwrap_or("not readable");
        let until = certificate.expires.map(|at| format!(", valid until {}", shown_time(at))).unwrap_or_default();
        rows.push(("", format!("{whose}, issued by {issuer}{until}; judged by {}", certificate.judged_by)));
    }
    if let Some(account) = &check.account {
        let role = account.role.as_ref().map(|role| format!(", role {role}")).unwrap_or_default();
        rows.push(("login", format!("accepted: {}{role}", account.username)));
        let rights = account
            .privileges
            .as_ref()
            .map_or_else(|| "not shown to this account".to_owned(), |names| names.join(", "));
        rows.push(("rights", rights));
    }
    if let Some(Ok((key, rests_on))) = &check.identity {
        rows.push(("lock key", format!("{key}, derived from {}", rests_on.join(", "))));
    }
    if let Ok(view) = &check.view {
        let health = view.health.as_ref().map(|health| format!(", health {health}")).unwrap_or_default();
        rows.push(("power", format!("{}{health}", view.power)));
    }
    if let Some(capabilities) = &check.capabilities {
        rows.push(("resets", listed(capabilities.resets.iter().map(ToString::to_string))));
        let boot = check.view.as_ref().ok().and_then(|view| view.boot.as_ref());
        let now = boot.map(|boot| format!("; override now: {boot}")).unwrap_or_default();
        rows.push((
            "boot sources",
            format!("{}{now}", listed(capabilities.boot_targets.iter().map(ToString::to_string))),
        ));
        rows.push(("drives", listed(check.drives.iter().map(drive))));
    }
    if let Some(timing) = &check.timing {
        rows.push((
            "time-outs",
            format!(
                "slowest read {:.2}s of {}s; limit for a change {}s",
                timing.slowest_read.as_secs_f64(),
                timing.read_timeout.as_secs(),
                timing.request_timeout.as_secs()
            ),
        ));
    }
    if let Some(queue) = &check.queue {
        rows.push(("queue", queue_text(queue)));
    }
    for (n, ability) in check.abilities.iter().enumerate() {
        rows.push((if n == 0 { "can take" } else { "" }, ability_text(ability)));
    }
    if !check.flaws.is_empty() {
        rows.push(("invalid JSON", format!("{}; the valid part is used", check.flaws.join("; "))));
    }
    for (problem, advice) in check.problems() {
        rows.push(("problem", format!("{problem}. {advice}")));
    }
    let rows = table::pairs(&rows);
    let indented: String = rows.lines().map(|line| format!("  {}\n", line.trim_end())).collect();
    format!("{}: {verdict}\n{indented}", check.server)
}

fn listed(values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    if values.is_empty() { "none".to_owned() } else { values.join(", ") }
}

fn drive(slot: &MediaSlot) -> String {
    let name = slot.slot.shown().rsplit('/').next().unwrap_or(slot.slot.shown());
    let kinds = if slot.media_types.is_empty() { String::new() } else { format!("{}, ", slot.media_types.join("/")) };
    format!("{name} ({kinds}{})", if slot.content().is_some() { "filled" } else { "empty" })
}

fn queue_text(queue: &[QueueRow]) -> String {
    match queue.first() {
        None => "free".to_owned(),
        Some(first) if first.position == 0 => {
            format!("{} ({}) by {}, {} waiting", first.id, first.state, first.by, queue.len() - 1)
        }
        Some(_) => format!("{} waiting", queue.len()),
    }
}

fn ability_text(ability: &Ability) -> String {
    match ability.lacks.as_slice() {
        [] => format!("{}: yes, needs {}", ability.kind, ability.needs),
        lacks => format!("{}: NO. {}", ability.kind, lacks.join(" ")),
    }
}

fn as_json(engine: &Engine, store: &StoreCheck, checks: &[ServerCheck], usable: bool) -> Value {
    let servers: Vec<Value> = checks.iter().map(|check| server_json(engine, check)).collect();
    json!({
        "usable": usable,
        "owner": engine.owner(),
        "store": {
            "address": store.address, "exists": store.exists, "problem": store.problem, "warning": store.reach,
        },
        "servers": servers,
    })
}

fn server_json(engine: &Engine, check: &ServerCheck) -> Value {
    let listed = engine.backend().listed(&check.server);
    let view = check.view.as_ref().ok();
    let identity = check.identity.as_ref().and_then(|identity| identity.as_ref().ok());
    let problems: Vec<Value> =
        check.problems().iter().map(|(problem, advice)| json!({ "problem": problem, "advice": advice })).collect();
    let abilities: Vec<Value> = check
        .abilities
        .iter()
        .map(|one| json!({ "kind": one.kind, "attributes": one.attributes, "needs": one.needs, "lacks": one.lacks }))
        .collect();
    let drives: Vec<Value> = check
        .drives
        .iter()
        .map(|slot| json!({ "drive": slot.slot, "media_types": slot.media_types, "inserted": slot.inserted }))
        .collect();
    json!({
        "server": check.server, "address": check.address, "endpoint": listed.endpoint, "system_id": listed.system_id,
        "labels": listed.labels, "usable": check.is_usable(), "problems": problems,
        "certificate": check.certificate.as_ref().map(|certificate| json!({
            "sha256": certificate.sha256, "subject": certificate.subject, "issuer": certificate.issuer,
            "expires": certificate.expires.map(|at| at.to_string()), "judged_by": certificate.judged_by,
        })),
        "account": check.account.as_ref().map(|account| json!({
            "username": account.username, "role": account.role, "privileges": account.privileges,
            "must_change_password": account.must_change_password,
        })),
        "lock_key": identity.map(|(key, _)| key), "identifiers": identity.map(|(_, rests_on)| rests_on),
        "power_state": view.map(|view| view.power.to_string()),
        "health": view.and_then(|view| view.health.clone()),
        "resets": check.capabilities.as_ref().map(|has| has.resets.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "boot_sources": check.capabilities.as_ref().map(|has| has.boot_targets.clone()),
        "drives": drives, "invalid_json": check.flaws,
        "timing": check.timing.as_ref().map(|timing| json!({
            "slowest_read_seconds": timing.slowest_read.as_secs_f64(),
            "read_timeout_seconds": timing.read_timeout.as_secs(),
            "request_timeout_seconds": timing.request_timeout.as_secs(),
        })),
        "holder": check.queue.as_ref().and_then(|queue| queue.first()).filter(|line| line.position == 0)
            .map(|line| line.id.to_string()),
        "waiting": check.queue.as_ref().map(|queue| queue.iter().filter(|line| line.position > 0).count()),
        "abilities": abilities,
    })
}
