//! Topology spread constraints, and default spreading of a controller's pods if a pod states none.

use std::collections::BTreeMap;

use apiserver_meta::node_selector;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use crate::framework::{Filter, NodeFilter, Score, normalize};
use crate::model::{NodeInfo, PodInfo};
use crate::selector;
use crate::snapshot::Snapshot;

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// `PodTopologySpread`: filters by `DoNotSchedule`, scores by `ScheduleAnyway` and by default spreading.
pub struct TopologySpread;

/// Number of matching pods by domain, a domain being a value of the topology key.
struct Counts<'a> {
    constraint: &'a TopologySpreadConstraint,
    by_domain: BTreeMap<&'a str, i64>,
    /// 1 if the pod itself matches, else 0.
    own: i64,
}

impl Counts<'_> {
    /// Returns the skew with the pod placed in this domain.
    fn skew(&self, domain: &str) -> i64 {
        let here = self.by_domain.get(domain).copied().unwrap_or_default();
        here + self.own - self.least()
    }

    /// Returns the global minimum; 0 while there are fewer domains than `minDomains`.
    fn least(&self) -> i64 {
        let wanted = usize::try_from(self.constraint.min_domains.unwrap_or(1)).unwrap_or(1);
        if self.by_domain.len() < wanted {
            return 0;
        }
        self.by_domain.values().copied().min().unwrap_or_default()
    }
}

fn counts<'a>(constraint: &'a TopologySpreadConstraint, pod: &PodInfo, snapshot: &'a Snapshot) -> Counts<'a> {
    let matches = |other: &PodInfo| {
        other.key.namespace == pod.key.namespace
            && !other.terminating
            && selector::labels(constraint.label_selector.as_ref(), &other.labels)
    };
    let honours_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
    let mut by_domain = BTreeMap::new();
    for node in snapshot.nodes() {
        let Some(domain) = node.labels.get(&constraint.topology_key) else { continue };
        let selected = pod.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let required = pod
            .required_affinity
            .as_ref()
            .is_none_or(|required| node_selector::matches(required, &node.name, &node.labels));
        let ignores_affinity = constraint.node_affinity_policy.as_deref() == Some("Ignore");
        let tainted = honours_taints
            && node.taints.iter().any(|taint| taint.effect != "PreferNoSchedule" && !pod.tolerates(taint));
        if !(selected && required || ignores_affinity) || tainted {
            continue;
        }
        let here = node.pods.values().filter(|other| matches(other)).count();
        *by_domain.entry(domain.as_str()).or_default() += i64::try_from(here).unwrap_or(i64::MAX);
    }
    Counts {
        constraint,
        by_domain,
        own: i64::from(selector::labels(constraint.label_selector.as_ref(), &pod.labels)),
    }
}

impl Filter for TopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, snapshot: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        let hard: Vec<Counts<'a>> = pod
            .spread
            .iter()
            .filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
            .map(|constraint| counts(constraint, pod, snapshot))
            .collect();
        if hard.is_empty() {
            return None;
        }
        Some(Box::new(move |node: &NodeInfo| {
            for counts in &hard {
                let Some(domain) = node.labels.get(&counts.constraint.topology_key) else {
                    return vec![
                        "node(s) didn't match pod topology spread constraints (missing required label)"
                            .to_owned(),
                    ];
                };
                if counts.skew(domain) > i64::from(counts.constraint.max_skew) {
                    return vec!["node(s) didn't match pod topology spread constraints".to_owned()];
                }
            }
            Vec::new()
        }))
    }
}

impl Score for TopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], snapshot: &Snapshot) -> Vec<i64> {
        let soft: Vec<Counts<'_>> = pod
            .spread
            .iter()
            .filter(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway")
            .map(|constraint| counts(constraint, pod, snapshot))
            .collect();
        if soft.is_empty() {
            return by_controller(pod, nodes, snapshot);
        }
        let raw: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let of = |counts: &Counts<'_>| {
                    let domain = node.labels.get(&counts.constraint.topology_key)?;
                    counts.by_domain.get(domain.as_str()).copied()
                };
                soft.iter().filter_map(of).sum()
            })
            .collect();
        normalize(&raw, true)
    }
}

/// Scores nodes higher the fewer pods of the same controller are on the node and in its zone.
fn by_controller(pod: &PodInfo, nodes: &[&NodeInfo], snapshot: &Snapshot) -> Vec<i64> {
    if pod.controller.is_empty() || !pod.spread.is_empty() {
        return Vec::new();
    }
    let mut zones: BTreeMap<&str, i64> = BTreeMap::new();
    let mut hosts: BTreeMap<&str, i64> = BTreeMap::new();
    for node in snapshot.nodes() {
        let same =
            node.pods.values().filter(|other| other.controller == pod.controller && !other.terminating);
        let count = i64::try_from(same.count()).unwrap_or(i64::MAX);
        *hosts.entry(host(node)).or_default() += count;
        if let Some(zone) = node.labels.get(ZONE) {
            *zones.entry(zone).or_default() += count;
        }
    }
    let raw: Vec<i64> = nodes
        .iter()
        .map(|node| {
            let zone =
                node.labels.get(ZONE).and_then(|zone| zones.get(zone.as_str())).copied().unwrap_or_default();
            hosts.get(host(node)).copied().unwrap_or_default() + zone
        })
        .collect();
    normalize(&raw, true)
}

fn host(node: &NodeInfo) -> &str {
    node.labels.get(HOSTNAME).map_or(node.name.as_str(), String::as_str)
}
