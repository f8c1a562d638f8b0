//! Row types and schema migrations for both databases.
//!
//! sqlx's own macros are not used: they compile SQLite, the PostgreSQL client, TLS and tokio a
//! second time for the compiler, in every build.

/// Defines a row type whose columns are named like its fields.
macro_rules! row_of {
    (
        $(#[$about:meta])*
        $name:ident from $row:ty { $($field:ident: $type:ty,)* }
    ) => {
        $(#[$about])*
        struct $name { $($field: $type,)* }

        impl sqlx::FromRow<'_, $row> for $name {
            fn from_row(row: &$row) -> sqlx::Result<Self> {
                use sqlx::Row as _;
                Ok(Self {
                    $($field: row.try_get(stringify!($field))?,)*
                })
            }
        }
    };
}

/// Embeds a database's schema migrations from `migrations/`, oldest first. Paths are relative to
/// the calling file. sqlx compares version and digest with the applied migrations.
macro_rules! migrations_of {
    ($database:literal: $(($version:literal, $file:literal, $description:literal),)*) => {
        std::sync::LazyLock::new(|| sqlx::migrate::Migrator {
            migrations: vec![$(sqlx::migrate::Migration::new(
                $version,
                $description.into(),
                sqlx::migrate::MigrationType::Simple,
                sqlx::SqlStr::from_static(include_str!(concat!("../../../migrations/", $database, "/", $file))),
                false,
            ),)*].into(),
            ..sqlx::migrate::Migrator::DEFAULT
        })
    };
}

pub(super) use migrations_of;
pub(super) use row_of;

/// Compares the embedded migrations with the folder `migrations/`.
#[cfg(test)]
pub(super) async fn as_in_its_folder(embedded: &sqlx::migrate::Migrator, folder: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
    let there = sqlx::migrate::Migrator::new(folder).await.unwrap();
    let shown = |migrator: &sqlx::migrate::Migrator| -> Vec<(i64, String, bool, Vec<u8>)> {
        let all = migrator.iter();
        all.map(|one| (one.version, one.description.to_string(), one.no_tx, one.checksum.to_vec())).collect()
    };
    assert_eq!(shown(embedded), shown(&there));
}
