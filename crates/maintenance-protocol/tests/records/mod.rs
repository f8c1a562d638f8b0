//! Minimal requests for tests: each test sets only the relevant fields.

#![allow(dead_code)]

use std::time::Duration;

use maintenance_protocol::{
    ids::{LockKey, MaintenanceId, Runner, Token, Uid},
    lock::{AskingState, EnqueueRequest},
    spec::{MaintenanceKind, Spec},
};

pub const TTL: Duration = Duration::from_secs(30);
pub const HOLD_PLACE: Duration = Duration::from_mins(15);
pub const AGING: Duration = Duration::from_hours(24);

pub fn runner(n: u32) -> Runner {
    Runner::new(format!("runner-{n}"), "ada", "desk", n)
}

/// Returns a fixed token. Generations distinguish attachments in tests that lose no commits.
pub fn token() -> Token {
    Token(uuid::Uuid::from_u128(7))
}

pub fn key(name: &str) -> LockKey {
    LockKey::new(name)
}

pub fn id(name: &str) -> MaintenanceId {
    MaintenanceId::new("ops", name).unwrap()
}

pub fn spec() -> Spec {
    Spec { hold_place_for: HOLD_PLACE, ..Spec::new(MaintenanceKind::Maintenance, "node-1") }
}

/// Returns a request by process `n`, with a unique UID.
pub fn request(name: &str, n: u32) -> EnqueueRequest {
    EnqueueRequest {
        location: None,
        gates: Vec::new(),
        uid: Uid::new(uuid::Uuid::now_v7().to_string()),
        id: id(name),
        owner: "team".into(),
        spec: spec(),
        runner: runner(n),
        keeps_place: false,
        asking: AskingState::default(),
    }
}
