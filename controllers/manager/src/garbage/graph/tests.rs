//! The hints of the graph, and what it shares and forgets.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::*;
use crate::discovery;
use crate::garbage::object::FOREGROUND;
use crate::testing::time;

pub(super) fn kind(name: &str) -> Arc<Kind> {
    Arc::new(discovery::kind("", "v1", name, &format!("{}s", name.to_lowercase()), true))
}

pub(super) fn reference(owner: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: owner.to_owned(),
        uid: owner.to_owned(),
        block_owner_deletion: Some(true),
        controller: Some(true),
    }
}

fn meta(uid: &str, owners: &[&str]) -> ObjectMeta {
    ObjectMeta {
        namespace: Some("ns".to_owned()),
        name: Some(uid.to_owned()),
        uid: Some(uid.to_owned()),
        owner_references: Some(owners.iter().map(|owner| reference(owner)).collect()),
        ..ObjectMeta::default()
    }
}

fn waiting(uid: &str) -> ObjectMeta {
    ObjectMeta {
        deletion_timestamp: time(1),
        finalizers: Some(vec![FOREGROUND.to_owned()]),
        ..meta(uid, &[])
    }
}

impl Graph {
    /// Returns a graph without objects that waits for no list.
    fn of_nothing() -> Self {
        let mut graph = Self::default();
        assert_eq!(graph.complete(), Hints::default());
        graph
    }

    fn pod(&mut self, uid: &str, owners: &[&str]) -> Hints {
        self.apply(&kind("Pod"), &meta(uid, owners))
    }

    fn gone(&mut self, uid: &str) -> Hints {
        self.remove(&Uid::from(uid))
    }

    fn names_of_dependents(&self, owner: &str) -> Vec<String> {
        self.dependents(&Uid::from(owner)).iter().map(|object| object.name.to_string()).collect()
    }
}

fn set(uids: &[&str]) -> BTreeSet<Uid> {
    uids.iter().map(|uid| Uid::from(*uid)).collect()
}

#[test]
fn removal_of_an_owner_hints_at_its_dependents() {
    let mut graph = Graph::of_nothing();
    assert_eq!(graph.pod("owner", &[]), Hints::default());
    assert_eq!(graph.pod("a", &["owner"]), Hints::default());
    graph.pod("b", &["owner"]);
    assert_eq!(graph.gone("owner").now, set(&["a", "b"]));
    assert_eq!(graph.len(), 2);
}

#[test]
fn a_dependent_seen_before_its_owner_is_examined_later() {
    let mut graph = Graph::of_nothing();
    assert_eq!(graph.pod("a", &["owner"]).later, set(&["a"]));
    graph.pod("owner", &[]);
    assert_eq!(graph.names_of_dependents("owner"), ["a"]);
}

#[test]
fn dependents_in_the_first_lists_are_examined_if_none_of_these_has_their_owner() {
    let mut graph = Graph::default();
    let elsewhere = ObjectMeta { namespace: Some("other".to_owned()), ..meta("elsewhere", &[]) };
    for (uid, owners) in [
        ("a", &["owner"][..]),
        ("b", &["nobody", "owner"]),
        ("c", &["elsewhere"]),
        ("d", &["nobody"]),
        ("e", &[]),
    ] {
        assert_eq!(graph.pod(uid, owners), Hints::default());
    }
    graph.pod("owner", &[]);
    graph.apply(&kind("Pod"), &elsewhere);
    graph.gone("d");
    assert_eq!(graph.complete(), Hints { now: set(&[]), later: set(&["b", "c"]) });
}

#[test]
fn a_dependent_of_an_owner_in_another_namespace_is_examined() {
    let mut graph = Graph::of_nothing();
    graph.apply(&kind("Pod"), &ObjectMeta { namespace: Some("other".to_owned()), ..meta("owner", &[]) });
    assert_eq!(graph.pod("a", &["owner"]).later, set(&["a"]));
    // Objects without a namespace own any.
    let node = Arc::new(discovery::kind("", "v1", "Node", "nodes", false));
    graph.apply(&node, &ObjectMeta { namespace: None, ..meta("node", &[]) });
    assert_eq!(graph.pod("b", &["node"]), Hints::default());
}

#[test]
fn a_waiting_owner_is_examined_when_it_starts_waiting_and_when_dependents_leave() {
    let mut graph = Graph::of_nothing();
    graph.pod("owner", &[]);
    for dependent in ["a", "b"] {
        graph.pod(dependent, &["owner"]);
    }
    assert_eq!(graph.apply(&kind("Pod"), &waiting("owner")).now, set(&["owner"]));
    assert_eq!(graph.gone("a").now, set(&["owner"]));
    assert_eq!(graph.pod("b", &[]).now, set(&["b", "owner"]));
    // A dependent that is added late must go as well.
    assert_eq!(graph.pod("c", &["owner"]).now, set(&["c"]));
}

