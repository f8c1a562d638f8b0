//! Plays scenario steps in a world with stand-ins or real controllers, and records the writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{
    cluster_api::{MAINTENANCE, journal::Change, world::World},
    ironcore::patience,
    server::Server,
};

/// End condition of a step.
#[derive(Clone)]
pub enum End {
    /// No write for this long, with a longer limit for steps that wait for a lease or a minute.
    Quiet { normal: Duration, slow: Duration },
    /// The writes listed in a table, and no others.
    Table(Arc<BTreeMap<String, Vec<String>>>),
}

/// Controllers in the scenario.
pub enum Controllers {
    StandIns,
    Real(Programs),
}

/// The real controllers: programs that read `KUBECONFIG`, and their folders.
pub struct Programs {
    pub extension: String,
    pub maintenance: String,
    pub folder: PathBuf,
    pub extension_runs: Option<Server>,
    pub maintenance_runs: Option<Server>,
}

/// Suffix of steps whose writes can interleave between objects.
pub const ANY_ORDER: &str = " (any order)";

pub struct Stage {
    pub world: World,
    pub controllers: Controllers,
    pub end: End,
    /// Steps so far with their writes.
    pub played: Vec<(String, Vec<String>)>,
    taken: BTreeSet<u64>,
}

impl Stage {
    pub fn new(world: World, controllers: Controllers, end: End) -> Self {
        Self { world, controllers, end, played: Vec::new(), taken: BTreeSet::new() }
    }

    pub fn start_extension(&mut self, metal3: bool) {
        self.world.options.extension.metal3 = metal3;
        match &mut self.controllers {
            Controllers::StandIns => self.world.start_extension(),
            Controllers::Real(programs) => {
                programs.extension_runs = None;
                let more = metal3.then(|| "--enable-metal3-maintenance".to_owned());
                let program = programs.extension.clone();
                programs.extension_runs = Some(programs.start("extension", &program, self.world.kubeconfig(), more));
            }
        }
    }

    pub fn stop_extension(&mut self) {
        match &mut self.controllers {
            Controllers::StandIns => self.world.stop_extension(),
            Controllers::Real(programs) => programs.extension_runs = None,
        }
    }

    pub fn start_maintenance(&mut self) {
        match &mut self.controllers {
            Controllers::StandIns => self.world.start_maintenance(),
            Controllers::Real(programs) => {
                programs.maintenance_runs = None;
                let program = programs.maintenance.clone();
                let started = programs.start("maintenance", &program, self.world.workload_kubeconfig(), None);
                programs.maintenance_runs = Some(started);
            }
        }
    }

    pub fn stop_maintenance(&mut self) {
        match &mut self.controllers {
            Controllers::StandIns => self.world.stop_maintenance(),
            Controllers::Real(programs) => programs.maintenance_runs = None,
        }
    }

    /// Sets a Machine's maintenance label; `None` removes it.
    pub async fn label(&self, machine: &str, value: Option<&str>) {
        self.world.label_machine(machine, json!({MAINTENANCE: value})).await;
    }

    /// Plays one step and waits for its end.
    pub async fn step(&mut self, name: &str, act: impl AsyncFnOnce(&mut Self)) {
        self.paced(name, false, act).await;
    }

    /// Plays one step that is slow with the real controllers.
    pub async fn slow_step(&mut self, name: &str, act: impl AsyncFnOnce(&mut Self)) {
        self.paced(name, true, act).await;
    }

    async fn paced(&mut self, name: &str, is_slow: bool, act: impl AsyncFnOnce(&mut Self)) {
        let began = Instant::now();
        act(self).await;
        let seen = match self.end.clone() {
            End::Quiet { normal, slow } => self.quiet(if is_slow { slow } else { normal }).await,
            End::Table(table) => {
                let wanted = table.get(name).unwrap_or_else(|| panic!("no step {name} in the table"));
                self.as_wanted(name, wanted).await
            }
        };
        self.taken.extend(seen.iter().map(|change| change.revision));
        let lines = self.lines(&seen);
        if matches!(self.end, End::Quiet { .. }) {
            eprintln!("{name}");
            for (change, line) in seen.iter().zip(&lines) {
                let after = change.heard.saturating_duration_since(began).as_millis();
                eprintln!("    {after:>6} ms {line}");
            }
        }
        self.played.push((name.to_owned(), lines));
    }

    fn unseen(&self) -> Vec<Change> {
        self.world.journal.changes().into_iter().filter(|change| !self.taken.contains(&change.revision)).collect()
    }

    async fn quiet(&self, time: Duration) -> Vec<Change> {
        let (mut seen, mut moved) = (self.unseen(), Instant::now());
        while moved.elapsed() < time {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.unseen();
            if now.len() != seen.len() {
                (seen, moved) = (now, Instant::now());
            }
        }
        seen
    }

    async fn as_wanted(&self, name: &str, wanted: &[String]) -> Vec<Change> {
        let (end, mut settled) = (Instant::now() + patience::PATIENCE, false);
        loop {
            let seen = self.unseen();
            let lines = self.lines(&seen);
            let alike =
                if name.ends_with(ANY_ORDER) { by_object(&lines) == by_object(wanted) } else { lines == wanted };
            if alike && settled {
                return seen;
            }
            if alike {
                // No further write can follow.
                self.world.settled().await;
                settled = true;
                continue;
            }
            let context =
                || format!("{name}\nwanted:\n    {}\nseen:\n    {}", wanted.join("\n    "), lines.join("\n    "));
            assert!(!settled && lines.len() <= wanted.len() && Instant::now() < end, "{}", context());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn lines(&self, changes: &[Change]) -> Vec<String> {
        let prefix = format!("{}-", self.world.namespace);
        let line = |change: &Change| {
            let name = change.name.strip_prefix(&prefix).unwrap_or(&change.name);
            format!("{} {name}: {}", change.kind, change.words.join(", "))
        };
        changes.iter().map(line).collect()
    }
}

impl Programs {
    fn start(&self, name: &str, program: &str, kubeconfig: &Path, more: Option<String>) -> Server {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(folder.join("config")).unwrap();
        std::fs::write(folder.join("config/maintenance.yaml"), include_str!("profile.yaml")).unwrap();
        let mut command = vec![
            "env".to_owned(),
            format!("--chdir={}", folder.display()),
            format!("KUBECONFIG={}", kubeconfig.display()),
            program.to_owned(),
        ];
        command.extend(more);
        Server::start(&folder, "KILL", &command)
    }
}

fn by_object(lines: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (object, words) in lines.iter().filter_map(|line| line.split_once(": ")) {
        all.entry(object).or_default().push(words);
    }
    all
}

pub fn read(table: &str) -> BTreeMap<String, Vec<String>> {
    let mut steps: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut current = String::new();
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match line.strip_prefix("    ") {
            Some("nothing") => {}
            Some(change) => steps.get_mut(&current).unwrap().push(change.to_owned()),
            None => {
                line.clone_into(&mut current);
                assert!(steps.insert(current.clone(), Vec::new()).is_none(), "{line} is in the table twice");
            }
        }
    }
    steps
}

/// Formats the steps as a table.
pub fn write(played: &[(String, Vec<String>)]) -> String {
    let step = |(name, lines): &(String, Vec<String>)| {
        let lines = if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n    ") };
        format!("{name}\n    {lines}\n")
    };
    played.iter().map(step).collect()
}
