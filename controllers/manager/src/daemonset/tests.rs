//! Scenarios: a DaemonSet, nodes, pods as the cache shows them, and what follows.

mod scenarios;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus, DaemonSetUpdateStrategy,
    RollingUpdateDaemonSet,
};
use k8s_openapi::api::core::v1::{self, Node, NodeSpec, Taint};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, from_value, json};

use super::backoff::Backoff;
use super::placement::{Fit, Placement, tolerations};
use super::plan::{Plan, Report, plan};
use super::revisions::{Action, History, history, surplus};
use super::rolling;
use super::status::{next_available, status};
use super::template::{Current, HASH_LABEL, hash_of, new_pod, target};
use super::view::View;
use crate::history::new_revision;
use crate::meta::{controller_reference, name};
use crate::pods::Pod;
use crate::testing::{self, at, labels, meta, set_ready, time};

/// Returns a DaemonSet of pods with the label `app=test`, whose update leaves one node at a time without.
pub(super) fn daemon_set(name: &str) -> DaemonSet {
    let mut set = DaemonSet {
        metadata: meta(name),
        spec: Some(DaemonSetSpec {
            selector: testing::selector(),
            template: testing::template("image:1"),
            ..DaemonSetSpec::default()
        }),
        status: None,
    };
    roll(&mut set, IntOrString::Int(0), IntOrString::Int(1));
    set
}

/// Sets `maxSurge` and `maxUnavailable`.
pub(super) fn roll(set: &mut DaemonSet, surge: IntOrString, unavailable: IntOrString) {
    let rolling = RollingUpdateDaemonSet { max_surge: Some(surge), max_unavailable: Some(unavailable) };
    set.spec.as_mut().unwrap().update_strategy = Some(DaemonSetUpdateStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(rolling),
    });
}

/// Sets fields of the pod template's specification.
fn template(set: &mut DaemonSet, spec: Value) {
    let mut all = json!({"containers": [{"name": "main", "image": "image:1"}]});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    set.spec.as_mut().unwrap().template.spec = Some(from_value(all).unwrap());
}

pub(super) fn taint(node: &mut Node, key: &str, effect: &str) {
    let taint = Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() };
    node.spec.get_or_insert_with(NodeSpec::default).taints.get_or_insert_default().push(taint);
}

fn tainted(name: &str, key: &str, effect: &str) -> Node {
    let mut node = testing::node(name);
    taint(&mut node, key, effect);
    node
}

/// A DaemonSet whose current revision has the hash `new`, its nodes and pods.
struct Case {
    set: DaemonSet,
    nodes: Vec<Arc<Node>>,
    pods: Vec<Arc<Pod>>,
    second: i64,
}

impl Case {
    /// Returns a case with the nodes `n1`, `n2`, … and no pods.
    fn new(nodes: usize) -> Self {
        let nodes = (1..=nodes).map(|number| Arc::new(testing::node(&format!("n{number}")))).collect();
        Self { set: daemon_set("ds"), nodes, pods: Vec::new(), second: 100 }
    }

    /// Adds a running pod that is ready since second 0.
    fn ready(self, name: &str, node: &str, hash: &str) -> Self {
        self.with(name, node, hash, |_| {})
    }

    fn unready(self, name: &str, node: &str, hash: &str) -> Self {
        self.with(name, node, hash, |pod| set_ready(pod, false, 0))
    }

    fn with(mut self, name: &str, node: &str, hash: &str, change: impl Fn(&mut v1::Pod)) -> Self {
        let mut pod = new_pod(&self.set, Current::new(&self.set, hash), node);
        let (labels, owners) = (pod.metadata.labels.take(), pod.metadata.owner_references.take());
        pod.metadata = meta(name);
        (pod.metadata.labels, pod.metadata.owner_references) = (labels, owners);
        pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
        pod.status.get_or_insert_default().phase = Some("Running".to_owned());
        set_ready(&mut pod, true, 0);
        change(&mut pod);
        self.pods.push(Arc::new(pod.into()));
        self
    }

