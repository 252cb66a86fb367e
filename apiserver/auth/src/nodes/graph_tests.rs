//! The graph by hand, and against a model that walks over everything.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[path = "../../../../tests/support/seeded.rs"]
mod seeded;

fn references(list: &[(Kind, &str)]) -> References {
    list.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect()
}

fn secrets(list: &[Name<'_>]) -> BTreeSet<(String, String)> {
    list.iter().map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned())).collect()
}

#[test]
fn a_node_is_related_to_what_its_pods_refer_to_and_no_other_node_is() {
    let mut graph = Graph::default();
    let all = [Kind::Secret, Kind::ConfigMap, Kind::ServiceAccount, Kind::ResourceClaim];
    let list: Vec<_> = all.iter().map(|kind| (*kind, "x")).collect();
    graph.place(Kind::Pod, ("shop", "web"), "a", &references(&list));
    for kind in all.into_iter().chain([Kind::Pod]) {
        let name = if kind == Kind::Pod { "web" } else { "x" };
        assert!(graph.relates("a", kind, ("shop", name)), "{kind:?}");
        assert!(!graph.relates("b", kind, ("shop", name)), "{kind:?}");
        assert!(!graph.relates("a", kind, ("other", name)), "{kind:?} of another namespace");
        assert!(!graph.relates("a", kind, ("shop", "y")), "{kind:?} of another name");
    }
    assert!(!graph.relates("a", Kind::PersistentVolumeClaim, ("shop", "x")));
    graph.forget(Kind::Pod, ("shop", "web"));
    assert!(graph.is_empty());
}

#[test]
fn two_pods_on_a_node_share_an_object_until_the_second_has_gone() {
    let mut graph = Graph::default();
    let secret = references(&[(Kind::Secret, "s")]);
    graph.place(Kind::Pod, ("ns", "p"), "a", &secret);
    graph.place(Kind::Pod, ("ns", "q"), "a", &secret);
    graph.forget(Kind::Pod, ("ns", "p"));
    assert!(graph.relates("a", Kind::Secret, ("ns", "s")));
    graph.forget(Kind::Pod, ("ns", "q"));
    assert!(!graph.relates("a", Kind::Secret, ("ns", "s")));
    graph.forget(Kind::Pod, ("ns", "q"));
    assert!(graph.is_empty());
}

#[test]
fn a_pod_of_the_same_name_on_another_node_takes_the_rights_along() {
    let mut graph = Graph::default();
    graph.place(Kind::Pod, ("ns", "p"), "a", &references(&[(Kind::Secret, "s")]));
    let changed = references(&[(Kind::Secret, "t")]);
    assert!(!graph.is_placed(Kind::Pod, ("ns", "p"), "a", &changed));
    graph.place(Kind::Pod, ("ns", "p"), "b", &changed);
    assert!(graph.is_placed(Kind::Pod, ("ns", "p"), "b", &changed));
    assert!(!graph.is_placed(Kind::Pod, ("ns", "p"), "b", &References::new()));
    assert!(!graph.relates("a", Kind::Secret, ("ns", "s")) && !graph.relates("a", Kind::Pod, ("ns", "p")));
    assert!(graph.relates("b", Kind::Secret, ("ns", "t")) && !graph.relates("b", Kind::Secret, ("ns", "s")));
}

#[test]
fn a_claim_leads_to_its_volume_and_to_the_secrets_of_that_whichever_comes_first() {
    let claim = references(&[(Kind::PersistentVolumeClaim, "data")]);
    let secret = secrets(&[("vault", "disk")]);
    for volume_first in [true, false] {
        let mut graph = Graph::default();
        if volume_first {
            graph.bind("pv", ("ns", "data"), &secret);
        }
        graph.place(Kind::Pod, ("ns", "p"), "a", &claim);
        if !volume_first {
            assert!(!graph.relates("a", Kind::PersistentVolume, ("", "pv")));
            graph.bind("pv", ("ns", "data"), &secret);
        }
        for (kind, name) in [
            (Kind::PersistentVolumeClaim, ("ns", "data")),
            (Kind::PersistentVolume, ("", "pv")),
            (Kind::Secret, ("vault", "disk")),
        ] {
            assert!(graph.relates("a", kind, name), "{kind:?}");
            assert!(!graph.relates("b", kind, name), "{kind:?}");
        }
        graph.unbind("pv");
        assert!(!graph.relates("a", Kind::Secret, ("vault", "disk")));
        assert!(graph.relates("a", Kind::PersistentVolumeClaim, ("ns", "data")));
        graph.forget(Kind::Pod, ("ns", "p"));
        assert!(graph.is_empty());
    }
}

#[test]
fn names_with_separators_are_not_taken_for_others() {
    let mut graph = Graph::default();
    graph.place(Kind::Pod, ("a", "p"), "n", &references(&[(Kind::Secret, "b")]));
    for name in [("a/b", ""), ("", "a/b"), ("a", "b/"), ("a\0b", ""), ("A", "b")] {
        assert!(!graph.relates("n", Kind::Secret, name), "{name:?}");
    }
}

