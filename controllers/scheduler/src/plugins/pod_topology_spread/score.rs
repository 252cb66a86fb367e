//! Scores of nodes by the soft constraints of a pod.

use std::borrow::Cow;
use std::sync::Arc;

use super::Chosen;
use crate::cluster::terms::{FIRST, Key, MISSING};
use crate::cluster::{Cluster, NodeId};
use crate::framework::MAX_SCORE;
use crate::pod::PodInfo;

/// Returns the normalized scores of the feasible nodes. Nodes that lack one of the `required` topology keys have 0.
pub fn score(
    pod: &PodInfo,
    cluster: &Cluster,
    constraints: &[Chosen<'_>],
    required: &[Arc<str>],
    feasible: &[NodeId],
) -> Vec<i64> {
    let keys: Vec<Cow<'_, Key>> =
        constraints.iter().map(|chosen| cluster.terms.key(&chosen.constraint.key)).collect();
    let is_scored = |id: NodeId| required.is_empty() || keys.iter().all(|key| key.of(id) >= FIRST);
    let scored: Vec<bool> = feasible.iter().map(|id| is_scored(*id)).collect();
    let mut raw = vec![0.0; feasible.len()];
    for (chosen, key) in constraints.iter().zip(&keys) {
        let pods = cluster.terms.count(&chosen.count_key(pod));
        let nodes = feasible.iter().zip(&scored).filter(|(_, is_scored)| **is_scored).map(|(id, _)| *id);
        let offset = f64::from(chosen.constraint.max_skew - 1);
        if chosen.is_by_node() {
            let weight = weight(nodes.count());
            let count = |id: NodeId| f64::from(pods.get(id.index()).copied().unwrap_or_default());
            add(&mut raw, feasible, key, |id, _| count(id) * weight + offset);
            continue;
        }
        let partition = cluster.terms.partition(
            &chosen.partition_key(pod, required),
            pod,
            chosen.constraint.honors_affinity,
        );
        let mut sums = partition.sums(&pods, key.end());
        let mut seen = vec![false; sums.len()];
        nodes.for_each(|id| seen[key.of(id) as usize] = true);
        if let Some(empty) = key.domain("") {
            // A label without a value and a missing label are one domain.
            sums[empty as usize] += sums[MISSING as usize];
            seen[empty as usize] |= std::mem::take(&mut seen[MISSING as usize]);
        }
        let weight = weight(seen.into_iter().filter(|is_seen| *is_seen).count());
        add(&mut raw, feasible, key, |_, domain| f64::from(sums[domain as usize]) * weight + offset);
    }
    let rounded = raw.into_iter().zip(scored).map(|(raw, is_scored)| is_scored.then(|| round(raw)));
    normalize(rounded.collect())
}

/// Adds a part to the scores of nodes that have a label of the key.
fn add(raw: &mut [f64], feasible: &[NodeId], key: &Key, part: impl Fn(NodeId, u32) -> f64) {
    for (raw, id) in raw.iter_mut().zip(feasible) {
        let domain = key.of(*id);
        if domain >= FIRST {
            *raw += part(*id, domain);
        }
    }
}

/// Returns the weight of counts by the number of domains, so that those of few domains are not drowned by those of many.
#[expect(clippy::cast_precision_loss, reason = "a cluster has fewer than 2^52 nodes")]
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

/// Rounds a number that is not negative, with halves upwards.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "scores are far below 2^52")]
fn round(score: f64) -> i64 {
    let whole = score as i64;
    whole + i64::from(score - whole as f64 >= 0.5)
}

/// Turns raw scores, of which the least is best, into scores up to [`MAX_SCORE`]; nodes that are not scored have 0.
fn normalize(raw: Vec<Option<i64>>) -> Vec<i64> {
    let max = raw.iter().flatten().copied().max().unwrap_or_default();
    let min = raw.iter().flatten().copied().min().unwrap_or_default();
    let scale = |raw: i64| if max == 0 { MAX_SCORE } else { MAX_SCORE * (max + min - raw) / max };
    raw.into_iter().map(|raw| raw.map_or(0, scale)).collect()
}