#[test]
fn a_list_removes_missing_objects_and_a_removed_kind_gives_no_hints() {
    let mut graph = Graph::of_nothing();
    graph.pod("owner", &[]);
    graph.pod("a", &["owner"]);
    assert_eq!(graph.retain("pods", &set(&["a", "owner"])), Hints::default());
    assert_eq!(graph.retain("pods", &set(&["a"])).now, set(&["a"]));
    graph.pod("owner", &[]);
    graph.forget_kind("pods");
    assert_eq!(graph.len(), 0);
    assert!(graph.names_of_dependents("owner").is_empty());
    assert!(graph.counts.is_empty() && graph.edges.is_empty() && graph.shared.families.is_empty());
}

#[test]
fn a_list_of_one_kind_leaves_the_objects_of_others_alone() {
    let mut graph = Graph::of_nothing();
    graph.pod("pod", &[]);
    for uid in ["map", "old"] {
        graph.apply(&kind("ConfigMap"), &meta(uid, &[]));
    }
    // The other object may have been removed by its own watch after it was listed.
    graph.retain("configmaps", &set(&["map", "gone"]));
    let uids: Vec<_> = graph.objects.iter().map(|ByUid(object)| object.uid.to_string()).collect();
    assert_eq!(uids, ["map", "pod"]);
    graph.forget_kind("configmaps");
    assert_eq!((graph.len(), graph.counts.len()), (1, 1));
}

#[test]
fn any_change_of_an_owner_reference_is_a_change_of_the_object() {
    let changes: [fn(&mut OwnerReference); 6] = [
        |reference| reference.name.push('x'),
        |reference| reference.kind.push('x'),
        |reference| reference.api_version.push('x'),
        |reference| reference.controller = None,
        |reference| reference.block_owner_deletion = None,
        |reference| reference.uid.push('x'),
    ];
    for change in changes {
        let mut graph = Graph::of_nothing();
        graph.pod("owner", &[]);
        graph.pod("a", &["owner"]);
        assert_eq!(graph.pod("a", &["owner"]), Hints::default());
        let mut changed = meta("a", &["owner"]);
        changed.owner_references.iter_mut().flatten().for_each(change);
        assert_eq!(graph.apply(&kind("Pod"), &changed).now, set(&["a"]));
        assert_eq!(graph.shared.families.len(), 2, "the former owners are forgotten");
    }
}

#[test]
fn edges_follow_the_owners_of_an_object() {
    let mut graph = Graph::of_nothing();
    graph.pod("a", &["x", "y", "x"]);
    graph.pod("b", &["x"]);
    for (owner, dependents) in [("x", &["a", "b"][..]), ("y", &["a"]), ("z", &[])] {
        assert_eq!(graph.names_of_dependents(owner), dependents);
    }
    graph.pod("a", &["y", "z"]);
    for (owner, dependents) in [("x", &["b"][..]), ("y", &["a"]), ("z", &["a"])] {
        assert_eq!(graph.names_of_dependents(owner), dependents);
    }
    graph.gone("a");
    graph.gone("b");
    assert!(graph.edges.is_empty() && graph.counts.is_empty());
}

#[test]
fn objects_share_what_they_have_in_common_until_none_of_them_is_left() {
    let mut graph = Graph::of_nothing();
    for uid in ["a", "b"] {
        graph.pod(uid, &["owner"]);
    }
    let (a, b) = (graph.get(&Uid::from("a")).unwrap(), graph.get(&Uid::from("b")).unwrap());
    assert!(Arc::ptr_eq(&a.family, &b.family));
    let held = Arc::clone(a);
    assert_eq!(graph.shared.families.len(), 1);
    graph.pod("b", &["other"]);
    assert_eq!(graph.shared.families.len(), 2);
    graph.gone("b");
    assert_eq!(graph.shared.families.len(), 1);
    // One that is being examined goes with the next ones that are new.
    graph.gone("a");
    assert_eq!(graph.shared.families.len(), 1);
    drop(held);
    for n in 0..1000 {
        graph.pod("c", &[&format!("owner-{n}")]);
        assert!(graph.shared.families.len() <= 4);
    }
    graph.shared.families.forget_unused();
    assert_eq!(graph.shared.families.len(), 1);
}