type Object = (Kind, u8);

/// A change of the graph.
#[derive(Clone, Debug)]
enum Step {
    Place(Kind, u8, u8, Vec<Object>),
    Forget(Kind, u8),
    Bind(u8, u8, Vec<u8>),
    Unbind(u8),
}

const ANCHORS: [Kind; 3] = [Kind::Pod, Kind::VolumeAttachment, Kind::ResourceSlice];
const REFERENCES: [Kind; 5] =
    [Kind::Secret, Kind::ConfigMap, Kind::ServiceAccount, Kind::ResourceClaim, Kind::PersistentVolumeClaim];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let anchor = || proptest::sample::select(&ANCHORS[..]);
    let reference = (proptest::sample::select(&REFERENCES[..]), 0..3_u8);
    let references = proptest::collection::vec(reference, 0..4);
    let step = prop_oneof![
        4 => (anchor(), 0..6_u8, 0..3_u8, references).prop_map(|(k, o, n, r)| Step::Place(k, o, n, r)),
        2 => (anchor(), 0..6_u8).prop_map(|(kind, object)| Step::Forget(kind, object)),
        2 => (0..3_u8, 0..3_u8, proptest::collection::vec(0..3_u8, 0..3))
            .prop_map(|(volume, claim, secrets)| Step::Bind(volume, claim, secrets)),
        1 => (0..3_u8).prop_map(Step::Unbind),
    ];
    proptest::collection::vec(step, 0..40)
}

/// The facts of the graph as plain maps.
#[derive(Default)]
struct Model {
    anchors: BTreeMap<Object, (u8, Vec<Object>)>,
    volumes: BTreeMap<u8, (u8, Vec<u8>)>,
}

impl Model {
    fn take(&mut self, step: &Step) {
        match step.clone() {
            Step::Place(kind, object, node, references) => {
                self.anchors.insert((kind, object), (node, references));
            }
            Step::Forget(kind, object) => drop(self.anchors.remove(&(kind, object))),
            Step::Bind(volume, claim, secrets) => drop(self.volumes.insert(volume, (claim, secrets))),
            Step::Unbind(volume) => drop(self.volumes.remove(&volume)),
        }
    }

    fn relates(&self, node: u8, kind: Kind, object: u8) -> bool {
        let refers = |kind: Kind, object: u8| {
            self.anchors.values().any(|(on, list)| *on == node && list.contains(&(kind, object)))
        };
        let mounts = |claim: u8| refers(Kind::PersistentVolumeClaim, claim);
        match kind {
            Kind::PersistentVolume => self.volumes.get(&object).is_some_and(|(claim, _)| mounts(*claim)),
            Kind::Secret => {
                refers(kind, object)
                    || self.volumes.values().any(|(claim, list)| list.contains(&object) && mounts(*claim))
            }
            kind if ANCHORS.contains(&kind) => {
                self.anchors.get(&(kind, object)).is_some_and(|(on, _)| *on == node)
            }
            kind => refers(kind, object),
        }
    }
}

fn take(graph: &mut Graph, step: &Step) {
    match step {
        Step::Place(kind, object, node, list) => {
            let list = list.iter().map(|(kind, name)| (*kind, name.to_string())).collect();
            graph.place(*kind, ("ns", &object.to_string()), &node.to_string(), &list);
            assert!(graph.is_placed(*kind, ("ns", &object.to_string()), &node.to_string(), &list));
        }
        Step::Forget(kind, object) => graph.forget(*kind, ("ns", &object.to_string())),
        Step::Bind(volume, claim, list) => {
            let list = list.iter().map(|name| ("ns".to_owned(), name.to_string())).collect();
            graph.bind(&volume.to_string(), ("ns", &claim.to_string()), &list);
        }
        Step::Unbind(volume) => graph.unbind(&volume.to_string()),
    }
}

proptest! {
    #![proptest_config(seeded::config(300))]

    #[test]
    fn any_history_gives_the_relations_of_the_model_and_leaves_nothing_behind(steps in steps()) {
        let (mut graph, mut model) = (Graph::default(), Model::default());
        for step in &steps {
            take(&mut graph, step);
            model.take(step);
            let kinds = ANCHORS.iter().chain(&REFERENCES).chain(&[Kind::PersistentVolume]);
            for (kind, node, object) in kinds.flat_map(|kind| {
                (0..3_u8).flat_map(move |node| (0..6_u8).map(move |object| (*kind, node, object)))
            }) {
                let namespace = if kind == Kind::PersistentVolume { "" } else { "ns" };
                prop_assert_eq!(
                    graph.relates(&node.to_string(), kind, (namespace, &object.to_string())),
                    model.relates(node, kind, object),
                    "{:?} {} on node {} after {:?}", kind, object, node, step
                );
            }
        }
        for kind in ANCHORS {
            (0..6_u8).for_each(|object| graph.forget(kind, ("ns", &object.to_string())));
        }
        (0..3_u8).for_each(|volume| graph.unbind(&volume.to_string()));
        prop_assert!(graph.is_empty());
    }
}