    fn view(&self) -> View<'_> {
        View::new(&self.set, "new", &self.nodes, &self.pods, at(self.second))
    }

    fn plan(&self) -> Plan {
        plan(&self.view(), &mut Backoff::default())
    }

    /// Returns nodes to create pods for, and names of pods to delete: regardless of an update.
    fn planned(&self) -> (Vec<String>, Vec<String>) {
        summary(&self.plan())
    }

    /// Does the same for the update.
    fn rolled(&self) -> (Vec<String>, Vec<String>) {
        summary(&rolling::plan(&self.view()))
    }

    fn bounds(mut self, surge: IntOrString, unavailable: IntOrString) -> Self {
        roll(&mut self.set, surge, unavailable);
        self
    }

    fn surging(self, surge: i32) -> Self {
        self.bounds(IntOrString::Int(surge), IntOrString::Int(0))
    }
}

fn summary(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let mut deleted: Vec<_> = plan.delete.iter().map(|pod| name(&pod.metadata).to_owned()).collect();
    deleted.sort();
    (plan.create.clone(), deleted)
}

fn phase(phase: &str) -> impl Fn(&mut v1::Pod) {
    move |pod| pod.status.as_mut().unwrap().phase = Some(phase.to_owned())
}

fn terminating(pod: &mut v1::Pod) {
    pod.metadata.deletion_timestamp = time(50);
}

fn unbound(pod: &mut v1::Pod) {
    pod.spec.as_mut().unwrap().node_name = None;
    pod.status = None;
}

fn listed<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

#[test]
fn nodes_are_chosen_by_name_labels_and_affinity() {
    let mut node = testing::node("n1");
    node.metadata.labels = Some(labels(&[("disk", "ssd")]));
    let affinity = |operator: &str, value: &str| {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": operator, "values": [value]}]}]}}})
    };
    for (spec, fits) in [
        (json!({}), true),
        (json!({"nodeName": "n1"}), true),
        (json!({"nodeName": "n2"}), false),
        (json!({"nodeSelector": {"disk": "ssd"}}), true),
        (json!({"nodeSelector": {"disk": "hdd"}}), false),
        (json!({"nodeName": "n1", "nodeSelector": {"disk": "ssd"}}), true),
        (json!({"nodeName": "n2", "nodeSelector": {"disk": "ssd"}}), false),
        (json!({"nodeName": "n1", "nodeSelector": {"disk": "hdd"}}), false),
        (json!({"affinity": affinity("In", "ssd")}), true),
        (json!({"affinity": affinity("In", "hdd")}), false),
        (json!({"affinity": affinity("NotIn", "hdd"), "nodeSelector": {"disk": "ssd"}}), true),
    ] {
        let mut set = daemon_set("ds");
        template(&mut set, spec.clone());
        assert_eq!(Placement::new(&set).fit(&node), Fit { run: fits, keep: fits }, "{spec}");
    }
}

#[test]
fn taints_keep_new_pods_away_and_drive_others_out_unless_tolerated() {
    let fit = |node: &Node, spec: Value| {
        let mut set = daemon_set("ds");
        template(&mut set, spec);
        let fit = Placement::new(&set).fit(node);
        (fit.run, fit.keep)
    };
    let tolerating = || json!({"tolerations": [{"key": "k", "operator": "Exists"}]});
    let (schedule, execute) = (tainted("n", "k", "NoSchedule"), tainted("n", "k", "NoExecute"));
    assert_eq!(fit(&schedule, json!({})), (false, true));
    assert_eq!(fit(&execute, json!({})), (false, false));
    assert_eq!(fit(&tainted("n", "k", "PreferNoSchedule"), json!({})), (true, true));
    assert_eq!(fit(&schedule, tolerating()), (true, true));
    assert_eq!(fit(&execute, tolerating()), (true, true));
    for (key, effect) in [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ] {
        let node = tainted("n", &format!("node.kubernetes.io/{key}"), effect);
        assert_eq!(fit(&node, json!({})), (true, true), "{key}");
    }
    let network = tainted("n", "node.kubernetes.io/network-unavailable", "NoSchedule");
    assert_eq!(fit(&network, json!({})), (false, true));
    assert_eq!(fit(&network, json!({"hostNetwork": true})), (true, true));
}

#[test]
fn default_tolerations_replace_those_of_the_template_that_are_limited_in_time() {
    let key = "node.kubernetes.io/not-ready";
    let given = json!({"containers": [], "tolerations": [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
        {"key": "gpu", "operator": "Exists"}]});
    let all = tolerations(&from_value(given).unwrap());
    assert_eq!(all.len(), 7);
    assert_eq!((all[0].key.as_deref(), all[0].toleration_seconds), (Some(key), None));
    assert_eq!(all[1].key.as_deref(), Some("gpu"));
}

