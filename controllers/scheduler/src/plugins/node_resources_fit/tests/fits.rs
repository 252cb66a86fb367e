//! The nodes that have room.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::*;
use crate::framework::{Code, Refusal};
use crate::testing;

const GPU: &str = "example.com/aaa";
const OTHER: &str = "example.com/bbb";
const NATIVE: &str = "kubernetes.io/something";
const PAGES: &str = "hugepages-2Mi";

/// Returns requests of so much CPU, in thousandths of a core, and memory, and one of another resource.
fn of(cpu: i64, memory: i64, more: &[(&str, i64)]) -> Value {
    let mut list = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
    for (name, amount) in more {
        list[*name] = json!(amount.to_string());
    }
    list
}

/// Returns a pod with containers and init containers that request so much.
fn pod(containers: &[Value], init: &[Value], fields: Value) -> Arc<PodInfo> {
    let mut spec =
        json!({"containers": testing::containers(containers), "initContainers": testing::containers(init)});
    testing::merge(&mut spec, fields);
    testing::pod_of("p", spec)
}

/// Returns the answer of the plugin for a node of 10 thousandths of a core, 20 bytes of memory and storage, 5 of `GPU` and
/// `PAGES`, on which a pod uses so much.
fn refusal_by(args: FitArgs, pod: &PodInfo, used: &Value) -> Option<Refusal> {
    let all =
        json!({"cpu": "10m", "memory": "20", "pods": "32", "ephemeral-storage": "20", GPU: "5", PAGES: "5"});
    let placed = testing::placed("other", "a", std::slice::from_ref(used));
    let cluster = testing::cluster(&[testing::sized("a", all)], &[placed]);
    let refusal = testing::refusal(NodeResourcesFit::new(args), pod, &cluster, "a");
    refusal.inspect(|refusal| assert_eq!(refusal.plugin, "NodeResourcesFit"))
}

/// Returns the resources that such a node lacks, and `true` if it lacks them for good.
fn lacks(pod: &PodInfo, used: &Value) -> Option<(Vec<String>, bool)> {
    refusal_by(FitArgs::default(), pod, used).map(|refusal| {
        let names =
            refusal.reasons.iter().map(|reason| reason.trim_start_matches("Insufficient ").to_owned());
        (names.collect(), refusal.code == Code::Unresolvable)
    })
}

fn lack(names: &[&str], for_good: bool) -> Option<(Vec<String>, bool)> {
    Some((names.iter().map(|name| (*name).to_owned()).collect(), for_good))
}

#[test]
fn cpu_and_memory_of_containers_are_added_and_those_of_init_containers_are_not() {
    let plain = |cpu: i64, memory: i64| pod(&[of(cpu, memory, &[])], &[], json!({}));
    let init = |init: &[Value]| pod(&[of(1, 1, &[])], init, json!({}));
    let nothing = testing::pod_of("p", json!({"containers": []}));
    assert_eq!(lacks(&nothing, &of(10, 20, &[])), None);
    assert_eq!(lacks(&plain(1, 1), &of(10, 20, &[])), lack(&["cpu", "memory"], false));
    assert_eq!(lacks(&init(&[of(3, 1, &[])]), &of(8, 19, &[])), lack(&["cpu"], false));
    assert_eq!(lacks(&init(&[of(3, 1, &[]), of(2, 1, &[])]), &of(8, 19, &[])), lack(&["cpu"], false));
    assert_eq!(lacks(&init(&[of(1, 3, &[])]), &of(9, 19, &[])), lack(&["memory"], false));
    assert_eq!(lacks(&init(&[of(1, 3, &[]), of(1, 2, &[])]), &of(9, 19, &[])), lack(&["memory"], false));
    assert_eq!(lacks(&init(&[of(1, 1, &[])]), &of(9, 19, &[])), None);
    assert_eq!(lacks(&init(&[of(1, 1, &[]), of(1, 1, &[])]), &of(9, 19, &[])), None);
    assert_eq!(lacks(&plain(1, 1), &of(5, 5, &[])), None);
    assert_eq!(lacks(&plain(2, 1), &of(9, 5, &[])), lack(&["cpu"], false));
    assert_eq!(lacks(&plain(1, 2), &of(5, 19, &[])), lack(&["memory"], false));
    assert_eq!(lacks(&plain(5, 1), &of(5, 19, &[])), None, "just enough");
    assert_eq!(lacks(&pod(&[of(4, 1, &[])], &[of(5, 1, &[])], json!({})), &of(5, 19, &[])), None);
    assert_eq!(lacks(&plain(11, 1), &of(0, 0, &[])), lack(&["cpu"], true), "the node is too small");
    let overhead = |cpu: &str, memory: &str| {
        pod(&[of(1, 1, &[])], &[], json!({"overhead": {"cpu": cpu, "memory": memory}}))
    };
    assert_eq!(lacks(&overhead("3m", "13"), &of(5, 5, &[])), None);
    assert_eq!(lacks(&overhead("1m", "15"), &of(5, 5, &[])), lack(&["memory"], false));
}

