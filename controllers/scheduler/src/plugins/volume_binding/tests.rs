//! Covers the cases that Kubernetes tests of this plugin and of its binder; docs/scheduler.md counts them.

use apiserver_meta::volumes::{self, SELECTED_NODE};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::storage::ZONE;
use crate::cluster::storage::tests::{
    add_claims, add_class, add_node, add_volumes, bound, claim, claiming, class, cluster, csi_node, on, pod,
    said, volume,
};

const ELSEWHERE: &str = "Unresolvable: node(s) didn't match PersistentVolume's node affinity";
const NONE: &str = "Unresolvable: node(s) didn't find available persistent volumes to bind";
const NO_SPACE: &str = "Unresolvable: node(s) did not have enough free storage";
const LOST: &str = "Unresolvable: node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const WAITS: &str = "Unresolvable: pod has unbound immediate PersistentVolumeClaims";

fn of_class(name: &str, class: &str) -> Arc<PersistentVolumeClaim> {
    claim(name, json!({"spec": {"storageClassName": class}}))
}

fn sized(name: &str, class: &str, size: &str) -> Arc<PersistentVolumeClaim> {
    claim(name, json!({"spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}}}))
}

/// Returns a claim of a class that binds at once, and that is bound to a volume.
fn bound_at_once(name: &str, volume: &str) -> Arc<PersistentVolumeClaim> {
    let annotations = json!({volumes::BIND_COMPLETED: "yes"});
    let spec = json!({"storageClassName": "now", "volumeName": volume});
    claim(name, json!({"metadata": {"annotations": annotations}, "spec": spec}))
}

fn local(name: &str, node: &str, size: &str) -> Arc<PersistentVolume> {
    let spec = json!({"storageClassName": "none", "capacity": {"storage": size}, "nodeAffinity": on(node)["nodeAffinity"]});
    volume(name, json!({"spec": spec}))
}

fn texts(cluster: &Cluster, claims: &[&str]) -> Vec<String> {
    said(&VolumeBinding::default(), &claiming("p", claims), cluster).texts()
}

/// Returns what is reserved for a pod on a node: claims with their volumes, and claims whose volumes are to be made.
fn reserve(cluster: &mut Cluster, pod: &PodInfo, node: &str) -> Option<VolumePlan> {
    let id = cluster.named(node).unwrap().id;
    let plan = VolumeBinding::default().reserve(pod, id, cluster).unwrap()?;
    let PreBind::Volumes(plan) = plan else { panic!("another plan") };
    Some(*plan)
}

fn names(plan: &VolumePlan) -> (Vec<(String, String)>, Vec<String>) {
    let name = |claim: &PersistentVolumeClaim| claim.metadata.name.clone().unwrap();
    let pair = |(claim, volume): &(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)| {
        assert!(volumes::is_bound_to(volume, claim));
        (name(claim), volume.metadata.name.clone().unwrap())
    };
    assert!(plan.make.iter().all(|claim| volumes::selected_node(claim) == Some(&plan.node)));
    (plan.take.iter().map(pair).collect(), plan.make.iter().map(|claim| name(claim)).collect())
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(claim, volume)| ((*claim).to_owned(), (*volume).to_owned())).collect()
}

#[test]
fn claims_that_cannot_be_used_exclude_all_nodes() {
    let mut cluster = cluster();
    let more = |name: &str, more: Value| claim(name, more);
    let late = json!({"status": {"phase": "Lost"}, "spec": {"volumeName": "v"}});
    add_claims(
        &mut cluster,
        [
            more("deleted", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            more("lost", late),
            more("prebound", json!({"spec": {"volumeName": "v"}})),
            of_class("now", "now"),
            of_class("unknown", "unknown"),
            of_class("classless", ""),
            of_class("late", "late"),
            of_class("modeless", "modeless"),
            of_class("p-data", "late"),
            bound("bound", "v"),
        ],
    );
    add_class(&mut cluster, class("modeless", json!({"volumeBindingMode": null})));
    for (claims, wanted) in [
        (&["none"][..], "Unresolvable: persistentvolumeclaim \"none\" not found"),
        (&["late", "none"], "Unresolvable: persistentvolumeclaim \"none\" not found"),
        (&["deleted"], "Unresolvable: persistentvolumeclaim \"deleted\" is being deleted"),
        (
            &["lost"],
            "Unresolvable: persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"v\"",
        ),
        (&["prebound"], WAITS),
        (&["late", "prebound"], WAITS),
        (&["now"], WAITS),
        (&["late", "now"], WAITS),
        (&["now", "bound"], WAITS),
        (&["unknown"], WAITS),
        (&["classless"], WAITS),
        (&["modeless"], "Error: VolumeBindingMode not set for StorageClass \"modeless\""),
        (&[], "skip"),
    ] {
        assert_eq!(texts(&cluster, claims), [wanted], "{claims:?}");
    }
    let ephemeral = |pod_name: &str| {
        pod(pod_name, json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]))
    };
    let waits = "Unresolvable: waiting for ephemeral volume controller to create the persistentvolumeclaim \"q-data\"";
    assert_eq!(said(&VolumeBinding::default(), &ephemeral("q"), &cluster).texts(), [waits]);
    let foreign = "Unresolvable: PVC ns/p-data was not created for pod ns/p (pod is not owner)";
    assert_eq!(said(&VolumeBinding::default(), &ephemeral("p"), &cluster).texts(), [foreign]);
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    add_claims(&mut cluster, [claim("p-data", json!({"metadata": {"ownerReferences": owner}}))]);
    assert_eq!(said(&VolumeBinding::default(), &ephemeral("p"), &cluster).texts(), ["ok", "ok"]);
    assert_eq!(
        said(&VolumeBinding::default(), &pod("p", json!([{"csi": {"driver": "d"}}])), &cluster).texts(),
        ["skip"]
    );
}

#[test]
fn bound_and_free_volumes_lead_to_their_nodes() {
    let mut cluster = cluster();
    add_volumes(
        &mut cluster,
        [
            local("here", "n1", "1Gi"),
            local("small", "n1", "2Gi"),
            local("large", "n1", "5Gi"),
            local("there", "n2", "3Gi"),
            volume("bound-here", json!({"spec": on("n1")})),
            volume("bound-there", json!({"spec": on("n2")})),
            volume("anywhere", json!({})),
        ],
    );
    add_claims(
        &mut cluster,
        [
            bound("b1", "bound-here"),
            bound("b2", "bound-there"),
            bound("b3", "anywhere"),
            bound("gone", "gone"),
            bound_at_once("i1", "bound-here"),
            sized("u1", "none", "1Gi"),
            sized("u2", "none", "3Gi"),
            sized("u3", "none", "4Gi"),
            sized("huge", "none", "9Gi"),
        ],
    );
    let both = "Unresolvable: node(s) didn't match PersistentVolume's node affinity, node(s) didn't find available \
                persistent volumes to bind";
    for (claims, n1, n2) in [
        (&["b1"][..], "ok", ELSEWHERE),
        (&["b3"], "ok", "ok"),
        (&["i1"], "ok", ELSEWHERE),
        (&["b1", "b2"], ELSEWHERE, ELSEWHERE),
        (&["gone"], LOST, LOST),
        (&["u1"], "ok", "ok"),
        (&["u2"], "ok", "ok"),
        (&["u3"], "ok", NONE),
        (&["u2", "u3"], NONE, NONE),
        (&["u3", "u1"], "ok", NONE),
        (&["u1", "huge"], NONE, NONE),
        (&["b1", "u1"], "ok", ELSEWHERE),
        (&["b2", "u3"], ELSEWHERE, NONE),
        (&["b1", "huge"], NONE, both),
    ] {
        assert_eq!(texts(&cluster, claims), [n1, n2], "{claims:?}");
    }
    let plan = reserve(&mut cluster, &claiming("p", &["u2", "u1"]), "n1").unwrap();
    assert_eq!(
        names(&plan),
        (pairs(&[("u1", "here"), ("u2", "large")]), vec![]),
        "the smallest that is large enough"
    );
}

#[test]
fn volumes_that_differ_from_what_a_claim_wants_are_not_taken() {
    let bind = |of_claim: Value, of_volume: Value| {
        let mut cluster = cluster();
        let spec = json!({"spec": {"storageClassName": "none"}});
        add_claims(&mut cluster, [claim("c", crate::cluster::storage::tests::with(spec.clone(), of_claim))]);
        add_volumes(&mut cluster, [volume("v", crate::cluster::storage::tests::with(spec, of_volume))]);
        texts(&cluster, &["c"])[0] == "ok"
    };
    assert!(bind(json!({}), json!({})));
    for (of_claim, of_volume) in [
        (json!({}), json!({"status": {"phase": "Pending"}})),
        (json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        (json!({}), json!({"spec": {"storageClassName": "late"}})),
        (json!({}), json!({"spec": {"volumeMode": "Block"}})),
        (json!({}), json!({"spec": {"volumeAttributesClassName": "gold"}})),
        (json!({"spec": {"accessModes": ["ReadWriteMany"]}}), json!({})),
        (json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}), json!({})),
        (json!({}), json!({"spec": {"claimRef": {"namespace": "ns", "name": "other"}}})),
        (json!({}), json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "older"}}})),
        (json!({}), json!({"spec": {"nodeAffinity": on("n2")["nodeAffinity"]}})),
    ] {
        assert!(!bind(of_claim.clone(), of_volume.clone()), "{of_claim} {of_volume}");
    }
    let reserved = json!({"claimRef": {"namespace": "ns", "name": "c"}, "accessModes": ["ReadOnlyMany"]});
    assert!(
        bind(json!({}), json!({"spec": reserved, "status": {"phase": "Pending"}})),
        "a user has reserved it"
    );
}

