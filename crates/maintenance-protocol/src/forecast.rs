//! Forecasts a run that starts now: `decide` and `apply` on a lock copy, with a server that obeys
//! each call.
//!
//! Plan texts come from a forecast, so plan and apply follow the same rules.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use shown_text::{AsRaw, OneLine};

use super::{
    change::{Applied, LockChange, Moment, RecordChange},
    decide::{Decision, DecisionInput, Finish, Goal, Objective, decide},
    ids::{Fence, MaintenanceId, Runner, Token, Uid},
    lock::{EnqueueRequest, Leases, Refusal, ServerLock},
    machine::{BootOverride, Capabilities, MachineView, MediaSlot, PowerState, ResetType},
    model::{
        facts::Facts,
        verdict::{Limits, Need},
    },
    queue::Queue,
    spec::{Spec, WaitFor},
    state::{Ending, Phase, PriorState},
    step::{Action, Reply},
};

/// Maximum number of rounds.
const MOST_ROUNDS: usize = 500;

/// The lock at plan time.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The lock.
    pub lock: &'a ServerLock,
    /// The current process leases.
    pub leases: &'a Leases,
    /// The store's time.
    pub now: Timestamp,
    /// Waiting time after which a waiter gains one priority level.
    pub aging: Duration,
    /// Time limits.
    pub limits: &'a Limits,
}

/// A run's purpose.
#[derive(Clone, Copy, Debug)]
pub enum Run<'a> {
    /// Create or continue a record.
    Hold(&'a EnqueueRequest, WaitFor),
    /// Change a record.
    Change(&'a Uid, &'a Spec),
    /// End a record.
    Release(&'a Uid),
}

/// The server's state as read by the plan; `None` fields were not read.
#[derive(Clone, Debug, Default)]
pub struct SeenServer {
    /// Power and boot override.
    pub machine: Option<MachineView>,
    /// The virtual drives.
    pub media: Option<Vec<MediaSlot>>,
    /// Its capabilities.
    pub capabilities: Option<Capabilities>,
}

/// One effect on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coming {
    /// It restores and releases an overdue maintenance.
    Reclaims(Box<Reclaimed>),
    /// It sends this call.
    Calls(Action),
}

/// An overdue maintenance that the run releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// Name of the maintenance.
    pub id: MaintenanceId,
    /// Its owner.
    pub owner: OneLine,
    /// Start of the overdue time.
    pub since: Timestamp,
    /// The calls that restore the server, in order.
    pub calls: Vec<Action>,
    /// The power before and after, if the server was read.
    pub power: Option<(PowerState, PowerState)>,
}

/// How a forecast ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The run is rejected.
    Refused(Refusal),
    /// The run waits, for this reason.
    Waits(String),
    /// An external system or an unread fact decides.
    Open,
    /// The run ends with this result.
    Finished(Finish),
}

/// A forecast.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Its calls and releases, in order.
    pub steps: Vec<Coming>,
    /// How the forecast ends.
    pub outlook: Outlook,
    /// The lock with the new record, before the first call. `None` if the run is rejected.
    pub entered: Option<(ServerLock, Leases, Uid)>,
}

/// Forecasts a process's run.
#[must_use]
pub fn forecast(start: &Start<'_>, run: &Run<'_>, runner: &Runner, server: SeenServer) -> Forecast {
    let mut trial = Trial {
        lock: start.lock.clone(),
        leases: start.leases.clone(),
        now: start.now,
        aging: start.aging,
        limits: start.limits,
        runner,
        server,
    };
    // The process renews its lease while it runs.
    trial.leases.0.insert(runner.id.clone(), Timestamp::MAX);
    let (uid, fence) = match trial.enter(run) {
        Ok(entered) => entered,
        Err(refusal) => return Forecast { steps: Vec::new(), outlook: Outlook::Refused(refusal), entered: None },
    };
    let entered = Some((trial.lock.clone(), trial.leases.clone(), uid.clone()));
    let goal = match run {
        Run::Hold(_, wait_for) => Goal::Hold(*wait_for),
        Run::Change(..) => Goal::Hold(WaitFor::InMaintenance),
        Run::Release(_) => Goal::Release(Ending::Completed),
    };
    let Some(fence) = fence else {
        return Forecast { steps: Vec::new(), outlook: Outlook::Finished(Finish::Reached), entered };
    };
    let mut steps = Vec::new();
    let outlook = trial.drive(&uid, fence, &goal, &mut steps);
    Forecast { steps, outlook, entered }
}

struct Trial<'a> {
    lock: ServerLock,
    leases: Leases,
    now: Timestamp,
    aging: Duration,
    limits: &'a Limits,
    runner: &'a Runner,
    server: SeenServer,
}

