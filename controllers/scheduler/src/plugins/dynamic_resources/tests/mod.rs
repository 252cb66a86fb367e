//! Covers the cases that Kubernetes tests of this plugin, together with the tests of `bind_devices`, which are about writes;
//! docs/scheduler.md counts them.

mod scores;
mod searches;
mod sharing;
mod wakes;

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, from_value, json};

use super::{DynamicResources, DynamicResourcesArgs};
use crate::cluster::{Cluster, NodeId};
use crate::framework::{
    Change, Cleanup, Code, Diagnosis, Finding, Hint, Meter, NominatedFirst, Plugin, PreBind, Refusal,
    Versions, Views, diagnose, find_feasible,
};
use crate::pod::PodInfo;
use crate::testing::{cluster, labeled, merge, named, pod, pod_of, profile_with, refusal, sized};

/// Returns a cluster of the nodes `a` and `b` with two devices each, `d0` and `d1`, and the class `c` of all devices.
fn two_nodes() -> Cluster {
    let mut cluster = cluster(&[labeled("a", json!({})), labeled("b", json!({}))], &[]);
    for node in ["a", "b"] {
        add_slice(&mut cluster, node, json!([{"name": "d0"}, {"name": "d1"}]));
    }
    add_class(&mut cluster, json!({"metadata": {"name": "c"}, "spec": {}}));
    cluster
}

