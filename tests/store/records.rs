//! Plain requests for tests: what matters is named, the rest is the simplest there is.

#![allow(dead_code)]

use std::{collections::BTreeMap, time::Duration};

use terraform_provider_metal::maintenance::{
    ids::{LockKey, MaintenanceId, Runner, RunnerId, Uid},
    lock::Request,
    spec::{Kind, Policy, Spec},
};

pub const TTL: Duration = Duration::from_secs(30);
pub const HOLD_PLACE: Duration = Duration::from_secs(900);
pub const AGING: Duration = Duration::from_secs(86_400);

pub fn runner(n: u32) -> Runner {
    Runner {
        id: RunnerId(format!("runner-{n}")),
        user: "ada".into(),
        host: "desk".into(),
        pid: n,
        process: String::new(),
        run: None,
        url: None,
        commit: None,
    }
}

pub fn key(name: &str) -> LockKey {
    LockKey(name.to_owned())
}

pub fn id(name: &str) -> MaintenanceId {
    MaintenanceId::new("ops", name).unwrap()
}

pub fn spec() -> Spec {
    Spec {
        kind: Kind::Maintenance,
        server: "node-1".into(),
        parent: None,
        policy: Policy::Enforced,
        reason: None,
        ticket: None,
        priority: 0,
        server_power: None,
        boot: None,
        complete_when: None,
        expires_after: None,
        hold_place_for: HOLD_PLACE,
        triggers: BTreeMap::new(),
    }
}

/// A request of process `n`; each has its own incarnation.
pub fn request(name: &str, n: u32) -> Request {
    Request {
        uid: Uid(uuid::Uuid::now_v7().to_string()),
        id: id(name),
        owner: "team".into(),
        spec: spec(),
        runner: runner(n),
        keeps_place: false,
    }
}