impl Trial<'_> {
    fn apply(&mut self, change: &LockChange<'_>) -> Result<Applied, Refusal> {
        let at = Moment { leases: &self.leases, now: self.now, aging: self.aging, limits: self.limits };
        self.lock.apply(change, &at)
    }

    fn driven(&mut self, uid: &Uid, fence: Fence, change: &RecordChange) -> Result<Applied, Refusal> {
        self.apply(&LockChange::Driven { uid, fence, change })
    }

    /// Runs the transactions before the drive. Without a fence the run only enqueues.
    fn enter(&mut self, run: &Run<'_>) -> Result<(Uid, Option<Fence>), Refusal> {
        let token = Token(uuid::Uuid::nil());
        let uid = match run {
            Run::Hold(request, _) => {
                return match self.apply(&LockChange::Enqueue { request, claims: &[], token })? {
                    Applied::Enqueued { uid, fence, .. } => Ok((uid, fence)),
                    _ => Err(Refusal::Gone),
                };
            }
            Run::Change(uid, _) | Run::Release(uid) => (*uid).clone(),
        };
        let fence = self.attach(&uid)?;
        if let Run::Change(_, spec) = run {
            self.driven(&uid, fence, &RecordChange::Respecify(Box::new((*spec).clone())))?;
        }
        Ok((uid, Some(fence)))
    }

    fn attach(&mut self, uid: &Uid) -> Result<Fence, Refusal> {
        let (runner, token) = (self.runner.clone(), Token(uuid::Uuid::nil()));
        match self.apply(&LockChange::Attach { uid, runner: &runner, token, state: "", owner: None })? {
            Applied::Attached { fence, .. } => Ok(fence),
            _ => Err(Refusal::Gone),
        }
    }

    fn drive(&mut self, uid: &Uid, fence: Fence, goal: &Goal, steps: &mut Vec<Coming>) -> Outlook {
        let mut facts = Facts::default();
        let intent = Objective { goal: goal.clone(), stop: false, timed_out: false, waited: None };
        for _ in 0..MOST_ROUNDS {
            let decision = decide(&DecisionInput {
                lock: &self.lock,
                leases: &self.leases,
                now: self.now,
                queue: &Queue::default(),
                uid,
                fence,
                intent: &intent,
                facts: &facts,
                limits: self.limits,
                aging: self.aging,
            });
            let changed = match decision {
                Decision::Finished(finish) => return Outlook::Finished(finish),
                Decision::Look(need) if self.server.shows(need, &mut facts) => continue,
                Decision::Look(_) | Decision::Ask { .. } => return Outlook::Open,
                Decision::Wait { reason, wake, .. } => {
                    if !self.goes_on_by_itself(uid) {
                        return Outlook::Waits(reason);
                    }
                    let soon = self.now + SignedDuration::from_secs(1);
                    self.now = wake.map_or(soon, |wake| wake.max(soon));
                    facts = Facts::default();
                    continue;
                }
                Decision::Act(action) => {
                    facts = Facts::default();
                    self.act(uid, fence, action, steps)
                }
                Decision::Change(RecordChange::Reclaim(overdue)) => match self.reclaim(&overdue) {
                    Some(reclaimed) => {
                        steps.push(Coming::Reclaims(Box::new(reclaimed)));
                        continue;
                    }
                    None => return Outlook::Open,
                },
                Decision::Change(change) => self.driven(uid, fence, &change),
            };
            match changed {
                Ok(Applied::Finished(finish)) => return Outlook::Finished(finish),
                Ok(_) => {}
                Err(Refusal::Unreadable { .. }) => return Outlook::Open,
                Err(refusal) => return Outlook::Refused(refusal),
            }
        }
        Outlook::Open
    }

    /// Returns true if the server alone ends the wait.
    fn goes_on_by_itself(&self, uid: &Uid) -> bool {
        self.lock.get(uid).is_some_and(|record| {
            let steps = matches!(record.phase, Phase::Preparing(_) | Phase::Releasing { .. });
            steps && self.lock.has_slot(record) && record.awaiting_consent().is_none()
        })
    }

    fn act(&mut self, uid: &Uid, fence: Fence, action: Action, steps: &mut Vec<Coming>) -> Result<Applied, Refusal> {
        let open = Refusal::Unreadable { id: self.lock.get(uid).ok_or(Refusal::Gone)?.id.clone(), why: String::new() };
        if action == Action::Record {
            let prior = self.server.prior(self.now).ok_or(open)?;
            return self.driven(uid, fence, &RecordChange::Prior(Box::new(prior)));
        }
        let last_reset = self.server.machine.as_ref().and_then(|machine| machine.last_reset.clone());
        if !self.server.does(&action, self.now) {
            return Err(open);
        }
        let intent = RecordChange::Intend { action: action.clone(), last_reset };
        if self.driven(uid, fence, &intent)? == Applied::Outdated {
            return Ok(Applied::Outdated);
        }
        steps.push(Coming::Calls(action));
        self.driven(uid, fence, &RecordChange::Replied(Reply::Accepted))
    }

    /// Releases an overdue holder, as the next waiter does. `None`: the forecast ends here.
    fn reclaim(&mut self, uid: &Uid) -> Option<Reclaimed> {
        let record = self.lock.get(uid)?;
        let (id, owner, since) = (record.id.clone(), record.owner.clone(), record.expires_at()?);
        let before = self.server.machine.as_ref().map(|machine| machine.power);
        let fence = self.attach(uid).ok()?;
        let mut steps = Vec::new();
        let outlook = self.drive(uid, fence, &Goal::Release(Ending::Expired), &mut steps);
        if outlook != Outlook::Finished(Finish::Over) && before.is_some() {
            return None;
        }
        // Apply restores an unread server too; the calls are unknown.
        if before.is_none() {
            self.lock.slot = None;
            self.lock.active.retain(|record| record.uid != *uid);
        }
        let calls = steps.into_iter().filter_map(|step| match step {
            Coming::Calls(action) => Some(action),
            Coming::Reclaims(_) => None,
        });
        let power = before.zip(self.server.machine.as_ref().map(|machine| machine.power));
        Some(Reclaimed { id, owner, since, calls: calls.collect(), power })
    }
}

