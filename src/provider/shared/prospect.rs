//! The outlook for planned maintenance: sentences for a plan and data for scripts. Only reads.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    engine::{EarlierInvocation, Engine, Intended, PlannedRun},
    maintenance::{
        approval::{self, Consent},
        forecast::{Coming, Outlook, Reclaimed, Run, SeenServer},
        hand_over::HandOver,
        ids::{LockKey, MaintenanceId, Uid},
        lock::Refusal,
        machine::PowerState,
        power,
        queue::{self, QueueEntry},
        spec::{Policy, Spec, WaitFor},
        window::Start,
    },
    store::LockView,
};

use crate::provider::{shared::others, shared::standing::NameStatus, shared::values::shown_duration};

/// Summary of a warning: the owner has not approved.
pub(in crate::provider) const APPROVAL_MISSING: &str = "An approval is missing";
/// Summary of a warning: a holder or waiters come first.
pub(in crate::provider) const AHEAD: &str = "Other maintenance is ahead";
/// Summary of a warning: the request does not name the same owner's lock on the server.
const OWN_HOLD: &str = "Server is held by the same owner";
/// Summary of a warning: the lock also has another name.
const SHARED_LOCK: &str = "Servers share one lock";
/// Summary of a warning: the window is closed now.
const WINDOW_CLOSED: &str = "A window is closed";

/// A planned request.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct PlannedRequest<'a> {
    pub(in crate::provider) spec: &'a Spec,
    /// Its name.
    pub(in crate::provider) id: Option<&'a MaintenanceId>,
    /// The maintenance that this request replaces; it is released first.
    pub(in crate::provider) replaces: Option<&'a MaintenanceId>,
    /// True if the request adopts another state's record.
    pub(in crate::provider) adopt: bool,
    /// The time limit; `None` if unlimited.
    pub(in crate::provider) patience: Option<Duration>,
    /// How far create goes.
    pub(in crate::provider) wait_for: WaitFor,
    /// The invocation before that of an action, under the same name.
    pub(in crate::provider) earlier: Option<&'a EarlierInvocation>,
}

impl<'a> PlannedRequest<'a> {
    /// Returns a request; `id` is `None` while its name is unknown.
    pub(in crate::provider) fn new(spec: &'a Spec, id: Option<&'a MaintenanceId>, patience: Option<Duration>) -> Self {
        let (replaces, adopt, wait_for, earlier) = (None, false, WaitFor::InMaintenance, None);
        Self { spec, id, replaces, adopt, patience, wait_for, earlier }
    }
}

/// A request's outlook.
#[derive(Clone, Debug, Default)]
pub(in crate::provider) struct Prospect {
    pub(in crate::provider) server: String,
    /// Its effect on the server in words; empty if the server is only locked.
    pub(in crate::provider) effect: String,
    stated_effect: String,
    /// The current power; `None` if the BMC does not answer.
    pub(in crate::provider) power: Option<PowerState>,
    /// Describes how a `Paused` server's power changes.
    pause_note: Option<&'static str>,
    /// True if the store answered.
    pub(in crate::provider) store_answered: bool,
    /// The holder, if any, and the waiters before it whose process is connected.
    pub(in crate::provider) ahead: Vec<QueueEntry>,
    /// Explains other names with the same lock.
    shared: Option<String>,
    /// Disconnected waiters, which apply skips.
    skipped: Vec<QueueEntry>,
    /// The overdue maintenance that apply releases.
    pub(in crate::provider) reclaimed: Option<Box<Reclaimed>>,
    /// The warning about another maintenance that apply releases.
    pub(in crate::provider) others: Option<String>,
    /// The text about a hand-over without a restore.
    hand_over: Option<String>,
    /// The holding maintenance of the same owner, if the request does not wait for it.
    own_hold: Option<MaintenanceId>,
    /// The server's owner, and their contact.
    pub(in crate::provider) owner: Option<(String, Option<String>)>,
    /// True if the owner's approval is missing.
    pub(in crate::provider) approval_missing: bool,
    /// The digest to which an approval would be bound.
    pub(in crate::provider) digest: String,
    /// Name and block status.
    name: NameStatus,
    /// The sentence about the owner.
    owner_line: Option<String>,
    /// When the window opens and closes; `None` without a window or if it never opens.
    pub(in crate::provider) window: Option<(Timestamp, Timestamp)>,
    window_line: Option<String>,
    /// True if the window is closed now.
    pub(in crate::provider) window_closed: bool,
    /// The earliest start if it can be estimated; a lock without `expires_after` can last
    /// indefinitely.
    pub(in crate::provider) earliest: Option<Timestamp>,
    /// Explains why it cannot start within its time limit.
    pub(in crate::provider) too_late: Option<String>,
}