#[test]
fn other_resources_are_enforced_by_name() {
    let wants = |containers: &[i64], name: &str| {
        let requests: Vec<Value> = containers.iter().map(|amount| of(1, 1, &[(name, *amount)])).collect();
        [pod(&requests, &[], json!({})), pod(&[of(0, 0, &[])], &requests, json!({}))]
    };
    for (amounts, name, used, lacking) in [
        (vec![1], GPU, 0, [None, None]),
        (vec![10], GPU, 0, [lack(&[GPU], true), lack(&[GPU], true)]),
        (vec![1], GPU, 5, [lack(&[GPU], false), lack(&[GPU], false)]),
        (vec![3, 3], GPU, 2, [lack(&[GPU], true), None]),
        (vec![6, 3], GPU, 2, [lack(&[GPU], true), lack(&[GPU], true)]),
        (vec![1], OTHER, 0, [lack(&[OTHER], true), lack(&[OTHER], true)]),
        (vec![10], NATIVE, 0, [lack(&[NATIVE], true), lack(&[NATIVE], true)]),
        (vec![10], PAGES, 0, [lack(&[PAGES], true), lack(&[PAGES], true)]),
        (vec![3, 3], PAGES, 2, [lack(&[PAGES], true), None]),
        (vec![0], GPU, 6, [None, None]),
        (vec![0], OTHER, 0, [None, None]),
    ] {
        let use_of = of(0, 0, &[(name, used)]);
        let found = wants(&amounts, name).map(|pod| lacks(&pod, &use_of));
        assert_eq!(found, lacking, "{amounts:?} of {name}");
    }
    let only = pod(&[json!({GPU: "1"})], &[], json!({}));
    assert_eq!(lacks(&only, &of(20, 30, &[(GPU, 1)])), None, "requests of 0 fit everywhere");
    let all = pod(&[of(11, 2, &[(GPU, 2), ("ephemeral-storage", 30)])], &[], json!({}));
    let lacking = lack(&["cpu", "memory", "ephemeral-storage", GPU], true);
    assert_eq!(lacks(&all, &of(0, 19, &[(GPU, 4)])), lacking);
}

#[test]
fn extended_resources_can_be_ignored_by_name_and_prefix() {
    let both = pod(&[of(1, 1, &[(OTHER, 1), (NATIVE, 1)])], &[], json!({}));
    let one = pod(&[of(1, 1, &[(OTHER, 1)])], &[], json!({}));
    let names =
        FitArgs { ignored_resources: [OTHER, NATIVE].map(str::to_owned).into(), ..FitArgs::default() };
    let groups = FitArgs {
        ignored_resource_groups: ["example.com", "kubernetes.io"].map(str::to_owned).into(),
        ..FitArgs::default()
    };
    for args in [names, groups] {
        assert_eq!(refusal_by(args.clone(), &one, &of(0, 0, &[])), None);
        let native = Refusal::unresolvable(format!("Insufficient {NATIVE}")).by("NodeResourcesFit");
        assert_eq!(refusal_by(args, &both, &of(0, 0, &[])), Some(native), "native resources are not ignored");
    }
}

