//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use apiserver_meta::volumes::BIND_COMPLETED;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::storage::tests::{
    add_claims, add_class, add_volumes, bound, claim, claiming, class, cluster, csi_node, pod, said, volume,
};

const FULL: &str = "Unschedulable: node(s) exceed max volume count";
const EBS: &str = "ebs.csi.aws.com";

/// Returns a volume of driver `d`.
fn csi(name: &str) -> Arc<k8s_openapi::api::core::v1::PersistentVolume> {
    volume(name, json!({"spec": {"csi": {"driver": "d", "volumeHandle": name}}}))
}

fn ebs(id: &str) -> Value {
    json!({"awsElasticBlockStore": {"volumeID": id}})
}

fn ephemeral() -> Value {
    json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}})
}

/// Returns the claim of the ephemeral volume of a pod.
fn owned(pod: &str, more: Value) -> Arc<PersistentVolumeClaim> {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": true});
    let base = claim(&format!("{pod}-data"), more);
    let mut owned = PersistentVolumeClaim::clone(&base);
    owned.metadata.owner_references = Some(vec![from_value(owner).unwrap()]);
    Arc::new(owned)
}

/// Returns a cluster whose node `n1` can have two volumes of `d` and of EBS, with claims `a` to `d` bound to volumes of `d`.
fn limited() -> Cluster {
    let mut cluster = cluster();
    add_class(&mut cluster, class("made", json!({"provisioner": "d"})));
    add_class(&mut cluster, class("built-in", json!({"provisioner": "kubernetes.io/aws-ebs"})));
    add_class(&mut cluster, class("vsphere", json!({"provisioner": "kubernetes.io/vsphere-volume"})));
    cluster.storage.set_csi_node("n1", Some(csi_node("n1", json!({"d": 2, EBS: 2}), "")));
    for name in ["a", "b", "c", "d"] {
        add_volumes(&mut cluster, [csi(&format!("pv-{name}"))]);
        add_claims(&mut cluster, [bound(name, &format!("pv-{name}"))]);
    }
    let unbound = |name: &str, class: &str| claim(name, json!({"spec": {"storageClassName": class}}));
    add_claims(&mut cluster, [unbound("u1", "made"), unbound("u2", "made"), unbound("u3", "made")]);
    add_claims(&mut cluster, [unbound("e1", "built-in"), unbound("x", "nobody"), unbound("w", "vsphere")]);
    let lost = json!({"spec": {"storageClassName": "made", "volumeName": "gone"}});
    add_claims(&mut cluster, [claim("lost", lost), unbound("classless", "")]);
    let in_tree = |name: &str, spec: Value| volume(name, json!({"spec": spec}));
    add_volumes(
        &mut cluster,
        [in_tree("pv-ebs", ebs("vol-1")), in_tree("pv-nfs", json!({"nfs": {"server": "s", "path": "/"}}))],
    );
    add_claims(&mut cluster, [bound("ebs", "pv-ebs"), bound("nfs", "pv-nfs")]);
    cluster
}

/// Returns what is said of node `n1`; `n2`, which has no CSINode, takes everything.
fn on_n1(cluster: &Cluster, pod: &PodInfo) -> String {
    let said = said(&NodeVolumeLimits, pod, cluster).texts();
    if let [first, second] = said.as_slice() {
        assert_eq!(second, "ok");
        return first.clone();
    }
    said[0].clone()
}

#[test]
fn volumes_of_claims_are_counted_once_each_up_to_the_limit_of_the_driver() {
    for (there, new, wanted) in [
        (&["a"][..], &["b"][..], "ok"),
        (&["a", "b"], &["c"], FULL),
        (&["a", "b"], &["b"], "ok"),
        (&["a"], &["b", "c"], FULL),
        (&["a"], &["a", "b"], "ok"),
        (&[], &["a", "b", "c"], FULL),
        (&["a", "u1"], &["b"], FULL),
        (&["a", "u1"], &["u1"], "ok"),
        (&["u1", "u2"], &["u3"], FULL),
        (&["u1"], &["u2"], "ok"),
        (&["lost", "a"], &["b"], FULL),
        (&["x", "classless", "a"], &["b"], "ok"),
        (&["nfs", "w", "a"], &["b"], "ok"),
        (&["missing", "a"], &["b"], "ok"),
        (&["a", "b"], &["ebs"], "ok"),
        (&["e1", "ebs"], &["a", "b"], "ok"),
        (&["a", "b"], &["nfs"], "ok"),
    ] {
        let mut cluster = limited();
        cluster.place(&claiming("there", there), &"n1".into());
        assert_eq!(on_n1(&cluster, &claiming("new", new)), wanted, "{there:?} {new:?}");
        cluster.remove_pod(&claiming("there", there));
        let alone = if new.len() > 2 { FULL } else { "ok" };
        assert_eq!(on_n1(&cluster, &claiming("new", new)), alone, "the other pod is gone");
    }
}

