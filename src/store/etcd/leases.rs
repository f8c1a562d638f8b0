//! Which processes are alive: leases of the cluster.
//!
//! The heartbeat of a process is the keep-alive of its own lease. That writes nothing: the revision
//! of the cluster does not move, however many processes wait, and however long. So no key says when
//! a lease was last renewed. What others read instead is the length of the lease: it ends at the
//! latest that long after their read.
//!
//! A process that ends says when. Of one that was killed the lease runs out, and the first process
//! that misses it notes the time: how long its place in the queue is kept counts from there.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use etcd_client::{Compare, CompareOp, Error, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use jiff::{SignedDuration, Timestamp};

use super::{
    SCHEMA,
    fault::ErrorMapper,
    link::StoreClient,
    rows::{json, text},
};
use crate::{
    maintenance::ids::{Runner, RunnerId},
    store::{AliveProcess, StoreError, lease_end, versions::Program},
};

/// A lease that the cluster still keeps is over this much later at the earliest, whatever its
/// process counted.
const STILL_ALIVE: SignedDuration = SignedDuration::from_millis(500);

/// The annotation (RFC 9557, section 3.1) with the length of a lease in milliseconds. Programs that
/// do not know it read the timestamp before it.
const LENGTH: &str = "[_ttl=";

/// The annotations with the version of the process and the newest schema that it reads and writes.
/// A version has dots, which an annotation must not have.
const VERSION: &str = "[_version=";
const NEWEST: &str = "[_schema=";

/// The leases that this handle keeps alive, with their lengths.
#[derive(Debug, Default)]
pub(super) struct OwnLeases(Mutex<HashMap<RunnerId, (i64, Duration)>>);

impl OwnLeases {
    fn all(&self) -> MutexGuard<'_, HashMap<RunnerId, (i64, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, runner: &RunnerId) {
        self.all().remove(runner);
    }

    /// Makes the lease of a process, or keeps it alive.
    pub(super) async fn renew(
        &self,
        link: &StoreClient,
        now: impl Future<Output = Result<Timestamp, StoreError>> + Send,
        runner: &Runner,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let known = self.all().get(&runner.id).copied();
        if let Some((lease, _)) = known.filter(|(_, length)| *length == ttl)
            && keep(link, &runner.id, lease).await?
        {
            return Ok(());
        }
        self.forget(&runner.id);
        // Seconds is what etcd counts in; more than asked is safe, the process itself stops
        // earlier.
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let value = value(lease_end(now.await?, ttl), ttl, &link.faults)?;
        let granted = link.leases().await?.grant(seconds, None).await;
        let lease = granted.map_err(|error| link.faults.etcd(&error))?.id();
        let alive = PutOptions::new().with_lease(lease);
        let writes = [
            TxnOp::put(link.keys.alive(&runner.id), value, Some(alive)),
            TxnOp::delete(link.keys.seen(&runner.id), None),
        ];
        link.txn(Txn::new().and_then(writes)).await?;
        self.all().insert(runner.id.clone(), (lease, ttl));
        Ok(())
    }
}

/// Keeps a lease alive. `false` when it is over, or no longer the one that others look at.
async fn keep(link: &StoreClient, runner: &RunnerId, lease: i64) -> Result<bool, StoreError> {
    match link.leases().await?.keep_alive(lease).await {
        Ok(_) => {}
        Err(Error::LeaseKeepAliveError(_)) => return Ok(false),
        Err(error) => return Err(link.faults.etcd(&error)),
    }
    let ours = Compare::lease(link.keys.alive(runner), CompareOp::Equal, lease);
    Ok(link.txn(Txn::new().when([ours])).await?.succeeded())
}

/// What is stored of a lease that begins now.
fn value(until: Timestamp, ttl: Duration, faults: &ErrorMapper) -> Result<String, StoreError> {
    let Program { version, schema } = Program::own(SCHEMA);
    let version: String = version.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    text("alive", &format!("{until}{VERSION}{version}]{NEWEST}{schema}]{LENGTH}{}]", ttl.as_millis()), faults)
}