#[test]
fn new_pod_is_pinned_owned_and_marked_and_keeps_the_preferred_affinity() {
    let mut set = daemon_set("ds");
    template(
        &mut set,
        json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}}),
    );
    set.metadata.annotations = Some(labels(&[("deprecated.daemonset.template.generation", "4")]));
    let pod = new_pod(&set, Current::new(&set, "h"), "n1");
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("ds-"));
    assert_eq!(pod.metadata.owner_references, Some(vec![controller_reference(&set)]));
    let marks = [("app", "test"), (HASH_LABEL, "h"), ("pod-template-generation", "4")];
    assert_eq!(pod.metadata.labels, Some(labels(&marks)));
    assert_eq!(target(&pod.clone().into()), Some("n1"));
    let affinity = serde_json::to_value(pod.spec.unwrap().affinity.unwrap().node_affinity.unwrap()).unwrap();
    assert_eq!(
        affinity,
        json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]})
    );
}

#[test]
fn target_is_the_bound_node_or_the_single_name_in_the_affinity() {
    let pod = |node: Option<&str>, fields: Value| {
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": fields}]}}});
        let spec = json!({"containers": [], "nodeName": node, "affinity": affinity});
        let pod: v1::Pod = from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        Pod::from(pod)
    };
    let field = |values: Value| json!([{"key": "metadata.name", "operator": "In", "values": values}]);
    assert_eq!(target(&pod(None, field(json!(["a"])))), Some("a"));
    assert_eq!(target(&pod(Some("b"), field(json!(["a"])))), Some("b"));
    assert_eq!(target(&pod(None, field(json!(["a", "b"])))), None);
    assert_eq!(target(&pod(None, json!([]))), None);
    assert_eq!(target(&testing::pod("p").into()), None);
}

#[test]
fn pod_is_current_by_its_hash_or_by_the_number_of_the_template() {
    let mut set = daemon_set("ds");
    let numbered = |number: &str| {
        let mut pod = testing::pod("p");
        pod.metadata.labels = Some(labels(&[("pod-template-generation", number), (HASH_LABEL, "other")]));
        Pod::from(pod)
    };
    assert!(!Current::new(&set, "new").is_of(&numbered("2")));
    set.metadata.annotations = Some(labels(&[("deprecated.daemonset.template.generation", "2")]));
    assert!(Current::new(&set, "new").is_of(&numbered("2")));
    assert!(!Current::new(&set, "new").is_of(&numbered("1")));
    assert!(Current::new(&set, "other").is_of(&numbered("1")));
}

#[test]
fn each_node_gets_one_pod_and_none_twice() {
    let case = Case::new(3);
    assert_eq!(case.planned(), (listed(["n1", "n2", "n3"]), vec![]));
    let case = case.ready("a", "n1", "new").with("b", "n2", "new", unbound);
    assert_eq!(case.planned(), (listed(["n3"]), vec![]));
    assert_eq!(Case::new(0).planned(), (vec![], vec![]));
}

#[test]
fn excess_pods_go_but_the_bound_and_then_the_oldest() {
    let case = Case::new(1)
        .with("unbound", "n1", "new", unbound)
        .with("young", "n1", "new", |pod| pod.metadata.creation_timestamp = time(9))
        .ready("b", "n1", "new")
        .ready("a", "n1", "new");
    assert_eq!(case.planned(), (vec![], listed(["b", "unbound", "young"])));
}

#[test]
fn node_keeps_or_loses_its_pod_by_the_effect_of_a_taint() {
    let mut case = Case::new(0).ready("a", "schedule", "new").ready("b", "execute", "new");
    case = case.with("c", "execute", "new", terminating);
    case.nodes = vec![
        Arc::new(tainted("schedule", "k", "NoSchedule")),
        Arc::new(tainted("execute", "k", "NoExecute")),
        Arc::new(tainted("empty", "k", "NoSchedule")),
    ];
    assert_eq!(case.planned(), (vec![], listed(["b"])));
}

#[test]
fn terminating_pod_is_replaced_only_when_it_is_gone_unless_the_update_surges() {
    let case = Case::new(1).with("a", "n1", "new", terminating);
    assert_eq!(case.planned(), (vec![], vec![]));
    assert_eq!(case.surging(1).planned(), (listed(["n1"]), vec![]));
    // A finalizer may hold a pod that has ended for as long as it likes.
    let ended = Case::new(1).with("a", "n1", "new", |pod| {
        terminating(pod);
        phase("Failed")(pod);
    });
    assert_eq!(ended.planned(), (listed(["n1"]), vec![]));
}