fn add_slice(cluster: &mut Cluster, node: &str, devices: Value) {
    let slice = json!({"metadata": {"name": node}, "spec": {"driver": "d", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
    cluster.devices.set_slice(node, Some(Arc::new(from_value::<ResourceSlice>(slice).unwrap())));
}

fn add_class(cluster: &mut Cluster, class: Value) {
    cluster.device_classes.set(Arc::new(from_value::<DeviceClass>(class).unwrap()));
}

/// Returns a claim for one device, with these fields over it.
fn claim(name: &str, fields: Value) -> Arc<ResourceClaim> {
    let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
    let mut object = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
    merge(&mut object, fields);
    Arc::new(from_value(object).unwrap())
}

fn add(cluster: &mut Cluster, claim: &Arc<ResourceClaim>) {
    cluster.devices.set_claim(&ObjectKey::of(claim.as_ref()), Some(Arc::clone(claim)));
}

/// Returns the status of a claim that has a device of a node.
fn allocated(node: &str, device: &str) -> Value {
    let result = json!({"request": "r", "driver": "d", "pool": node, "device": device});
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    json!({"allocation": {"devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}})
}

/// Returns a pod with these claims.
fn user(claims: &[&str]) -> Arc<PodInfo> {
    let claim = |name: &&str| json!({"name": name, "resourceClaimName": name});
    pod_of("p", json!({"resourceClaims": claims.iter().map(claim).collect::<Vec<_>>()}))
}

fn plugin() -> DynamicResources {
    DynamicResources::default()
}

/// Returns the reason for which a node is refused; `feasible` if it is not.
fn reason(cluster: &Cluster, pod: &PodInfo, node: &str) -> String {
    refusal(plugin(), pod, cluster, node).map_or("feasible".to_owned(), |refusal| refusal.message())
}

fn reserve(
    cluster: &mut Cluster,
    pod: &PodInfo,
    node: usize,
) -> Result<Vec<(String, Option<String>)>, Refusal> {
    let Some(plan) = plugin().reserve(pod, NodeId::new(node), cluster)? else { return Ok(Vec::new()) };
    let PreBind::Devices(plan) = plan else { panic!("another plan") };
    let device = |one: &crate::cluster::devices::ClaimPlan| {
        let results = one.allocation.as_ref()?.devices.as_ref()?.results.as_ref()?;
        Some(format!("{}/{}", results[0].pool, results[0].device))
    };
    let name = |one: &crate::cluster::devices::ClaimPlan| one.claim.metadata.name.clone().unwrap();
    Ok(plan.claims.iter().map(|one| (name(one), device(one))).collect())
}

#[test]
fn pods_wait_for_claims_that_are_not_theirs_or_not_there() {
    let mut cluster = two_nodes();
    let waits =
        |cluster: &Cluster, pod: &PodInfo| plugin().pre_enqueue(pod, cluster).map(|why| why.message());
    assert_eq!(waits(&cluster, &pod_of("p", json!({}))), None);
    let lacking = "could not find ResourceClaim \"default/x\"";
    assert_eq!(waits(&cluster, &user(&["x"])).as_deref(), Some(lacking));
    assert_eq!(reason(&cluster, &user(&["x"]), "a"), lacking);
    add(&mut cluster, &claim("x", json!({})));
    assert_eq!(waits(&cluster, &user(&["x"])), None);
    let template = |statuses: Value| {
        let spec = json!({"resourceClaims": [{"name": "t", "resourceClaimTemplateName": "t"}]});
        pod("p", json!({"spec": spec, "status": {"resourceClaimStatuses": statuses}}))
    };
    assert_eq!(
        waits(&cluster, &template(Value::Null)).as_deref(),
        Some("pod \"default/p\": ResourceClaim not created yet")
    );
    let made = template(json!([{"name": "t", "resourceClaimName": "x"}]));
    assert_eq!(
        waits(&cluster, &made).as_deref(),
        Some("ResourceClaim default/x was not created for Pod default/p (Pod is not owner)")
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    add(&mut cluster, &claim("x", json!({"metadata": {"ownerReferences": owner}})));
    assert_eq!(waits(&cluster, &made), None);
    assert_eq!(waits(&cluster, &template(json!([{"name": "t"}]))), None, "no claim was needed");
    add(&mut cluster, &claim("x", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    assert_eq!(waits(&cluster, &user(&["x"])).as_deref(), Some("resourceclaim \"x\" is being deleted"));
}

#[test]
fn nodes_must_have_devices_for_claims_without_any() {
    let mut cluster = two_nodes();
    ["x", "y", "z"].iter().for_each(|name| add(&mut cluster, &claim(name, json!({}))));
    assert_eq!(reason(&cluster, &user(&["x", "y"]), "a"), "feasible");
    assert_eq!(reason(&cluster, &user(&["x", "y", "z"]), "a"), "cannot allocate all claims");
    add(&mut cluster, &claim("other", json!({"status": allocated("a", "d1")})));
    assert_eq!(reason(&cluster, &user(&["x"]), "a"), "feasible");
    assert_eq!(reason(&cluster, &user(&["x", "y"]), "a"), "cannot allocate all claims");
    assert_eq!(reason(&cluster, &user(&["x", "y"]), "b"), "feasible");
    cluster.devices.are_awaited = true;
    assert_eq!(
        reason(&cluster, &user(&["x"]), "b"),
        "the claims and devices of the cluster are not known yet"
    );
}

#[test]
fn claims_must_ask_for_what_there_is() {
    let mut cluster = two_nodes();
    let asked = |cluster: &mut Cluster, requests: Value| {
        add(cluster, &claim("x", json!({"spec": {"devices": {"requests": requests}}})));
        let refusal = refusal(plugin(), &user(&["x"]), cluster, "a").unwrap();
        (refusal.code, refusal.message())
    };
    let exact = |class: &str| json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": 1});
    let mut sub = exact("no");
    sub["name"] = json!("s");
    for (requests, code, wanted) in [
        (
            json!([{"name": "r", "exactly": exact("no")}]),
            Code::Unresolvable,
            "request r: device class no does not exist",
        ),
        (
            json!([{"name": "r", "firstAvailable": [sub]}]),
            Code::Unresolvable,
            "request r/s: device class no does not exist",
        ),
        (
            json!([{"name": "r"}]),
            Code::Unresolvable,
            "resource claim default/x, request r: unknown request type",
        ),
        (json!([{"name": "r", "exactly": exact("")}]), Code::Error, "request r: unsupported request type"),
    ] {
        assert_eq!(asked(&mut cluster, requests), (code, wanted.to_owned()));
    }
    let mut broken = exact("c");
    broken["selectors"] = json!([{"cel": {"expression": "device.attributes['d'].none == 1"}}]);
    let (code, why) = asked(&mut cluster, json!([{"name": "r", "exactly": broken}]));
    assert_eq!(
        (code, why.as_str()),
        (Code::Error, "claim default/x: selector #0: CEL runtime error: no such key: none")
    );
    let args = DynamicResourcesArgs { filter_timeout: Duration::from_nanos(1_000_000), ..Default::default() };
    let mut many = exact("c");
    many["selectors"] = json!([{"cel": {"expression": "device.driver == 'none'"}}]);
    let names: Vec<Value> = (0..1100).map(|index| json!({"name": format!("d{index}")})).collect();
    add_slice(&mut cluster, "a", json!(names));
    add(
        &mut cluster,
        &claim("x", json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": many}]}}})),
    );
    let why = refusal(DynamicResources(args), &user(&["x"]), &cluster, "a").unwrap();
    assert_eq!(
        (why.code, why.message().as_str()),
        (Code::Unresolvable, "timed out trying to allocate devices")
    );
}

#[test]
fn allocated_claims_keep_pods_where_their_devices_are_ready() {
    let mut cluster = two_nodes();
    add(&mut cluster, &claim("x", json!({"status": allocated("a", "d0")})));
    assert_eq!(reason(&cluster, &user(&["x"]), "a"), "feasible");
    assert_eq!(reason(&cluster, &user(&["x"]), "b"), "resourceclaim not available on the node");
    let waiting = |conditions: Value, timestamp: &str| {
        let mut status = allocated("a", "d0");
        let fields = json!({"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]});
        merge(&mut status["allocation"]["devices"]["results"][0], fields);
        status["allocation"]["allocationTimestamp"] = json!(timestamp);
        status["devices"] = json!([{"driver": "d", "pool": "a", "device": "d0", "conditions": conditions}]);
        claim("x", json!({"status": status}))
    };
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    cluster.devices.now = Some("2026-01-01T00:10:00Z".parse().unwrap());
    for (conditions, since, is_feasible) in [
        (condition("ready"), "2026-01-01T00:00:00Z", true),
        (condition("ready"), "2025-01-01T00:00:00Z", true),
        (json!([]), "2026-01-01T00:00:00Z", true),
        (json!([]), "2025-12-31T23:59:59Z", false),
        (condition("failed"), "2026-01-01T00:00:00Z", false),
    ] {
        add(&mut cluster, &waiting(conditions.clone(), since));
        assert_eq!(reason(&cluster, &user(&["x"]), "a") == "feasible", is_feasible, "{conditions} {since}");
    }
}

#[test]
fn reserved_devices_are_in_use_and_their_claim_in_process() {
    let mut cluster = two_nodes();
    ["x", "y"].iter().for_each(|name| add(&mut cluster, &claim(name, json!({}))));
    let wanted = vec![("x".to_owned(), Some("a/d0".to_owned()))];
    assert_eq!(reserve(&mut cluster, &user(&["x"]), 0).unwrap(), wanted);
    let process = "resource claim default/x is in the process of being allocated";
    assert_eq!(reason(&cluster, &user(&["x"]), "a"), process);
    let other = pod("q", json!({"spec": {"resourceClaims": [{"name": "y", "resourceClaimName": "y"}]}}));
    let wanted = vec![("y".to_owned(), Some("a/d1".to_owned()))];
    assert_eq!(reserve(&mut cluster, &other, 0).unwrap(), wanted);
    plugin().unreserve(&user(&["x"]), &mut cluster);
    assert_eq!(reserve(&mut cluster, &user(&["x"]), 0).unwrap()[0].1.as_deref(), Some("a/d0"));
    add(&mut cluster, &claim("x", json!({"status": allocated("a", "d0")})));
    assert_eq!(
        reserve(&mut cluster, &user(&["x"]), 0).unwrap(),
        vec![("x".to_owned(), None)],
        "only reserved"
    );
    assert_eq!(reserve(&mut cluster, &pod_of("n", json!({})), 0).unwrap(), vec![]);
}

#[test]
fn resources_that_a_class_serves_are_claimed_where_nodes_do_not_have_them() {
    let mut cluster = two_nodes();
    cluster.set_node(sized("plugin", json!({"example.com/gpu": "4", "example.com/nic": "1"})));
    cluster.set_node(sized("empty", json!({"example.com/gpu": "0", "example.com/nic": "0"})));
    add_slice(&mut cluster, "empty", json!([{"name": "d0"}]));
    let requesting = |resources: Value| {
        pod_of("p", json!({"containers": [{"name": "c", "resources": {"requests": resources}}]}))
    };
    let gpus = |count: &str| requesting(json!({"example.com/gpu": count}));
    assert_eq!(
        reason(&cluster, &gpus("1"), "a"),
        "feasible",
        "no class serves it: not for this plugin to say"
    );
    add_class(
        &mut cluster,
        json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}}),
    );
    let both = requesting(json!({"example.com/gpu": "1", "example.com/nic": "1"}));
    let implicit = requesting(json!({"deviceclass.resource.kubernetes.io/c": "2"}));
    for (pod, node, wanted) in [
        (&gpus("2"), "a", "feasible"),
        (&gpus("3"), "a", "cannot allocate all claims"),
        (&gpus("1"), "empty", "feasible"),
        (&gpus("9"), "plugin", "feasible"),
        (&gpus("0"), "a", "feasible"),
        (&both, "a", "cannot fit resource"),
        (&both, "empty", "feasible"),
        (&both, "plugin", "feasible"),
        (&implicit, "a", "feasible"),
        (&implicit, "empty", "cannot allocate all claims"),
    ] {
        assert_eq!(reason(&cluster, pod, node), wanted, "{:?} {node}", pod.spec.requests.scalar);
    }
    let plan = plugin().reserve(&gpus("2"), named(&cluster, "a").id, &mut cluster).unwrap().unwrap();
    let PreBind::Devices(plan) = plan else { panic!("another plan") };
    let [made] = plan.claims.as_slice() else { panic!("one claim") };
    assert_eq!(made.claim.metadata.generate_name.as_deref(), Some("p-extended-resources-"));
    assert_eq!(
        json!(made.made_for),
        json!([{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}])
    );
    assert!(plugin().reserve(&gpus("1"), named(&cluster, "plugin").id, &mut cluster).unwrap().is_none());
}

#[test]
fn containers_that_end_early_share_their_devices_with_later_ones() {
    let container = |name: &str, count: &str, fields: Value| {
        let mut container =
            json!({"name": name, "resources": {"requests": {"cpu": "1", "example.com/gpu": count}}});
        merge(&mut container, fields);
        container
    };
    let spec = json!({
        "initContainers": [
            container("early", "3", json!({})), container("sidecar", "1", json!({"restartPolicy": "Always"})),
            container("late", "1", json!({})),
        ],
        "containers": [container("main", "1", json!({}))],
    });
    let mut classes = crate::cluster::DeviceClasses::default();
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    classes.set(Arc::new(from_value(class).unwrap()));
    let served = crate::cluster::devices::serve(
        &from_value(spec).unwrap(),
        ["example.com/gpu", "example.com/none"].into_iter(),
        &classes,
    );
    let requests =
        served.requests.iter().map(|one| (one.name.as_str(), one.exactly.as_ref().unwrap().count.unwrap()));
    let requests: Vec<_> = requests.collect();
    assert_eq!(
        requests,
        [("container-0-request-1", 1), ("container-1-request-1", 1), ("container-3-request-1", 1)]
    );
    let mappings = served.mappings.iter().map(|one| (one.container_name.as_str(), one.request_name.as_str()));
    let mappings: Vec<_> = mappings.collect();
    assert_eq!(
        mappings,
        [
            ("sidecar", "container-1-request-1"),
            ("main", "container-3-request-1"),
            ("early", "container-1-request-1"),
            ("early", "container-3-request-1"),
            ("early", "container-0-request-1"),
            ("late", "container-3-request-1"),
        ]
    );
}

#[test]
fn nodes_score_by_how_early_the_alternatives_are_that_they_serve() {
    let mut cluster = two_nodes();
    let alternative = |name: &str, count: i64| json!({"name": name, "deviceClassName": "c", "allocationMode": "ExactCount", "count": count});
    let first = json!([{"name": "r", "firstAvailable": [alternative("two", 2), alternative("one", 1)]}]);
    let chosen = json!({"spec": {"devices": {"requests": first}}});
    add(&mut cluster, &claim("x", chosen.clone()));
    add(&mut cluster, &claim("other", json!({"status": allocated("b", "d0")})));
    let scores = |cluster: &Cluster, pod: &PodInfo| {
        let nodes = [NodeId::new(0), NodeId::new(1)].into_iter().collect();
        plugin().score(pod, cluster, &nodes).unwrap().to_vec(2)
    };
    assert_eq!(scores(&cluster, &user(&["x"])), [100, 87], "8 and 7 points");
    add(&mut cluster, &claim("y", json!({})));
    assert_eq!(scores(&cluster, &user(&["y"])), [0, 0]);
    let mut status = allocated("a", "d1");
    status["allocation"]["devices"]["results"][0]["request"] = json!("r/one");
    let mut has = chosen;
    has["status"] = status;
    add(&mut cluster, &claim("z", has));
    assert_eq!(scores(&cluster, &user(&["z"])), [0, 0], "there is nothing to choose");
    assert!(plugin().node_score(&pod_of("n", json!({})).spec, &cluster).is_some());
    assert!(plugin().node_score(&user(&["x"]).spec, &cluster).is_none());
}

fn post_filter(cluster: &mut Cluster, pod: &PodInfo) -> Finding {
    let profile = profile_with(plugin());
    let diagnosis: Diagnosis = match find_feasible(
        &profile,
        pod,
        cluster,
        &mut Views::default(),
        0,
        NominatedFirst::No,
        &mut Meter::default(),
    ) {
        Ok(_) => diagnose(&profile, pod, cluster),
        Err(diagnosis) => *diagnosis,
    };
    plugin().post_filter(pod, cluster, &diagnosis).unwrap()
}

#[test]
fn claims_in_the_way_of_pods_that_fit_nowhere_are_freed() {
    let mut cluster = two_nodes();
    let found = post_filter(&mut cluster, &pod_of("n", json!({})));
    assert_eq!(found, Finding { message: "no new claims to deallocate", cleanup: None });
    let elsewhere = |reserved: Value| {
        let mut status = allocated("gone", "d0");
        status["reservedFor"] = reserved;
        claim("x", json!({"status": status}))
    };
    let consumer = |name: &str| json!({"resource": "pods", "name": name, "uid": name});
    for (reserved, is_freed) in [
        (json!([]), true),
        (json!([consumer("p")]), true),
        (json!([consumer("q")]), false),
        (json!([consumer("p"), consumer("q")]), false),
    ] {
        let claim = elsewhere(reserved);
        add(&mut cluster, &claim);
        let found = post_filter(&mut cluster, &user(&["x"]));
        let cleanup = is_freed.then(|| Cleanup::Deallocate(Arc::clone(&claim)));
        let message =
            if is_freed { "deallocation of ResourceClaim completed" } else { "still not schedulable" };
        assert_eq!(found, Finding { message, cleanup });
    }
}

#[test]
fn claims_of_attempts_that_have_failed_are_deleted() {
    let mut cluster = two_nodes();
    add_class(
        &mut cluster,
        json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}}),
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let annotations = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let stale = claim("p-1", json!({"metadata": {"annotations": annotations, "ownerReferences": owner}}));
    add(&mut cluster, &stale);
    let container = json!({"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}});
    let pod = pod_of("p", json!({"containers": [container]}));
    assert_eq!(reason(&cluster, &pod, "a"), "cannot schedule extended resource claim");
    let found = post_filter(&mut cluster, &pod);
    let cleanup = Some(Cleanup::Delete(Arc::clone(&stale)));
    assert_eq!(found, Finding { message: "deletion of ResourceClaim completed", cleanup });
    cluster.devices.set_claim(&ObjectKey::of(stale.as_ref()), None);
    assert_eq!(reason(&cluster, &pod, "a"), "feasible");
}
