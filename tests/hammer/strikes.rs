//! Faults: which processes the supervisor kills or stops, and when it continues them.

use std::{collections::BTreeSet, time::Duration};

use bmc_simulator::{Fault, HeldQuery, JournalEntry, JournalQuery};
use terraform_provider_metal::{
    maintenance::{ids::Uid, state::Phase, step::Reply},
    store::RecordLookup,
};
use tokio::time::{Instant, timeout};

use crate::{
    process::{Event, Process},
    supervisor::Supervisor,
    worker::Order,
};

impl Supervisor {
    /// Injects a random fault.
    pub async fn strike(&mut self) {
        let busy = |process: &Process| process.order.is_some() && !process.killed;
        let all: Vec<u64> = self.processes.iter().filter(|(_, process)| busy(process)).map(|(by, _)| *by).collect();
        let stopped = self.processes.values().filter(|process| process.stopped.is_some()).count();
        let kind = self.chance.below(100);
        if kind >= 80 {
            self.tally.strikes += 1;
            let which = self.chance.below(self.gremlins.len() + usize::from(self.hand.is_some()));
            match self.gremlins.get(which) {
                Some(gremlin) => gremlin.strike(&mut self.chance).await,
                None => self.set_the_clock(),
            }
            return;
        }
        // Most processes only wait; faults in the others are more interesting.
        let holders = self.holders().await;
        let holding = self.chance.percent(70) && !holders.is_empty();
        let victim = if holding { self.chance.pick(&holders) } else { self.chance.pick(&all) };
        let Some(&victim) = victim else { return };
        if kind < 25 {
            self.tally.kills += 1;
            self.processes.get_mut(&victim).unwrap().kill();
        } else if stopped <= all.len() / 3 && self.processes[&victim].stopped.is_none() {
            let ambush = if holding && self.chance.percent(70) { self.ambush(victim).await } else { None };
            self.stop(victim, ambush.is_some()).await;
            if let Some(fault) = ambush {
                self.tally.ambushed += 1;
                let _ = self.simulator.remove_fault(fault);
                self.simulator.release_all();
            }
        }
    }

    /// Moves the wall clock in runs that include this.
    pub fn set_the_clock(&mut self) {
        if let Some(hand) = &mut self.hand {
            self.tally.steps += 1;
            hand.strike(&mut self.chance);
        }
    }

    /// Returns the processes with a held server, according to the store.
    async fn holders(&self) -> Vec<u64> {
        // An unreachable store must not delay the next fault.
        let views = timeout(self.lease, self.store.view_all()).await.unwrap_or(Ok(Vec::new())).unwrap_or_default();
        let acting = views.iter().filter_map(|view| view.lock.holder()?.attachment.as_ref());
        let pids: BTreeSet<u32> = acting.map(|attachment| attachment.runner.pid).collect();
        let works = |process: &Process| process.order.is_some() && !process.killed && process.stopped.is_none();
        let holds = |process: &Process| works(process) && pids.contains(&process.pid);
        self.processes.iter().filter(|(_, process)| holds(process)).map(|(by, _)| *by).collect()
    }

    /// Waits briefly until a process reads its machine's state before a change, and blocks the
    /// reply. This is the worst time to stop, because the change follows. Returns the ID that
    /// removes the fault.
    async fn ambush(&self, victim: u64) -> Option<u64> {
        let order = self.processes[&victim].order.as_ref()?;
        let uid = self.holds[&order.number].uid.as_ref()?;
        let held = HeldQuery { system: Some(order.server.clone()), ..HeldQuery::default() };
        let looks =
            || Fault::hold(bmc_simulator::Phase::Before).on_system(&order.server).on_request("GET", "*/Systems/1");
        for _ in 0..6 {
            let fault = self.simulator.inject(looks().times(1));
            let caught = self.simulator.wait_held(&held, Duration::from_millis(150)).await.is_ok();
            if caught && self.is_changing(uid).await {
                return Some(fault);
            }
            let _ = self.simulator.remove_fault(fault);
            self.simulator.release_all();
            if !caught {
                return None;
            }
        }
        None
    }

    /// Returns true if a change's intent is recorded without a result.
    async fn is_changing(&self, uid: &Uid) -> bool {
        let Ok(Some(RecordLookup::Active(record))) = self.store.find_uid(uid).await else { return false };
        let (Phase::Preparing(progress) | Phase::Releasing { progress, .. }) = &record.phase else { return false };
        progress.attempts.last().is_some_and(|attempt| attempt.reply == Reply::Unknown)
    }

    /// Stops a process, usually for longer than its lease, and restarts its hold if the process is
    /// verifiably in the middle of it.
    async fn stop(&mut self, victim: u64, before_its_call: bool) {
        self.tally.stops += 1;
        let time = if self.chance.percent(85) {
            self.chance.between(self.lease * 13 / 10, self.lease * 5 / 2)
        } else {
            self.chance.between(Duration::from_millis(10), self.lease)
        };
        let process = self.processes.get_mut(&victim).unwrap();
        process.stop(Instant::now() + time).await;
        let (pid, order) = (process.pid, process.order.clone().unwrap());
        let hold = &self.holds[&order.number];
        let in_force = hold.attempt == order.attempt && hold.over.is_none();
        let Some(uid) = hold.uid.clone().filter(|_| in_force) else { return };
        if !before_its_call && self.is_changing(&uid).await {
            self.caught.insert(order.account());
        }
        // Only the current holder can lose the lock. A process stopped before its admission
        // acquires the lock after it continues, and is then later than the other attempt.
        let Ok(Some(RecordLookup::Active(record))) = self.store.find_uid(&uid).await else { return };
        if record.attachment.is_some_and(|attachment| attachment.runner.pid == pid) {
            self.tally.replaced += 1;
            self.begin_again(order.number).await;
            if self.chance.percent(70) {
                self.await_overtaking(victim, &order);
            }
        }
    }

    /// Waits for another attempt of the same hold to change the machine, then continues the
    /// stopped process during that work.
    fn await_overtaking(&mut self, victim: u64, order: &Order) {
        self.processes.get_mut(&victim).unwrap().stopped = Some(Instant::now() + self.lease * 5);
        let (simulator, events) = (self.simulator.clone(), self.events.clone());
        let (any, own) = (format!("{}.", order.hold()), order.account());
        let since = JournalQuery::system(&order.server).since(simulator.sequence());
        let theirs =
            move |line: &JournalEntry| line.account.as_ref().is_some_and(|by| by.starts_with(&any) && *by != own);
        let longest = self.lease * 5;
        tokio::spawn(async move {
            let look = || simulator.journal(&since).iter().any(&theirs).then_some(());
            if simulator.wait_until("another attempt", longest, look).await.is_ok() {
                let _ = events.send(Event::Overtaken(victim));
            }
        });
    }

    pub fn overtaken(&mut self, by: u64) {
        let pause = Duration::from_millis(self.chance.below(120) as u64);
        if let Some(process) = self.processes.get_mut(&by).filter(|process| process.stopped.is_some()) {
            self.tally.overtaken += 1;
            process.stopped = Some(Instant::now() + pause);
        }
    }
}
