//! Server names and their lock keys, in one object: one request reads all of a server's names.

use std::collections::BTreeMap;

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{
    link::{StoreClient, WriteResult},
    objects::BINDINGS,
};
use crate::{
    maintenance::ids::LockKey,
    store::{StoreError, together::Together},
};

/// The contents of `bindings.json`.
pub(super) type Bindings = BTreeMap<String, LockKey>;

/// Attempts to write the object while other processes write it.
const TRIES: usize = 50;

/// Wanted bindings of one lock, in order of importance.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) servers: Vec<String>,
    pub(super) key: LockKey,
    /// True if a different key is replaced.
    pub(super) rebind: bool,
}

/// Writers of this process, which share requests.
pub(super) type Binders = Together<Wanted, Result<(), StoreError>>;

/// Returns a bucket's writers.
pub(super) fn binders(link: std::sync::Arc<StoreClient>) -> Binders {
    Together::in_turn(64, move |group: Vec<Wanted>| -> BoxFuture<'static, Vec<Result<(), StoreError>>> {
        let link = std::sync::Arc::clone(&link);
        async move {
            let count = group.len();
            let bound = link.patience.repeat(|| bind(&link, &group)).await;
            bound.unwrap_or_else(|error| vec![Err(error); count])
        }
        .boxed()
    })
}

/// Binds names in one write. Can be repeated.
async fn bind(link: &StoreClient, group: &[Wanted]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
    for _ in 0..TRIES {
        let found = link.read::<Bindings>(BINDINGS).await?;
        let (mut bindings, version) = found.map(|(bindings, version)| (bindings, Some(version))).unwrap_or_default();
        let before = bindings.clone();
        let results: Vec<_> = group.iter().map(|wanted| apply(&mut bindings, wanted)).collect();
        if bindings == before {
            return Ok(results);
        }
        let written = match &version {
            None => link.create(BINDINGS, &bindings).await?,
            Some(version) => link.replace(BINDINGS, &bindings, version).await?,
        };
        if written != WriteResult::Moved {
            return Ok(results);
        }
    }
    Err(link.faults.unavailable("too many processes bind servers at the same time"))
}

/// Binds names, the first before the others.
fn apply(bindings: &mut Bindings, wanted: &Wanted) -> Result<(), StoreError> {
    let Wanted { servers, key, rebind } = wanted;
    let mut result = Ok(());
    for (number, server) in servers.iter().enumerate() {
        match bindings.get(server) {
            Some(bound) if bound != key && !rebind => {
                let other = StoreError::OtherIdentity {
                    server: server.clone().into(),
                    bound: bound.clone(),
                    found: key.clone(),
                };
                if number == 0 {
                    return Err(other);
                }
                result = result.and(Err(other));
            }
            _ => drop(bindings.insert(server.clone(), key.clone())),
        }
    }
    result
}