#[test]
fn ended_pods_are_reported_and_deleted_and_failed_ones_after_their_backoff() {
    let mut case =
        Case::new(2).with("f", "n1", "new", phase("Failed")).with("s", "n2", "new", phase("Succeeded"));
    let mut backoff = Backoff::default();
    let first = plan(&case.view(), &mut backoff);
    assert_eq!(summary(&first), (vec![], listed(["f", "s"])));
    assert_eq!(
        first.reports,
        [
            Report::Failed("Found failed daemon pod ns/f on node n1, will try to kill it".to_owned()),
            Report::Succeeded("Found succeeded daemon pod ns/s on node n2, will try to delete it".to_owned()),
        ]
    );
    case = Case::new(2).with("again", "n1", "new", phase("Failed")).ready("g", "n2", "new");
    let held = plan(&case.view(), &mut backoff);
    assert_eq!((held.is_empty(), held.again), (true, Some(Duration::from_secs(1))));
    let held = plan(&Case { second: 100, ..case.surging(1) }.view(), &mut backoff);
    assert!(held.is_empty(), "a surge is no reason for ever more pods: {held:?}");
    case = Case::new(2).with("again", "n1", "new", phase("Failed")).ready("g", "n2", "new");
    case.second = 101;
    assert_eq!(summary(&plan(&case.view(), &mut backoff)), (vec![], listed(["again"])));
}

#[test]
fn unbound_pods_of_missing_nodes_are_deleted() {
    let case =
        Case::new(1).ready("a", "n1", "new").ready("bound", "gone", "new").with("b", "gone", "new", unbound);
    assert_eq!(case.planned(), (vec![], listed(["b"])));
}

#[test]
fn surge_keeps_a_ready_old_pod_until_the_new_one_is_available() {
    let unready = |case: Case| case.unready("new", "n1", "new").surging(1).planned().1;
    assert!(unready(Case::new(1).ready("old", "n1", "old")).is_empty());
    assert_eq!(unready(Case::new(1).unready("old", "n1", "old")), ["old"]);
    let two = Case::new(1)
        .ready("a", "n1", "old")
        .ready("b", "n1", "old")
        .ready("c", "n1", "new")
        .ready("d", "n1", "new");
    assert_eq!(two.surging(1).planned().1, ["a", "b", "d"]);
    let changed_twice = Case::new(1).unready("a", "n1", "older").ready("b", "n1", "old");
    assert_eq!(changed_twice.surging(1).planned().1, ["a"]);
    let waiting = |second| {
        let mut case = Case::new(1).ready("old", "n1", "old").ready("new", "n1", "new").surging(1);
        case.set.spec.as_mut().unwrap().min_ready_seconds = Some(15);
        case.second = second;
        case.planned().1
    };
    assert!(waiting(14).is_empty());
    assert_eq!(waiting(15), ["old"]);
}

#[test]
fn update_replaces_as_many_available_pods_as_may_be_missing() {
    let old = |nodes: usize| {
        (1..=nodes).fold(Case::new(nodes), |case, n| case.ready(&format!("p{n}"), &format!("n{n}"), "old"))
    };
    let unavailable = |case: Case, bound| case.bounds(IntOrString::Int(0), bound).rolled();
    assert_eq!(unavailable(old(5), IntOrString::Int(3)), (vec![], listed(["p1", "p2", "p3"])));
    assert_eq!(unavailable(old(5), IntOrString::String("50%".to_owned())).1, ["p1", "p2", "p3"]);
    assert_eq!(
        unavailable(old(5), IntOrString::Int(0)).1,
        ["p1"],
        "an update that may do nothing does a little"
    );
    let current = Case::new(2).ready("a", "n1", "new").ready("b", "n2", "new");
    assert_eq!(current.rolled(), (vec![], vec![]));
}

