//! Attacks by a database role's user with `psql` and that role's own login.

use std::{sync::Arc, time::Duration};

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

const RUNNER: &str = "metal_runner";
const APPROVER: &str = "metal_approver";
const REVIEWER: &str = "metal_reviewer";

/// A database with the printed roles, and a claimed server with one waiter.
struct Guarded {
    server: Postgres,
    database: String,
    runs: PostgresStore,
    wish: EnqueueRequest,
    waiter: (Uid, Fence),
}

impl Guarded {
    async fn start() -> Self {
        let server = Postgres::start(&[]);
        let database = server.database();
        let url = |role: &str| server.url(role, &database);
        postgres(&url("postgres"), WrongClock::next()).await.unwrap().close().await;
        server.sql(&database, &roles::printed("postgres", &url("postgres")).await);
        let runs = postgres(&url(RUNNER), WrongClock::next()).await.unwrap();
        apply(&runs, &key("k"), |lock, _, now| lock.claim(claim("c"), now)).await.unwrap();
        let wish = EnqueueRequest { spec: Spec { policy: Policy::OwnerApproval, ..spec() }, ..request("a", 1) };
        let waiter = join(&runs, &key("k"), &wish).await.unwrap();
        Self { server, database, runs, wish, waiter }
    }

    async fn open(&self, role: &str) -> PostgresStore {
        postgres(&self.server.url(role, &self.database), WrongClock::next()).await.unwrap()
    }

