//! Decides on which nodes the pods of a DaemonSet run.

use apiserver_meta::node_selector;
use apiserver_meta::pods::tolerates;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, NodeSelector, PodSpec, Toleration};

use crate::meta::{Labels, name};

/// Taints that every pod of a DaemonSet tolerates, with their effects: a pod neither leaves an unhealthy node, nor
/// does it stay away from one that is cordoned or short of something.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// Taint that pods in the network of their node tolerate as well.
const NETWORK_UNAVAILABLE: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Relation of a node to a DaemonSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// A pod should run on the node, and is created if there is none.
    pub run: bool,
    /// A pod that is on the node already may stay.
    pub keep: bool,
}

/// Conditions of a DaemonSet's template on nodes.
pub(super) struct Placement<'a> {
    node_name: &'a str,
    node_selector: Option<&'a Labels>,
    required: Option<&'a NodeSelector>,
    tolerations: Vec<Toleration>,
}

impl<'a> Placement<'a> {
    pub fn new(set: &'a DaemonSet) -> Self {
        let Some(pod) = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()) else {
            return Self { node_name: "", node_selector: None, required: None, tolerations: Vec::new() };
        };
        let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        Self {
            node_name: pod.node_name.as_deref().unwrap_or_default(),
            node_selector: pod.node_selector.as_ref(),
            required: affinity
                .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref()),
            tolerations: tolerations(pod),
        }
    }

    pub fn fit(&self, node: &Node) -> Fit {
        let (name, none) = (name(&node.metadata), Labels::new());
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        let named = self.node_name.is_empty() || self.node_name == name;
        let mut selector = self.node_selector.into_iter().flatten();
        let selected = selector.all(|(key, value)| labels.get(key) == Some(value));
        let required = self.required.is_none_or(|required| node_selector::matches(required, name, labels));
        if !named || !selected || !required {
            return Fit::default();
        }
        let tolerated = |effect| self.tolerates_all(node, effect);
        let keep = tolerated("NoExecute");
        Fit { run: keep && tolerated("NoSchedule"), keep }
    }

    fn tolerates_all(&self, node: &Node, effect: &str) -> bool {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        taints
            .filter(|taint| taint.effect == effect)
            .all(|taint| self.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    }
}

/// Returns the tolerations of a template with those that every pod of a DaemonSet has.
pub(super) fn tolerations(pod: &PodSpec) -> Vec<Toleration> {
    let mut all = pod.tolerations.clone().unwrap_or_default();
    let network = Some(&NETWORK_UNAVAILABLE).filter(|_| pod.host_network == Some(true));
    for (key, effect) in TOLERATED.iter().chain(network) {
        let wanted = Toleration {
            key: Some((*key).to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some((*effect).to_owned()),
            ..Toleration::default()
        };
        let mut given = false;
        for toleration in all.iter_mut().filter(|toleration| is_same(toleration, &wanted)) {
            // The template may limit the time; the pods of a DaemonSet stay.
            *toleration = wanted.clone();
            given = true;
        }
        if !given {
            all.push(wanted);
        }
    }
    all
}

/// Returns `true` if two tolerations differ at most in their time.
fn is_same(a: &Toleration, b: &Toleration) -> bool {
    let parts = |toleration: &Toleration| {
        let fields = [&toleration.key, &toleration.operator, &toleration.value, &toleration.effect];
        fields.map(|field| field.clone().unwrap_or_default())
    };
    parts(a) == parts(b)
}