#[test]
fn update_counts_every_node_that_lacks_an_available_pod() {
    // A new pod that is not ready, a terminating one, a missing one and a duplicate use up one each.
    let base = || Case::new(3).ready("a", "n1", "old").ready("b", "n2", "old");
    let deleted = |case: Case, bound| case.bounds(IntOrString::Int(0), IntOrString::Int(bound)).rolled().1;
    assert!(deleted(base().unready("c", "n3", "new"), 1).is_empty());
    assert_eq!(deleted(base().unready("c", "n3", "new"), 2), ["a"]);
    assert!(deleted(base().with("c", "n3", "old", terminating), 1).is_empty());
    assert_eq!(deleted(base().with("c", "n3", "old", terminating), 2), ["a"]);
    assert!(deleted(base(), 1).is_empty());
    assert!(deleted(base().ready("c", "n3", "old").ready("d", "n3", "old"), 1).is_empty());
    assert!(deleted(base().ready("c", "n3", "old").ready("d", "n3", "new"), 1).is_empty());
}

#[test]
fn update_replaces_unavailable_old_pods_at_once_and_saves_the_others() {
    let case = Case::new(4)
        .unready("a", "n1", "old")
        .unready("b", "n2", "old")
        .unready("c", "n3", "old")
        .ready("healthy", "n4", "old");
    assert_eq!(
        case.bounds(IntOrString::Int(0), IntOrString::Int(2)).rolled(),
        (vec![], listed(["a", "b", "c"]))
    );
}

#[test]
fn surge_creates_beside_old_pods_within_its_bound() {
    let old = || Case::new(3).ready("a", "n1", "old").ready("b", "n2", "old").ready("c", "n3", "old");
    assert_eq!(old().surging(2).rolled(), (listed(["n1", "n2"]), vec![]));
    assert_eq!(old().unready("d", "n3", "new").surging(2).rolled(), (listed(["n1"]), vec![]));
    assert_eq!(old().ready("d", "n3", "new").surging(1).rolled(), (listed(["n1"]), listed(["c"])));
    let unready = Case::new(3).unready("a", "n1", "old").unready("b", "n2", "old").ready("c", "n3", "old");
    assert_eq!(unready.surging(1).rolled(), (listed(["n1", "n2", "n3"]), vec![]));
    let percent = old().bounds(IntOrString::String("50%".to_owned()), IntOrString::Int(0));
    assert_eq!(percent.view().bounds(), (2, 0));
    assert_eq!(
        Case::new(0).bounds(IntOrString::String("50%".to_owned()), IntOrString::Int(0)).view().bounds(),
        (0, 1)
    );
}

#[test]
fn surge_keeps_pods_on_nodes_that_no_longer_fit_until_enough_others_are_available() {
    let case = |ready: bool| {
        let mut case = Case::new(1).ready("displaced", "n2", "old").surging(1);
        case = if ready { case.ready("a", "n1", "new") } else { case.unready("a", "n1", "new") };
        case.nodes.push(Arc::new(tainted("n2", "k", "NoSchedule")));
        case.rolled()
    };
    assert_eq!(case(false), (vec![], vec![]));
    assert_eq!(case(true), (vec![], listed(["displaced"])));
    let mut unready = Case::new(1).unready("a", "n1", "new").unready("displaced", "n2", "old").surging(1);
    unready.nodes.push(Arc::new(tainted("n2", "k", "NoSchedule")));
    assert_eq!(unready.rolled(), (vec![], listed(["displaced"])));
}

#[test]
fn on_delete_neither_rolls_nor_surges() {
    let mut case = Case::new(1).ready("a", "n1", "old").surging(1);
    assert!(case.view().is_rolling() && case.view().allows_surge());
    case.set.spec.as_mut().unwrap().update_strategy.as_mut().unwrap().type_ = Some("OnDelete".to_owned());
    assert!(!case.view().is_rolling() && !case.view().allows_surge());
    assert_eq!(case.planned(), (vec![], vec![]));
}