#[test]
fn reserved_volume_excludes_all_others_of_the_claim() {
    let mut cluster = cluster();
    let mut reserved = PersistentVolume::clone(&local("reserved", "n2", "1Gi"));
    reserved.spec.as_mut().unwrap().claim_ref = Some(volumes::reference(&of_class("u", "none")));
    add_volumes(&mut cluster, [local("free", "n1", "1Gi"), Arc::new(reserved)]);
    add_claims(&mut cluster, [of_class("u", "none"), of_class("w", "none")]);
    assert_eq!(texts(&cluster, &["u"]), [NONE, "ok"]);
    assert_eq!(texts(&cluster, &["w"]), ["ok", NONE]);
}

#[test]
fn volumes_are_made_where_the_class_allows_and_no_node_was_selected_before() {
    let mut cluster = cluster();
    let topology =
        |expressions: Value| json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]});
    let only = topology(json!([{"key": "host", "values": ["n2", "n3"]}]));
    add_class(&mut cluster, class("n2", only));
    add_class(&mut cluster, class("nowhere", topology(json!([]))));
    let selected =
        |name: &str, node: &str| claim(name, json!({"metadata": {"annotations": {SELECTED_NODE: node}}}));
    add_claims(
        &mut cluster,
        [
            of_class("made", "late"),
            of_class("also", "late"),
            of_class("never", "none"),
            of_class("n2", "n2"),
            of_class("nowhere", "nowhere"),
            selected("on-n1", "n1"),
            bound("b", "v"),
            bound_at_once("i", "v"),
        ],
    );
    let in_use = json!({"spec": on("n1"), "status": {"phase": "Bound"}});
    add_volumes(&mut cluster, [volume("v", in_use), volume("free", json!({"spec": on("n1")}))]);
    for (claims, n1, n2) in [
        (&["made"][..], "ok", "ok"),
        (&["made", "also"], "ok", "ok"),
        (&["never"], NONE, NONE),
        (&["n2"], NONE, "ok"),
        (&["nowhere"], NONE, NONE),
        (&["on-n1"], "ok", NONE),
        (&["on-n1", "made"], "ok", NONE),
        (&["b", "made"], "ok", ELSEWHERE),
        (
            &["b", "on-n1"],
            "ok",
            "Unresolvable: node(s) didn't match PersistentVolume's node affinity, \
             node(s) didn't find available persistent volumes to bind",
        ),
        (&["i", "made"], "ok", ELSEWHERE),
    ] {
        assert_eq!(texts(&cluster, claims), [n1, n2], "{claims:?}");
    }
    let plan = reserve(&mut cluster, &claiming("p", &["on-n1", "made", "also", "b"]), "n1").unwrap();
    let wanted = (pairs(&[("made", "free")]), vec!["on-n1".to_owned(), "also".to_owned()]);
    assert_eq!(names(&plan), wanted);
}

