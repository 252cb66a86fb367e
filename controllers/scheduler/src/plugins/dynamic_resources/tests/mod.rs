//! Tables of the plugin. With those of `bind_devices`, which are about writes, they cover about 60 of the 126 cases of upstream's
//! tables; some 35 of the others are about pod groups and about gates that are not as by default.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, from_value, json};

use super::{DynamicResources, DynamicResourcesArgs};
use crate::cluster::devices::allocation;
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
        plugin().score(pod, cluster, &[NodeId::new(0), NodeId::new(1)]).unwrap()
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

#[test]
fn changes_wake_pods_whose_claims_they_concern() {
    let mut cluster = two_nodes();
    let (open, other) = (claim("x", json!({})), claim("other", json!({})));
    add(&mut cluster, &open);
    let pod = user(&["x"]);
    let hint =
        |cluster: &Cluster, old: Option<&Arc<ResourceClaim>>, new: &Arc<ResourceClaim>, pod: &PodInfo| {
            plugin().hint(pod, &Change::ResourceClaim(Versions { old, new: Some(new) }), cluster)
        };
    let has = claim("x", json!({"status": allocated("a", "d0")}));
    let other_has = claim("other", json!({"status": allocated("a", "d0")}));
    let labeled = claim("x", json!({"metadata": {"labels": {"a": "b"}}}));
    for (what, old, new, wanted) in [
        ("made", None, &open, Hint::Queue),
        ("another one made", None, &other, Hint::Skip),
        ("its status has changed", Some(&open), &has, Hint::Queue),
        ("something else has changed", Some(&open), &labeled, Hint::Skip),
        ("another one has changed", Some(&other), &other_has, Hint::Skip),
        ("devices were freed", Some(&other_has), &other, Hint::Queue),
    ] {
        assert_eq!(hint(&cluster, old, new, &pod), wanted, "{what}");
    }
    assert_eq!(hint(&cluster, Some(&other_has), &other, &user(&["missing"])), Hint::Skip);
    let changed = |new: &Arc<PodInfo>| {
        plugin().hint(&pod, &Change::Pod(Versions { old: None, new: Some(new) }), &cluster)
    };
    assert_eq!(changed(&pod), Hint::Queue);
    assert_eq!(changed(&user(&["missing"])), Hint::Skip);
    assert_eq!(changed(&pod_of("q", json!({}))), Hint::Skip);
    assert!(allocation(&has).is_some() && allocation(&open).is_none());
}

#[test]
fn searches_of_one_attempt_share_their_steps() {
    let mut cluster = two_nodes();
    let names: Vec<Value> = (0..100).map(|index| json!({"name": format!("d{index}")})).collect();
    add_slice(&mut cluster, "a", json!(names));
    let none = json!([{"cel": {"expression": "device.driver == 'none'"}}]);
    let exactly =
        json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1, "selectors": none});
    let requests = json!([{"name": "r", "exactly": exactly}]);
    add(&mut cluster, &claim("x", json!({"spec": {"devices": {"requests": requests}}})));
    add(&mut cluster, &claim("y", json!({})));
    let args = DynamicResourcesArgs { filter_timeout: Duration::from_millis(2), ..Default::default() };
    let ask = |cluster: &Cluster| refusal(DynamicResources(args), &user(&["x"]), cluster, "a").unwrap();
    // No verdict is remembered of a node that has changed.
    let ask_anew = |cluster: &mut Cluster| {
        cluster.set_node(labeled("a", json!({})));
        ask(cluster)
    };
    let now = || "2026-01-01T00:00:00Z".parse().unwrap();
    for _ in 0..2 {
        cluster.devices.begin(now());
        assert_eq!(ask_anew(&mut cluster).message(), "cannot allocate all claims");
        let taken = cluster.devices.steps.taken();
        // An attempt to evict pods asks again for each of them.
        assert_eq!(ask(&cluster).message(), "cannot allocate all claims");
        assert_eq!(cluster.devices.steps.taken(), taken, "what is known takes no step");
        let is_late = |why: Refusal| why.message() == "timed out trying to allocate devices";
        let asked = (0..40).find(|_| is_late(ask_anew(&mut cluster)));
        assert!(asked.is_some(), "40 searches fit into {args:?}");
        assert_eq!(ask(&cluster).code, Code::Unresolvable, "only a change helps");
    }
    // A node that was found with the last step can be reserved, but takes no more than a tenth of the steps.
    let reserved = |cluster: &mut Cluster| {
        DynamicResources(args).reserve(&user(&["y"]), NodeId::new(1), cluster).map(|plan| plan.is_some())
    };
    assert_eq!(reserved(&mut cluster), Ok(true));
    cluster.devices.unreserve(&user(&["y"]));
    cluster.devices.steps.take(1000);
    assert_eq!(reserved(&mut cluster).unwrap_err().message(), "timed out trying to allocate devices");
}

/// Compares verdicts that are remembered with those of claims that nobody has searched for before, over random changes of
/// claims, slices, classes and nodes.
#[test]
fn verdicts_that_are_remembered_are_those_of_a_new_search() {
    let names = ["a", "b", "c", "d"];
    let nodes: Vec<_> = names.iter().map(|name| labeled(name, json!({}))).collect();
    let mut cluster = cluster(&nodes, &[]);
    let devices = json!([{"name": "d0"}, {"name": "d1"}]);
    names.iter().for_each(|node| add_slice(&mut cluster, node, devices.clone()));
    add_class(&mut cluster, json!({"metadata": {"name": "c"}, "spec": {}}));
    let shared = |selector: Value| {
        let fields = json!([{"key": "pool", "operator": "In", "values": [selector]}]);
        let slice = json!({"metadata": {"name": "shared"}, "spec": {"driver": "d", "devices": [{"name": "d0"}],
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": fields}]},
            "pool": {"name": "shared", "generation": 1, "resourceSliceCount": 1}}});
        Arc::new(from_value::<ResourceSlice>(slice).unwrap())
    };
    let (mut random, mut seen) = (0x9E37_79B9_u64, [0; 2]);
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % bound as u64).unwrap()
    };
    add(&mut cluster, &claim("known", json!({})));
    for step in 0..2000 {
        let (node, device) = (names[below(names.len())], ["d0", "d1"][below(2)]);
        let key = format!("{node}-{device}");
        match below(12) {
            0..=4 => add(&mut cluster, &claim(&key, json!({"status": allocated(node, device)}))),
            5..=7 => drop(cluster.devices.set_claim(&ObjectKey::new("default", &key), None)),
            8 => add_slice(&mut cluster, node, if below(2) == 0 { json!([]) } else { devices.clone() }),
            9 => drop(cluster.devices.set_slice("shared", Some(shared(["x", "y"][below(2)].into())))),
            10 => {
                let pool = ["x", "y"][below(2)];
                cluster.set_node(labeled(node, json!({"pool": pool})));
            }
            _ => {
                let expression =
                    ["device.driver == 'd'", "device.driver == 'other'"][usize::from(below(4) == 0)];
                let selector = json!({"cel": {"expression": expression}});
                add_class(
                    &mut cluster,
                    json!({"metadata": {"name": "c"}, "spec": {"selectors": [selector]}}),
                );
            }
        }
        let request = json!([{"name": format!("r{step}"), "exactly":
            {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}]);
        add(&mut cluster, &claim("new", json!({"spec": {"devices": {"requests": request}}})));
        for node in names {
            let known = reason(&cluster, &user(&["known"]), node);
            assert_eq!(known, reason(&cluster, &user(&["new"]), node), "step {step}, node {node}");
            seen[usize::from(known == "feasible")] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}
