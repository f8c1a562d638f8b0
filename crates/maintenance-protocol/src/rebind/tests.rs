use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    aliases::SystemUuid,
    identity::{Identified, Sighting, decide},
    ids::Runner,
    lock::{AskingState, EnqueueRequest, Leases},
    spec::{MaintenanceKind, Spec},
};

const UUIDS: [[&str; 2]; 2] = [
    ["4c4c4544-0037-3010-8052-b4c04f4d3332", "4c4c4544-0037-3010-8052-b4c04f4d3333"],
    ["5d5d5544-0037-3010-8052-b4c04f4d3332", "5d5d5544-0037-3010-8052-b4c04f4d3333"],
];

/// A step by a process, a person or the hardware.
#[derive(Clone, Debug)]
enum Step {
    /// A process reads a server and its stored identifiers.
    Look { process: usize, server: usize, address: usize, uuid: bool, serial: bool, swapped: bool },
    /// The process enqueues.
    Enqueue { process: usize },
    /// The process claims the unassigned identifiers and starts driving.
    Claim { process: usize },
    /// The process releases.
    Release { process: usize },
    /// A person moves all identifiers of a server to a lock.
    Rebind { server: usize, to: usize },
    /// A server's mainboard is replaced.
    Replace { server: usize },
}

/// An omitted rule, to prove that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The enqueue does not check moved identifiers.
    CheckInTransaction,
    /// All unassigned identifiers are claimed together.
    BestFirst,
    /// Moves of newly claimed identifiers are not checked.
    CheckAfterClaim,
    /// Identifiers move while a maintenance is active.
    Idleness,
    /// A fallback identifier creates a lock.
    NeedForUuid,
}

#[derive(Default)]
struct Process {
    server: usize,
    found: Option<Identified>,
    waits: Option<(LockKey, Uid)>,
    drives: bool,
}

struct World {
    without: Without,
    one_address: bool,
    boards: [usize; 2],
    first: HashMap<Alias, LockKey>,
    locks: BTreeMap<LockKey, ServerLock>,
    processes: [Process; 3],
    made: u32,
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

impl World {
    fn new(without: Without, one_address: bool) -> Self {
        Self {
            without,
            one_address,
            boards: [0, 0],
            first: HashMap::new(),
            locks: BTreeMap::new(),
            processes: Default::default(),
            made: 0,
        }
    }

    fn lock(&mut self, key: &LockKey) -> &mut ServerLock {
        self.locks.entry(key.clone()).or_insert_with(|| ServerLock::new(key.clone()))
    }

    /// Returns the identifier's current location.
    fn place(&self, alias: &Alias) -> Option<AliasTarget> {
        let mut place = AliasTarget::At { key: self.first.get(alias)?.clone(), version: 0 };
        while let AliasTarget::At { key, version } = &place {
            match self.locks.get(key).and_then(|lock| lock.moved_on(alias, *version)) {
                Some(next) => place = next,
                None => break,
            }
        }
        Some(place)
    }

    fn serial(server: usize) -> Alias {
        Alias::serial("maker", &format!("a4{server}"), None).unwrap()
    }

    fn address(&self, server: usize, address: usize) -> Alias {
        let address = if self.one_address { 0 } else { address };
        Alias::address(&format!("bmc{server}-{address}:443"), "/redfish/v1/Systems/1")
    }

    fn look(&mut self, process: usize, server: usize, address: usize, uuid: bool, serial: bool, swapped: bool) {
        if self.processes[process].waits.is_some() {
            return;
        }
        let board = SystemUuid::read(UUIDS[server][self.boards[server]]);
        let mut seen = Sighting {
            configured: None,
            uuid: board.map(|uuid| if swapped { uuid.swapped() } else { uuid }).filter(|_| uuid),
            serial: serial.then(|| Self::serial(server)),
            address: self.address(server, address),
            name: Alias::name(&format!("team{process}/server{server}")),
        };
        let places = |seen: &Sighting| -> BTreeMap<Alias, AliasTarget> {
            seen.aliases().into_iter().filter_map(|alias| Some((alias.clone(), self.place(&alias)?))).collect()
        };
        let mut found = decide(&seen, &places(&seen));
        if found.is_err() && self.without == Without::NeedForUuid && seen.uuid.is_none() {
            seen.configured = Some(LockKey::new(seen.serial.as_ref().unwrap_or(&seen.address).to_string()));
            found = decide(&seen, &places(&seen));
        }
        self.processes[process] = Process { server, found: found.ok(), ..Process::default() };
    }