#[test]
fn requests_of_the_pod_as_a_whole_replace_those_of_containers() {
    let whole = |containers: &[Value], init: &[Value], requests: Value| {
        pod(containers, init, json!({"resources": {"requests": requests}}))
    };
    let small = [of(1, 1, &[])];
    assert_eq!(lacks(&whole(&small, &[], of(1, 2, &[])), &of(5, 5, &[])), None);
    assert_eq!(lacks(&whole(&small, &[], of(7, 2, &[])), &of(5, 5, &[])), lack(&["cpu"], false));
    assert_eq!(lacks(&whole(&small, &[], of(3, 2, &[])), &of(5, 19, &[])), lack(&["memory"], false));
    assert_eq!(lacks(&whole(&small, &small, of(3, 2, &[])), &of(5, 19, &[])), lack(&["memory"], false));
    assert_eq!(lacks(&whole(&[], &[], of(3, 2, &[(PAGES, 5)])), &of(0, 0, &[])), None);
    assert_eq!(lacks(&whole(&[], &[], of(3, 2, &[(PAGES, 10)])), &of(0, 0, &[])), lack(&[PAGES], true));
    let pages = [of(1, 1, &[(PAGES, 3)])];
    assert_eq!(lacks(&whole(&pages, &[], of(3, 2, &[(PAGES, 5)])), &of(0, 0, &[])), None);
}

#[test]
fn nodes_run_only_so_many_pods() {
    let refusal = |pod: &PodInfo, used: Value| {
        let node = testing::sized("a", json!({"cpu": "10m", "memory": "20", "pods": "1"}));
        let cluster = testing::cluster(&[node], &[testing::placed("other", "a", &[used])]);
        testing::refusal(NodeResourcesFit::default(), pod, &cluster, "a")
    };
    let too_many = Some(Refusal::unschedulable("Too many pods").by("NodeResourcesFit"));
    assert_eq!(refusal(&pod(&[], &[], json!({})), of(10, 20, &[])), too_many);
    assert_eq!(refusal(&pod(&[of(1, 1, &[])], &[], json!({})), of(5, 5, &[])), too_many);
    assert_eq!(refusal(&pod(&[of(5, 1, &[])], &[], json!({})), of(5, 19, &[])), too_many);
    assert_eq!(refusal(&pod(&[of(5, 1, &[])], &[of(5, 1, &[])], json!({})), of(5, 19, &[])), too_many);
    let reasons = refusal(&pod(&[of(6, 1, &[])], &[], json!({})), of(5, 19, &[])).unwrap().reasons;
    assert_eq!(reasons, ["Too many pods", "Insufficient cpu"]);
}

#[test]
fn ephemeral_storage_is_enforced() {
    let storage = |amount: i64| json!({"ephemeral-storage": amount.to_string()});
    assert_eq!(lacks(&pod(&[of(1, 1, &[])], &[], json!({})), &of(2, 10, &[])), None);
    assert_eq!(
        lacks(&pod(&[storage(25)], &[], json!({})), &of(2, 2, &[])),
        lack(&["ephemeral-storage"], true)
    );
    assert_eq!(lacks(&pod(&[storage(5)], &[], json!({})), &of(2, 2, &[("ephemeral-storage", 10)])), None);
    assert_eq!(lacks(&pod(&[storage(10)], &[], json!({})), &of(2, 2, &[])), None);
}