#[test]
fn volumes_of_built_in_drivers_are_judged_as_the_node_serves_them() {
    let key = "topology.ebs.csi.aws.com/zone";
    let zone = json!({"key": ZONE, "operator": "In", "values": ["a"]});
    let spec = json!({"awsElasticBlockStore": {"volumeID": "vol-1"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}});
    let said_of = |labels: Value, migrated: Option<&str>| {
        let mut cluster = Cluster::default();
        add_node(&mut cluster, "n", labels);
        let csi = migrated.map(|migrated| csi_node("n", json!({}), migrated));
        cluster.storage.set_csi_node("n", csi);
        add_volumes(&mut cluster, [volume("v", json!({"spec": spec}))]);
        add_claims(&mut cluster, [bound("c", "v")]);
        texts(&cluster, &["c"]).remove(0)
    };
    let ebs = Some("kubernetes.io/cinder,kubernetes.io/aws-ebs");
    assert_eq!(said_of(json!({key: "a"}), ebs), "ok");
    assert_eq!(said_of(json!({key: "b", ZONE: "a"}), ebs), ELSEWHERE);
    assert_eq!(said_of(json!({ZONE: "a"}), Some("kubernetes.io/cinder")), "ok");
    assert_eq!(said_of(json!({ZONE: "a"}), None), "ok");
    assert_eq!(said_of(json!({key: "a"}), None), ELSEWHERE);
}