#[test]
fn status_counts_nodes_and_keeps_what_it_does_not_decide() {
    let mut case = Case::new(5)
        .ready("a", "n1", "new")
        .with("young", "n2", "new", |pod| set_ready(pod, true, 95))
        .unready("c", "n3", "old")
        .with("d", "n4", "new", unbound)
        .ready("misplaced", "n6", "new");
    case.nodes.push(Arc::new(tainted("n6", "k", "NoSchedule")));
    case.set.spec.as_mut().unwrap().min_ready_seconds = Some(15);
    case.set.metadata.generation = Some(7);
    case.set.status = Some(DaemonSetStatus { collision_count: Some(2), ..DaemonSetStatus::default() });
    let expected = DaemonSetStatus {
        collision_count: Some(2),
        desired_number_scheduled: 5,
        current_number_scheduled: 4,
        number_misscheduled: 1,
        number_ready: 2,
        number_available: Some(1),
        number_unavailable: Some(4),
        updated_number_scheduled: Some(3),
        observed_generation: Some(7),
        conditions: None,
    };
    assert_eq!(status(&case.view()), expected);
    assert_eq!(next_available(&case.view()), Some(Duration::from_secs(10)));
    let none = status(&Case::new(0).view());
    assert_eq!(
        (none.desired_number_scheduled, none.number_available, none.number_unavailable),
        (0, None, None)
    );
}

fn revision(set: &DaemonSet, image: &str, name: &str, number: i64) -> Arc<ControllerRevision> {
    let mut revision = new_revision(set, &testing::template(image), number, 0, HASH_LABEL);
    let given = revision.metadata.labels.take();
    revision.metadata = meta(name);
    revision.metadata.labels = given;
    revision.metadata.labels.as_mut().unwrap().insert(HASH_LABEL.to_owned(), name.to_owned());
    Arc::new(revision)
}

#[test]
fn first_template_becomes_revision_one_and_the_next_another() {
    let set = daemon_set("ds");
    assert_eq!(history(&set, vec![], &[]), History::Mend(vec![Action::Create(1)]));
    let first = revision(&set, "image:1", "a", 1);
    let kept = history(&set, vec![Arc::clone(&first)], &[]);
    assert_eq!(kept, History::Right { hash: "a".to_owned(), old: vec![] });

    let mut updated = set.clone();
    updated.spec.as_mut().unwrap().template = testing::template("image:2");
    assert_eq!(history(&updated, vec![first], &[]), History::Mend(vec![Action::Create(2)]));
}

#[test]
fn rollback_gives_the_old_revision_the_highest_number() {
    let set = daemon_set("ds");
    let revisions = vec![revision(&set, "image:1", "a", 1), revision(&set, "image:2", "b", 2)];
    let History::Mend(actions) = history(&set, revisions, &[]) else { panic!() };
    let [Action::Update { old, new }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((name(&old.metadata), old.revision, new.revision), ("a", 1, 3));
}

#[test]
fn equal_revisions_become_the_newest_and_only_their_pods_are_relabelled() {
    let case = Case::new(3).ready("p1", "n1", "a").ready("p2", "n2", "b").ready("p3", "n3", "other");
    let set = &case.set;
    let revisions = vec![
        revision(set, "image:1", "a", 3),
        revision(set, "image:1", "b", 4),
        revision(set, "image:2", "other", 2),
    ];
    let expected = vec![
        Action::Relabel { pod: Arc::clone(&case.pods[0]), hash: "b".to_owned() },
        Action::Delete(Arc::clone(&revisions[0])),
    ];
    assert_eq!(history(set, revisions, &case.pods), History::Mend(expected));
}

#[test]
fn revision_without_the_label_is_given_its_name() {
    let set = daemon_set("ds");
    let mut bare = ControllerRevision::clone(&revision(&set, "image:1", "a", 1));
    bare.metadata.labels = Some(labels(&[("app", "test")]));
    let History::Mend(actions) = history(&set, vec![Arc::new(bare)], &[]) else { panic!() };
    let [Action::Update { new, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(hash_of(&new.metadata), Some("a"));
}

#[test]
fn old_revisions_above_the_limit_go_unless_pods_were_made_from_them() {
    let mut case = Case::new(1).ready("p", "n1", "a");
    case.set.spec.as_mut().unwrap().revision_history_limit = Some(1);
    let old: Vec<_> = [("a", 1), ("b", 2), ("c", 3)]
        .map(|(name, number)| revision(&case.set, "image:0", name, number))
        .into();
    let names = |surplus: Vec<Arc<ControllerRevision>>| -> Vec<String> {
        surplus.iter().map(|revision| name(&revision.metadata).to_owned()).collect()
    };
    assert_eq!(names(surplus(&case.set, &old, &case.pods)), ["b", "c"]);
    assert_eq!(names(surplus(&case.set, &old, &[])), ["a", "b"]);
    case.set.spec.as_mut().unwrap().revision_history_limit = None;
    assert!(surplus(&case.set, &old, &[]).is_empty());
}
