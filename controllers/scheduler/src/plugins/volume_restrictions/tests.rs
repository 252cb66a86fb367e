//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::storage::tests::{add_claims, claim, claiming, cluster, pod, pod_in, said};

const DISK: &str = "Unschedulable: node(s) had no available disk";
const CLAIMED: &str = "Unschedulable: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access \
                       mode already in-use by another pod";

/// Pairs of volumes, and whether two pods of a node conflict with them.
fn disks() -> Vec<(Value, Value, bool)> {
    let gce = |name: &str, ro: bool| json!({"gcePersistentDisk": {"pdName": name, "readOnly": ro}});
    let aws = |id: &str, ro: bool| json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": ro}});
    let iscsi =
        |iqn: &str, ro: bool| json!({"iscsi": {"targetPortal": "t", "iqn": iqn, "lun": 0, "readOnly": ro}});
    let rbd = |monitors: &[&str], pool: &str, image: &str, ro: bool| json!({"rbd": {"monitors": monitors, "pool": pool, "image": image, "readOnly": ro}});
    vec![
        (gce("a", false), gce("a", false), true),
        (gce("a", true), gce("a", false), true),
        (gce("a", true), gce("a", true), false),
        (gce("a", false), gce("b", false), false),
        (gce("a", false), aws("a", false), false),
        (aws("a", false), aws("a", false), true),
        (aws("a", true), aws("a", true), true),
        (aws("a", false), aws("b", false), false),
        (iscsi("a", false), iscsi("a", false), true),
        (iscsi("a", true), iscsi("a", true), false),
        (iscsi("a", false), iscsi("b", false), false),
        (rbd(&["m", "n"], "p", "i", false), rbd(&["o", "n"], "p", "i", true), true),
        (rbd(&["m"], "p", "i", true), rbd(&["m"], "p", "i", true), false),
        (rbd(&["m"], "p", "i", false), rbd(&["n"], "p", "i", false), false),
        (rbd(&["m"], "p", "i", false), rbd(&["m"], "q", "i", false), false),
        (rbd(&["m"], "p", "i", false), rbd(&["m"], "p", "j", false), false),
    ]
}

#[test]
fn disks_are_on_one_node_at_a_time_unless_all_only_read_them() {
    for (wanted, there, conflict) in disks() {
        let mut cluster = cluster();
        let pod = pod("new", json!([wanted]));
        assert_eq!(said(&VolumeRestrictions, &pod, &cluster).texts(), ["ok", "ok"], "nothing is there");
        cluster.place(&pod_in("ns", "there", json!([there])), &"n1".into());
        let first = if conflict { DISK } else { "ok" };
        assert_eq!(said(&VolumeRestrictions, &pod, &cluster).texts(), [first, "ok"], "{wanted} {there}");
    }
    let none = pod("none", json!([{"persistentVolumeClaim": {"claimName": "c"}}, {"emptyDir": {}}]));
    let mut cluster = cluster();
    add_claims(&mut cluster, [claim("c", json!({}))]);
    assert_eq!(said(&VolumeRestrictions, &none, &cluster).texts(), ["skip"]);
    assert_eq!(said(&VolumeRestrictions, &pod("bare", json!([])), &cluster).texts(), ["skip"]);
}

#[test]
fn claim_for_one_pod_is_used_by_one_pod() {
    let mut cluster = cluster();
    let exclusive = |name: &str| claim(name, json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}));
    add_claims(&mut cluster, [exclusive("one"), exclusive("two"), claim("many", json!({}))]);
    let there = claiming("there", &["one", "two", "many"]);
    let texts = |cluster: &Cluster, claims: &[&str]| {
        said(&VolumeRestrictions, &claiming("new", claims), cluster).texts()
    };
    assert_eq!(texts(&cluster, &["one", "many"]), ["skip"], "nobody uses it");
    assert_eq!(texts(&cluster, &["gone"]), ["Unresolvable: persistentvolumeclaim \"gone\" not found"]);
    cluster.place(&there, &"n1".into());
    assert_eq!(texts(&cluster, &["many"]), ["skip"]);
    assert_eq!(texts(&cluster, &["one"]), [CLAIMED, CLAIMED]);
    assert_eq!(texts(&cluster, &["two", "one"]), [CLAIMED, CLAIMED]);
    let mut trial = cluster.trial();
    trial.remove(&there);
    assert_eq!(texts(&trial, &["one"]), ["ok", "ok"], "preempting the pod helps, on whatever node");
    drop(trial);
    assert_eq!(texts(&cluster, &["one"]), [CLAIMED, CLAIMED], "the trial is undone");
}

