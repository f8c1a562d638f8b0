//! Opens a store by its URL.

use std::{path::PathBuf, sync::Arc};

use secrecy::SecretString;

use crate::{
    clock::Clock,
    files::PathTrust,
    kubernetes::ClusterSettings,
    store::{
        BucketOptions, BucketStore, KubernetesOptions, KubernetesStore, LazyStore, PostgresOptions, PostgresStore,
        SqliteOptions, SqliteStore, Store, StoreError, cannot_be_created, default_path,
    },
};

use super::{Environment, SettingsError, variables};

/// A store's location, by URL scheme.
#[derive(Clone, Debug)]
enum StoreLocation {
    /// A file. True: other users of this machine can write it.
    File(PathBuf, bool),
    Postgres(SecretString),
    Kubernetes(String),
    /// A bucket, and the variables for AWS clients.
    Bucket(String, Vec<(String, SecretString)>),
}

/// The supported URLs, for messages.
const FORMS: &str =
    "sqlite:///path/to/file, s3://bucket/prefix, postgres://user@host/database or kubernetes://namespace";

impl StoreLocation {
    async fn open(&self, clock: Arc<dyn Clock>, trust: PathTrust) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::File(path, shared) => {
                let options = SqliteOptions { shared: *shared, trust, ..SqliteOptions::default() };
                Arc::new(SqliteStore::open(path, clock, options).await?)
            }
            Self::Postgres(url) => {
                let options = PostgresOptions { trust, ..PostgresOptions::default() };
                Arc::new(PostgresStore::open(url, clock, &options).await?)
            }
            Self::Kubernetes(url) => {
                let options = KubernetesOptions { trust, ..KubernetesOptions::default() };
                Arc::new(KubernetesStore::open(url, clock, options).await?)
            }
            Self::Bucket(url, variables) => {
                let options = BucketOptions { variables: variables.clone(), ..BucketOptions::default() };
                Arc::new(BucketStore::open(url, clock, &options).await?)
            }
        })
    }

    /// Returns the address without credentials. An error means that the URL can never be used.
    fn address(&self) -> Result<String, StoreError> {
        match self {
            Self::File(path, _) => Ok(format!("sqlite://{}", path.display())),
            Self::Postgres(url) => PostgresStore::address_of(url),
            Self::Kubernetes(url) => KubernetesStore::address_of(url),
            Self::Bucket(url, _) => BucketStore::address_of(url),
        }
    }

    /// Returns a warning about the connection to the store.
    fn unverified(&self) -> Result<Option<String>, StoreError> {
        match self {
            Self::Postgres(url) => PostgresStore::unverified(url),
            Self::Bucket(url, _) => BucketStore::unverified(url),
            Self::File(path, true) => Ok(Some(format!(
                "shared=true: every user with write access to {} can release or lock every server in it.",
                path.display()
            ))),
            Self::File(..) | Self::Kubernetes(_) => Ok(None),
        }
    }

    /// Returns true if only this machine can use it.
    fn embedded(&self) -> bool {
        matches!(self, Self::File(..))
    }
}

/// Opens the store for a URL, for the environment, or the embedded default. Returns true if only
/// this machine can use it.
///
/// An unreachable store is opened again by each request, because other resources must still
/// refresh. A URL that can never work is an immediate error.
pub async fn open_store(
    url: Option<&str>,
    env: &Environment,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<dyn Store>, bool), SettingsError> {
    let problem = |error: StoreError| SettingsError::Store { problem: error.to_string() };
    let place = place(url, env)?;
    let address = place.address().map_err(problem)?;
    let (embedded, trust) = (place.embedded(), env.path_trust()?);
    match Box::pin(place.open(Arc::clone(&clock), trust)).await {
        Ok(store) => Ok((store, embedded)),
        Err(error) if error.is_transient() && may_come_back(&place) => {
            tracing::warn!(%error, "the provider opens the coordination store again on its next use");
            let of_store = Arc::clone(&clock);
            let opener = Box::new(move || {
                let (place, clock) = (place.clone(), Arc::clone(&of_store));
                Box::pin(async move { place.open(clock, trust).await }) as _
            });
            Ok((Arc::new(LazyStore::new(address, clock, opener, error)), embedded))
        }
        Err(error) => Err(problem(error)),
    }
}

