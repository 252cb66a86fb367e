//! Who compacts: of all API servers on one etcd, Kubernetes' own among them, the one that first
//! raises the version of a key that they agree on. The version counts the turns; the value is the
//! revision at the turn, which the next turn compacts up to.

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};

use super::{Etcd, TIMEOUT, within};
use crate::{CompactionTurn, Revision, Store, StoreError};

/// The key, as Kubernetes names it; it is not under the prefix of objects.
const KEY: &str = "compact_rev_key";

/// Takes a turn, if nobody has taken it since the last call with `turn`.
pub(super) async fn take_turn(etcd: &Etcd, turn: &mut CompactionTurn) -> Result<(), StoreError> {
    let txn = Txn::new()
        .when([Compare::version(KEY, CompareOp::Equal, turn.time)])
        .and_then([TxnOp::put(KEY, turn.revision.to_string(), None)])
        .or_else([TxnOp::get(KEY, None)]);
    let response = within(TIMEOUT, "take a turn at compacting", etcd.kv.clone().txn(txn)).await?;
    let revision: Revision = response.header().map_or(0, |header| header.revision());
    let before = std::mem::replace(&mut turn.revision, revision);
    if !response.succeeded() {
        // Somebody else did it. What was there a period ago, by their clock, is theirs to forget.
        turn.time = response
            .op_responses()
            .into_iter()
            .find_map(|response| match response {
                TxnOpResponse::Get(got) => got.kvs().first().map(etcd_client::KeyValue::version),
                _ => None,
            })
            .unwrap_or(0);
        return Ok(());
    }
    turn.time += 1;
    if before == 0 {
        return Ok(());
    }
    match etcd.compact(before).await {
        // By hand, or by etcd itself.
        Err(StoreError::Compacted { .. }) => Ok(()),
        result => result,
    }
}
