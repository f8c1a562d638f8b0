//! From a coordination URL to a store.

use std::{path::PathBuf, sync::Arc};

use secrecy::SecretString;

use crate::{
    clock::Clock,
    kubernetes::ClusterSettings,
    store::{
        KubernetesOptions, KubernetesStore, LazyStore, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore,
        Store, StoreError, cannot_be_created, default_path,
    },
};

use super::{Environment, SettingsError, variables};

/// Where records are kept, by the scheme of its URL.
#[derive(Clone, Debug)]
enum StoreLocation {
    /// A file, and whether other users of this machine may write it.
    File(PathBuf, bool),
    Postgres(SecretString),
    Kubernetes(String),
}

/// What may be written, for people.
const FORMS: &str = "sqlite:///path/to/file, postgres://user@host/database or kubernetes://namespace";

impl StoreLocation {
    async fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::File(path, shared) => {
                let options = SqliteOptions { shared: *shared, ..SqliteOptions::default() };
                Arc::new(SqliteStore::open(path, clock, options).await?)
            }
            Self::Postgres(url) => Arc::new(PostgresStore::open(url, clock, &PostgresOptions::default()).await?),
            Self::Kubernetes(url) => Arc::new(KubernetesStore::open(url, clock, KubernetesOptions::default()).await?),
        })
    }

    /// Without credentials. An error means that the URL can never be used.
    fn address(&self) -> Result<String, StoreError> {
        match self {
            Self::File(path, _) => Ok(format!("sqlite://{}", path.display())),
            Self::Postgres(url) => PostgresStore::address_of(url),
            Self::Kubernetes(url) => KubernetesStore::address_of(url),
        }
    }

    /// What its user should know about the way to it.
    fn unverified(&self) -> Result<Option<String>, StoreError> {
        match self {
            Self::Postgres(url) => PostgresStore::unverified(url),
            Self::File(path, true) => Ok(Some(format!(
                "shared=true: every user who may write {} may free or take every server in it.",
                path.display()
            ))),
            Self::File(..) | Self::Kubernetes(_) => Ok(None),
        }
    }

    /// Whether it reaches this machine only.
    fn embedded(&self) -> bool {
        matches!(self, Self::File(..))
    }
}

/// Opens the store of a URL, or of the environment, or the embedded default. `true`: it reaches
/// this machine only.
///
/// A store that cannot be reached now is opened again by each request: the refresh of other
/// resources must not fail with it. One that can never be used is an error at once.
pub async fn open_store(
    url: Option<&str>,
    env: &Environment,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<dyn Store>, bool), SettingsError> {
    let problem = |error: StoreError| SettingsError::Store { problem: error.to_string() };
    let place = place(url.or_else(|| env.get(variables::COORDINATION_URL)))?;
    let address = place.address().map_err(problem)?;
    let embedded = place.embedded();
    match Box::pin(place.open(Arc::clone(&clock))).await {
        Ok(store) => Ok((store, embedded)),
        Err(error) if error.is_transient() && may_come_back(&place) => {
            tracing::warn!(%error, "the coordination store is opened again when it is needed");
            let of_store = Arc::clone(&clock);
            let opener = Box::new(move || {
                let (place, clock) = (place.clone(), Arc::clone(&of_store));
                Box::pin(async move { place.open(clock).await }) as _
            });
            Ok((Arc::new(LazyStore::new(address, clock, opener, error)), embedded))
        }
        Err(error) => Err(problem(error)),
    }
}

/// Whether a URL can name a store. Opens nothing.
pub(super) fn check_url(url: &str) -> Result<(), SettingsError> {
    place(Some(url))?.address().map_err(|error| SettingsError::Store { problem: error.to_string() }).map(drop)
}

/// An embedded store that does not exist yet.
#[derive(Clone, Debug)]
pub struct MissingStore {
    /// Its address.
    pub address: String,
    /// Why an apply cannot create it, if that is known.
    pub problem: Option<String>,
}

