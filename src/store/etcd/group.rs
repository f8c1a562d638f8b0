//! Several transactions as one.
//!
//! etcd takes a transaction as an operation of another one, with conditions of its own, and judges
//! all conditions before anything of it is written ([`TxnOp::txn`], etcd API
//! `RequestOp.request_txn`). So each succeeds or fails by itself. Reads and writes do not travel
//! together: the conditions of a read would be older than what it reads.
//!
//! Each lock that is read needs the processes that are alive. All reads of one transaction are of
//! one moment, so they are listed once for all of them.

use std::sync::Arc;

use etcd_client::{KeyValue, ResponseHeader, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::BoxFuture;

use super::{link::StoreClient, rows::alive_read};
use crate::{
    maintenance::ids::LockKey,
    store::{StoreError, together::Together},
};

/// How many transactions are one at most: their requests count together for the size that etcd
/// takes (1.5 MiB).
pub(super) const MOST: usize = 16;

/// The reply to one transaction.
#[derive(Debug)]
pub(super) struct Reply {
    /// The revision of the store afterwards.
    pub(super) revision: Option<i64>,
    pub(super) response: TxnResponse,
    /// The leases at that moment, where it was a read.
    pub(super) alive: Arc<[KeyValue]>,
}

/// What travels with the transactions of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Nothing,
    Alive,
}

/// Transactions about different locks that come together.
#[derive(Debug)]
pub(super) struct Groups {
    link: Arc<StoreClient>,
    reads: Together<Txn, Result<Reply, StoreError>>,
    writes: Together<Txn, Result<Reply, StoreError>>,
}

impl Groups {
    pub(super) fn new(link: &Arc<StoreClient>) -> Self {
        let together = |with| {
            let link = Arc::clone(link);
            Together::apart(MOST, move |transactions| carry(Arc::clone(&link), transactions, with))
        };
        Self { link: Arc::clone(link), reads: together(With::Alive), writes: together(With::Nothing) }
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

fn carry(
    link: Arc<StoreClient>,
    transactions: Vec<Txn>,
    with: With,
) -> BoxFuture<'static, Vec<Result<Reply, StoreError>>> {
    Box::pin(async move {
        if transactions.len() > 1 {
            match send(&link, &transactions, with).await {
                Ok(replies) => return replies.into_iter().map(Ok).collect(),
                Err(error @ StoreError::Unavailable { .. }) => {
                    return transactions.iter().map(|_| Err(error.clone())).collect();
                }
                // Refused before anything was written: too large together, two of one new name, or
                // one that is to blame.
                Err(_) => {}
            }
        }
        let mut replies = Vec::with_capacity(transactions.len());
        for transaction in &transactions {
            let sent = send(&link, std::slice::from_ref(transaction), with).await;
            replies.push(sent.and_then(|mut replies| replies.pop().ok_or_else(|| misunderstood(&link))));
        }
        replies
    })
}

/// Sends transactions as one: the replies to each. The revision is said once, for all.
async fn send(link: &StoreClient, transactions: &[Txn], with: With) -> Result<Vec<Reply>, StoreError> {
    if let ([transaction], With::Nothing) = (transactions, with) {
        let response = link.patience.attempt(link.txn(transaction.clone())).await?;
        return Ok(vec![Reply { revision: revision(&response), response, alive: Arc::default() }]);
    }
    let each = transactions.iter().cloned().map(TxnOp::txn);
    let first = (with == With::Alive).then(|| alive_read(&link.keys));
    let all = Txn::new().and_then(first.into_iter().chain(each).collect::<Vec<_>>());
    let reply = link.patience.attempt(link.txn(all)).await?;
    let revision = revision(&reply);
    let mut responses = reply.op_responses().into_iter();
    let alive: Arc<[KeyValue]> = match with {
        With::Nothing => Arc::default(),
        With::Alive => match responses.next() {
            Some(TxnOpResponse::Get(found)) => found.kvs().into(),
            _ => return Err(misunderstood(link)),
        },
    };
    let replies = responses.map(|response| match response {
        TxnOpResponse::Txn(response) => Ok(Reply { revision, response, alive: Arc::clone(&alive) }),
        _ => Err(misunderstood(link)),
    });
    let replies: Vec<Reply> = replies.collect::<Result<_, _>>()?;
    if replies.len() == transactions.len() { Ok(replies) } else { Err(misunderstood(link)) }
}

fn misunderstood(link: &StoreClient) -> StoreError {
    link.faults.unavailable("it returned an unexpected response")
}

fn revision(response: &TxnResponse) -> Option<i64> {
    response.header().map(ResponseHeader::revision)
}