#[test]
fn volumes_are_made_where_the_driver_has_room() {
    let spaces = |capacities: Value, tells: bool| {
        let mut cluster = cluster();
        let driver = json!({"metadata": {"name": "driver"}, "spec": {"storageCapacity": tells}});
        cluster.storage.set_driver("driver", Some(Arc::new(from_value(driver).unwrap())));
        for (index, capacity) in capacities.as_array().unwrap().iter().enumerate() {
            let mut object = capacity.clone();
            object["metadata"] = json!({"name": format!("c{index}"), "namespace": "ns"});
            let object: Arc<CSIStorageCapacity> = Arc::new(from_value(object).unwrap());
            cluster.storage.set_capacity(&ObjectKey::of(object.as_ref()), Some(object));
        }
        add_claims(&mut cluster, [of_class("c", "late")]);
        texts(&cluster, &["c"])
    };
    let on = |node: &str| json!({"matchLabels": {"host": node}});
    let of = |topology: Value, capacity: &str| json!({"storageClassName": "late", "nodeTopology": topology, "capacity": capacity});
    let largest = |size: &str| json!({"storageClassName": "late", "nodeTopology": on("n1"), "capacity": "9Gi", "maximumVolumeSize": size});
    for (capacities, n1, n2) in [
        (json!([]), NO_SPACE, NO_SPACE),
        (json!([of(json!({}), "1Gi")]), "ok", "ok"),
        (json!([of(on("n1"), "1Gi")]), "ok", NO_SPACE),
        (json!([of(on("n1"), "1Gi"), of(on("n2"), "2Gi")]), "ok", "ok"),
        (
            json!([of(
                json!({"matchExpressions": [{"key": "host", "operator": "In", "values": ["n2"]}]}),
                "1Gi"
            )]),
            NO_SPACE,
            "ok",
        ),
        (
            json!([of(
                json!({"matchExpressions": [{"key": "host", "operator": "NotIn", "values": ["n2"]}]}),
                "1Gi"
            )]),
            "ok",
            NO_SPACE,
        ),
        (json!([of(on("n3"), "1Gi")]), NO_SPACE, NO_SPACE),
        (json!([of(on("n1"), "1023Mi")]), NO_SPACE, NO_SPACE),
        (json!([of(on("n1"), "0")]), NO_SPACE, NO_SPACE),
        (json!([largest("1Gi")]), "ok", NO_SPACE),
        (json!([largest("1Mi")]), NO_SPACE, NO_SPACE),
        (json!([largest("0")]), NO_SPACE, NO_SPACE),
        (json!([{"storageClassName": "late", "nodeTopology": on("n1")}]), NO_SPACE, NO_SPACE),
        (json!([{"storageClassName": "late", "capacity": "9Gi"}]), NO_SPACE, NO_SPACE),
        (
            json!([{"storageClassName": "none", "nodeTopology": on("n1"), "capacity": "9Gi"}]),
            NO_SPACE,
            NO_SPACE,
        ),
    ] {
        assert_eq!(spaces(capacities.clone(), true), [n1, n2], "{capacities}");
        assert_eq!(spaces(capacities, false), ["ok", "ok"], "the driver does not tell");
    }
}