/// Reads the process behind a lease that the cluster has.
pub(super) fn process(runner: &RunnerId, pair: &KeyValue, faults: &ErrorMapper) -> Result<AliveProcess, StoreError> {
    let text: String = json(pair, faults)?;
    let noted = |name: &str| Some(text.split_once(name)?.1.split_once(']')?.0.to_owned());
    let program = noted(VERSION).zip(noted(NEWEST).and_then(|schema| schema.parse().ok()));
    let program = program.map(|(version, schema)| Program { version: version.replace('-', "."), schema });
    Ok(AliveProcess::new(format!("process {}", runner.0), program))
}

/// Until when at most a lease lasts that the cluster has now.
pub(super) fn until(pair: &KeyValue, now: Timestamp, faults: &ErrorMapper) -> Result<Timestamp, StoreError> {
    let text: String = json(pair, faults)?;
    let counted: Timestamp = json(pair, faults)?;
    let length = text.split_once(LENGTH).and_then(|(_, rest)| rest.strip_suffix(']')).and_then(|ms| ms.parse().ok());
    let until = length.map_or(counted, |length| lease_end(now, Duration::from_millis(length)));
    Ok(until.max(now.checked_add(STILL_ALIVE).unwrap_or(now)))
}

/// Ends the lease of a process, also that of another one, and notes when.
pub(super) async fn end(link: &StoreClient, runner: &RunnerId, now: Timestamp) -> Result<(), StoreError> {
    let reply = link.txn(Txn::new().and_then([TxnOp::get(link.keys.alive(runner), None)])).await?;
    let lease = reply.op_responses().into_iter().find_map(|found| match found {
        TxnOpResponse::Get(found) => found.kvs().first().map(KeyValue::lease),
        _ => None,
    });
    // It has ended before, or there was none.
    let Some(lease) = lease else { return Ok(()) };
    let writes = [
        TxnOp::delete(link.keys.alive(runner), None),
        TxnOp::put(link.keys.seen(runner), text(&runner.0, &now, &link.faults)?, None),
    ];
    link.txn(Txn::new().and_then(writes)).await?;
    // Of no use any more: what it stood for is gone. Its process finds that out with its next
    // keep-alive.
    let _ = link.leases().await?.revoke(lease).await;
    Ok(())
}

/// Since when a process is away whose lease is gone and about which nobody has noted that. A role
/// that may not write that down sees it as of now.
pub(super) async fn note_end(
    link: &StoreClient,
    runner: &RunnerId,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let absent = |key: String| Compare::create_revision(key, CompareOp::Equal, 0);
    let conditions = [absent(link.keys.alive(runner)), absent(link.keys.seen(runner))];
    let put = TxnOp::put(link.keys.seen(runner), text(&runner.0, &now, &link.faults)?, None);
    let get = TxnOp::get(link.keys.seen(runner), None);
    let reply = match link.txn(Txn::new().when(conditions).and_then([put]).or_else([get])).await {
        Ok(reply) => reply,
        Err(StoreError::Forbidden { .. }) => return Ok(Some(now)),
        Err(error) => return Err(error),
    };
    if reply.succeeded() {
        return Ok(Some(now));
    }
    let found = reply.op_responses().into_iter().find_map(|found| match found {
        TxnOpResponse::Get(found) => found.kvs().first().cloned(),
        _ => None,
    });
    // Or it came back meanwhile: the next read sees it.
    found.map(|pair| json(&pair, &link.faults)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of an earlier release reads the whole value as a timestamp.
    #[test]
    fn the_length_of_a_lease_does_not_keep_others_from_reading_its_end() {
        let faults = ErrorMapper::new("etcd://here", "");
        let text = value(Timestamp::UNIX_EPOCH, Duration::from_millis(2500), &faults).unwrap();
        let version = crate::store::VERSION.replace('.', "-");
        let schema = SCHEMA;
        assert_eq!(text, format!(r#""1970-01-01T00:00:00Z[_version={version}][_schema={schema}][_ttl=2500]""#));
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), Timestamp::UNIX_EPOCH);
    }
}
