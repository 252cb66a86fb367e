//! Tables of what is said if no pods are preempted, and of when a pod may preempt others.

use super::*;
use crate::framework::{NodeFilter, Plugin, PreFilter};
use crate::plugins::{DefaultPreemption, NodeResourcesFit, profile};

/// Returns what is said after the nodes' own reasons.
fn said(names: &[&str], pods: &[&str], pod: &PodInfo) -> String {
    let message = outcome(&mut sketched_cluster(names, pods), pod).expect_err("no pods are preempted");
    let (_, said) = message.split_once("preemption: ").unwrap_or_else(|| panic!("{message}"));
    said.to_owned()
}

#[test]
fn message_counts_the_nodes_where_preemption_does_not_help() {
    let large = |fields: Value| sketched("p - 10 3", fields);
    let names = &["n1", "n2", "n3", "n4"];
    assert_eq!(
        said(&names[..1], &["a n1 10 5"], &large(json!({}))),
        "0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
    let useless = "0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let elsewhere = large(json!({"spec": {"nodeSelector": {"zone": "none"}}}));
    assert_eq!(said(&names[..1], &["a n1 0 5"], &elsewhere), useless);
    let named = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    let by_name = json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [named]}]}}}}});
    assert_eq!(
        said(&names[..2], &["a n1 10 5", "b n2 0 5"], &large(by_name)),
        "0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
        "the other node was not looked at"
    );
    let full = ["a1 n1 10 4", "a2 n1 0 1", "b1 n2 10 4", "b2 n2 0 1"];
    assert_eq!(said(&names[..2], &full, &large(json!({}))), "0/2 nodes are available: 2 Insufficient cpu.");
    let mixed = ["a n1 10 5", "b1 n2 10 4", "b2 n2 0 1", "c n3 10 5"];
    assert_eq!(
        said(&names[..3], &mixed, &large(json!({}))),
        "0/3 nodes are available: 1 Insufficient cpu, 2 No preemption victims found for incoming pod."
    );
    let zones = &["n1/1", "n2/1", "n3/2", "n4/2"];
    let selective = large(json!({"spec": {"nodeSelector": {"zone": "1"}}}));
    assert_eq!(
        said(zones, &full, &selective),
        "0/4 nodes are available: 2 Insufficient cpu, 2 Preemption is not helpful for scheduling."
    );
}

#[test]
fn node_is_found_by_priority_and_budgets() {
    let low = &["a n1 0 5"];
    let high = sketched("p - 10 3", json!({}));
    assert_eq!(outcome(&mut sketched_cluster(&["n1"], low), &high).unwrap().0, "n1");
    let pods = &["a n1 20 5", "b n2 0 5"];
    assert_eq!(outcome(&mut sketched_cluster(&["n1", "n2"], pods), &high).unwrap().0, "n2");
    let pods = &["a1 n1 8 3 free", "a2 n1 0 2 app", "b n2 5 5 app"];
    let mut cluster = sketched_cluster(&["n1", "n2"], pods);
    for (label, allowed) in [("app", 0), ("free", i32::MAX)] {
        let budget = json!({"spec": {"selector": {"matchLabels": {label: ""}}}, "status": {"disruptionsAllowed": allowed}});
        let key = apiserver_client::ObjectKey::new("default", label);
        cluster.budgets.set(key, Some(Arc::new(from_value(budget).unwrap())));
    }
    let pod = sketched("p - 10 5", json!({}));
    assert_eq!(outcome(&mut cluster, &pod).unwrap().0, "n2", "both violate one budget once");
}

/// A plugin that fails on a node that has no pods.
struct Fragile(&'static str);

impl Plugin for Fragile {
    fn name(&self) -> &'static str {
        "Fragile"
    }

    fn pre_filter<'a>(&'a self, _: &'a PodInfo, _: &'a Cluster) -> PreFilter<'a> {
        PreFilter::Filter { only: None, filter: Box::new(Self(self.0)) }
    }
}

impl NodeFilter for Fragile {
    fn passes(&self, node: &crate::cluster::Node) -> bool {
        &*node.name != self.0 || !node.pods.is_empty()
    }