#[test]
fn assumed_volumes_and_claims_are_not_given_twice() {
    let mut cluster = cluster();
    add_volumes(&mut cluster, [local("v1", "n1", "1Gi"), local("v2", "n2", "1Gi")]);
    add_claims(
        &mut cluster,
        [of_class("a", "none"), of_class("b", "none"), of_class("m", "late"), bound("x", "v2")],
    );
    assert_eq!(reserve(&mut cluster, &claiming("p", &["x"]), "n2"), None, "all is bound");
    let (p, q) = (claiming("p", &["a", "m"]), claiming("q", &["b"]));
    let plan = reserve(&mut cluster, &p, "n1").unwrap();
    assert_eq!(names(&plan), (pairs(&[("a", "v1")]), vec!["m".to_owned()]));
    assert_eq!((plan.pod.clone(), &*plan.node), (p.key(), "n1"));
    assert_eq!(said(&VolumeBinding::default(), &q, &cluster).texts(), [NONE, "ok"]);
    assert_eq!(texts(&cluster, &["a"]), ["ok", NONE], "its volume is chosen");
    assert_eq!(texts(&cluster, &["m"]), ["ok", NONE], "its node is chosen");
    VolumeBinding::default().unreserve(&p, &mut cluster);
    assert_eq!(said(&VolumeBinding::default(), &q, &cluster).texts(), ["ok", "ok"]);
    assert_eq!(texts(&cluster, &["m"]), ["ok", "ok"]);
    VolumeBinding::default().unreserve(&p, &mut cluster);

    reserve(&mut cluster, &p, "n1").unwrap();
    let newer = |name: &str, node: &str| {
        let mut volume = PersistentVolume::clone(&local(name, node, "1Gi"));
        volume.metadata.resource_version = Some("2".to_owned());
        Arc::new(volume)
    };
    add_volumes(&mut cluster, [newer("v1", "n1")]);
    assert_eq!(
        said(&VolumeBinding::default(), &q, &cluster).texts(),
        ["ok", "ok"],
        "somebody else has changed the volume"
    );
    add_claims(&mut cluster, [claim("m", json!({"metadata": {"resourceVersion": "2"}}))]);
    assert_eq!(texts(&cluster, &["m"]), ["ok", "ok"], "the provisioner has given up");
}

#[test]
fn pods_that_share_a_claim_share_what_is_assumed() {
    let mut cluster = cluster();
    add_volumes(&mut cluster, [local("v1", "n1", "1Gi")]);
    add_claims(&mut cluster, [of_class("a", "none"), of_class("b", "none"), of_class("m", "late")]);
    let (p, q) = (claiming("p", &["a", "m"]), claiming("q", &["a", "m"]));
    let first = reserve(&mut cluster, &p, "n1").unwrap();
    let second = reserve(&mut cluster, &q, "n1").unwrap();
    assert_eq!(names(&first), names(&second));
    VolumeBinding::default().unreserve(&p, &mut cluster);
    assert_eq!(texts(&cluster, &["b"]), [NONE, NONE]);
    assert_eq!(texts(&cluster, &["m"]), ["ok", NONE]);
    VolumeBinding::default().unreserve(&q, &mut cluster);
    assert_eq!(texts(&cluster, &["b"]), ["ok", NONE]);
    assert_eq!(texts(&cluster, &["m"]), ["ok", "ok"]);
}

fn hint(pod: &PodInfo, change: &Change<'_>) -> bool {
    VolumeBinding::default().hint(pod, change, &Cluster::default()) == Hint::Queue
}

