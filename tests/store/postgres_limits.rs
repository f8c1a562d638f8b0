//! Database roles that try to stop the store, and controls that were disabled.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions};
use terraform_provider_metal::store::{PostgresOptions, PostgresStore, StoreError};

use crate::{
    bench::{WrongClock, apply, finish, hold, soon},
    postgres_attacks::{APPROVER, Guarded, REVIEWER, RUNNER},
    records::{key, request},
    roles,
};

fn options(guarded: &Guarded, role: &str) -> PgConnectOptions {
    guarded.server.url(role, &guarded.database).parse().unwrap()
}

async fn session(guarded: &Guarded, role: &str, sql: String) -> PgConnection {
    let mut open = options(guarded, role).connect().await.unwrap();
    // Each role can override the limits of the printed SQL.
    let sql = format!("SET idle_in_transaction_session_timeout = 0; {sql}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut open).await.unwrap();
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_locks_a_table_against_others() {
    let guarded = Guarded::start().await;
    let tables = guarded.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'metal'");
    let mut open = Vec::new();
    for role in [RUNNER, APPROVER, REVIEWER] {
        for table in tables.lines() {
            guarded.refused(role, &format!("BEGIN; LOCK TABLE metal.{table}"));
            guarded.refused(role, &format!("BEGIN; LOCK TABLE metal.{table} IN ROW SHARE MODE"));
            guarded.refused(role, &format!("TRUNCATE metal.{table}"));
        }
        let all = tables.lines().map(|table| format!("metal.{table}")).collect::<Vec<_>>().join(", ");
        open.push(session(&guarded, role, format!("BEGIN; LOCK TABLE {all} IN ACCESS SHARE MODE")).await);
    }
    soon("a hold next to open transactions", guarded.the_hold_goes_on()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_role_uses_all_connections() {
    let guarded = Guarded::start().await;
    let mut open = Vec::new();
    for role in [REVIEWER, APPROVER] {
        let refused = loop {
            match options(&guarded, role).connect().await {
                Ok(connection) => open.push(connection),
                Err(error) => break error.to_string(),
            }
            assert!(open.len() < 110, "{role} has all connections");
        };
        assert!(refused.contains("too many connections for role"), "{refused}");
    }
    soon("a hold next to all connections of others", hold(&guarded.runs, &key("other"), &request("b", 2))).await;
}

/// Of all that a runner can do, this stops one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_delays_its_own_server_only() {
    let guarded = Guarded::start().await;
    let event = json!({"events": [{"namespace": "ops", "name": "a", "body": "{}"}]});
    let mut open = session(&guarded, RUNNER, format!("BEGIN; {}", guarded.change("k", &event))).await;
    let limit = PostgresOptions { patience: Duration::from_secs(3), ..PostgresOptions::default() };
    let url = guarded.server.url(RUNNER, &guarded.database).into();
    let store = PostgresStore::open(&url, WrongClock::next(), &limit).await.unwrap();
    let raise = async |name: &str| {
        apply(&store, &key(name), |lock, _, _| {
            lock.generation += 1;
            Ok(())
        })
        .await
    };
    // In one group with the blocked server.
    let others: Vec<String> = (0..8).map(|n| format!("o{n}")).collect();
    let blocked = async {
        let error = raise("k").await.unwrap_err();
        assert!(matches!(&error, StoreError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("another transaction blocks"), "{error}");
    };
    let free = join_all(others.iter().map(async |name| {
        for _ in 0..3 {
            raise(name).await.unwrap();
        }
    }));
    soon("the changes of other servers", async { tokio::join!(blocked, free) }).await;
    let (uid, fence) = hold(&store, &key("p"), &request("b", 2)).await;
    finish(&store, &key("p"), &uid, fence).await.unwrap();
    open.execute("ROLLBACK").await.unwrap();
    open.close().await.unwrap();
    raise("k").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_check_finds_each_disabled_control() {
    let guarded = Guarded::start().await;
    let url = guarded.server.url(REVIEWER, &guarded.database);
    assert!(roles::run(&["store", "check"], &url).await.is_ok());
    guarded.sql("CREATE FUNCTION public.other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'");
    let database = &guarded.database;
    let grant = format!("GRANT CONNECT ON DATABASE {database} TO PUBLIC");
    let revoke = format!("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC");
    for (disabled, restored, said) in [
        (
            "GRANT UPDATE ON metal.locks TO metal_runner",
            "REVOKE UPDATE ON metal.locks FROM metal_runner",
            "metal_runner has UPDATE on metal.locks",
        ),
        (
            "GRANT INSERT (body) ON metal.audit TO metal_approver",
            "REVOKE INSERT (body) ON metal.audit FROM metal_approver",
            "metal_approver has INSERT (body) on metal.audit",
        ),
        (
            "GRANT EXECUTE ON FUNCTION metal.write_records TO metal_runner",
            "REVOKE EXECUTE ON FUNCTION metal.write_records FROM metal_runner",
            "metal_runner has EXECUTE on metal.write_records",
        ),
        (
            "GRANT EXECUTE ON FUNCTION metal.commit TO PUBLIC",
            "REVOKE EXECUTE ON FUNCTION metal.commit FROM PUBLIC",
            "PUBLIC has EXECUTE on metal.commit",
        ),
        (
            "GRANT CREATE ON SCHEMA metal TO metal_runner",
            "REVOKE CREATE ON SCHEMA metal FROM metal_runner",
            "metal_runner has CREATE on the schema metal",
        ),
        (
            "ALTER FUNCTION metal.commit RESET search_path",
            "ALTER FUNCTION metal.commit SET search_path = pg_catalog, pg_temp",
            "metal.commit does not have its owner's rights and a fixed search_path",
        ),
        (
            "ALTER FUNCTION metal.only_for SET SCHEMA public; CREATE FUNCTION metal.only_for(name) RETURNS void \
             LANGUAGE sql AS 'SELECT'; REVOKE EXECUTE ON FUNCTION metal.only_for FROM PUBLIC",
            "DROP FUNCTION metal.only_for; ALTER FUNCTION public.only_for SET SCHEMA metal",
            "metal.only_for is not that of this program",
        ),
        (
            "CREATE TRIGGER extra BEFORE INSERT ON metal.audit FOR EACH ROW EXECUTE FUNCTION public.other()",
            "DROP TRIGGER extra ON metal.audit",
            "metal.audit has the trigger extra",
        ),
        (
            "CREATE RULE extra AS ON INSERT TO metal.audit DO INSTEAD NOTHING",
            "DROP RULE extra ON metal.audit",
            "metal.audit has the rule extra",
        ),
        (
            "ALTER ROLE metal_reviewer CONNECTION LIMIT -1",
            "ALTER ROLE metal_reviewer CONNECTION LIMIT 15",
            "metal_reviewer lacks a CONNECTION LIMIT",
        ),
        ("CREATE ROLE team LOGIN IN ROLE metal_runner", "DROP ROLE team", "team lacks a CONNECTION LIMIT"),
        (
            "ALTER ROLE metal_runner CREATEROLE",
            "ALTER ROLE metal_runner NOCREATEROLE",
            "metal_runner can administer roles",
        ),
        (grant.as_str(), revoke.as_str(), "PUBLIC has CONNECT on the database"),
    ] {
        guarded.sql(disabled);
        let wrong = roles::run(&["store", "check"], &url).await.expect_err(disabled);
        assert!(wrong.contains(said) && wrong.matches("store roles postgres").count() == 1, "{disabled}: {wrong}");
        guarded.sql(restored);
    }
    assert!(roles::run(&["store", "check"], &url).await.is_ok());
}
