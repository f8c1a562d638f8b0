//! Checks that plans write only leases into the coordination store, which show that a process is
//! alive.

use std::{collections::BTreeMap, path::Path};

use sqlx::{ConnectOptions as _, Row as _, sqlite::SqliteConnectOptions};

/// Rows that another state, configuration or run can read, by table.
pub type Content = BTreeMap<String, Vec<String>>;

/// Tables that plans can write, and the migrations.
const OF_PROCESSES: [&str; 2] = ["leases", "_sqlx_migrations"];

/// The embedded store's content; empty without a store.
pub async fn content(file: &Path) -> Content {
    let mut content = Content::new();
    if !file.exists() {
        return content;
    }
    let mut store = SqliteConnectOptions::new().filename(file).connect().await.expect("the store can be opened");
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    for table in sqlx::query(tables).fetch_all(&mut store).await.expect("a list of tables") {
        let table: String = table.get(0);
        if OF_PROCESSES.contains(&table.as_str()) {
            continue;
        }
        let columns = format!(
            "SELECT group_concat('quote(\"' || name || '\")', ' || '','' || ') FROM pragma_table_info('{table}')"
        );
        let columns = sqlx::query(sqlx::AssertSqlSafe(columns)).fetch_one(&mut store).await.expect("a list of columns");
        let rows = format!("SELECT {} FROM \"{table}\" ORDER BY 1", columns.get::<String, _>(0));
        let rows = sqlx::query(sqlx::AssertSqlSafe(rows)).fetch_all(&mut store).await.expect("the rows");
        content.insert(table, rows.iter().map(|row| row.get(0)).collect());
    }
    content
}

/// # Panics If the plan wrote a row. The message contains the changed rows.
#[track_caller]
pub fn are_only_leases(before: &Content, after: &Content, command: &str) {
    let mut written = Vec::new();
    for (table, rows) in after {
        let known = before.get(table);
        // A plan without a store creates it, including its ID.
        if known.is_none() && table == "meta" {
            continue;
        }
        written.extend(
            rows.iter()
                .filter(|row| known.is_none_or(|known| !known.contains(row)))
                .map(|row| format!("+ {table}: {row}")),
        );
    }
    for (table, rows) in before {
        let now = after.get(table);
        written.extend(
            rows.iter().filter(|row| now.is_none_or(|now| !now.contains(row))).map(|row| format!("- {table}: {row}")),
        );
    }
    assert!(written.is_empty(), "{command} wrote into the store:\n{}", written.join("\n"));
}
