//! Attacks by a database role's user with `psql` and that role's own login.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use terraform_provider_metal::{
    maintenance::{
        approval::Scope,
        ids::{Fence, Uid},
        lock::{EnqueueRequest, Leases, ServerLock},
        spec::{Policy, Spec},
    },
    store::{AuditStart, PostgresStore, Store},
};

use crate::{
    bench::{WrongClock, apply, finish, join, postgres, soon, try_admit},
    records::{id, key, request, spec},
    roles,
    support::postgres::Postgres,
    talk::{approval, approve, claim},
};

pub const RUNNER: &str = "metal_runner";
pub const APPROVER: &str = "metal_approver";
pub const REVIEWER: &str = "metal_reviewer";

/// A database with the printed roles, and a claimed server with one waiter.
pub struct Guarded {
    pub server: Postgres,
    pub database: String,
    pub runs: PostgresStore,
    wish: EnqueueRequest,
    waiter: (Uid, Fence),
}

impl Guarded {
    pub async fn start() -> Self {
        Self::with(|printed| printed).await
    }

    /// Starts with changed roles.
    async fn with(roles: impl FnOnce(String) -> String) -> Self {
        let server = Postgres::start(&[]);
        let database = server.database();
        let url = |role: &str| server.url(role, &database);
        postgres(&url("postgres"), WrongClock::next()).await.unwrap().close().await;
        server.sql(&database, &roles(roles::printed("postgres", &url("postgres")).await));
        let runs = postgres(&url(RUNNER), WrongClock::next()).await.unwrap();
        apply(&runs, &key("k"), |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
        let wish = EnqueueRequest { spec: Spec { policy: Policy::OwnerApproval, ..spec() }, ..request("a", 1) };
        let waiter = join(&runs, &key("k"), &wish).await.unwrap();
        Self { server, database, runs, wish, waiter }
    }

    pub async fn open(&self, role: &str) -> PostgresStore {
        postgres(&self.server.url(role, &self.database), WrongClock::next()).await.unwrap()
    }

    pub fn as_role(&self, role: &str, sql: &str) -> Result<String, String> {
        self.server.sql_as(role, &self.database, sql)
    }

    pub fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.database, sql)
    }

    #[track_caller]
    pub fn refused(&self, role: &str, sql: &str) {
        let error = self.as_role(role, sql).expect_err(sql);
        assert!(error.contains("permission denied"), "{sql}: {error}");
    }

    /// Returns a statement that changes these fields of a lock in its current state. It returns the
    /// new revision, an error, or `overtaken`.
    pub fn change(&self, lock: &str, fields: &Value) -> String {
        let now = self.sql(&format!(
            "SELECT json_build_object('expected', revision, 'newest', split_part(commits, ' ', 1), 'generation', \
             generation, 'last_ticket', last_ticket, 'slot', slot, 'claim', claim) FROM metal.locks \
             WHERE lock_key = '{lock}'"
        ));
        let mut change = json!({
            "lock_key": lock, "expected": 0, "newest": "", "commit_name": uuid::Uuid::new_v4().simple().to_string(),
            "format": 1, "head_moved": false, "generation": 0, "last_ticket": 0, "claim_moved": false,
            "withdrawn": [], "records": [], "unapproved": [], "approvals": [], "used": [], "events": [], "channel": "",
        });
        let now = if now.is_empty() { json!({}) } else { serde_json::from_str(&now).unwrap() };
        for more in [&now, fields] {
            change.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        format!(
            "SELECT coalesce(revision::text, code || ' ' || cause, 'overtaken') FROM metal.commit(ARRAY(\
             SELECT c FROM jsonb_populate_recordset(NULL::metal.change, $change$[{change}]$change$) AS c))"
        )
    }

    /// Sends such a change. Returns its error.
    pub fn send(&self, role: &str, lock: &str, fields: &Value) -> Result<(), String> {
        let said = self.as_role(role, &self.change(lock, fields))?;
        if said.parse::<i64>().is_ok() { Ok(()) } else { Err(said) }
    }

    #[track_caller]
    pub fn denied(&self, role: &str, lock: &str, fields: &Value) {
        let error = self.send(role, lock, fields).expect_err(&fields.to_string());
        assert!(error.contains("permission denied"), "{fields}: {error}");
    }

    /// Admits the waiter with a separate approval and releases it: a complete hold.
    pub async fn the_hold_goes_on(&self) {
        self.hold().await;
        assert_eq!(self.runs.contents().await.unwrap().violations(), [""; 0]);
    }

    async fn hold(&self) {
        let approves = self.open(APPROVER).await;
        let scope = Scope::Maintenance { id: self.wish.id.clone(), digest: self.wish.spec.digest().into() };
        approve(&approves, &key("k"), &approval(scope)).await.unwrap();
        let (uid, fence) = &self.waiter;
        assert!(try_admit(&self.runs, &key("k"), uid, *fence).await.unwrap());
        finish(&self.runs, &key("k"), uid, *fence).await.unwrap();
    }
}