#[test]
fn trial_counts_a_claim_in_use_once_and_then_pod_by_pod() {
    let others = || pod_in("other", "elsewhere", json!([{"persistentVolumeClaim": {"claimName": "one"}}]));
    let disk_and_claim =
        json!([{"awsElasticBlockStore": {"volumeID": "a"}}, {"persistentVolumeClaim": {"claimName": "one"}}]);
    let [a, b, twice] = [claiming("a", &["one"]), claiming("b", &["one"]), claiming("t", &["one", "one"])];
    let two = claiming("two", &["two"]);
    let new = |claims: &[&str]| claiming("new", claims);
    // The pods that are there, those that go, those that come, the new pod, and the answer on each node.
    type Pods = Vec<Arc<PodInfo>>;
    let cases: Vec<(Pods, Pods, Pods, Arc<PodInfo>, &str)> = vec![
        (vec![a.clone()], vec![a.clone()], vec![], new(&["one"]), "ok"),
        (vec![a.clone(), b.clone()], vec![], vec![], new(&["one"]), CLAIMED),
        (vec![a.clone(), b.clone()], vec![a.clone()], vec![], new(&["one"]), "ok"),
        (vec![a.clone()], vec![a.clone()], vec![b.clone()], new(&["one"]), CLAIMED),
        (vec![a.clone(), two.clone()], vec![a.clone()], vec![], new(&["one", "two"]), CLAIMED),
        (vec![a.clone(), two.clone()], vec![a.clone(), two.clone()], vec![], new(&["one", "two"]), "ok"),
        (vec![twice.clone(), two.clone()], vec![twice.clone()], vec![], new(&["one", "two"]), "ok"),
        (vec![a.clone()], vec![], vec![], new(&["one", "one"]), CLAIMED),
        (vec![a.clone()], vec![a.clone()], vec![], new(&["one", "one"]), "ok"),
        (vec![], vec![], vec![a.clone()], new(&["one"]), "skip"),
        (vec![], vec![], vec![a.clone()], pod("new", disk_and_claim), CLAIMED),
        (vec![a.clone(), others()], vec![others()], vec![], new(&["one"]), CLAIMED),
    ];
    for (number, (there, go, come, new, expected)) in cases.into_iter().enumerate() {
        let mut cluster = cluster();
        let exclusive = |name: &str| claim(name, json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}));
        add_claims(&mut cluster, [exclusive("one"), exclusive("two")]);
        there.iter().for_each(|pod| cluster.place(pod, &"n1".into()));
        let id = cluster.named("n2").unwrap().id;
        let mut trial = cluster.trial();
        go.iter().for_each(|pod| trial.remove(pod));
        come.iter().for_each(|pod| trial.add(pod, id));
        let texts = said(&VolumeRestrictions, &new, &trial).texts();
        assert!(texts.iter().all(|text| text == expected), "case {number}: {texts:?}");
    }
}

#[test]
fn pods_wait_for_pods_with_the_same_disk_or_claim() {
    let hint = |pod: &PodInfo, gone: &Arc<PodInfo>| {
        let change = Change::Pod(Versions { old: Some(gone), new: None });
        VolumeRestrictions.hint(pod, &change, &Cluster::default())
    };
    let helps = |yes: bool| if yes { Hint::Queue } else { Hint::Skip };
    for (wanted, gone, conflict) in disks() {
        let waiting = pod("new", json!([wanted]));
        assert_eq!(hint(&waiting, &pod("gone", json!([gone]))), helps(conflict), "{wanted} {gone}");
        assert_eq!(hint(&waiting, &pod_in("other", "gone", json!([gone]))), Hint::Skip);
    }
    let waiting = claiming("new", &["a", "b"]);
    assert_eq!(hint(&waiting, &claiming("gone", &["b"])), Hint::Queue);
    assert_eq!(hint(&waiting, &claiming("gone", &["c"])), Hint::Skip);
}

#[test]
fn pods_wait_for_their_own_claims() {
    let hint = |pod: &PodInfo, namespace: &str, name: &str| {
        let new = claim(name, json!({"metadata": {"namespace": namespace}}));
        let change = Change::PersistentVolumeClaim(Versions { old: None, new: Some(&new) });
        VolumeRestrictions.hint(pod, &change, &Cluster::default())
    };
    let waiting = claiming("p", &["a", "b"]);
    assert_eq!(hint(&waiting, "ns", "b"), Hint::Queue);
    assert_eq!(hint(&waiting, "ns", "c"), Hint::Skip);
    assert_eq!(hint(&waiting, "other", "b"), Hint::Skip);
    assert_eq!(hint(&claiming("p", &[]), "ns", "b"), Hint::Skip);
}
