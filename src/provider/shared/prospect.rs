//! What is ahead of a maintenance that is about to be asked for: as sentences for a plan, as data
//! for a script. Only reads.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    engine::{EarlierInvocation, Engine},
    maintenance::{
        approval::{ApprovalState, Scope},
        hand_over::HandOver,
        ids::{LockKey, MaintenanceId},
        machine::PowerState,
        power,
        queue::{self, QueueEntry},
        spec::{MaintenanceKind, Policy, Spec},
        window::Start,
    },
    store::LockView,
};

use crate::provider::{shared::standing::NameStatus as NameStanding, shared::values::shown_duration};

/// Summary of a warning: the owner has not approved.
pub(in crate::provider) const APPROVAL_MISSING: &str = "An approval is missing";
/// Summary of a warning: a holder or waiters come first.
pub(in crate::provider) const AHEAD: &str = "Other maintenance is ahead";
/// Summary of a warning: the own maintenance holds the server, and is not named.
const OWN_HOLD: &str = "A maintenance of the same owner holds the server";
/// Summary of a warning: the lock also has another name.
const SHARED_LOCK: &str = "Servers share one lock";
/// Summary of a warning: it may not start now.
const WINDOW_CLOSED: &str = "A window is closed";

/// What is about to be requested.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct PlannedRequest<'a> {
    pub(in crate::provider) spec: &'a Spec,
    /// Its name.
    pub(in crate::provider) id: Option<&'a MaintenanceId>,
    /// The maintenance that is released first, because this one replaces it.
    pub(in crate::provider) replaces: Option<&'a MaintenanceId>,
    /// Whether it takes over a record of another state.
    pub(in crate::provider) adopt: bool,
    /// How long it may wait; `None`: as long as it takes.
    pub(in crate::provider) patience: Option<Duration>,
    /// The invocation before that of an action, under the same name.
    pub(in crate::provider) earlier: Option<&'a EarlierInvocation>,
}

impl<'a> PlannedRequest<'a> {
    /// A request of this name, or of a name that is not known yet.
    pub(in crate::provider) fn new(spec: &'a Spec, id: Option<&'a MaintenanceId>, patience: Option<Duration>) -> Self {
        Self { spec, id, replaces: None, adopt: false, patience, earlier: None }
    }
}

/// What stands between a wish and its start.
#[derive(Clone, Debug, Default)]
pub(in crate::provider) struct Prospect {
    pub(in crate::provider) server: String,
    /// What happens to the server, in words; empty when it is only taken.
    pub(in crate::provider) effect: String,
    stated_effect: String,
    /// Its power now; `None`: its BMC does not answer.
    pub(in crate::provider) power: Option<PowerState>,
    /// How the power of a `Paused` server changes.
    pause_note: Option<&'static str>,
    /// Whether the store answered.
    pub(in crate::provider) store_answered: bool,
    /// The holder, if any, and the waiters before it.
    pub(in crate::provider) ahead: Vec<QueueEntry>,
    /// Explains other names with the same lock.
    shared: Option<String>,
    /// The text about a hand-over without a restore.
    hand_over: Option<String>,
    /// The maintenance of the same owner that holds the server, where the request refuses to wait
    /// for it.
    own_hold: Option<MaintenanceId>,
    /// Whose server it is, and where they are reached.
    pub(in crate::provider) owner: Option<(String, Option<String>)>,
    /// Whether the owner's approval is missing.
    pub(in crate::provider) approval_missing: bool,
    /// The digest that an approval would be bound to.
    pub(in crate::provider) digest: String,
    /// The state of the name, and of a block.
    name: NameStanding,
    /// What there is to say about the owner.
    owner_line: Option<String>,
    /// When the window opens, and when it closes then; `None`: there is no window, or it never
    /// opens.
    pub(in crate::provider) window: Option<(Timestamp, Timestamp)>,
    window_line: Option<String>,
    /// Whether its window is not open now.
    pub(in crate::provider) window_closed: bool,
    /// The earliest start, as far as it can be told: nobody knows when a hold without
    /// `expires_after` ends.
    pub(in crate::provider) earliest: Option<Timestamp>,
    /// Why it cannot start within its time limit.
    pub(in crate::provider) too_late: Option<String>,
}