    fn claim(&mut self, process: usize) {
        let Process { found: Some(found), waits: Some(_), drives: false, .. } = &self.processes[process] else {
            return;
        };
        let Identified { key, fresh, .. } = found.clone();
        let mut lost = false;
        let mut claims = Vec::new();
        for (number, alias) in fresh.into_iter().enumerate() {
            // The best identifier is claimed alone. If that fails, the others must not be claimed.
            if lost && number == 1 && self.without != Without::BestFirst {
                break;
            }
            lost |= *self.first.entry(alias.clone()).or_insert_with(|| key.clone()) != key;
            claims.push(AliasClaim { alias, version: 0 });
        }
        let asks = self.without != Without::CheckAfterClaim;
        if lost || (asks && self.lock(&key).keeps(&claims).is_err()) {
            self.release(process);
        } else {
            self.processes[process].drives = true;
        }
    }

    fn enqueue(&mut self, process: usize) {
        let Process { found: Some(found), waits: None, .. } = &self.processes[process] else { return };
        let Identified { key, claims, .. } = found.clone();
        self.made += 1;
        let uid = Uid::new(format!("u{}", self.made));
        let request = EnqueueRequest {
            uid: uid.clone(),
            id: MaintenanceId::new("ops", &format!("m{}", self.made)).unwrap(),
            owner: "team".into(),
            spec: Spec { hold_place_for: Duration::from_mins(15), ..Spec::new(MaintenanceKind::Maintenance, "node") },
            location: None,
            gates: Vec::new(),
            runner: Runner::new(format!("r{process}"), "ada", "desk", 1),
            keeps_place: false,
            asking: AskingState::default(),
        };
        let asks = self.without != Without::CheckInTransaction;
        let lock = self.lock(&key);
        if asks && lock.keeps(&claims).is_err() {
            return;
        }
        lock.enqueue(request, &Leases::default(), now()).unwrap();
        self.processes[process].waits = Some((key, uid));
    }

    fn release(&mut self, process: usize) {
        if let Some((key, uid)) = std::mem::take(&mut self.processes[process]).waits {
            self.lock(&key).active.retain(|record| record.uid != uid);
        }
    }

    fn rebind(&mut self, server: usize, to: usize) {
        let mut aliases = vec![Self::serial(server), self.address(server, 0), self.address(server, 1)];
        aliases.extend(UUIDS[server].iter().map(|uuid| SystemUuid::read(uuid).unwrap().alias()));
        aliases.extend((0..3).map(|process| Alias::name(&format!("team{process}/server{server}"))));
        aliases.dedup();
        let to = LockKey::new(UUIDS[server][to]);
        let rebind = Rebind { to: Some(&to), by: "ada", reason: "new mainboard" };
        let mut from: BTreeMap<LockKey, Vec<AliasClaim>> = BTreeMap::new();
        for alias in aliases {
            if let Some(AliasTarget::At { key, version }) = self.place(&alias)
                && key != to
            {
                from.entry(key).or_default().push(AliasClaim { alias, version });
            }
        }
        let idle = |world: &mut Self, key: &LockKey| {
            world.without == Without::Idleness || world.lock(key).refuse_in_use(now()).is_ok()
        };
        if !idle(self, &to) || !from.keys().cloned().collect::<Vec<_>>().iter().all(|key| idle(self, key)) {
            return;
        }
        for (key, claims) in from {
            let hidden =
                if self.without == Without::Idleness { std::mem::take(&mut self.lock(&key).active) } else { vec![] };
            self.lock(&key).give_up(&claims, &rebind, now()).unwrap();
            self.lock(&key).active.extend(hidden);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Look { process, server, address, uuid, serial, swapped } => {
                self.look(process, server, address, uuid, serial, swapped);
            }
            Step::Claim { process } => self.claim(process),
            Step::Enqueue { process } => self.enqueue(process),
            Step::Release { process } => self.release(process),
            Step::Rebind { server, to } => self.rebind(server, to),
            // With a second address and a hidden serial number, the server could not be recognized.
            Step::Replace { server } if self.one_address => self.boards[server] = 1,
            Step::Replace { .. } => {}
        }
    }