/// Returns the embedded store if it does not exist yet: reading it would create it.
pub fn missing_store(url: Option<&str>, env: &Environment) -> Result<Option<MissingStore>, SettingsError> {
    match place(url.or_else(|| env.get(variables::COORDINATION_URL)))? {
        StoreLocation::File(path, _) if !path.exists() => {
            let address = format!("sqlite://{}", path.display());
            Ok(Some(MissingStore { address, problem: cannot_be_created(&path) }))
        }
        _ => Ok(None),
    }
}

/// Why the connection to a store may lead to another server than meant, if it may.
pub(super) fn unverified(url: Option<&str>, env: &Environment) -> Result<Option<String>, SettingsError> {
    let place = place(url.or_else(|| env.get(variables::COORDINATION_URL)))?;
    place.unverified().map_err(|error| SettingsError::Store { problem: error.to_string() })
}

/// The cluster in which a store lies; `None`: it lies in none.
pub(super) fn cluster(url: Option<&str>, env: &Environment) -> Result<Option<ClusterSettings>, SettingsError> {
    let StoreLocation::Kubernetes(url) = place(url.or_else(|| env.get(variables::COORDINATION_URL)))? else {
        return Ok(None);
    };
    KubernetesStore::cluster_of(&url).map(Some).map_err(|error| SettingsError::Store { problem: error.to_string() })
}

/// A file that is not there and cannot be made is a wrong path; one that is there may be locked.
fn may_come_back(place: &StoreLocation) -> bool {
    match place {
        StoreLocation::File(path, _) => path.exists(),
        StoreLocation::Postgres(_) | StoreLocation::Kubernetes(_) => true,
    }
}

fn place(url: Option<&str>) -> Result<StoreLocation, SettingsError> {
    let Some(url) = url else {
        return default_path().map(|path| StoreLocation::File(path, false)).ok_or_else(|| SettingsError::Store {
            problem: "there is no place for the default store: neither XDG_STATE_HOME nor HOME is set; give \
                      coordination_url"
                .to_owned(),
        });
    };
    let wrong = |problem: &str| SettingsError::Store { problem: problem.to_owned() };
    let (scheme, rest) =
        url.split_once("://").ok_or_else(|| wrong(&format!("coordination_url is not a URL; write {FORMS}")))?;
    match scheme {
        "sqlite" if rest.starts_with('/') && rest.len() > 1 => {
            let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
            match parameters {
                "" => Ok(StoreLocation::File(PathBuf::from(path), false)),
                "shared=true" => Ok(StoreLocation::File(PathBuf::from(path), true)),
                _ => Err(wrong("coordination_url has an unknown parameter; sqlite:// knows ?shared=true")),
            }
        }
        "sqlite" => Err(wrong("the path of coordination_url must be absolute: sqlite:///path/to/file")),
        "postgres" | "postgresql" => Ok(StoreLocation::Postgres(SecretString::from(url))),
        "kubernetes" => Ok(StoreLocation::Kubernetes(url.to_owned())),
        _ => Err(wrong(&format!("coordination_url has the unknown scheme {scheme:?}; write {FORMS}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_honoured_is_accepted() {
        let address = |url: &str| place(Some(url)).unwrap().address().unwrap();
        assert_eq!(address("sqlite:///var/lib/x.sqlite"), "sqlite:///var/lib/x.sqlite");
        assert_eq!(address("sqlite:///var/lib/x.sqlite?shared=true"), "sqlite:///var/lib/x.sqlite");
        assert_eq!(address("postgres://ci:hunter2@db/metal"), "postgres://db:5432/metal");
        assert_eq!(address("kubernetes://metal?kubeconfig=/k"), "kubernetes://metal");
        for bad in [
            "sqlite://x",
            "sqlite:///",
            "sqlite:///x?shared=hunter2",
            "kubernetes://metal/hunter2",
            "kubernetes://metal?nonsense=hunter2",
            "x",
            "ftp://u:hunter2@db/metal",
            "postgres://u:hunter2@db/metal?nonsense=1",
            "etcd://u:hunter2@a/metal",
        ] {
            let problem = match place(Some(bad)).map(|place| place.address()) {
                Err(error) => error.to_string(),
                Ok(address) => address.unwrap_err().to_string(),
            };
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
