//! Several transactions as one.
//!
//! etcd takes a transaction as an operation of another one, with conditions of its own, and judges all conditions before
//! anything of it is written ([`TxnOp::txn`], etcd API `RequestOp.request_txn`). So each succeeds or fails by itself. Reads and
//! writes do not travel together: the conditions of a read would be older than what it reads.

use std::sync::Arc;

use etcd_client::{ResponseHeader, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::BoxFuture;

use super::link::Link;
use crate::{
    maintenance::ids::LockKey,
    store::{StoreError, together::Together},
};

/// How many transactions are one at most: their requests count together for the size that etcd takes (1.5 MiB).
const MOST: usize = 16;

/// The reply to one transaction.
#[derive(Debug)]
pub(super) struct Reply {
    /// The revision of the store afterwards.
    pub(super) revision: Option<i64>,
    pub(super) response: TxnResponse,
}

/// Transactions about different locks that come together.
#[derive(Debug)]
pub(super) struct Groups {
    link: Arc<Link>,
    reads: Together<Txn, Result<Reply, StoreError>>,
    writes: Together<Txn, Result<Reply, StoreError>>,
}

impl Groups {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        let together = || {
            let link = Arc::clone(link);
            Together::apart(MOST, move |transactions| carry(Arc::clone(&link), transactions))
        };
        Self { link: Arc::clone(link), reads: together(), writes: together() }
    }

    /// A transaction that writes nothing.
    pub(super) async fn read(&self, key: &LockKey, transaction: Txn) -> Result<Reply, StoreError> {
        self.send(&self.reads, key, transaction).await
    }

    pub(super) async fn write(&self, key: &LockKey, transaction: Txn) -> Result<Reply, StoreError> {
        self.send(&self.writes, key, transaction).await
    }

    async fn send(
        &self,
        together: &Together<Txn, Result<Reply, StoreError>>,
        key: &LockKey,
        transaction: Txn,
    ) -> Result<Reply, StoreError> {
        let unknown = || Err(self.link.faults.unavailable("the reply to a request was not awaited"));
        let sent = async { together.send(key, transaction).await.unwrap_or_else(unknown) };
        self.link.patience.once(sent).await
    }
}

fn carry(link: Arc<Link>, transactions: Vec<Txn>) -> BoxFuture<'static, Vec<Result<Reply, StoreError>>> {
    Box::pin(async move {
        if transactions.len() > 1 {
            let all = Txn::new().and_then(transactions.iter().cloned().map(TxnOp::txn).collect::<Vec<_>>());
            match link.patience.attempt(link.txn(all)).await {
                Ok(reply) => return part(&link, &reply, transactions.len()),
                Err(error @ StoreError::Unavailable { .. }) => {
                    return transactions.iter().map(|_| Err(error.clone())).collect();
                }
                // Refused before anything was written: too large together, two of one new name, or one that is to blame.
                Err(_) => {}
            }
        }
        let mut replies = Vec::with_capacity(transactions.len());
        for transaction in transactions {
            let reply = link.patience.attempt(link.txn(transaction)).await;
            replies.push(reply.map(|response| Reply { revision: revision(&response), response }));
        }
        replies
    })
}

fn revision(response: &TxnResponse) -> Option<i64> {
    response.header().map(ResponseHeader::revision)
}

/// The replies to each. The revision is said once, for all.
fn part(link: &Link, reply: &TxnResponse, sent: usize) -> Vec<Result<Reply, StoreError>> {
    let revision = revision(reply);
    let mut responses = reply.op_responses().into_iter();
    let next = |_| match responses.next() {
        Some(TxnOpResponse::Txn(response)) => Ok(Reply { revision, response }),
        _ => Err(link.faults.unavailable("it answered something else than was asked")),
    };
    (0..sent).map(next).collect()
}
