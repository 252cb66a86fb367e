//! Taints that the pod does not tolerate exclude a node or lower its score.

use crate::framework::{Filter, NodeFilter, Score, normalize};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// `TaintToleration`: filters by `NoSchedule` and `NoExecute`, scores by `PreferNoSchedule`.
pub struct TaintToleration;

impl Filter for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        Some(Box::new(move |node: &NodeInfo| {
            let hard = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
            let taint = node.taints.iter().find(|taint| hard(&taint.effect) && !pod.tolerates(taint));
            taint
                .map(|taint| {
                    let value = taint.value.as_deref().unwrap_or_default();
                    format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)
                })
                .into_iter()
                .collect()
        }))
    }
}

impl Score for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], _: &Snapshot) -> Vec<i64> {
        let untolerated: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let soft = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
                i64::try_from(soft.filter(|taint| !pod.tolerates(taint)).count()).unwrap_or(i64::MAX)
            })
            .collect();
        normalize(&untolerated, true)
    }
}
