//! Restores an old store during a run. The supervisor then follows the guide "After a restore"
//! with the command line and by inspecting the servers.

use std::{collections::BTreeSet, process::Command, sync::Arc};

use bmc_simulator::{PowerState, SystemChange};
use serde_json::Value;
use shown_text::AsRaw;
use terraform_provider_metal::{
    clock::SystemClock,
    maintenance::{
        lock::ServerLock,
        machine,
        shared::Shared,
        state::{Maintenance, Phase},
    },
    settings::{Environment, open_store},
};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Duration, Instant},
};

use crate::{
    checker::{ENABLED, State, TARGET},
    epochs::Border,
    journal,
    process::{Event, Process},
    scene::Meanwhile,
    supervisor::{Hold, Supervisor},
};

const REASON: &str = "the hammer restored a backup";

impl Supervisor {
    /// Restores the store's backup and repairs everything.
    pub async fn go_back(&mut self, heard: &mut UnboundedReceiver<Event>, meanwhile: Meanwhile) {
        self.soothe().await;
        self.simulator.release_all();
        // A stopped process has not read the lost commits, so it cannot detect the restore. The
        // guide ends all processes first.
        for process in self.processes.values_mut().filter(|process| process.stopped.is_some()) {
            process.kill();
        }
        self.frozen = true;
        match meanwhile {
            Meanwhile::Run => self.let_all_look(heard).await,
            Meanwhile::Ended => self.end_all(heard).await,
        }
        let done = |(number, hold): (&u64, &Hold)| hold.over.as_ref().map(|_| format!("hold-{number}"));
        let over: BTreeSet<String> = self.holds.iter().filter_map(done).collect();
        let mut past = self.past.take().expect("a store with a backup");
        past.put_back().await;
        self.past = Some(past);
        if meanwhile == Meanwhile::Run {
            let until = Instant::now() + self.lease * 3;
            while Instant::now() < until && self.processes.values().any(|process| process.order.is_some()) {
                self.do_what_is_due().await;
                self.listen(heard, until).await;
            }
            self.end_all(heard).await;
        }
        let border = self.put_in_order(over).await;
        self.borders.push(border);
        self.frozen = false;
    }

    /// Waits until every process has read the commits that will be lost. Only such a process
    /// detects the restore. A replaced process is killed, because it could be overtaken after its
    /// read.
    async fn let_all_look(&mut self, heard: &mut UnboundedReceiver<Event>) {
        for process in self.processes.values_mut().filter(|process| !process.killed) {
            match &process.order {
                Some(order) if self.holds[&order.number].attempt == order.attempt => process.look().await,
                Some(_) => process.kill(),
                None => {}
            }
        }
        let patience = Instant::now() + Duration::from_mins(1);
        while self.processes.values().any(|process| process.looks && process.order.is_some() && !process.killed) {
            assert!(Instant::now() < patience, "a process did not look at the store: {}", self.unfinished().await);
            self.do_what_is_due().await;
            self.listen(heard, patience).await;
        }
    }

    /// Kills every process and waits for its exit.
    async fn end_all(&mut self, heard: &mut UnboundedReceiver<Event>) {
        self.processes.values_mut().filter(|process| !process.killed).for_each(Process::kill);
        while !self.processes.is_empty() {
            self.listen(heard, Instant::now() + Duration::from_secs(1)).await;
        }
        // Requests in flight from killed processes still arrive; the guide waits one lease for
        // them.
        loop {
            let before = self.simulator.sequence();
            tokio::time::sleep(Duration::from_millis(100)).await;
            if self.simulator.sequence() == before {
                break;
            }
        }
        let resting = || {
            let moves = |state: &State| state.boot.contains_key(journal::UNDER_WAY);
            (!journal::states(&self.simulator).values().any(moves)).then_some(())
        };
        self.simulator.wait_until("machines at rest", Duration::from_secs(5), resting).await.unwrap();
    }

