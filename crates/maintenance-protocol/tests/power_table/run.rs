//! One process that drives one record, as `src/engine` does, without waiting for anything.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use maintenance_protocol::{
    change::{Applied, LockChange, Moment, RecordChange},
    decide::{Decision, DecisionInput, Goal, Objective, decide},
    ids::{Fence, Uid},
    lock::{EnqueueRequest, Leases, ServerLock},
    machine::Capabilities,
    power::Limits,
    prepare::Facts,
    queue::Queue,
    spec::{Spec, WaitFor},
    state::{Ending, Maintenance, PriorState},
    step::Action,
};

use crate::{
    machine::Machine,
    records::{AGING, key, request, runner, token},
};

/// Pause between two reads of the machine.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// Rounds after which a run counts as endless.
const ROUNDS: usize = 2000;

/// A record, its server and the process that drives it.
pub struct Run {
    lock: ServerLock,
    leases: Leases,
    uid: Uid,
    fence: Fence,
    now: Timestamp,
    last: Maintenance,
    has: Capabilities,
    pub machine: Machine,
}

impl Run {
    pub fn new(spec: Spec, machine: Machine, has: Capabilities) -> Self {
        let now = Timestamp::UNIX_EPOCH;
        let mut lock = ServerLock::new(key("k"));
        let mut leases = Leases::default();
        leases.0.insert(runner(1).id, Timestamp::MAX);
        let request = EnqueueRequest { spec, ..request("m", 1) };
        let moment = Moment { leases: &leases, now, aging: AGING, limits: &Limits::default() };
        let applied = lock.apply(&LockChange::Enqueue { request: &request, claims: &[], token: token() }, &moment);
        let Ok(Applied::Enqueued { uid, fence: Some(fence), .. }) = applied else { panic!("{applied:?}") };
        let last = lock.get(&uid).unwrap().clone();
        Self { lock, leases, uid, fence, now, last, has, machine }
    }

    /// Returns the last version of the record.
    pub fn record(&self) -> &Maintenance {
        &self.last
    }

    fn apply(&mut self, change: &RecordChange) -> Applied {
        let limits = Limits::default();
        let moment = Moment { leases: &self.leases, now: self.now, aging: AGING, limits: &limits };
        let change = LockChange::Driven { uid: &self.uid, fence: self.fence, change };
        let applied = self.lock.apply(&change, &moment).unwrap();
        if let Some(record) = self.lock.get(&self.uid) {
            self.last = (*record).clone();
        } else if let Some(record) = self.lock.finished.iter().find(|record| record.uid == self.uid) {
            self.last = record.clone();
        }
        applied
    }

    fn pass(&mut self, until: Option<Timestamp>) {
        let next = self.now.checked_add(POLL).unwrap();
        self.now = until.map_or(next, |until| until.clamp(self.now, next));
        self.machine.pass(self.now);
    }

    fn facts(&self) -> Facts {
        Facts {
            machine: Some(self.machine.view()),
            media: Some(Vec::new()),
            capabilities: Some(self.has.clone()),
            ..Facts::default()
        }
    }

    fn call(&mut self, action: &Action) {
        let last_reset = self.machine.view().last_reset;
        if self.apply(&RecordChange::Intend { action: action.clone(), last_reset }) != Applied::Done {
            return;
        }
        match action {
            Action::Reset(reset) => self.machine.reset(*reset),
            Action::SetBoot { wanted, .. } => self.machine.set_boot(wanted),
            other => panic!("{other} is not used here"),
        }
        let reply = self.machine.reply();
        self.apply(&RecordChange::Replied(reply));
    }

    /// Drives the record to a goal.
    fn drive(&mut self, goal: Goal) -> Result<(), String> {
        let intent = Objective { goal, stop: false, timed_out: false, waited: None };
        for _ in 0..ROUNDS {
            self.machine.pass(self.now);
            let (facts, limits, queue) = (self.facts(), Limits::default(), Queue::default());
            let decision = decide(&DecisionInput {
                lock: &self.lock,
                leases: &self.leases,
                now: self.now,
                queue: &queue,
                uid: &self.uid,
                fence: self.fence,
                intent: &intent,
                facts: &facts,
                limits: &limits,
                aging: AGING,
            });
            match decision {
                Decision::Finished(_) => return Ok(()),
                Decision::Wait { wake, .. } => self.pass(wake.filter(|wake| *wake > self.now)),
                Decision::Act(Action::Record) => {
                    let seen = self.machine.view();
                    self.apply(&RecordChange::Prior(Box::new(PriorState {
                        power: seen.power,
                        boot: seen.boot,
                        media: Vec::new(),
                        recorded_at: self.now,
                    })));
                }
                Decision::Act(action) => self.call(&action),
                Decision::Change(change) => {
                    if matches!(self.apply(&change), Applied::Finished(_)) {
                        return Ok(());
                    }
                }
                other => return Err(format!("{other:?} is not in this world")),
            }
        }
        Err(format!("never ends: {:?}; calls {:?}", self.last.phase, self.machine.calls))
    }
}

/// Locks and prepares the server, or performs the operation.
pub fn hold(run: &mut Run) -> Result<(), String> {
    run.drive(Goal::Hold(WaitFor::InMaintenance))
}

/// Releases it ten minutes later.
pub fn release(run: &mut Run) -> Result<(), String> {
    run.now = run.now.checked_add(SignedDuration::try_from(Duration::from_secs(600)).unwrap()).unwrap();
    run.drive(Goal::Release(Ending::Completed))
}