    fn as_role(&self, role: &str, sql: &str) -> Result<String, String> {
        self.server.sql_as(role, &self.database, sql)
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.database, sql)
    }

    #[track_caller]
    fn refused(&self, role: &str, sql: &str) {
        let error = self.as_role(role, sql).expect_err(sql);
        assert!(error.contains("permission denied") || error.contains("metal:"), "{sql}: {error}");
    }

    /// Admits the waiter with a separate approval and releases it: a complete hold.
    async fn the_hold_goes_on(&self) {
        self.hold().await;
        assert_eq!(self.runs.contents().await.unwrap().violations(), [""; 0]);
    }

    async fn hold(&self) {
        let approves = self.open(APPROVER).await;
        let scope = Scope::Maintenance { id: self.wish.id.clone(), digest: self.wish.spec.digest() };
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
    for role in [APPROVER, REVIEWER] {
        guarded.refused(role, &format!("UPDATE metal.locks SET revision = {LARGEST}"));
        guarded.refused(role, "UPDATE metal.locks SET commits = ''");
        guarded.refused(role, "SELECT * FROM metal.locks FOR UPDATE");
    }
    // A runner can write locks, but not this column.
    for change in [
        &format!("revision = {LARGEST}"),
        "revision = revision - 1",
        "revision = revision + 2",
        "commits = ''",
        "generation = generation - 1",
        "last_ticket = last_ticket - 1",
        "lock_key = 'other'",
    ] {
        guarded.refused(RUNNER, &format!("UPDATE metal.locks SET {change}"));
    }
    let made = format!("INSERT INTO metal.locks VALUES ('new', 1, 1, NULL, NULL, {LARGEST}, '')");
    guarded.refused(RUNNER, &made);
    guarded.the_hold_goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approver_withdraws_only_what_its_owner_gave() {
    let guarded = Guarded::start().await;
    let approves = guarded.open(APPROVER).await;
    approve(&approves, &key("k"), &approval(Scope::All)).await.unwrap();
    guarded.sql("CREATE ROLE team LOGIN IN ROLE metal_approver; INSERT INTO metal.owner_roles VALUES ('team', 'team')");
    let count = || guarded.sql("SELECT count(*) FROM metal.approvals");
    let given = guarded.sql("SELECT uid FROM metal.approvals");
    // Either an error or a deletion of zero visible rows.
    let _ = guarded.as_role(APPROVER, "DELETE FROM metal.approvals");
    assert_eq!(count(), "1");
    let answer = |gone: &str, uid: &str, body: &str| {
        format!(
            "SELECT metal.answer('k', (SELECT revision FROM metal.locks), 'c{}', '{gone}', '{uid}', '{{team}}', \
             ARRAY['{body}'], '{{}}', '{{}}', '{{}}', '')",
            uuid::Uuid::new_v4().simple()
        )
    };
    let gone = format!("{{{given}}}");
    for sql in [answer(&gone, "{}", ""), answer("{}", "{new}", "x")] {
        let _ = guarded.as_role(APPROVER, &sql);
        assert_eq!(count(), "1", "{sql}");
    }
    for role in [RUNNER, REVIEWER] {
        guarded.refused(role, &answer(&gone, "{}", ""));
        guarded.refused(role, "DELETE FROM metal.approvals");
        guarded.refused(role, "INSERT INTO metal.approvals (uid, lock_key, owner, body) VALUES ('x', 'k', 'team', '')");
    }
    let team = guarded.open("team").await;
    let withdraw = |lock: &mut ServerLock, _: &Leases, now| Ok(lock.withdraw_approval(&Uid(given.clone()), "ada", now));
    assert!(apply(&team, &key("k"), withdraw).await.unwrap());
    // Unreadable approvals count as missing and never block the server.
    guarded.sql("DELETE FROM metal.owner_roles");
    guarded.as_role(APPROVER, &answer("{}", "{broken}", "{")).unwrap();
    let (uid, fence) = &guarded.waiter;
    assert!(!try_admit(&guarded.runs, &key("k"), uid, *fence).await.unwrap());
    let told = guarded.runs.contents().await.unwrap().violations();
    assert!(told.len() == 1 && told[0].contains("broken"), "{told:?}");
    guarded.sql("DELETE FROM metal.approvals");
    guarded.the_hold_goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_approval_stays_used() {
    let guarded = Guarded::start().await;
    let approves = guarded.open(APPROVER).await;
    let scope = Scope::Maintenance { id: guarded.wish.id.clone(), digest: guarded.wish.spec.digest() };
    approve(&approves, &key("k"), &approval(scope)).await.unwrap();
    let (uid, fence) = &guarded.waiter;
    assert!(try_admit(&guarded.runs, &key("k"), uid, *fence).await.unwrap());
    finish(&guarded.runs, &key("k"), uid, *fence).await.unwrap();
    for role in [RUNNER, APPROVER, REVIEWER] {
        let _ = guarded.as_role(role, "UPDATE metal.approvals SET used_by = NULL");
        let _ = guarded.as_role(role, "UPDATE metal.approvals SET used_by = 'other'");
        assert_eq!(guarded.sql("SELECT used_by FROM metal.approvals"), uid.0, "{role}");
    }
    // The same request needs a new approval.
    let (again, fence) =
        join(&guarded.runs, &key("k"), &EnqueueRequest { uid: Uid("again".into()), ..guarded.wish.clone() })
            .await
            .unwrap();
    assert!(!try_admit(&guarded.runs, &key("k"), &again, fence).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_the_audit_says_which_role_wrote_it_and_when() {
    let guarded = Guarded::start().await;
    guarded.the_hold_goes_on().await;
    let line = "('2001-01-01', 'ops', 'a', 'metal_approver', '{}')";
    for role in [APPROVER, REVIEWER] {
        guarded.refused(role, &format!("INSERT INTO metal.audit (at, namespace, name, role_name, body) VALUES {line}"));
    }
    let _ = guarded
        .as_role(RUNNER, &format!("INSERT INTO metal.audit (at, namespace, name, role_name, body) VALUES {line}"));
    let _ = guarded.as_role(RUNNER, "INSERT INTO metal.audit (namespace, name, body) VALUES ('ops', 'a', '{}')");
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
    assert!(woken.is_ok(), "a change after the forged one wakes nobody");
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
        for keep in ["interval '0'", "interval '-1 day'", "interval '364 days'", "NULL"] {
            guarded.refused(role, &format!("SELECT metal.forget_audit({keep}, 1000)"));
        }
        guarded.refused(role, "INSERT INTO metal.audit (writer, namespace, name, body) VALUES ('1', 'a', 'b', '{}')");
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
    open.execute("BEGIN; INSERT INTO metal.audit (namespace, name, body) VALUES ('ops', 'x', '{}')").await.unwrap();
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