#[test]
fn volumes_of_built_in_drivers_are_counted_as_those_of_their_csi_drivers() {
    for (there, new, wanted) in [
        (json!([ebs("vol-7"), ebs("vol-8")]), json!([ebs("vol-9")]), FULL),
        (json!([ebs("vol-7"), ebs("vol-8")]), json!([ebs("aws://zone/vol-8")]), "ok"),
        (json!([ebs("vol-1"), ebs("vol-8")]), json!([{"persistentVolumeClaim": {"claimName": "ebs"}}]), "ok"),
        (json!([ebs("vol-7"), ebs("vol-8")]), json!([{"persistentVolumeClaim": {"claimName": "ebs"}}]), FULL),
        (json!([ebs("vol-7"), ebs("vol-8")]), json!([{"persistentVolumeClaim": {"claimName": "e1"}}]), FULL),
        (json!([ebs("vol-7"), ebs("vol-8")]), json!([{"vsphereVolume": {"volumePath": "p"}}]), "ok"),
    ] {
        let mut cluster = limited();
        cluster.place(&pod("there", there), &"n1".into());
        assert_eq!(on_n1(&cluster, &pod("new", new.clone())), wanted, "{new}");
        cluster.storage.set_csi_node("n1", None);
        assert_eq!(on_n1(&cluster, &pod("new", new)), "ok", "without a CSINode there are no limits");
    }
    let cluster = limited();
    let wrong = pod("new", json!([ebs("aws://zone/disk")]));
    assert!(on_n1(&cluster, &wrong).starts_with("Error: converting volume(v0) from inline to csi: "));
}

#[test]
fn drivers_without_a_limit_are_not_limited() {
    let mut cluster = limited();
    cluster.place(&claiming("there", &["a", "b"]), &"n1".into());
    cluster.storage.set_csi_node("n1", Some(csi_node("n1", json!({"other": 1}), "")));
    assert_eq!(on_n1(&cluster, &claiming("new", &["c"])), "ok");
    cluster.storage.set_csi_node("n1", Some(csi_node("n1", json!({"d": null}), "")));
    assert_eq!(on_n1(&cluster, &claiming("new", &["c"])), "ok");
}

#[test]
fn claims_of_ephemeral_volumes_are_counted_if_the_pod_owns_them() {
    let mut cluster = limited();
    let new = pod("new", json!([ephemeral()]));
    let missing = "Unresolvable: looking up PVC ns/new-data: persistentvolumeclaim \"new-data\" not found";
    assert_eq!(said(&NodeVolumeLimits, &new, &cluster).texts(), [missing, missing]);
    add_claims(&mut cluster, [claim("new-data", json!({}))]);
    let foreign = "Error: PVC ns/new-data was not created for pod ns/new (pod is not owner)";
    assert_eq!(said(&NodeVolumeLimits, &new, &cluster).texts(), [foreign, foreign]);
    let made = json!({"spec": {"storageClassName": "made"}});
    add_claims(&mut cluster, [owned("new", made.clone()), owned("there", made)]);
    assert_eq!(on_n1(&cluster, &new), "ok");
    cluster.place(&claiming("other", &["a"]), &"n1".into());
    assert_eq!(on_n1(&cluster, &new), "ok");
    cluster.place(&pod("there", json!([ephemeral()])), &"n1".into());
    assert_eq!(on_n1(&cluster, &new), FULL);
    assert_eq!(on_n1(&cluster, &claiming("new", &["b"])), FULL);
    add_claims(&mut cluster, [owned("there", json!({"spec": {"storageClassName": "nobody"}}))]);
    assert_eq!(on_n1(&cluster, &new), "ok", "the claim's class is another now");
}

#[test]
fn counts_follow_changes_of_claims_and_volumes() {
    let mut cluster = limited();
    cluster.place(&claiming("there", &["u1", "u2"]), &"n1".into());
    assert_eq!(on_n1(&cluster, &claiming("new", &["a"])), FULL);
    let to_a = json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}},
        "spec": {"storageClassName": "made", "volumeName": "pv-a"}});
    add_claims(&mut cluster, [claim("u1", to_a.clone())]);
    assert_eq!(on_n1(&cluster, &claiming("new", &["a"])), "ok", "it is the volume of a claim that is there");
    cluster.storage.set_volume("pv-a", None);
    assert_eq!(on_n1(&cluster, &claiming("new", &["b"])), FULL, "the claim's class tells the driver");
    cluster.storage.set_class("made", None);
    assert_eq!(on_n1(&cluster, &claiming("new", &["b"])), "ok");
}

