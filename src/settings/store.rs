//! From a coordination URL to a store.

use std::{path::PathBuf, sync::Arc};

use crate::{
    clock::Clock,
    store::{SqliteOptions, SqliteStore, Store, default_path},
};

use super::{Environment, SettingsError};

/// Opens the store. `true`: it is the embedded one, which reaches this machine only.
pub(super) async fn open(
    url: Option<&str>,
    env: &Environment,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<dyn Store>, bool), SettingsError> {
    let path = path(url.or_else(|| env.get("METAL_COORDINATION_URL")), env)?;
    let store = SqliteStore::open(&path, clock, SqliteOptions::default())
        .await
        .map_err(|error| SettingsError::Store { problem: error.to_string() })?;
    Ok((Arc::new(store), true))
}

fn path(url: Option<&str>, env: &Environment) -> Result<PathBuf, SettingsError> {
    let Some(url) = url else {
        return default_path(|name| env.get(name).map(str::to_owned)).ok_or_else(|| SettingsError::Store {
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
        let env = Environment::default();
        assert_eq!(path(Some("sqlite:///var/lib/x.sqlite"), &env).unwrap(), PathBuf::from("/var/lib/x.sqlite"));
        for bad in ["sqlite://x", "sqlite:///", "postgres://u:hunter2@db/metal", "x", "ftp://x"] {
            let problem = path(Some(bad), &env).unwrap_err().to_string();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
        assert!(path(None, &env).is_err(), "no home, no store");
    }
}
