//! From a coordination URL to a store.

use std::{path::PathBuf, sync::Arc};

use crate::{
    clock::Clock,
    store::{LazyStore, SqliteOptions, SqliteStore, Store, StoreError, default_path},
};

use super::{Environment, SettingsError};

/// Opens the store. `true`: it is the embedded one, which reaches this machine only.
///
/// A store that cannot be reached now is opened again by each request: the refresh of other resources must not fail
/// with it. One that can never be used is an error at once.
pub async fn open(
    url: Option<&str>,
    env: &Environment,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<dyn Store>, bool), SettingsError> {
    let path = path(url.or_else(|| env.get("METAL_COORDINATION_URL")))?;
    match SqliteStore::open(&path, Arc::clone(&clock), SqliteOptions::default()).await {
        Ok(store) => Ok((Arc::new(store), true)),
        Err(error @ StoreError::Unavailable { .. }) if path.exists() => {
            tracing::warn!(%error, "the coordination store is opened again when it is needed");
            let address = format!("sqlite://{}", path.display());
            let opener = Box::new(move || {
                let (path, clock) = (path.clone(), Arc::clone(&clock));
                let opened = async move {
                    let store = SqliteStore::open(&path, clock, SqliteOptions::default()).await?;
                    Ok(Arc::new(store) as Arc<dyn Store>)
                };
                Box::pin(opened) as _
            });
            Ok((Arc::new(LazyStore::new(address, opener)), true))
        }
        Err(error) => Err(SettingsError::Store { problem: error.to_string() }),
    }
}

fn path(url: Option<&str>) -> Result<PathBuf, SettingsError> {
    let Some(url) = url else {
        return default_path().ok_or_else(|| SettingsError::Store {
            problem: "there is no place for the default store: neither XDG_STATE_HOME nor HOME is set; give \
                      coordination_url"
                .to_owned(),
        });
    };
    let wrong = |problem: &str| SettingsError::Store { problem: problem.to_owned() };
    let (scheme, rest) =
        url.split_once("://").ok_or_else(|| wrong("coordination_url is no URL; write sqlite:///path/to/file"))?;
    match scheme {
        "sqlite" if rest.starts_with('/') && rest.len() > 1 => Ok(PathBuf::from(rest)),
        "sqlite" => Err(wrong("the path of coordination_url must be absolute: sqlite:///path/to/file")),
        "postgres" | "postgresql" | "etcd" | "kubernetes" => {
            Err(wrong(&format!("this version has no {scheme} store; it has sqlite:///path/to/file")))
        }
        _ => Err(wrong(&format!("coordination_url has the unknown scheme {scheme:?}; write sqlite:///path/to/file"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_honoured_is_accepted() {
        assert_eq!(path(Some("sqlite:///var/lib/x.sqlite")).unwrap(), PathBuf::from("/var/lib/x.sqlite"));
        for bad in ["sqlite://x", "sqlite:///", "postgres://u:hunter2@db/metal", "x", "ftp://x"] {
            let problem = path(Some(bad)).unwrap_err().to_string();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