impl Prospect {
    /// Reads the store and the clock. `key` is the server's lock, if it is known.
    pub(in crate::provider) async fn look(
        engine: &Engine,
        asked: &PlannedRequest<'_>,
        key: Option<&LockKey>,
        seen: SeenServer,
    ) -> Self {
        let PlannedRequest { spec, id, replaces, adopt, patience, wait_for, .. } = *asked;
        let mut prospect = Self::of(engine, spec, &seen);
        let view = match key {
            Some(key) => engine.planned_view(key).await.ok(),
            None => None,
        };
        if let Some(view) = &view {
            prospect.store_answered = true;
            prospect.shared = engine.shared_lock(spec.server.shown(), &view.lock);
            let planned = engine.forecast_request(view, &Intended { spec, id, replaces, adopt }, seen).await;
            prospect.ask_owner(engine, spec, id, view, &planned);
            prospect.hand_over = hand_over(engine, asked, view).await;
            prospect.take(engine, asked, view, &planned);
            prospect.name = NameStatus::of(engine, asked, view);
            if wait_for != WaitFor::Enqueued {
                prospect.others = others::released(&prospect, &planned, view, patience);
            }
        }
        // Another maintenance can change the power first.
        if asked.replaces.is_some() || prospect.own_hold.is_some() || !prospect.ahead.is_empty() {
            prospect.stated_effect = spec.stated_effect(None);
        }
        prospect.look_at_window(engine, spec, patience, "timeouts.create");
        prospect.guess_start(engine.now());
        prospect
    }

    /// Looks at an in-place change.
    pub(in crate::provider) fn of_change(
        engine: &Engine,
        spec: &Spec,
        uid: &Uid,
        view: &LockView,
        seen: SeenServer,
        patience: Duration,
    ) -> Self {
        let mut prospect = Self::of(engine, spec, &seen);
        prospect.store_answered = true;
        let wanted = engine.as_asked_here(spec);
        let planned = engine.forecast_run(view, &Run::Change(uid, &wanted), uid, seen);
        let id = planned.record().map(|record| record.id.clone());
        prospect.ask_owner(engine, spec, id.as_ref(), view, &planned);
        let asks = planned.record().is_some_and(|record| record.awaiting_consent().is_some());
        if asks && spec.parent.is_none() {
            prospect.look_at_window(engine, spec, Some(patience), "timeouts.update");
        }
        prospect
    }

    fn of(engine: &Engine, spec: &Spec, seen: &SeenServer) -> Self {
        let power = seen.machine.as_ref().map(|machine| machine.power);
        Self {
            server: spec.server.to_string(),
            effect: spec.effect(),
            stated_effect: spec.stated_effect(power),
            power,
            pause_note: power.and_then(|power| power::pause_note(spec, power)),
            digest: engine.as_asked_here(spec).digest(),
            ..Self::default()
        }
    }