impl Prospect {
    /// Looks at the store and the clock. `key` is where the server is locked, as far as that is
    /// known.
    pub(in crate::provider) async fn look(
        engine: &Engine,
        asked: &PlannedRequest<'_>,
        key: Option<&LockKey>,
        power: Option<PowerState>,
    ) -> Self {
        let PlannedRequest { spec, id, patience, .. } = *asked;
        let mut prospect = Self {
            server: spec.server.clone(),
            effect: spec.effect(),
            stated_effect: spec.stated_effect(power),
            power,
            pause_note: power.and_then(|power| power::pause_note(spec, power)),
            digest: engine.as_asked_here(spec).digest(),
            ..Self::default()
        };
        let view = match key {
            Some(key) => engine.planned_view(key).await.ok(),
            None => None,
        };
        if let Some(view) = &view {
            prospect.store_answered = true;
            prospect.shared = engine.shared_lock(&spec.server, &view.lock);
            prospect.ask_owner(engine, spec, id, view);
            prospect.hand_over = hand_over(engine, asked, view).await;
            prospect.own_hold = own_hold(engine, spec, view);
            prospect.ahead = ahead(engine, asked, view);
            prospect.ahead.retain(|entry| Some(&entry.id) != prospect.own_hold.as_ref());
            prospect.name = NameStanding::of(engine, asked, view);
        }
        // Another maintenance can change the power first.
        if asked.replaces.is_some() || prospect.own_hold.is_some() || !prospect.ahead.is_empty() {
            prospect.stated_effect = spec.stated_effect(None);
        }
        prospect.look_at_window(engine, spec, patience);
        prospect.guess_start(engine.now());
        prospect
    }

    /// In sentences, for a reviewer.
    pub(in crate::provider) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.push(format!("{} {}", self.server, self.stated_effect));
        let power = self.power.map_or("unknown".to_owned(), |power| power.to_string());
        let note = self.pause_note.map(|note| format!(" {note}")).unwrap_or_default();
        lines.push(format!("Now: {power}.{note}"));
        lines.extend(self.owner_line.iter().map(|line| format!("Owner: {line}")));
        let names: Vec<String> = self.ahead.iter().map(ToString::to_string).collect();
        if let Some(hold) = &self.own_hold {
            lines.push(format!("Queue: {hold} of the same owner holds it."));
        }
        lines.push(match (self.store_answered, names.len()) {
            (false, _) => {
                format!("Queue: unknown; no response from the coordination store or the backend of {}.", self.server)
            }
            (true, 0) if self.name.holds() => "Queue: it holds the server already.".to_owned(),
            (true, 0) if self.own_hold.is_some() => "Set maintenance_id to act under that maintenance.".to_owned(),
            (true, 0) => "Queue: free.".to_owned(),
            (true, n) => format!("Queue: {n} ahead: {}.", names.join(", ")),
        });
        lines.extend(self.hand_over.clone());
        lines.extend(self.name.lines());
        lines.extend(self.window_line.iter().map(|line| format!("Window: {line}")));
        lines
    }

    /// What stands between the request and its start, each with a summary of its own: hosts fold
    /// warnings of one summary into one, and a missing approval must not disappear behind a power
    /// change of another server.
    pub(in crate::provider) fn obstacles(&self) -> Vec<(&'static str, String)> {
        let server = &self.server;
        let mut found = Vec::new();
        if self.approval_missing {
            let line = self.owner_line.as_deref().unwrap_or_default();
            found.push((APPROVAL_MISSING, format!("{server}: {line}")));
        }
        if let Some(hold) = &self.own_hold {
            let why = format!(
                "{server}: {hold} of the same owner holds it, and a request without maintenance_id is refused meanwhile. Set \
                 maintenance_id = \"{hold}\", unless this plan destroys that maintenance."
            );
            found.push((OWN_HOLD, why));
        }
        if !self.ahead.is_empty() {
            let names: Vec<String> = self.ahead.iter().map(ToString::to_string).collect();
            found.push((AHEAD, format!("{server}: {} ahead: {}.", names.len(), names.join(", "))));
        }
        found.extend(self.shared.iter().map(|why| (SHARED_LOCK, format!("{server}: {why}."))));
        if let Some(line) = self.window_line.as_deref().filter(|_| self.window_closed) {
            found.push((WINDOW_CLOSED, format!("{server}: {line}")));
        }
        let refusals = self.name.refusals().into_iter();
        found.extend(refusals.map(|(summary, why)| (summary, format!("{server}: {why}"))));
        found
    }

    fn ask_owner(&mut self, engine: &Engine, spec: &Spec, id: Option<&MaintenanceId>, view: &LockView) {
        // An external system's claim is told by the outlook.
        let Some(ownership) = engine.kept_ownership(view) else { return };
        let claim = ownership.claim.as_ref();
        self.owner = claim.map(|claim| (claim.owner.clone(), claim.contact.clone()));
        if spec.policy == Policy::Enforced {
            self.owner_line = claim.map(|claim| format!("{claim} is notified; approval not required (Enforced)."));
            return;
        }
        if engine.always_performs() {
            let whom = claim.map_or_else(|| "unclaimed".to_owned(), ToString::to_string);
            let line = format!("{whom}; approval not required (the provider's always_perform_maintenance).");
            self.owner_line = Some(line);
            return;
        }
        let Some(claim) = claim else {
            self.approval_missing = spec.require_claim;
            let line = if spec.require_claim {
                "it is not claimed; require_claim waits for a claim and an approval."
            } else {
                "Unclaimed: no approval is needed."
            };
            self.owner_line = Some(line.to_owned());
            return;
        };
        let approved = ownership.approvals.iter().any(|approval| {
            let about = match &approval.scope {
                Scope::All => true,
                Scope::Maintenance { id: about, digest } => Some(about) == id && *digest == self.digest,
            };
            about && approval.used_by.is_none() && approval.in_time(view.now) == ApprovalState::InForce
        });
        self.approval_missing = !approved;
        let name = id.map_or_else(|| "NAMESPACE/NAME".to_owned(), ToString::to_string);
        let mut line = if approved {
            format!("{claim} has approved it.")
        } else {
            format!("{claim}, no approval yet for {name} (digest {}).", self.digest)
        };
        if !approved && let Some(after) = spec.escalate_after {
            let after = shown_duration(after);
            line.push_str(&format!(" Starts without approval {after} after the request."));
        }
        self.owner_line = Some(line);
    }

    fn look_at_window(&mut self, engine: &Engine, spec: &Spec, patience: Option<Duration>) {
        let Some(window) = spec.window.as_ref().and_then(|window| window.compile().ok()) else { return };
        let now = engine.now();
        let next = match window.may_start(now) {
            Start::Now(opening) => {
                self.window = Some((opening.start, opening.end));
                self.window_line = Some(format!("open until {}.", window.shown(opening.end)));
                return;
            }
            Start::At(next) => next,
            Start::Never => {
                self.window_closed = true;
                self.window_line = Some("it never opens again.".to_owned());
                return;
            }
        };
        self.window = Some((next.start, next.end));
        self.window_closed = true;
        let until = next.start.duration_since(now).unsigned_abs();
        // Seconds help nobody who plans a night.
        let shown = shown_duration(Duration::from_secs(until.as_secs().div_ceil(60) * 60));
        let lasts = shown_duration(next.end.duration_since(next.start).unsigned_abs());
        let opens = format!("opens {} (in {shown}) for {lasts}", window.shown(next.start));
        if let Some(patience) = patience.filter(|patience| until > *patience) {
            self.too_late = Some(format!(
                "Its window {opens}; timeouts.create = {} ends before that. Raise it, apply nearer to the window, or take a \
                 place in the queue with wait_for = \"Enqueued\" and apply again in the window.",
                shown_duration(patience)
            ));
        }
        self.window_line = Some(format!("{opens}."));
    }

    fn guess_start(&mut self, now: Timestamp) {
        // Whoever is before it and may start holds the server for a time that nobody told.
        let blocked = self.ahead.iter().any(|entry| !entry.holds && entry.blocker.is_none());
        if !self.store_answered || self.approval_missing || blocked || self.name.released.is_some() {
            return;
        }
        let mut earliest = now.max(self.window.map_or(now, |(opens, _)| opens));
        if let Some(block) = &self.name.block {
            earliest = earliest.max(block.until);
        }
        if let Some(holder) = self.ahead.iter().find(|entry| entry.holds) {
            let Some(expires) = holder.expires_at else { return };
            earliest = earliest.max(expires);
        }
        self.earliest = Some(earliest);
    }
}