    fn refusal(&self, _: &crate::cluster::Node) -> Refusal {
        Refusal::new(Code::Error, "it is empty")
    }
}

#[test]
fn error_on_one_node_matters_only_if_no_other_is_a_candidate() {
    let preempt = |names: &[&str], pods: &[&str]| {
        let mut cluster = sketched_cluster(names, pods);
        let plugins: Vec<(Box<dyn Plugin>, i64)> = vec![
            (Box::new(Fragile("n1")), 0),
            (Box::new(NodeResourcesFit::default()), 0),
            (Box::new(DefaultPreemption::default()), 0),
        ];
        let profile = profile("default-scheduler", plugins);
        let pod = sketched("p - 10 3", json!({}));
        let (views, meter) = (&mut Views::default(), &mut Meter::default());
        let found = find_feasible(&profile, &pod, &mut cluster, views, 0, NominatedFirst::Yes, meter);
        let mut diagnosis = *found.expect_err("the pod fits nowhere");
        match post_filter(&profile, &pod, &mut cluster, &mut diagnosis, 0) {
            Some(Found::Candidate(candidate)) => cluster.node(candidate.node).name.to_string(),
            Some(Found::Failed(why)) => why,
            other => panic!("unexpected {other:?}"),
        }
    };
    assert_eq!(preempt(&["n1"], &["a n1 0 5"]), "running \"Fragile\" filter plugin: it is empty");
    assert_eq!(preempt(&["n1", "n2"], &["a n1 0 5", "b n2 0 5"]), "n2");
}

#[test]
fn pods_may_preempt_others_unless_they_wait_for_victims() {
    let preemptor = |fields: Value| sketched("p - 10 3", fields);
    let nominated = || preemptor(json!({"status": {"nominatedNodeName": "n"}}));
    let leaving = |conditions: Value| {
        let fields = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"conditions": conditions}});
        cluster(&five_cores(&["n"]), &[sketched("a n 0 5", fields)])
    };
    let preempted =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
    let evicted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]);
    let refused = |refusal: Option<Refusal>| {
        let mut diagnosis = Diagnosis::default();
        if let Some(refusal) = refusal {
            diagnosis.refuse(NodeId::new(0), refusal);
        }
        diagnosis
    };
    let full = || refused(Some(Refusal::unschedulable("full")));
    let hopeless = || refused(Some(Refusal::unresolvable("node(s) had untolerated taint(s)")));
    let waits = Some("not eligible due to a terminating pod on the nominated node.");
    assert_eq!(ineligible(&nominated(), &leaving(preempted.clone()), &hopeless()), None, "for good");
    assert_eq!(ineligible(&preemptor(json!({})), &Cluster::default(), &refused(None)), None);
    let never = preemptor(json!({"spec": {"preemptionPolicy": "Never"}}));
    let why = Some("not eligible due to preemptionPolicy=Never.");
    assert_eq!(ineligible(&never, &Cluster::default(), &refused(None)), why);
    assert_eq!(ineligible(&nominated(), &leaving(preempted.clone()), &full()), waits);
    assert_eq!(ineligible(&nominated(), &leaving(preempted), &refused(None)), waits);
    assert_eq!(ineligible(&nominated(), &leaving(json!([])), &full()), None, "it goes by itself");
    assert_eq!(ineligible(&nominated(), &leaving(evicted), &full()), None, "it goes for another reason");
}

#[test]
fn pods_make_no_attempt_while_their_victims_are_being_removed() {
    let (pod, other) = (sketched("p - 10 3", json!({})), sketched("q - 10 3", json!({})));
    let mut cluster = Cluster::default();
    let plugin = DefaultPreemption::default();
    assert_eq!(plugin.pre_enqueue(&pod, &cluster), None);
    cluster.nominated.set_preempting(&pod.uid, true);
    let words = "waiting for the preemption for this pod to be finished";
    assert_eq!(plugin.pre_enqueue(&pod, &cluster), Some(Refusal::unresolvable(words)));
    assert_eq!(plugin.pre_enqueue(&other, &cluster), None, "another pod");
    cluster.nominated.set_preempting(&pod.uid, false);
    assert_eq!(plugin.pre_enqueue(&pod, &cluster), None);
}