    /// Reads queue and releases from the forecast.
    fn take(&mut self, engine: &Engine, asked: &PlannedRequest<'_>, view: &LockView, planned: &PlannedRun) {
        if let Outlook::Refused(Refusal::HeldByOurselves { holder }) = &planned.forecast.outlook {
            self.own_hold = Some(holder.clone());
        }
        self.reclaimed = planned.forecast.steps.iter().find_map(|step| match step {
            Coming::Reclaims(reclaimed) => Some(reclaimed.clone()),
            Coming::Calls(_) => None,
        });
        (self.ahead, self.skipped) = match &planned.forecast.outlook {
            Outlook::Refused(_) => {
                let nobody = Uid::new(String::new());
                queue::ahead(&view.lock, &view.leases, &nobody, engine.tuning().aging, view.now)
            }
            _ => engine.ahead_of(planned, view.now),
        };
        let reclaimed = self.reclaimed.as_ref().map(|reclaimed| &reclaimed.id);
        let own = [asked.id, asked.replaces, self.own_hold.as_ref(), reclaimed];
        self.ahead.retain(|entry| !own.contains(&Some(&entry.id)));
        self.skipped.retain(|entry| !own.contains(&Some(&entry.id)));
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
            lines.push(format!("Queue: held by {hold}, which has the same owner."));
        }
        lines.push(match (self.store_answered, names.len()) {
            (false, _) => {
                format!("Queue: unknown; no response from the coordination store or the backend of {}.", self.server)
            }
            (true, 0) if self.name.holds() => "Queue: this maintenance already holds the server.".to_owned(),
            (true, 0) if self.own_hold.is_some() => "Set maintenance_id to act under that maintenance.".to_owned(),
            (true, 0) => match &self.reclaimed {
                Some(reclaimed) => format!("Queue: free once {}, which is overdue, is released.", reclaimed.id),
                None => "Queue: free.".to_owned(),
            },
            (true, n) => format!("Queue: {n} ahead: {}.", names.join(", ")),
        });
        if !self.skipped.is_empty() {
            let names: Vec<String> = self.skipped.iter().map(ToString::to_string).collect();
            lines.push(format!("Skipped while disconnected: {}.", names.join(", ")));
        }
        lines.extend(self.hand_over.clone());
        lines.extend(self.name.lines());
        lines.extend(self.window_line.iter().map(|line| format!("Window: {line}")));
        lines
    }

    /// Owner and window, in sentences.
    pub(in crate::provider) fn consent_lines(&self) -> Vec<String> {
        let owner = self.owner_line.iter().map(|line| format!("Owner: {line}"));
        owner.chain(self.window_line.iter().map(|line| format!("Window: {line}"))).collect()
    }

    /// Errors as summary and detail: create refuses the request.
    pub(in crate::provider) fn refusals(&self) -> Vec<(String, String)> {
        let server = &self.server;
        let released = self.name.refused_for_good().into_iter();
        released.map(|(summary, why)| (format!("{summary} for {server}"), format!("{server}: {why}"))).collect()
    }

    /// Returns the blockers of the start. Each has a separate summary, because hosts fold warnings
    /// with equal summaries and would hide a missing approval behind another server's power change.
    pub(in crate::provider) fn obstacles(&self) -> Vec<(&'static str, String)> {
        let server = &self.server;
        let mut found = Vec::new();
        if self.approval_missing {
            let line = self.owner_line.as_deref().unwrap_or_default();
            found.push((APPROVAL_MISSING, format!("{server}: {line}")));
        }
        if let Some(hold) = &self.own_hold {
            let why = format!(
                "{server}: {hold}, which has the same owner, holds it. Until it ends, apply refuses a request \
                 without maintenance_id. Set maintenance_id = \"{hold}\", unless this plan destroys that \
                 maintenance."
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

    fn ask_owner(
        &mut self,
        engine: &Engine,
        spec: &Spec,
        id: Option<&MaintenanceId>,
        view: &LockView,
        planned: &PlannedRun,
    ) {
        // The outlook shows an external system's claim.
        let Some(ownership) = engine.kept_ownership(view) else { return };
        let claim = ownership.claim.as_ref();
        self.owner = claim.map(|claim| (claim.owner.to_string(), claim.contact.as_ref().map(ToString::to_string)));
        if spec.policy == Policy::Enforced {
            self.owner_line = claim.map(|claim| format!("{claim} is notified; approval not required (Enforced)."));
            return;
        }
        if engine.always_performs() {
            let whom = claim.map_or_else(|| "unclaimed".to_owned(), ToString::to_string);
            let line = format!("{whom}; approval not required (always_perform_maintenance in the provider).");
            self.owner_line = Some(line);
            return;
        }
        let Some(record) = planned.record() else { return };
        let asks = record.awaiting_consent();
        let covered = asks.is_none();
        let record = asks.as_deref().unwrap_or(record);
        record.digest.raw().clone_into(&mut self.digest);
        let consent = if covered { Consent::NotNeeded } else { approval::consent(planned.lock(), record, view.now) };
        self.approval_missing = !consent.allows();
        let name = id.map_or_else(|| "NAMESPACE/NAME".to_owned(), ToString::to_string);
        self.owner_line = Some(match (claim, consent) {
            (None, Consent::Missing(_)) => {
                "it is not claimed; require_claim waits for a claim and an approval.".to_owned()
            }
            (None, _) => "Unclaimed: approval not required.".to_owned(),
            (Some(claim), Consent::Missing(missing)) => {
                let mut line = format!("{claim}, no approval yet for {name} (digest {}).", record.digest);
                if missing.escalates_at.is_some()
                    && let Some(after) = spec.escalate_after
                {
                    let after = shown_duration(after);
                    line.push_str(&format!(" Starts without approval {after} after the request."));
                }
                line
            }
            (Some(claim), Consent::Escalated { .. }) => format!("{claim} did not answer; it starts without approval."),
            (Some(claim), _) => format!("{claim} has approved it."),
        });
    }

    fn look_at_window(&mut self, engine: &Engine, spec: &Spec, patience: Option<Duration>, limit: &str) {
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
        // Round up to minutes.
        let shown = shown_duration(Duration::from_secs(until.as_secs().div_ceil(60) * 60));
        let lasts = shown_duration(next.end.duration_since(next.start).unsigned_abs());
        let opens = format!("opens {} (in {shown}) for {lasts}", window.shown(next.start));
        if let Some(patience) = patience.filter(|patience| until > *patience) {
            let place = if limit == "timeouts.create" {
                ", or enter the queue with wait_for = \"Enqueued\" and apply again in the window"
            } else {
                ""
            };
            self.too_late = Some(format!(
                "Its window {opens}; {limit} = {} ends before that. Raise it, or apply nearer to the window{place}.",
                shown_duration(patience)
            ));
        }
        self.window_line = Some(format!("{opens}."));
    }

    fn guess_start(&mut self, now: Timestamp) {
        // A waiter ahead that can start would occupy the server for an unknown time.
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

/// Describes a direct hand-over from the previous maintenance, if the request wants one.
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
        format!(
            "Hand-over: takes the server over from {} without a restore. The state before that maintenance is \
             restored at the end.",
            holder.id
        )
    } else {
        format!("Hand-over: {}, or another maintenance that goes first, restores the server.", holder.id)
    })
}