/// What becomes of the server between this request and the maintenance before it, where it asks for
/// that.
async fn hand_over(engine: &Engine, asked: &PlannedRequest<'_>, view: &LockView) -> Option<String> {
    let direct = |spec: &Spec| spec.hand_over == HandOver::Direct;
    if !direct(asked.spec) {
        return None;
    }
    if !engine.systems(asked.spec).await.unwrap_or_default().is_empty() {
        return Some("Hand-over: the server is restored first, because an external system manages it.".to_owned());
    }
    let holder = view.lock.holder().filter(|holder| ![asked.id, asked.replaces].contains(&Some(&holder.id)))?;
    let between = queue::waiting(&view.lock, engine.tuning().aging, view.now);
    let between = between.iter().any(|entry| entry.spec.priority >= asked.spec.priority && !direct(&entry.spec));
    Some(if direct(&holder.spec) && !between {
        format!("Hand-over: takes the server as {} leaves it. The state before that is restored at the end.", holder.id)
    } else {
        format!("Hand-over: {} or another one before it restores the server first.", holder.id)
    })
}

/// The maintenance of the same owner for which an operation or a boot configuration in its own turn
/// does not wait.
fn own_hold(engine: &Engine, spec: &Spec, view: &LockView) -> Option<MaintenanceId> {
    let waits = spec.kind == MaintenanceKind::Maintenance || spec.parent.is_some();
    let holder = view.lock.holder().filter(|holder| !waits && holder.spec.kind == MaintenanceKind::Maintenance)?;
    (holder.owner == engine.owner()).then(|| holder.id.clone())
}

/// Who would be before a new wish for this server.
fn ahead(engine: &Engine, asked: &PlannedRequest<'_>, view: &LockView) -> Vec<QueueEntry> {
    let holder = view.lock.holder().into_iter();
    let waiting = queue::waiting(&view.lock, engine.tuning().aging, view.now);
    holder
        .chain(waiting.into_iter().filter(|entry| entry.spec.priority >= asked.spec.priority))
        .filter(|entry| ![asked.id, asked.replaces].contains(&Some(&entry.id)))
        .map(|entry| queue::describe(&view.lock, entry, &view.leases, view.now))
        .collect()
}