    /// Returns the locks under which a server has a maintenance that can be admitted.
    fn holders(&self, server: usize) -> Vec<&LockKey> {
        let mut keys: Vec<&LockKey> = self
            .processes
            .iter()
            .filter(|p| p.server == server && p.drives)
            .filter_map(|p| Some(&p.waits.as_ref()?.0))
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Returns the first step after which a server has two locks.
    fn doubled(without: Without, one_address: bool, steps: &[Step]) -> Option<usize> {
        let mut world = Self::new(without, one_address);
        steps.iter().position(|step| {
            world.step(step);
            (0..2).any(|server| world.holders(server).len() > 1)
        })
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let look = (0..3usize, 0..2usize, 0..2usize, any::<bool>(), any::<bool>(), any::<bool>());
    let look = look.prop_map(|(process, server, address, uuid, serial, swapped)| Step::Look {
        process,
        server,
        address,
        uuid,
        serial,
        swapped,
    });
    prop_oneof![
        4 => look,
        4 => (0..3usize).prop_map(|process| Step::Claim { process }),
        4 => (0..3usize).prop_map(|process| Step::Enqueue { process }),
        2 => (0..3usize).prop_map(|process| Step::Release { process }),
        1 => (0..2usize, 0..2usize).prop_map(|(server, to)| Step::Rebind { server, to }),
        1 => (0..2usize).prop_map(|server| Step::Replace { server }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn one_server_never_has_two_locks(steps in proptest::collection::vec(any_step(), 1..60), one_address: bool) {
        prop_assert_eq!(World::doubled(Without::Nothing, one_address, &steps), None);
    }
}

fn look(process: usize, uuid: bool, serial: bool) -> Step {
    Step::Look { process, server: 0, address: process % 2, uuid, serial, swapped: false }
}

#[test]
fn each_rule_is_needed() {
    let (claim, enqueue) = (|process| Step::Claim { process }, |process| Step::Enqueue { process });
    let rebind = Step::Rebind { server: 0, to: 1 };
    let release = |process| Step::Release { process };
    for (without, steps) in [
        (
            Without::CheckInTransaction,
            vec![
                look(0, true, true),
                enqueue(0),
                claim(0),
                release(0),
                look(0, true, true),
                rebind.clone(),
                look(1, true, true),
                enqueue(1),
                claim(1),
                enqueue(0),
                claim(0),
            ],
        ),
        (
            Without::BestFirst,
            // Two processes read a new UUID, in both byte orders and at two addresses.
            vec![
                look(0, true, false),
                Step::Look { process: 1, server: 0, address: 1, uuid: true, serial: false, swapped: true },
                enqueue(0),
                enqueue(1),
                claim(0),
                claim(1),
                look(1, false, false),
                enqueue(1),
                claim(1),
            ],
        ),
        (
            Without::CheckAfterClaim,
            vec![
                look(0, true, false),
                look(2, true, false),
                enqueue(2),
                claim(2),
                release(2),
                rebind.clone(),
                look(1, true, false),
                enqueue(1),
                claim(1),
                enqueue(0),
                claim(0),
            ],
        ),
        (
            Without::Idleness,
            vec![look(0, true, true), enqueue(0), claim(0), rebind, look(1, true, true), enqueue(1), claim(1)],
        ),
        (
            Without::NeedForUuid,
            // The BMC hides its UUID, and two owners use different addresses.
            vec![look(0, true, false), enqueue(0), claim(0), look(1, false, true), enqueue(1), claim(1)],
        ),
    ] {
        assert_eq!(World::doubled(without, false, &steps), Some(steps.len() - 1), "{without:?} changes nothing");
        assert_eq!(World::doubled(Without::Nothing, false, &steps), None);
    }
}

#[test]
fn an_identifier_that_comes_back_is_found_from_anywhere_on_its_trail() {
    let (one, two) = (LockKey::new("one"), LockKey::new("two"));
    let alias = Alias::serial("maker", "a42", None).unwrap();
    let mut locks = [ServerLock::new(one.clone()), ServerLock::new(two.clone())];
    for (version, from, to) in [(0, 0, &two), (1, 1, &one), (2, 0, &two), (3, 1, &one)] {
        let claims = [AliasClaim { alias: alias.clone(), version }];
        let rebind = Rebind { to: Some(to), by: "ada", reason: "because" };
        assert_eq!(locks[from].keeps(&claims), Ok(()));
        locks[from].give_up(&claims, &rebind, now()).unwrap();
        assert!(locks[from].keeps(&claims).is_err(), "who read it before is refused");
        assert_eq!(locks[from].events.last().unwrap().what, "rebound");
        for first in [&one, &two] {
            let lock = |key: &LockKey| locks.iter().find(|lock| lock.key == *key);
            assert_eq!(trail_end(&alias, first, lock), Some(to.clone()), "move {version} from {first}");
        }
    }
}

/// Follows an identifier's moves to its current lock; `None` if several servers share it.
fn trail_end<'a>(alias: &Alias, first: &LockKey, lock: impl Fn(&LockKey) -> Option<&'a ServerLock>) -> Option<LockKey> {
    let (mut key, mut version) = (first.clone(), 0);
    loop {
        match lock(&key).and_then(|lock| lock.moved_on(alias, version)) {
            None => return Some(key),
            Some(AliasTarget::Shared) => return None,
            Some(AliasTarget::At { key: next, version: moved }) => (key, version) = (next, moved),
        }
    }
}
