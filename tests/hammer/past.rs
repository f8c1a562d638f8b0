//! Stores that go back to an earlier moment, by the means of the store itself.

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

/// A store of which a moment can be kept.
#[async_trait]
pub trait Past: Send + Sync {
    /// Keeps this moment: a backup, or a standby that hears of nothing later.
    async fn keep(&mut self);

    /// Makes the store what it was then, under the same address. All later commits are lost.
    async fn put_back(&mut self);
}

/// A file and its backup.
pub struct File {
    /// The folder of the file, which SQLite fills with more files.
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
        // All at once and with what SQLite keeps beside the file: a log of the one and the file of
        // the other make neither.
        renameat_with(CWD, self.kept(), CWD, &self.folder, RenameFlags::EXCHANGE).unwrap();
    }
}

/// A primary with an asynchronous standby that lags.
pub struct Replicated {
    primary: Postgres,
    /// What every client is led through.
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
            // From now on it lags: a primary that is asynchronous does not wait for it.
            line.cut();
            self.standby = Some((standby, line));
        });
    }

    async fn put_back(&mut self) {
        let (standby, _line) = self.standby.take().expect("a standby was made");
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