#[test]
fn pods_wait_for_their_claims_and_for_migrated_drivers() {
    let changed = |pod: &PodInfo, namespace: &str, name: &str| {
        let new = claim(name, json!({"metadata": {"namespace": namespace}}));
        hint(pod, &Change::PersistentVolumeClaim(Versions { old: None, new: Some(&new) }))
    };
    let ephemeral = pod("p", json!([{"name": "data", "ephemeral": {}}]));
    assert!(changed(&claiming("p", &["c"]), "ns", "c") && changed(&ephemeral, "ns", "p-data"));
    assert!(!changed(&claiming("p", &["c"]), "other", "c") && !changed(&claiming("p", &["c"]), "ns", "d"));
    assert!(!changed(&ephemeral, "ns", "data") && !changed(&claiming("p", &[]), "ns", "c"));
    let migrated = |old: &str, new: &str| {
        let (old, new) = (csi_node("n", json!({}), old), csi_node("n", json!({"d": 1}), new));
        hint(&ephemeral, &Change::CsiNode(Versions { old: Some(&old), new: Some(&new) }))
    };
    assert!(migrated("", "a") && migrated("a", "a,b") && !migrated("a", "a"));
    let new = csi_node("n", json!({}), "");
    assert!(hint(&ephemeral, &Change::CsiNode(Versions { old: None, new: Some(&new) })));
}

#[test]
fn pods_wait_for_topologies_capacities_and_drivers_that_no_longer_tell() {
    let pod = pod("p", json!([{"csi": {"driver": "d"}}]));
    let topologies = |old: Value, new: Value| {
        let of = |topologies: Value| class("s", json!({"allowedTopologies": topologies}));
        let (old, new) = (of(old), of(new));
        hint(&pod, &Change::StorageClass(Versions { old: Some(&old), new: Some(&new) }))
    };
    let term = json!([{"matchLabelExpressions": [{"key": "host", "values": ["n"]}]}]);
    assert!(topologies(json!([]), term.clone()) && topologies(term.clone(), json!(null)));
    assert!(!topologies(term.clone(), term) && !topologies(json!([]), json!(null)));
    let new = class("s", json!({}));
    assert!(hint(&pod, &Change::StorageClass(Versions { old: None, new: Some(&new) })));
    let grown = |old: Value, new: Value| {
        let of = |mut sizes: Value| -> Arc<CSIStorageCapacity> {
            sizes["metadata"] = json!({"name": "c"});
            sizes["storageClassName"] = json!("s");
            Arc::new(from_value(sizes).unwrap())
        };
        let (old, new) = (of(old), of(new));
        hint(&pod, &Change::CsiStorageCapacity(Versions { old: Some(&old), new: Some(&new) }))
    };
    let sizes = |capacity: &str, largest: &str| json!({"capacity": capacity, "maximumVolumeSize": largest});
    assert!(
        grown(json!({}), json!({"capacity": "1"})) && grown(json!({}), json!({"maximumVolumeSize": "1"}))
    );
    assert!(grown(json!({"capacity": "1"}), json!({"capacity": "2"})));
    assert!(grown(sizes("3", "1"), json!({"capacity": "3"})) && grown(sizes("3", "1"), sizes("3", "2")));
    assert!(!grown(json!({}), json!({})) && !grown(sizes("1", "1"), sizes("2", "1")));
    assert!(!grown(json!({"capacity": "1"}), json!({"capacity": "1"})));
    assert!(!grown(sizes("2", "1"), json!({"capacity": "1"})));
    assert!(
        !grown(json!({"capacity": "2"}), json!({"capacity": "1"}))
            && !grown(sizes("3", "2"), sizes("3", "1"))
    );
    let stops_for = |pod: &PodInfo, name: &str, old: Value, new: Value| {
        let of = |tells: Value| -> Arc<CSIDriver> {
            Arc::new(
                from_value(json!({"metadata": {"name": name}, "spec": {"storageCapacity": tells}})).unwrap(),
            )
        };
        let (old, new) = (of(old), of(new));
        hint(pod, &Change::CsiDriver(Versions { old: Some(&old), new: Some(&new) }))
    };
    let stops = |name: &str, old: Value, new: Value| stops_for(&pod, name, old, new);
    assert!(!stops_for(&claiming("p", &[]), "d", json!(true), json!(false)), "the pod uses no driver");
    assert!(stops("d", json!(true), json!(false)) && stops("d", json!(true), json!(null)));
    assert!(!stops("e", json!(true), json!(false)) && !stops("d", json!(null), json!(false)));
    assert!(!stops("d", json!(false), json!(false)) && !stops("d", json!(true), json!(true)));
}