#[test]
fn sidecars_add_to_the_containers() {
    let refusal = |request: Value, sidecar: Value| {
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": request}}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": sidecar}}]});
        let cluster = testing::cluster(&[testing::sized("a", json!({"cpu": "2m", "pods": "1"}))], &[]);
        testing::refusal(NodeResourcesFit::default(), &testing::pod_of("p", spec), &cluster, "a")
    };
    assert_eq!(refusal(json!({}), json!({})), None);
    assert_eq!(refusal(json!({"cpu": "1m"}), json!({"cpu": "1m"})), None);
    let cpu = Some(Refusal::unresolvable("Insufficient cpu").by("NodeResourcesFit"));
    assert_eq!(refusal(json!({"cpu": "1m"}), json!({"cpu": "2m"})), cpu);
}

#[test]
fn pods_that_are_resized_use_the_greatest_of_their_requests() {
    let resized = |requests: Value, allocated: Value, whole: Value| {
        let status = json!({"containerStatuses": [{"name": "c0", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "resources": {"requests": requests}, "allocatedResources": allocated}],
            "resources": {"requests": whole}});
        let spec = json!({"nodeName": "a", "containers": testing::containers(&[json!({"cpu": "4m"})]),
            "resources": {"requests": if whole.is_null() { json!({}) } else { json!({"cpu": "3m"}) }}});
        let pod = testing::pod("other", json!({"spec": spec, "status": status}));
        let cluster = testing::cluster(&[testing::sized("a", json!({"cpu": "10m"}))], &[pod]);
        let wanted = testing::requesting("p", &[json!({"cpu": "5m"})]);
        testing::refusal(NodeResourcesFit::default(), &wanted, &cluster, "a").is_none()
    };
    assert!(resized(json!({"cpu": "4m"}), json!({"cpu": "4m"}), Value::Null));
    assert!(!resized(json!({"cpu": "6m"}), json!({"cpu": "4m"}), Value::Null), "more is in effect");
    assert!(!resized(json!({"cpu": "4m"}), json!({"cpu": "6m"}), Value::Null), "more is allocated");
    assert!(resized(json!({"cpu": "1m"}), json!({"cpu": "1m"}), Value::Null));
    assert!(resized(json!({"cpu": "6m"}), json!({"cpu": "6m"}), json!({"cpu": "5m"})), "the whole counts");
    assert!(!resized(json!({"cpu": "4m"}), json!({"cpu": "4m"}), json!({"cpu": "6m"})));
}

#[test]
fn resources_that_a_device_class_serves_are_checked_on_nodes_that_count_them() {
    let served = "extended.resource.dra.io/something";
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": served}});
    let reasons = |allocatable: Value, requests: Value| {
        let mut cluster = testing::cluster(&[testing::sized("a", allocatable)], &[]);
        cluster.device_classes.set(Arc::new(serde_json::from_value(class.clone()).unwrap()));
        let pod = testing::requesting("p", &[requests]);
        testing::refusal(NodeResourcesFit::default(), &pod, &cluster, "a").map(|refusal| refusal.reasons)
    };
    assert_eq!(reasons(json!({}), json!({served: "1"})), None, "DynamicResources looks for devices");
    assert_eq!(reasons(json!({served: "0"}), json!({served: "1"})), None);
    let lacking = Some(vec![format!("Insufficient {served}")]);
    assert_eq!(reasons(json!({served: "1"}), json!({served: "2"})), lacking, "the node counts it");
    assert_eq!(reasons(json!({}), json!({"deviceclass.resource.kubernetes.io/c": "1"})), None);
    let unserved = Some(vec![format!("Insufficient {OTHER}")]);
    assert_eq!(reasons(json!({}), json!({OTHER: "1"})), unserved);
}

#[test]
fn views_of_nodes_follow_changes_of_device_classes() {
    let plugin = NodeResourcesFit::default();
    let mut cluster = Cluster::default();
    let before = plugin.epoch(&cluster);
    cluster.device_classes.set(Arc::new(DeviceClass::default()));
    assert_ne!(plugin.epoch(&cluster), before);
}
