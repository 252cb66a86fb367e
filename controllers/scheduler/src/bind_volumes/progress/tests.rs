//! Tables of bindings that are waited for; docs/scheduler.md counts the cases of Kubernetes that they cover.

use serde_json::{Value, json};

use std::time::Duration;

use super::*;
use crate::cluster::storage::tests::{bound, claim, claiming, on, volume, with};
use apiserver_meta::volumes::SELECTED_NODE;

/// The state of a cluster with node `n1`, of zone `a`, and pod `p`.
#[derive(Default)]
struct World {
    claims: Vec<Arc<PersistentVolumeClaim>>,
    volumes: Vec<Arc<PersistentVolume>>,
    migrated: bool,
    is_pod_gone: bool,
    is_node_gone: bool,
}

impl State for World {
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.iter().find(|claim| ObjectKey::of(claim.as_ref()) == *key).cloned()
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.iter().find(|volume| volume.metadata.name.as_deref() == Some(name)).cloned()
    }

    fn labels_of(&self, _: &str) -> Option<Labels> {
        let labels = [("host", "n1"), ("topology.ebs.csi.aws.com/zone", "a")];
        (!self.is_node_gone).then(|| labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    fn is_migrated_on(&self, _: &str, driver: BuiltIn) -> bool {
        self.migrated && driver == BuiltIn::AwsEbs
    }

    fn has_pod(&self, _: &ObjectKey, _: &Uid) -> bool {
        !self.is_pod_gone
    }
}

fn plan() -> VolumePlan {
    let pod = claiming("p", &["c"]);
    VolumePlan {
        pod: pod.key(),
        uid: pod.uid.clone(),
        node: "n1".into(),
        take: vec![],
        make: vec![],
        timeout: Duration::ZERO,
    }
}

/// Returns volume `v` with a reference to claim `c`, in version 5.
fn taken(spec: Value) -> Arc<PersistentVolume> {
    let reference = json!({"claimRef": {"namespace": "ns", "name": "c", "uid": "c"}});
    volume("v", json!({"metadata": {"resourceVersion": "5"}, "spec": with(reference, spec)}))
}

/// Returns a claim with the node annotation, in version 5, with changes.
fn selected(name: &str, node: &str, more: Value) -> Arc<PersistentVolumeClaim> {
    let base = json!({"metadata": {"resourceVersion": "5", "annotations": {SELECTED_NODE: node}}});
    claim(name, with(base, more))
}

/// Returns the progress of a plan in which `c` takes `v`, written in version 5.
fn taking(world: &World) -> Result<bool, Stuck> {
    let plan = VolumePlan { take: vec![(claim("c", json!({})), taken(json!({})))], ..plan() };
    is_done(&plan, &Versions { volumes: vec![5], claims: vec![] }, world)
}

/// Returns the progress of a plan in which a volume is made for `m`, written in version 5.
fn making(world: &World) -> Result<bool, Stuck> {
    let plan = VolumePlan { make: vec![selected("m", "n1", json!({}))], ..plan() };
    is_done(&plan, &Versions { volumes: vec![], claims: vec![5] }, world)
}

#[test]
fn chosen_volumes_are_waited_for_until_the_claim_is_bound() {
    let world = |claims: Vec<_>, volumes: Vec<_>| World { claims, volumes, ..World::default() };
    let done = vec![bound("c", "v")];
    assert_eq!(is_done(&plan(), &Versions::default(), &World::default()), Ok(true), "nothing is to be done");
    assert_eq!(taking(&world(done.clone(), vec![taken(json!({}))])), Ok(true));
    assert_eq!(taking(&world(vec![claim("c", json!({}))], vec![taken(json!({}))])), Ok(false));
    let naming = claim("c", json!({"spec": {"volumeName": "v"}}));
    assert_eq!(taking(&world(vec![naming], vec![taken(json!({}))])), Ok(false));
    let older = volume("v", json!({"metadata": {"resourceVersion": "4"}}));
    assert_eq!(taking(&world(done.clone(), vec![older])), Ok(false), "the cache is behind");
    let stuck = |world: World| taking(&world).unwrap_err().to_string();
    assert_eq!(
        stuck(world(vec![], vec![taken(json!({}))])),
        "failed to check binding: persistentvolumeclaims \"ns/c\" not found"
    );
    assert_eq!(
        stuck(world(done.clone(), vec![])),
        "failed to check binding: persistentvolumes \"v\" not found"
    );
    let released = volume("v", json!({"metadata": {"resourceVersion": "6"}}));
    assert_eq!(stuck(world(done.clone(), vec![released])), "ClaimRef got reset for pv \"v\"");
    let reset = taken(json!({"claimRef": {"uid": ""}}));
    assert_eq!(stuck(world(done.clone(), vec![reset])), "ClaimRef got reset for pv \"v\"");
    assert_eq!(
        stuck(world(done.clone(), vec![taken(on("n2"))])),
        "pv \"v\" node affinity doesn't match node \"n1\": no matching NodeSelectorTerms"
    );
    let gone = World { is_pod_gone: true, ..world(done.clone(), vec![taken(json!({}))]) };
    assert_eq!(stuck(gone), "pod does not exist any more: pod \"p\" not found");
    let gone = World { is_node_gone: true, ..world(done, vec![taken(json!({}))]) };
    assert_eq!(stuck(gone), "failed to get node \"n1\": node \"n1\" not found");
}

#[test]
fn volumes_in_the_making_are_waited_for_until_the_provisioner_gives_up() {
    let world = |claims: Vec<_>, volumes: Vec<_>| World { claims, volumes, ..World::default() };
    let bind =
        json!({"metadata": {"annotations": {volumes::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}});
    let done = vec![selected("m", "n1", bind)];
    assert_eq!(making(&world(done.clone(), vec![taken(json!({}))])), Ok(true));
    assert_eq!(making(&world(done.clone(), vec![])), Ok(false), "the volume is on its way");
    assert_eq!(making(&world(vec![selected("m", "n1", json!({}))], vec![])), Ok(false));
    assert_eq!(making(&world(vec![claim("m", json!({}))], vec![])), Ok(false), "the cache is behind");
    let stuck = |world: World| making(&world).unwrap_err().to_string();
    assert_eq!(
        stuck(world(vec![], vec![])),
        "failed to check provisioning pvc: persistentvolumeclaims \"ns/m\" not found"
    );
    let bare = claim("m", json!({"metadata": {"resourceVersion": "6"}}));
    assert_eq!(stuck(world(vec![bare], vec![])), "selectedNode annotation reset for PVC \"m\"");
    let dropped = claim("m", json!({"metadata": {"resourceVersion": "6", "annotations": {"a": "b"}}}));
    assert_eq!(stuck(world(vec![dropped], vec![])), "provisioning failed for PVC \"m\"");
    assert_eq!(
        stuck(world(vec![selected("m", "n2", json!({}))], vec![])),
        "provisioning failed for PVC \"m\""
    );
    assert_eq!(
        stuck(world(done, vec![taken(on("n2"))])),
        "pv \"v\" node affinity doesn't match node \"n1\": no matching NodeSelectorTerms"
    );
}

#[test]
fn all_claims_of_a_plan_are_waited_for() {
    let plan = VolumePlan {
        take: vec![(claim("c", json!({})), taken(json!({})))],
        make: vec![selected("m", "n1", json!({}))],
        ..plan()
    };
    let written = Versions { volumes: vec![5], claims: vec![5] };
    let mut world = World {
        claims: vec![bound("c", "v"), selected("m", "n1", json!({}))],
        volumes: vec![taken(json!({}))],
        ..World::default()
    };
    assert_eq!(is_done(&plan, &written, &world), Ok(false));
    let bind =
        json!({"metadata": {"annotations": {volumes::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}});
    world.claims[1] = selected("m", "n1", bind);
    assert_eq!(is_done(&plan, &written, &world), Ok(true));
    let other = |more: Value| {
        let reference = json!({"claimRef": {"namespace": "ns", "name": "d", "uid": "d"}});
        volume("w", json!({"metadata": {"resourceVersion": "5"}, "spec": with(reference, more)}))
    };
    let plan = VolumePlan {
        take: vec![(claim("c", json!({})), taken(json!({}))), (claim("d", json!({})), other(json!({})))],
        ..self::plan()
    };
    let written = Versions { volumes: vec![5, 5], claims: vec![] };
    world.claims = vec![bound("c", "v"), claim("d", json!({}))];
    world.volumes = vec![taken(json!({})), other(json!({}))];
    assert_eq!(is_done(&plan, &written, &world), Ok(false), "one of two is not bound");
}

#[test]
fn nodes_are_judged_by_what_migrated_volumes_require() {
    let of_zone = |zone: &str| {
        let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]});
        taken(json!({"awsElasticBlockStore": {"volumeID": "vol-1"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}}))
    };
    let progress = |zone: &str, migrated: bool| {
        let volumes = vec![of_zone(zone)];
        taking(&World { claims: vec![bound("c", "v")], volumes, migrated, ..World::default() })
    };
    assert_eq!(progress("a", true), Ok(true));
    assert!(progress("b", true).is_err(), "the node is in another zone");
    assert!(progress("a", false).is_err(), "the node has no label of the built-in driver");
    let bind =
        json!({"metadata": {"annotations": {volumes::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}});
    let made = |zone: &str| {
        let claims = vec![selected("m", "n1", bind.clone())];
        making(&World { claims, volumes: vec![of_zone(zone)], migrated: true, ..World::default() })
    };
    assert_eq!(made("a"), Ok(true));
    assert!(made("b").is_err(), "it was made in another zone");
}
