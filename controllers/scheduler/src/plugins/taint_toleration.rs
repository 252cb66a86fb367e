//! `TaintToleration`: a pod runs where it tolerates the taints, and rather where it tolerates those that only ask.

use apiserver_meta::pods::tolerates;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::cluster::{Cluster, Node};
use crate::framework::{
    Actions, Change, Event, Hint, NodeFilter, NodeScore, Normalize, Plugin, Refusal, Resource, Versions,
};
use crate::pod::{PodInfo, PodSpec};

/// The plugin `TaintToleration`. The operators `Lt` and `Gt` are behind a gate (TaintTolerationComparisonOperators) that is
/// off by default, and match nothing.
pub struct TaintToleration;

/// The tolerations of a pod.
#[derive(Clone, Copy)]
struct Tolerations<'a>(&'a [Toleration]);

impl<'a> Tolerations<'a> {
    fn of(spec: &'a PodSpec) -> Self {
        Self(spec.source.tolerations.as_deref().unwrap_or_default())
    }

    fn cover(self, taint: &Taint) -> bool {
        self.0.iter().any(|toleration| tolerates(toleration, taint))
    }

    /// Returns `true` if no taint keeps the pod away.
    fn admit(self, taints: &[Taint]) -> bool {
        let repels = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        taints.iter().filter(repels).all(|taint| self.cover(taint))
    }

    /// Returns the number of taints that ask the pod to stay away.
    fn unwelcome(self, taints: &[Taint]) -> i64 {
        let asks = |taint: &&Taint| taint.effect == "PreferNoSchedule" && !self.cover(taint);
        taints.iter().filter(asks).map(|_| 1).sum()
    }
}

impl NodeFilter for Tolerations<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.admit(&node.taints)
    }

    fn refusal(&self, _: &Node) -> Refusal {
        Refusal::unresolvable("node(s) had untolerated taint(s)")
    }
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn node_filter<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        Some(Box::new(Tolerations::of(spec)))
    }

    fn node_score<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<NodeScore<'a>> {
        let tolerations = Tolerations::of(spec);
        let raw = Box::new(move |node: &Node| tolerations.unwelcome(&node.taints));
        Some(NodeScore { raw, normalize: Normalize::Least })
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::Node, Actions::ADD | Actions::NODE_TAINT),
            Event::new(Resource::UnscheduledPod, Actions::POD_TOLERATION),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let tolerations = Tolerations::of(&pod.spec);
        let helps = match change {
            Change::Node(Versions { old, new: Some(new) }) => {
                let was_closed = old.is_none_or(|old| !tolerations.admit(&old.taints));
                was_closed && tolerations.admit(&new.taints)
            }
            Change::Pod(Versions { new: Some(new), .. }) => new.uid == pod.uid,
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

#[cfg(test)]
mod tests;
