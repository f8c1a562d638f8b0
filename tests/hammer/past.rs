//! Restores stores to an earlier state with their own tools.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sqlx::Connection as _;
use tokio::task::block_in_place;

use crate::support::{postgres::Postgres, toxiproxy::Toxiproxy};

/// A store that supports backup and restore.
#[async_trait]
pub trait Past: Send + Sync {
    /// Saves the current state: a backup, or a standby that stops replicating.
    async fn keep(&mut self);

    /// Restores the saved state at the same address. Later commits are lost.
    async fn put_back(&mut self);
}

/// A file and its backup.
pub struct File {
    /// Folder of the file, in which SQLite creates further files.
    folder: PathBuf,
}

impl File {
    pub const NAME: &str = "coordination.sqlite";

    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn kept(&self) -> PathBuf {
        self.folder.with_extension("kept")
    }
}

#[async_trait]
impl Past for File {
    async fn keep(&mut self) {
        let kept = self.kept();
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir(&kept).unwrap();
        let file = format!("sqlite://{}", self.folder.join(Self::NAME).display());
        let mut db = sqlx::SqliteConnection::connect(&file).await.unwrap();
        let to = kept.join(Self::NAME).display().to_string();
        sqlx::query("VACUUM INTO ?").bind(to).execute(&mut db).await.unwrap();
        db.close().await.unwrap();
    }

    async fn put_back(&mut self) {
        // Exchanges the whole folder atomically, because SQLite's log must match its file.
        renameat_with(CWD, self.kept(), CWD, &self.folder, RenameFlags::EXCHANGE).unwrap();
    }
}

/// A primary with a lagging asynchronous standby.
pub struct Replicated {
    primary: Postgres,
    /// Proxies of all clients.
    ways: Vec<Arc<Toxiproxy>>,
    standby: Option<(Postgres, Toxiproxy)>,
}

impl Replicated {
    pub fn new(primary: Postgres, ways: Vec<Arc<Toxiproxy>>) -> Self {
        Self { primary, ways, standby: None }
    }
}

#[async_trait]
impl Past for Replicated {
    async fn keep(&mut self) {
        block_in_place(|| {
            let line = Toxiproxy::to(&format!("127.0.0.1:{}", self.primary.port));
            let standby = self.primary.standby(&line.host());
            let began = Instant::now();
            let streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
            while self.primary.sql("postgres", streams) != "1" {
                assert!(began.elapsed() < Duration::from_secs(30), "no replication: {}", standby.server.log());
                std::thread::sleep(Duration::from_millis(20));
            }
            // From here the standby lags, because an asynchronous primary does not wait for it.
            line.cut();
            self.standby = Some((standby, line));
        });
    }

    async fn put_back(&mut self) {
        let (standby, _line) = self.standby.take().expect("a prepared standby");
        block_in_place(|| {
            self.primary.kill();
            standby.sql("postgres", "SELECT pg_promote(true, 30)");
            for way in &self.ways {
                way.lead_to(&format!("127.0.0.1:{}", standby.port));
            }
        });
        let lost = std::mem::replace(&mut self.primary, standby);
        let _ = fs::remove_dir_all(&lost.server.folder);
    }
}