#[test]
fn attachments_count_even_if_no_pod_uses_the_volume() {
    let attach = |cluster: &mut Cluster, name: &str, node: &str| {
        let object = json!({"metadata": {"name": name}, "spec": {"attacher": "d", "nodeName": node,
            "source": {"persistentVolumeName": name}}});
        cluster.storage.set_attachment(name, Some(Arc::new(from_value(object).unwrap())));
    };
    let mut cluster = limited();
    attach(&mut cluster, "pv-a", "n1");
    attach(&mut cluster, "pv-b", "n2");
    assert_eq!(on_n1(&cluster, &claiming("new", &["d"])), "ok");
    attach(&mut cluster, "pv-b", "n1");
    attach(&mut cluster, "pv-nfs", "n1");
    attach(&mut cluster, "pv-unknown", "n1");
    assert_eq!(on_n1(&cluster, &claiming("new", &["d"])), FULL);
    assert_eq!(on_n1(&cluster, &claiming("new", &["b"])), FULL, "Kubernetes counts it twice");
    cluster.place(&claiming("there", &["b"]), &"n1".into());
    assert_eq!(on_n1(&cluster, &claiming("new", &["b"])), "ok");
    cluster.storage.set_attachment("pv-a", None);
    assert_eq!(on_n1(&cluster, &claiming("new", &["d"])), "ok");
}

#[test]
fn pods_without_such_volumes_are_skipped() {
    let cluster = limited();
    for (volumes, skips) in [
        (json!([]), true),
        (json!([{"secret": {"secretName": "s"}}, {"configMap": {"name": "c"}}]), true),
        (json!([{"csi": {"driver": "d"}}]), true),
        (json!([{"persistentVolumeClaim": {"claimName": "a"}}]), false),
        (json!([ephemeral()]), false),
        (json!([ebs("vol-1")]), false),
    ] {
        let said = said(&NodeVolumeLimits, &pod("p", volumes.clone()), &cluster).texts();
        assert_eq!(said == ["skip"], skips, "{volumes}");
    }
}

fn hint(pod: &PodInfo, change: &Change<'_>) -> bool {
    NodeVolumeLimits.hint(pod, change, &Cluster::default()) == Hint::Queue
}

#[test]
fn pods_wait_for_placed_pods_with_volumes_to_go() {
    let waiting = claiming("p", &["a"]);
    for (volumes, node, nominated, helps) in [
        (json!([{"persistentVolumeClaim": {"claimName": "x"}}]), "n1", "", true),
        (json!([ephemeral()]), "n1", "", true),
        (json!([ebs("vol-1")]), "n1", "", true),
        (json!([ebs("vol-1")]), "", "n1", true),
        (json!([ebs("vol-1")]), "", "", false),
        (json!([]), "n1", "", false),
        (json!([{"csi": {"driver": "d"}}]), "n1", "", false),
    ] {
        let mut gone = Arc::into_inner(pod("gone", volumes.clone())).unwrap();
        gone.node = (!node.is_empty()).then(|| node.into());
        gone.nominated = (!nominated.is_empty()).then(|| nominated.into());
        let gone = Arc::new(gone);
        let change = Change::Pod(Versions { old: Some(&gone), new: None });
        assert_eq!(hint(&waiting, &change), helps, "{volumes} {node} {nominated}");
    }
}

#[test]
fn pods_wait_for_their_claims_for_detached_volumes_and_for_higher_limits() {
    let added = |pod: &PodInfo, namespace: &str, name: &str| {
        let new = claim(name, json!({"metadata": {"namespace": namespace}}));
        hint(pod, &Change::PersistentVolumeClaim(Versions { old: None, new: Some(&new) }))
    };
    assert!(
        added(&claiming("p", &["a"]), "ns", "a") && added(&pod("p", json!([ephemeral()])), "ns", "p-data")
    );
    assert!(!added(&claiming("p", &["a"]), "other", "a") && !added(&claiming("p", &["a"]), "ns", "b"));
    assert!(!added(&pod("p", json!([ebs("vol-1")])), "ns", "a"));
    let detached = |volumes: Value, attacher: &str| {
        let object = json!({"metadata": {"name": "x"}, "spec": {"attacher": attacher, "nodeName": "n1", "source": {}}});
        let old = Arc::new(from_value(object).unwrap());
        hint(&pod("p", volumes), &Change::VolumeAttachment(Versions { old: Some(&old), new: None }))
    };
    let claims = json!({"persistentVolumeClaim": {"claimName": "a"}});
    assert!(detached(json!([claims]), "any") && detached(json!([ebs("vol-1"), claims]), "any"));
    assert!(detached(json!([ebs("vol-1")]), EBS) && !detached(json!([ebs("vol-1")]), "d"));
    assert!(!detached(json!([{"gcePersistentDisk": {"pdName": "d"}}]), EBS));
    assert!(!detached(json!([]), EBS));
    let raised = |old: Value, new: Value| {
        let (old, new) = (csi_node("n1", old, ""), csi_node("n1", new, ""));
        hint(&claiming("p", &["a"]), &Change::CsiNode(Versions { old: Some(&old), new: Some(&new) }))
    };
    assert!(raised(json!({"d": 1}), json!({"d": 2})) && raised(json!({}), json!({"d": 1})));
    assert!(!raised(json!({"d": 2}), json!({"d": 1})) && !raised(json!({"d": 1}), json!({"d": 1})));
    let new = csi_node("n1", json!({}), "");
    assert!(hint(&claiming("p", &[]), &Change::CsiNode(Versions { old: None, new: Some(&new) })));
}
