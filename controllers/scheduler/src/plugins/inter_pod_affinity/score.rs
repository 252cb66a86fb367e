//! Scores of nodes by preferred terms of a pod, and by terms of the pods that are there.

use super::{count_key, preferred};
use crate::cluster::terms::{FIRST, Key};
use crate::cluster::{Cluster, NodeId};
use crate::framework::{Feasible, MAX_SCORE};
use crate::pod::PodInfo;

/// Returns the normalized scores of the feasible nodes; `None` if no term selects any pod.
pub fn score(pod: &PodInfo, cluster: &Cluster, hard_weight: i32, feasible: &Feasible) -> Option<Vec<i64>> {
    let terms = &cluster.terms;
    let mut raw = Vec::new();
    let mut counts = false;
    for (weight, term) in preferred(pod) {
        let key = terms.key(&term.key);
        let pods = key.sums(&terms.count(&count_key([term], pod, cluster)));
        if pods.iter().skip(FIRST as usize).any(|pods| *pods != 0) {
            counts = true;
            add(&mut raw, feasible.list(), &key, i64::from(weight), &pods);
        }
    }
    if let Some((exposure, _)) = terms.exposure(pod) {
        counts |= exposure.soft() > 0 || (exposure.hard() > 0 && hard_weight > 0);
        for (name, pressure) in exposure.keys() {
            let key = terms.key(name);
            if !pressure.hard.is_empty() && hard_weight > 0 {
                add(&mut raw, feasible.list(), &key, i64::from(hard_weight), &pressure.hard);
            }
            if !pressure.soft.is_empty() {
                add(&mut raw, feasible.list(), &key, 1, &pressure.soft);
            }
        }
    }
    counts.then(|| {
        raw.resize(feasible.list().len(), 0);
        normalize(&raw)
    })
}

/// Adds what the domains of the nodes have. `raw` is empty before the first time.
fn add<T: Copy + Into<i64>>(
    raw: &mut Vec<i64>,
    feasible: &[NodeId],
    key: &Key,
    weight: i64,
    of_domain: &[T],
) {
    raw.resize(feasible.len(), 0);
    for (raw, id) in raw.iter_mut().zip(feasible) {
        let domain = key.of(*id);
        if domain >= FIRST {
            *raw += weight * of_domain.get(domain as usize).map_or(0, |of_domain| (*of_domain).into());
        }
    }
}

/// Turns raw scores, of which the greatest is best, into scores from 0 to [`MAX_SCORE`].
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "as kube-scheduler computes it"
)]
fn normalize(raw: &[i64]) -> Vec<i64> {
    let min = raw.iter().copied().min().unwrap_or_default();
    let span = raw.iter().copied().max().unwrap_or_default() - min;
    let scale = |raw: i64| match span {
        0 => 0,
        _ => (MAX_SCORE as f64 * ((raw - min) as f64 / span as f64)) as i64,
    };
    raw.iter().map(|raw| scale(*raw)).collect()
}