impl SeenServer {
    /// Fills a fact; `false`: it is unknown.
    fn shows(&self, need: Need, facts: &mut Facts) -> bool {
        match need {
            Need::Machine => facts.machine.clone_from(&self.machine),
            Need::Media => facts.media.clone_from(&self.media),
            Need::Capabilities => facts.capabilities.clone_from(&self.capabilities),
            Need::Image => facts.image = Some(Ok(())),
            Need::Preparer => facts.preparer = Some(Ok(())),
            _ => {}
        }
        match need {
            Need::Machine => facts.machine.is_some(),
            Need::Media => facts.media.is_some(),
            Need::Capabilities => facts.capabilities.is_some(),
            Need::Image | Need::Preparer => true,
            _ => false,
        }
    }

    fn prior(&self, now: Timestamp) -> Option<PriorState> {
        let machine = self.machine.as_ref()?;
        Some(PriorState {
            power: machine.power,
            boot: machine.boot.clone(),
            media: self.media.clone().unwrap_or_default(),
            recorded_at: now,
        })
    }

    /// Simulates an action; `false` if another system performs it.
    fn does(&mut self, action: &Action, now: Timestamp) -> bool {
        let Some(machine) = &mut self.machine else { return false };
        match action {
            Action::Reset(ResetType::GracefulShutdown | ResetType::ForceOff) => machine.power = PowerState::Off,
            Action::Reset(ResetType::Nmi) => {}
            Action::Reset(_) => {
                machine.power = PowerState::On;
                machine.last_reset = machine.last_reset.as_ref().map(|_| now.to_string().into());
                if let Some(boot) = machine.boot.as_mut().filter(|boot| boot.enabled.as_raw() == Some("Once")) {
                    (boot.enabled, boot.target) = (Some("Disabled".into()), Some("None".into()));
                }
            }
            Action::SetBoot { wanted, clear_http_boot_uri } => {
                let boot = machine.boot.get_or_insert_default();
                merge(boot, wanted);
                if *clear_http_boot_uri {
                    boot.http_boot_uri = boot.http_boot_uri.as_ref().map(|_| OneLine::default());
                }
            }
            Action::Insert { slot, image, write_protected } => {
                let Some(drive) = self.drive(slot.raw()) else { return false };
                (drive.inserted, drive.image) = (true, Some(image.clone()));
                drive.write_protected = Some(*write_protected);
            }
            Action::Eject { slot } => {
                let Some(drive) = self.drive(slot.raw()) else { return false };
                (drive.inserted, drive.image) = (false, None);
            }
            _ => return false,
        }
        true
    }

    fn drive(&mut self, slot: &str) -> Option<&mut MediaSlot> {
        self.media.as_mut()?.iter_mut().find(|drive| drive.slot == slot)
    }
}

/// Sets the properties that `wanted` contains.
fn merge(boot: &mut BootOverride, wanted: &BootOverride) {
    let set = |now: &mut Option<OneLine>, wanted: &Option<OneLine>| {
        if wanted.is_some() {
            now.clone_from(wanted);
        }
    };
    set(&mut boot.enabled, &wanted.enabled);
    set(&mut boot.target, &wanted.target);
    set(&mut boot.mode, &wanted.mode);
    set(&mut boot.http_boot_uri, &wanted.http_boot_uri);
    set(&mut boot.uefi_target, &wanted.uefi_target);
    set(&mut boot.boot_next, &wanted.boot_next);
}