/// Checks that a URL can name a store. Opens nothing.
pub(super) fn check_url(url: &str) -> Result<(), SettingsError> {
    place(Some(url), &Environment::default())?
        .address()
        .map_err(|error| SettingsError::Store { problem: error.to_string() })
        .map(drop)
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
    match place(url, env)? {
        StoreLocation::File(path, _) if !path.exists() => {
            let address = format!("sqlite://{}", path.display());
            Ok(Some(MissingStore { address, problem: cannot_be_created(&path) }))
        }
        _ => Ok(None),
    }
}

/// Returns why a store's connection could lead to a different server, if it is not verified.
pub(super) fn unverified(url: Option<&str>, env: &Environment) -> Result<Option<String>, SettingsError> {
    let place = place(url, env)?;
    place.unverified().map_err(|error| SettingsError::Store { problem: error.to_string() })
}

/// Returns the store's cluster; `None` for other stores.
pub(super) fn cluster(url: Option<&str>, env: &Environment) -> Result<Option<ClusterSettings>, SettingsError> {
    let StoreLocation::Kubernetes(url) = place(url, env)? else {
        return Ok(None);
    };
    let cluster = KubernetesStore::cluster_of(&url);
    let cluster = cluster.map_err(|error| SettingsError::Store { problem: error.to_string() })?;
    Ok(Some(ClusterSettings { trust: env.path_trust()?, ..cluster }))
}

/// Returns true if the error can be temporary. A missing file that cannot be created is a wrong
/// path; an existing file could be locked.
fn may_come_back(place: &StoreLocation) -> bool {
    match place {
        StoreLocation::File(path, _) => path.exists(),
        StoreLocation::Postgres(_) | StoreLocation::Kubernetes(_) | StoreLocation::Bucket(..) => true,
    }
}

/// Returns the variables for AWS clients.
fn bucket_variables(env: &Environment) -> Vec<(String, SecretString)> {
    let variables = env.variables.iter().filter(|(name, _)| name.starts_with("AWS_"));
    variables.map(|(name, value)| (name.clone(), SecretString::from(value.as_str()))).collect()
}

fn place(url: Option<&str>, env: &Environment) -> Result<StoreLocation, SettingsError> {
    let url = url.or_else(|| env.get(variables::COORDINATION_URL));
    let Some(url) = url else {
        return default_path().map(|path| StoreLocation::File(path, false)).ok_or_else(|| SettingsError::Store {
            problem: "the default store has an unknown location, because neither XDG_STATE_HOME nor HOME is set; set \
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
                _ => Err(wrong("coordination_url has an unknown parameter; sqlite:// supports ?shared=true")),
            }
        }
        "sqlite" => Err(wrong("the path in coordination_url must be absolute: sqlite:///path/to/file")),
        "postgres" | "postgresql" => Ok(StoreLocation::Postgres(SecretString::from(url))),
        "s3" => Ok(StoreLocation::Bucket(url.to_owned(), bucket_variables(env))),
        "kubernetes" => Ok(StoreLocation::Kubernetes(url.to_owned())),
        _ => Err(wrong(&format!("coordination_url has the unknown scheme {scheme:?}; write {FORMS}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_honoured_is_accepted() {
        let env = Environment::default();
        let address = |url: &str| place(Some(url), &env).unwrap().address().unwrap();
        assert_eq!(address("sqlite:///var/lib/x.sqlite"), "sqlite:///var/lib/x.sqlite");
        assert_eq!(address("sqlite:///var/lib/x.sqlite?shared=true"), "sqlite:///var/lib/x.sqlite");
        assert_eq!(address("postgres://ci:hunter2@db/metal"), "postgres://db:5432/metal");
        assert_eq!(address("kubernetes://metal?kubeconfig=/k"), "kubernetes://metal");
        assert_eq!(address("s3://locks/team?region=eu-central-1"), "s3://locks/team");
        for bad in [
            "s3://key:hunter2@locks",
            "s3://locks?nonsense=hunter2",
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
            let problem = match place(Some(bad), &env).map(|place| place.address()) {
                Err(error) => error.to_string(),
                Ok(address) => address.unwrap_err().to_string(),
            };
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
