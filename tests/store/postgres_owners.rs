//! Maintenances, claims, leases and bindings of one login role, and writes to them by another.

use std::time::Duration;

use serde_json::{Value, json};
use terraform_provider_metal::{
    maintenance::{
        hand_over::HandOver,
        ids::{Fence, Uid},
        lock::{EnqueueRequest, Leases, LockHolder, Refusal, ServerLock},
        spec::Spec,
        state::{Ending, Phase},
    },
    store::{PostgresStore, Store, StoreError},
};

use crate::{
    bench::{apply, finish, hold, join, try_admit},
    postgres_attacks::Guarded,
    records::{TTL, key, request, runner, spec, token},
    talk::claim,
};

/// Two runners with their own logins.
struct Teams {
    guarded: Guarded,
    a: PostgresStore,
    b: PostgresStore,
}

impl Teams {
    async fn start() -> Self {
        let guarded = Guarded::start().await;
        for team in ["team_a", "team_b"] {
            guarded.sql(&format!("CREATE ROLE {team} LOGIN CONNECTION LIMIT 9 IN ROLE metal_runner"));
        }
        let (a, b) = (guarded.open("team_a").await, guarded.open("team_b").await);
        Self { guarded, a, b }
    }

    /// Returns a stored record with another fate and changed fields.
    fn record(&self, name: &str, fate: &str, changed: &Value) -> Value {
        let row = "json_build_object('uid', uid, 'namespace', namespace, 'name', name, 'runner', runner, 'body', body)";
        let row = self.guarded.sql(&format!("SELECT {row} FROM metal.maintenances WHERE name = '{name}'"));
        let mut row: Value = serde_json::from_str(&row).unwrap();
        let mut body: Value = serde_json::from_str(row["body"].as_str().unwrap()).unwrap();
        body.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        row["body"] = body.to_string().into();
        row["fate"] = fate.into();
        row
    }
}

#[track_caller]
fn forbidden<T: std::fmt::Debug>(said: Result<T, StoreError>) {
    let error = said.unwrap_err();
    assert!(matches!(&error, StoreError::Forbidden { .. }), "{error}");
}