const LARGEST: &str = "9223372036854775807";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_moves_a_lock_past_its_revision() {
    let guarded = Guarded::start().await;
    for role in [RUNNER, APPROVER, REVIEWER] {
        for change in [&format!("revision = {LARGEST}"), "commits = ''", "generation = generation + 1", "slot = '{'"] {
            guarded.refused(role, &format!("UPDATE metal.locks SET {change}"));
        }
        guarded.refused(role, "SELECT * FROM metal.locks FOR UPDATE");
        let made = format!("INSERT INTO metal.locks VALUES ('new', 1, 1, NULL, NULL, NULL, {LARGEST}, '')");
        guarded.refused(role, &made);
    }
    let largest: i64 = LARGEST.parse().unwrap();
    for (number, value) in [("generation", largest), ("generation", 0), ("last_ticket", largest), ("last_ticket", 0)] {
        guarded.denied(RUNNER, "k", &json!({"head_moved": true, number: value}));
    }
    for (field, value) in [("expected", json!(largest)), ("newest", json!("x")), ("expected", json!(0))] {
        assert_eq!(guarded.send(RUNNER, "k", &json!({field: value})), Err("overtaken".into()));
    }
    let used = guarded.sql("SELECT split_part(commits, ' ', 2) FROM metal.locks");
    for name in [used.as_str(), "short", "two names in one text, separated"] {
        guarded.denied(RUNNER, "k", &json!({"commit_name": name}));
    }
    guarded.the_hold_goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approver_withdraws_only_what_its_owner_gave() {
    let guarded = Guarded::start().await;
    let approves = guarded.open(APPROVER).await;
    approve(&approves, &key("k"), &approval(Scope::All)).await.unwrap();
    guarded.sql("CREATE ROLE team LOGIN CONNECTION LIMIT 5 IN ROLE metal_approver; INSERT INTO metal.owner_roles VALUES ('team', 'team')");
    let count = || guarded.sql("SELECT count(*) FROM metal.approvals");
    let given = guarded.sql("SELECT uid FROM metal.approvals");
    let given = json!([given]);
    let answer = |gone: &Value, uid: &str, body: &str| {
        let new: Vec<Value> =
            (!uid.is_empty()).then(|| json!({"uid": uid, "owner": "team", "body": body})).into_iter().collect();
        json!({"unapproved": gone, "approvals": new})
    };
    for role in [RUNNER, APPROVER, REVIEWER] {
        for fields in [answer(&given, "", ""), answer(&json!([]), "new", "x")] {
            guarded.denied(role, "k", &fields);
        }
        guarded.refused(role, "DELETE FROM metal.approvals");
        guarded.refused(role, "INSERT INTO metal.approvals (uid, lock_key, owner, body) VALUES ('x', 'k', 'team', '')");
        assert_eq!(count(), "1");
    }
    // An approver changes nothing but approvals.
    let event = json!([{"namespace": "ops", "name": "a", "body": "{}"}]);
    for fields in [json!({"events": event}), json!({"head_moved": true}), json!({"claim_moved": true, "claim": null})] {
        guarded.denied(APPROVER, "k", &fields);
    }
    guarded.denied(APPROVER, "new", &answer(&json!([]), "new", "x"));
    guarded.denied(APPROVER, "k", &json!({"used": [{"uid": given[0], "used_by": "u"}]}));
    let team = guarded.open("team").await;
    let uid = Uid::new(given[0].as_str().unwrap().to_owned());
    let withdraw = |lock: &mut ServerLock, _: &Leases, now| Ok(lock.withdraw_approval(&uid, "ada", now));
    assert!(apply(&team, &key("k"), withdraw).await.unwrap());
    // Unreadable approvals count as missing and never block the server.
    guarded.sql("DELETE FROM metal.owner_roles");
    guarded.send(APPROVER, "k", &answer(&json!([]), "broken", "{")).unwrap();
    let (uid, fence) = &guarded.waiter;
    assert!(!try_admit(&guarded.runs, &key("k"), uid, *fence).await.unwrap());
    let told = guarded.runs.contents().await.unwrap().violations();
    assert!(told.len() == 1 && told[0].raw().contains("broken"), "{told:?}");
    guarded.sql("DELETE FROM metal.approvals");
    guarded.the_hold_goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_approval_stays_used() {
    let guarded = Guarded::start().await;
    let approves = guarded.open(APPROVER).await;
    let scope = Scope::Maintenance { id: guarded.wish.id.clone(), digest: guarded.wish.spec.digest().into() };
    approve(&approves, &key("k"), &approval(scope)).await.unwrap();
    let (uid, fence) = &guarded.waiter;
    assert!(try_admit(&guarded.runs, &key("k"), uid, *fence).await.unwrap());
    finish(&guarded.runs, &key("k"), uid, *fence).await.unwrap();
    for role in [RUNNER, APPROVER, REVIEWER] {
        guarded.refused(role, "UPDATE metal.approvals SET used_by = NULL");
        let used = guarded.sql("SELECT uid FROM metal.approvals");
        guarded.send(role, "k", &json!({"used": [{"uid": used, "used_by": "other"}]})).unwrap_err();
        assert_eq!(guarded.sql("SELECT used_by FROM metal.approvals"), uid.raw(), "{role}");
    }
    // The same request needs a new approval.
    let (again, fence) =
        join(&guarded.runs, &key("k"), &EnqueueRequest { uid: Uid::new("again"), ..guarded.wish.clone() })
            .await
            .unwrap();
    assert!(!try_admit(&guarded.runs, &key("k"), &again, fence).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_the_audit_says_which_role_wrote_it_and_when() {
    let guarded = Guarded::start().await;
    guarded.the_hold_goes_on().await;
    let line = "('2001-01-01', 'ops', 'a', 'metal_approver', '{}')";
    for role in [RUNNER, APPROVER, REVIEWER] {
        guarded.refused(role, &format!("INSERT INTO metal.audit (at, namespace, name, role_name, body) VALUES {line}"));
    }
    let event =
        json!([{"namespace": "ops", "name": "a", "body": "{}", "role_name": "metal_approver", "at": "2001-01-01"}]);
    guarded.send(RUNNER, "k", &json!({"events": event})).unwrap();
    assert_eq!(guarded.sql("SELECT count(*) FROM metal.audit WHERE body = '{}'"), "1");
    let forged =
        "SELECT count(*) FROM metal.audit WHERE body = '{}' AND (role_name <> 'metal_runner' OR at < '2002-01-01')";
    assert_eq!(guarded.sql(forged), "0");
    for role in [RUNNER, APPROVER, REVIEWER] {
        guarded.refused(role, "UPDATE metal.audit SET body = '{}'");
        guarded.refused(role, "DELETE FROM metal.audit");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_notification_deafens_nobody() {
    let guarded = Guarded::start().await;
    let waits = Arc::new(guarded.open(REVIEWER).await);
    let mut changes = waits.changes(&key("k"));
    let listening = async {
        while guarded.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == "0" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("it listens", listening).await;
    guarded.as_role(REVIEWER, &format!("NOTIFY metal_changes, '{LARGEST} k'")).unwrap();
    // Repeated with another lock, which does wake waiters, so that the first notification has
    // arrived.
    let mut others = waits.changes(&key("other"));
    join(&guarded.runs, &key("other"), &request("b", 2)).await.unwrap();
    soon("the other change", others.changed()).await.unwrap();
    changes.mark_unchanged();
    apply(&guarded.runs, &key("k"), |lock, _, _| {
        lock.generation += 1;
        Ok(())
    })
    .await
    .unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(20), changes.changed()).await;
    assert!(woken.is_ok(), "a change after the forged one does not wake the watcher");
    assert!(guarded.runs.find(&id("a")).await.unwrap().is_some());
    waits.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_changes_or_deletes_a_line_of_the_configured_age() {
    let guarded = Guarded::start().await;
    guarded.the_hold_goes_on().await;
    let count = || guarded.sql("SELECT count(*) FROM metal.audit").parse::<i64>().unwrap();
    let before = count();
    assert!(before > 4);
    for role in [RUNNER, APPROVER, REVIEWER] {
        guarded.refused(role, "UPDATE metal.audit SET body = ''");
        guarded.refused(role, "DELETE FROM metal.audit");
        guarded.refused(role, "TRUNCATE metal.audit");
        guarded.refused(role, "UPDATE metal.meta SET value = '0' WHERE key = 'audit_age'");
    }
    for role in [APPROVER, REVIEWER] {
        guarded.refused(role, "SELECT metal.prune(interval '0', 1000)");
    }
    for keep in ["interval '0'", "interval '-1 day'", "interval '364 days'", "NULL"] {
        guarded.as_role(RUNNER, &format!("SELECT metal.prune({keep}, 1000)")).unwrap();
        assert_eq!(count(), before, "{keep}");
    }
    // A process with a shorter `history_days` does not delete lines earlier.
    guarded.runs.prune(Duration::ZERO, 1000).await.unwrap();
    assert_eq!(count(), before);
    guarded.sql("UPDATE metal.audit SET at = at - interval '366 days' WHERE id <= 2");
    guarded.runs.prune(Duration::ZERO, 1000).await.unwrap();
    assert_eq!(count(), before - 2);
    // The schema's owner configures the age.
    guarded.sql("UPDATE metal.meta SET value = '0' WHERE key = 'audit_age'");
    while guarded.runs.prune(Duration::ZERO, 100).await.unwrap() > 0 {}
    assert_eq!(count(), 0);
}

/// An open transaction delays the export of later lines, and no line is skipped when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_stays_open_stops_no_other_server_and_loses_no_line() {
    use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
    let guarded = Guarded::start().await;
    let options: sqlx::postgres::PgConnectOptions = guarded.server.url(RUNNER, &guarded.database).parse().unwrap();
    let ids = async |start: &AuditStart| -> Vec<String> {
        let lines = guarded.runs.export_audit(start, 1000).await.unwrap();
        lines.into_iter().map(|line| line.id).collect()
    };
    let before = ids(&AuditStart::Oldest).await;
    let last = AuditStart::AfterId(before.last().unwrap().clone());
    let mut open = options.connect().await.unwrap();
    let event = json!({"events": [{"namespace": "ops", "name": "x", "body": "{}"}]});
    let line = format!("SET idle_in_transaction_session_timeout = 0; BEGIN; {}", guarded.change("other", &event));
    sqlx::raw_sql(sqlx::AssertSqlSafe(line)).execute(&mut open).await.unwrap();
    soon("a hold on another server", guarded.the_hold_goes_on()).await;
    assert_eq!(ids(&last).await, [""; 0]);
    open.execute("COMMIT").await.unwrap();
    open.close().await.unwrap();
    let all = guarded.sql("SELECT count(*) FROM metal.audit").parse::<usize>().unwrap();
    soon("the export of all lines", async { while ids(&last).await.len() < all - before.len() {} }).await;
    // An unreadable line is exported as text, with the role that wrote it.
    let lines = guarded.runs.export_audit(&last, 1000).await.unwrap();
    let forged = lines.iter().find(|line| line.event.is_err()).unwrap();
    assert_eq!((&forged.event, forged.stamp.as_ref().unwrap().0.as_str()), (&Err("{}".into()), RUNNER));
}

/// A runner writes the ends of leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_end_of_a_lease_stops_others_from_reading_the_store() {
    let guarded = Guarded::start().await;
    for until in ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC"] {
        guarded.sql(&format!("UPDATE metal.leases SET until = '{until}'"));
        guarded.runs.contents().await.unwrap_or_else(|error| panic!("{until}: {error}"));
        assert_eq!(guarded.runs.view_all().await.unwrap().len(), 1, "{until}");
        guarded.runs.export_audit(&AuditStart::Oldest, 1000).await.unwrap();
    }
}

/// A comment in the printed roles marks one line as removable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_one_line_of_the_roles_no_runner_deletes_history() {
    let guarded = Guarded::with(|printed| {
        let (before, rest) = printed.split_once("-- history_days: remove this line").unwrap();
        let kept: Vec<&str> = rest.lines().skip(2).collect();
        format!("{before}{}", kept.join("\n"))
    })
    .await;
    guarded.the_hold_goes_on().await;
    let count = || guarded.sql("SELECT (SELECT count(*) FROM metal.audit) || ' ' || count(*) FROM metal.maintenances");
    let before = count();
    guarded.refused(RUNNER, "DELETE FROM metal.maintenances");
    guarded.refused(RUNNER, "SELECT metal.prune(interval '366 days', 1000)");
    let _ = guarded.runs.prune(Duration::ZERO, 1000).await;
    assert_eq!(count(), before);
    assert!(guarded.open("postgres").await.prune(Duration::ZERO, 1000).await.unwrap() > 0);
    assert_ne!(count(), before);
}
