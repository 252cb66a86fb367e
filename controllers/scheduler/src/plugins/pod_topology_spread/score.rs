//! Scores of nodes by the soft constraints of a pod.

use std::borrow::Cow;
use std::sync::Arc;

use super::Chosen;
use crate::cluster::terms::{FIRST, GONE, Key, MISSING};
use crate::cluster::{Cluster, NodeId};
use crate::framework::MAX_SCORE;
use crate::pod::PodInfo;

/// Raw score of a node that is not scored.
const NOT_SCORED: i64 = -1;

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
    let scored = scored(&keys, required, feasible);
    let mut raw = Vec::new();
    for (chosen, key) in constraints.iter().zip(&keys) {
        let pods = cluster.terms.count(&chosen.count_key(pod));
        let offset = f64::from(chosen.constraint.max_skew - 1);
        if chosen.is_by_node() {
            let weight = weight(scored.len());
            add(&mut raw, feasible, key, |id, _| {
                f64::from(pods.get(id.index()).copied().unwrap_or_default()) * weight + offset
            });
            continue;
        }
        let partition = cluster.terms.partition(
            &chosen.partition_key(pod, required),
            pod,
            chosen.constraint.honors_affinity,
        );
        let mut sums = partition.sums(&pods, key.end());
        let mut seen = vec![false; sums.len()];
        scored.iter().for_each(|id| seen[key.of(*id) as usize] = true);
        if let Some(empty) = key.domain("") {
            // A label without a value and a missing label are one domain.
            sums[empty as usize] += sums[MISSING as usize];
            seen[empty as usize] |= std::mem::take(&mut seen[MISSING as usize]);
        }
        let weight = weight(seen.into_iter().filter(|is_seen| *is_seen).count());
        let parts: Vec<f64> = sums.into_iter().map(|pods| f64::from(pods) * weight + offset).collect();
        add(&mut raw, feasible, key, |_, domain| parts[domain as usize]);
    }
    let mut scores: Vec<i64> = raw.into_iter().map(round).collect();
    if scored.len() < feasible.len() {
        let lacks = |id: &NodeId| scored.binary_search(id).is_err();
        let others = scores.iter_mut().zip(feasible).filter(|(_, id)| lacks(id));
        others.for_each(|(score, _)| *score = NOT_SCORED);
    }
    normalize(&mut scores);
    scores
}

/// Returns the feasible nodes that have all of the `required` topology keys, which `keys` begin with.
fn scored<'a>(keys: &[Cow<'_, Key>], required: &[Arc<str>], feasible: &'a [NodeId]) -> Cow<'a, [NodeId]> {
    let has_all = |id: &NodeId| keys.iter().all(|key| key.of(*id) >= FIRST);
    if required.is_empty() || feasible.iter().all(has_all) {
        return Cow::Borrowed(feasible);
    }
    feasible.iter().copied().filter(has_all).collect()
}

/// Adds a part to the scores of nodes that have a label of the key. `raw` is empty before the first time.
fn add(raw: &mut Vec<f64>, feasible: &[NodeId], key: &Key, part: impl Fn(NodeId, u32) -> f64) {
    raw.resize(feasible.len(), 0.0);
    let domains = key.column();
    for (raw, id) in raw.iter_mut().zip(feasible) {
        let domain = domains.get(id.index()).copied().unwrap_or(GONE);
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
fn normalize(scores: &mut [i64]) {
    let scored = || scores.iter().copied().filter(|raw| *raw != NOT_SCORED);
    let (min, max) = (scored().min().unwrap_or_default(), scored().max().unwrap_or_default());
    let scale = |raw: i64| if max == 0 { MAX_SCORE } else { MAX_SCORE * (max + min - raw) / max };
    let span = usize::try_from(max - min).unwrap_or(usize::MAX);
    // There are mostly far fewer raw scores than nodes, and a division takes longer than a look into a table.
    let table: Vec<i64> = if span < scores.len() { (min..=max).map(scale).collect() } else { Vec::new() };
    for score in scores {
        *score = match *score {
            NOT_SCORED => 0,
            raw => match table.get(usize::try_from(raw - min).unwrap_or(usize::MAX)) {
                Some(scaled) => *scaled,
                None => scale(raw),
            },
        };
    }
}