fn wish(name: &str, n: u32, spec: Spec) -> EnqueueRequest {
    EnqueueRequest { spec, ..request(name, n) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_ends_no_maintenance_of_another_role() {
    let teams = Teams::start().await;
    let (uid, fence) = hold(&teams.a, &key("s"), &request("x", 10)).await;
    let (other, theirs) = join(&teams.b, &key("s"), &request("y", 11)).await.unwrap();
    forbidden(finish(&teams.b, &key("s"), &uid, fence).await);
    teams.guarded.refused("team_b", "UPDATE metal.maintenances SET fate = 'ended'");
    let line = |uid: &Uid| json!([{"namespace": "ops", "name": "x", "body": json!({"uid": uid.raw()}).to_string()}]);
    let slot = |uid: &str, acting: Option<&str>| {
        let holder = json!({"uid": uid, "since": "2026-01-01T00:00:00Z", "acting": acting});
        json!({"format": 1, "holder": holder, "extension": {}}).to_string()
    };
    let free = json!({"format": 1, "holder": null, "extension": {}}).to_string();
    let ended = teams.record("x", "ended", &json!({"phase": {"Failed": {"at": "2026-01-01T00:00:00Z", "cause": ""}}}));
    let mine = |changed: Value| teams.record("y", "active", &changed);
    let held = json!({"phase": {"InMaintenance": {"since": "2026-01-01T00:00:00Z"}}});
    for fields in [
        json!({"head_moved": true, "slot": free, "records": [ended], "events": line(&uid)}),
        json!({"withdrawn": [uid.raw()], "events": line(&uid)}),
        json!({"head_moved": true, "slot": free}),
        json!({"head_moved": true, "slot": slot(other.raw(), None), "records": [mine(held.clone())]}),
        json!({"head_moved": true, "slot": slot(uid.raw(), Some(other.raw()))}),
        json!({"records": [teams.record("x", "active", &json!({"admitted_at": "2001-01-01T00:00:00Z"}))]}),
        // A record that poses as the holder.
        json!({"records": [mine(json!({"uid": uid.raw()}))]}),
        json!({"records": [mine(json!({"id": "ops/x"}))]}),
        json!({"records": [mine(json!({"calls_until": "2100-01-01T00:00:00Z"}))]}),
        // Its own end without an audit line.
        json!({"withdrawn": [other.raw()]}),
    ] {
        teams.guarded.denied("team_b", "s", &fields);
    }
    let view = teams.a.view(&key("s")).await.unwrap();
    assert_eq!(view.lock.holder().map(|record| &record.uid), Some(&uid));
    // A second holder, even of the same role.
    let (second, _) = join(&teams.a, &key("s"), &request("z", 12)).await.unwrap();
    let admitted = teams.record("z", "active", &held);
    let fields = json!({"head_moved": true, "slot": slot(second.raw(), None), "records": [admitted]});
    teams.guarded.denied("team_a", "s", &fields);
    // The queue works across roles.
    finish(&teams.a, &key("s"), &uid, fence).await.unwrap();
    assert!(try_admit(&teams.b, &key("s"), &other, theirs).await.unwrap());
    finish(&teams.b, &key("s"), &other, theirs).await.unwrap();
    assert_eq!(teams.a.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_role_ends_a_record_only_after_its_time() {
    let teams = Teams::start().await;
    let at_once = Spec { hold_place_for: Duration::ZERO, ..spec() };
    let (waits, _) = join(&teams.a, &key("s"), &wish("x", 10, at_once)).await.unwrap();
    let line = json!([{"namespace": "ops", "name": "x", "body": json!({"uid": waits.raw()}).to_string()}]);
    let dropped = json!({"withdrawn": [waits.raw()], "events": line});
    assert_eq!(teams.guarded.send("team_b", "s", &dropped), Err("overtaken".into()));
    teams.a.resign(&runner(10).id).await.unwrap();
    let drop_absent = |lock: &mut ServerLock, leases: &Leases, now| {
        lock.drop_absent(leases, now);
        Ok(lock.active.len())
    };
    assert_eq!(apply(&teams.b, &key("s"), drop_absent).await.unwrap(), 0);

    // Without a time limit, only the holder's role and its members can end it.
    let (held, _) = hold(&teams.a, &key("t"), &request("held", 11)).await;
    teams.a.resign(&runner(11).id).await.unwrap();
    teams.b.renew(&runner(20), TTL).await.unwrap();
    let seen = teams.a.view(&key("t")).await.unwrap().lock.generation;
    let seizes =
        |lock: &mut ServerLock, leases: &Leases, now| lock.fence_holder(&held, seen, runner(20), token(), leases, now);
    forbidden(apply(&teams.b, &key("t"), seizes).await);
    teams.guarded.sql("CREATE ROLE on_call LOGIN CONNECTION LIMIT 9 IN ROLE team_a");
    let on_call = teams.guarded.open("on_call").await;
    let (fence, _) = apply(&on_call, &key("t"), seizes).await.unwrap();
    finish(&on_call, &key("t"), &held, fence).await.unwrap();

    // An overdue holder ends by any runner, unless its process works.
    let (overdue, _) =
        hold(&teams.a, &key("u"), &wish("late", 12, Spec { expires_after: Some(Duration::ZERO), ..spec() })).await;
    let takes =
        |lock: &mut ServerLock, _: &Leases, now| lock.attach(&overdue, runner(20), token(), &Leases::default(), now);
    forbidden(apply(&teams.b, &key("u"), takes).await);
    teams.a.resign(&runner(12).id).await.unwrap();
    let fence: Fence = apply(&teams.b, &key("u"), takes).await.unwrap();
    finish(&teams.b, &key("u"), &overdue, fence).await.unwrap();
    assert_eq!(teams.a.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_role_writes_only_what_the_protocol_requires() {
    let teams = Teams::start().await;
    // Work under the lock records its changes in the holder.
    for (name, n, allow_under) in [("closed", 10, vec![]), ("open", 11, vec!["team".into()])] {
        let (this, allowed) = (key(name), !allow_under.is_empty());
        let (uid, fence) = hold(&teams.a, &this, &wish(name, n, Spec { allow_under, ..spec() })).await;
        let under = Spec { parent: Some(uid.clone()), ..spec() };
        let (child, theirs) = join(&teams.b, &this, &wish(&format!("under-{name}"), n + 10, under)).await.unwrap();
        let booted = |lock: &mut ServerLock, _: &Leases, _| {
            lock.active.iter_mut().filter(|record| record.uid == uid).for_each(|record| record.booted = true);
            Ok(())
        };
        let noted = apply(&teams.b, &this, booted).await;
        if allowed {
            noted.unwrap();
        } else {
            forbidden(noted);
        }
        let expires = |lock: &mut ServerLock, _: &Leases, _| {
            let holder = lock.active.iter_mut().find(|record| record.uid == uid).unwrap();
            holder.spec.expires_after = Some(Duration::ZERO);
            Ok(())
        };
        forbidden(apply(&teams.b, &this, expires).await);
        forbidden(finish(&teams.b, &this, &uid, fence).await);
        let admitted = try_admit(&teams.b, &this, &child, theirs).await;
        if allowed {
            assert!(admitted.unwrap());
        } else {
            forbidden(admitted);
        }
        // The holder's end includes the work under it.
        finish(&teams.a, &this, &uid, fence).await.unwrap();
    }
    // A holder hands the server to a waiter that allows it.
    for (name, n, hand_over) in [("restored", 30, HandOver::Restore), ("direct", 31, HandOver::Direct)] {
        let this = key(name);
        let (uid, fence) = hold(&teams.a, &this, &request(name, n)).await;
        let next = wish(&format!("after-{name}"), n + 10, Spec { hand_over, ..spec() });
        let (next, theirs) = join(&teams.b, &this, &next).await.unwrap();
        let hands = |lock: &mut ServerLock, _: &Leases, now| {
            let over = Phase::Completed { at: now, ending: Ending::Completed };
            lock.finish(&uid, fence, &over, now)?;
            // The first attempt uses this handle's cache, which can lack the waiter.
            let record = lock.active.iter_mut().find(|record| record.uid == next).ok_or(Refusal::Gone)?;
            record.phase = Phase::InMaintenance { since: now };
            record.admitted_at = Some(now);
            lock.slot = Some(LockHolder { uid: next.clone(), since: now, acting: None });
            Ok(())
        };
        let handed = apply(&teams.a, &this, hands).await;
        if hand_over == HandOver::Direct {
            handed.unwrap();
            finish(&teams.b, &this, &next, theirs).await.unwrap();
        } else {
            forbidden(handed);
        }
    }
    assert_eq!(teams.a.contents().await.unwrap().violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_leases_and_bindings_belong_to_their_role() {
    let teams = Teams::start().await;
    let claimed = apply(&teams.a, &key("s"), |lock, _, now| lock.claim(claim("mine"), now)).await.unwrap();
    let unclaim = |lock: &mut ServerLock, _: &Leases, now| Ok(lock.unclaim(&claimed, "ada", now));
    forbidden(apply(&teams.b, &key("s"), unclaim).await);
    assert!(apply(&teams.a, &key("s"), unclaim).await.unwrap());

    teams.a.renew(&runner(10), TTL).await.unwrap();
    forbidden(teams.b.renew(&runner(10), Duration::ZERO).await);
    teams.b.resign(&runner(10).id).await.unwrap();
    let alive = "SELECT until > clock_timestamp() FROM metal.leases WHERE runner_id = 'runner-10'";
    assert_eq!(teams.guarded.sql(alive), "t");
    teams.a.renew(&runner(10), Duration::from_hours(24 * 365)).await.unwrap();
    let long = "SELECT until > clock_timestamp() + interval '25 hours' FROM metal.leases WHERE runner_id = 'runner-10'";
    assert_eq!(teams.guarded.sql(long), "f");

    let names = ["team/n".to_owned(), "serial:n".to_owned()];
    teams.a.bind_all(&names, &key("s")).await.unwrap();
    let error = teams.b.bind("team/n", &key("other"), true).await.unwrap_err();
    assert!(matches!(error, StoreError::OtherIdentity { .. }), "{error}");
    // The first name decides.
    let error = teams.b.bind_all(&["team/n".to_owned(), "new".to_owned()], &key("other")).await.unwrap_err();
    assert!(matches!(error, StoreError::OtherIdentity { .. }), "{error}");
    assert_eq!(teams.b.bindings(&[names[1].clone(), "new".to_owned()]).await.unwrap(), [Some(key("s")), None]);
    teams.a.bind("team/n", &key("other"), true).await.unwrap();
}