    /// Runs the guide's steps in order.
    async fn put_in_order(&mut self, over: BTreeSet<String>) -> Border {
        let mut border = Border { at: self.simulator.sequence(), over, ..Border::default() };
        let said = self.command(&["store", "restored", "--reason", REASON, "--json"]).await;
        let marked = serde_json::from_str::<Value>(&said).unwrap()["to_inspect"].as_array().unwrap().len();

        self.store.close().await;
        let clock = Arc::new(SystemClock::default());
        (self.store, _) = open_store(Some(&self.direct), &Environment::default(), clock).await.unwrap();
        let contents = self.store.contents().await.unwrap();
        let active: Vec<_> = contents.locks.iter().flat_map(|lock| lock.active.clone()).collect();
        assert_eq!(marked, active.len(), "not every active maintenance is marked: {said}");
        self.tally.marked += marked;

        let mut untold: Vec<String> = active.iter().map(|record| record.id.to_string()).collect();
        for server in self.servers.clone() {
            let here = |lock: &&ServerLock| lock.active.iter().any(|record| record.server() == server);
            let holder = contents.locks.iter().find(here).and_then(ServerLock::holder);
            if let Some(accepted) = self.inspect(&server, holder, &mut border) {
                untold.retain(|id| *id != accepted.id.to_string());
                let (id, generation) = (accepted.id.to_string(), accepted.generation.to_string());
                let words =
                    ["release", &id, "--force", "--generation", &generation, "--reason", REASON, "--accept-as-is"];
                self.command(&words).await;
            }
        }
        if !untold.is_empty() {
            let mut words = vec!["store", "inspected"];
            words.extend(untold.iter().map(String::as_str));
            words.extend(["--reason", "compared with the states"]);
            self.command(&words).await;
        }
        self.start_again(&active);
        border
    }

    /// Inspects a server and repairs it manually, unless its holder changed it last and recorded
    /// its prior state. Returns a holder that would restore a different state.
    fn inspect<'a>(
        &mut self,
        server: &str,
        holder: Option<&'a Maintenance>,
        border: &mut Border,
    ) -> Option<&'a Maintenance> {
        let home = self.home[server].clone();
        let name = |record: &Maintenance| record.id.to_string().rsplit_once('/').unwrap().1.to_owned();
        let lines = journal::lines(&self.simulator);
        let last = lines.iter().rev().find(|line| line.system == server && line.accepted);
        let last = last.and_then(|line| line.account.rsplit_once('.')).map(|(hold, _)| hold);
        let wrong = holder.filter(|holder| {
            holder.prior.as_ref().is_some_and(|prior| !fits(prior.power, prior.boot.as_ref(), &home.0))
        });
        // A holder without a prior state would record the current, half-changed state.
        let knows = |holder: &Maintenance| holder.prior.is_some() && last == Some(name(holder).as_str());
        let its_own = holder.is_some_and(knows);
        if journal::states(&self.simulator)[server] != home.0 {
            if let Some(holder) = holder.filter(|_| its_own && wrong.is_none()) {
                border.goes_on.insert((server.to_owned(), name(holder)));
            } else {
                self.tally.mended += 1;
                border.ended.extend(holder.map(name));
                let power = if home.0.on { PowerState::On } else { PowerState::Off };
                let change = SystemChange { power: Some(power), boot: Some(home.1), ..SystemChange::default() };
                self.simulator.change_system(server, change).unwrap();
            }
        }
        border.ended.extend(wrong.map(name));
        wrong
    }

    /// Acts for the owners: requests lost holds again and ends all holds that the store lists as
    /// active.
    fn start_again(&mut self, active: &[Shared<Maintenance>]) {
        let now = Instant::now();
        for (number, hold) in &mut self.holds {
            let name = format!("/hold-{number}");
            let known = active.iter().find(|record| record.id.to_string().ends_with(&name));
            match (&hold.over, known) {
                (Some(_), Some(record)) => {
                    self.tally.reopened += 1;
                    hold.over = None;
                    (hold.releasing, hold.known_over) = (true, true);
                    hold.uid = Some(record.uid.clone());
                }
                (None, None) if hold.uid.is_some() => {
                    self.tally.lost += 1;
                    hold.releasing = false;
                    hold.uid = None;
                }
                // The destroy withdraws the request, because the store lacks its work.
                (None, Some(record)) if record.phase == Phase::Pending => hold.known_over = hold.releasing,
                _ => {}
            }
            hold.retry_at = hold.over.is_none().then_some(now);
        }
    }

    /// Runs a command-line command.
    async fn command(&self, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terraform-provider-metal"));
        command.args(words).env("METAL_COORDINATION_URL", &self.direct).env("METAL_OWNER", &self.run);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }
}

/// Returns true if a recorded prior state matches the server's original state.
fn fits(power: machine::PowerState, boot: Option<&machine::BootOverride>, home: &State) -> bool {
    let same = |name: &str, value: Option<&str>| {
        value.is_none_or(|value| home.boot.get(name).is_some_and(|at_home| at_home == value))
    };
    (power == machine::PowerState::On) == home.on
        && boot.is_none_or(|boot| same(ENABLED, boot.enabled.as_raw()) && same(TARGET, boot.target.as_raw()))
}
