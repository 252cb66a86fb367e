//! The changes that wake a pod.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, from_value, json};

use super::super::*;
use crate::testing::{self, requesting, sized};

const GPU: &str = "example.com/aaa";
const OTHER: &str = "example.com/bbb";
/// A resource that a class of devices serves.
const SERVED: &str = "extended.resource.dra.io/something";

fn whole(name: &str, requests: Value, node: Value) -> Arc<PodInfo> {
    testing::pod_of(name, json!({"containers": [], "nodeName": node, "resources": {"requests": requests}}))
}

#[test]
fn pods_wake_when_others_leave_or_shrink() {
    let pod = requesting("p", &[json!({"cpu": "1"})]);
    let hint = |old: &Arc<PodInfo>, new: Option<&Arc<PodInfo>>| {
        testing::pod_hint(&NodeResourcesFit::default(), &pod, Some(old), new)
    };
    let on = |requests: Value| testing::placed("q", "a", &[requests]);
    let (small, large) = (on(json!({"cpu": "1"})), on(json!({"cpu": "2"})));
    assert_eq!(hint(&small, None), Hint::Queue);
    let waiting = |cpu: &str| requesting("q", &[json!({"cpu": cpu})]);
    assert_eq!(hint(&waiting("1"), None), Hint::Skip, "it used nothing");
    let nominated = testing::pod("q", json!({"status": {"nominatedNodeName": "a"}}));
    assert_eq!(hint(&nominated, None), Hint::Queue);
    assert_eq!(hint(&waiting("2"), Some(&waiting("1"))), Hint::Skip);
    assert_eq!(hint(&on(json!({"memory": "2"})), Some(&on(json!({"memory": "1"})))), Hint::Skip);
    assert_eq!(hint(&large, Some(&small)), Hint::Queue);
    assert_eq!(hint(&small, Some(&large)), Hint::Skip);
    let itself = requesting("p", &[json!({"cpu": "2"})]);
    assert_eq!(hint(&itself, Some(&pod)), Hint::Queue);
}

#[test]
fn pods_wake_when_others_shrink_as_a_whole() {
    let pod = whole("p", json!({"cpu": "1"}), Value::Null);
    let hint = |old: &Arc<PodInfo>, new: &Arc<PodInfo>| {
        testing::pod_hint(&NodeResourcesFit::default(), &pod, Some(old), Some(new))
    };
    let on = |requests: Value| whole("q", requests, json!("a"));
    assert_eq!(hint(&on(json!({"memory": "2"})), &on(json!({"memory": "1"}))), Hint::Skip);
    assert_eq!(hint(&on(json!({"cpu": "2"})), &on(json!({"cpu": "1"}))), Hint::Queue);
    assert_eq!(hint(&whole("p", json!({"cpu": "2"}), Value::Null), &pod), Hint::Queue);
}

#[test]
fn pods_wake_when_nodes_that_fit_come_or_grow() {
    let plugin = NodeResourcesFit::default();
    let hint = |pod: &PodInfo, old: Option<Value>, new: Value| {
        let old = old.map(|old| sized("a", old));
        testing::node_hint(&plugin, pod, old.as_ref(), Some(&sized("a", new)))
    };
    let gpu = |memory: &str, gpus: &str| json!({"memory": memory, GPU: gpus});
    let pod = requesting("p", &[json!({"memory": "2", GPU: "1"})]);
    assert_eq!(hint(&requesting("p", &[json!({"memory": "2"})]), None, json!({"memory": "1"})), Hint::Skip);
    assert_eq!(hint(&requesting("p", &[json!({GPU: "1"})]), None, json!({OTHER: "1"})), Hint::Skip);
    assert_eq!(hint(&pod, None, gpu("4", "2")), Hint::Queue);
    let unrelated = json!({"memory": "2", GPU: "1", OTHER: "2"});
    assert_eq!(hint(&pod, Some(gpu("2", "2")), unrelated), Hint::Skip);
    assert_eq!(hint(&pod, Some(gpu("2", "1")), gpu("2", "2")), Hint::Queue);
    assert_eq!(hint(&pod, Some(gpu("4", "2")), gpu("1", "2")), Hint::Skip);
    assert_eq!(hint(&pod, Some(gpu("1", "2")), gpu("4", "2")), Hint::Queue);
    let whole = |requests: Value, node: Value| hint(&whole("p", requests, Value::Null), None, node);
    assert_eq!(whole(json!({"cpu": "2"}), json!({"cpu": "1"})), Hint::Skip);
    assert_eq!(whole(json!({"cpu": "2"}), json!({"cpu": "2"})), Hint::Queue);
    assert_eq!(whole(json!({"hugepages-2Mi": "2Mi"}), json!({"hugepages-2Mi": "2Mi"})), Hint::Queue);
    assert_eq!(whole(json!({"hugepages-2Mi": "4Mi"}), json!({"hugepages-2Mi": "2Mi"})), Hint::Skip);
}

#[test]
fn nodes_grow_by_what_is_requested_or_by_room_for_pods() {
    let list = |pods: &str, cpu: &str, memory: &str, storage: &str, gpus: &str| json!({"pods": pods, "cpu": cpu, "memory": memory, "ephemeral-storage": storage, GPU: gpus});
    let mut classes = DeviceClasses::default();
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": SERVED}});
    classes.set(Arc::new(from_value(class).unwrap()));
    let check = |requests: Value, old: Value, new: Value| {
        let pod = requesting("p", &[requests]);
        grows(&pod.spec.requests, &sized("a", old), &sized("a", new), &classes)
    };
    let all = || json!({"cpu": "2m", "memory": "2", "ephemeral-storage": "2", GPU: "2"});
    let few = || json!({"cpu": "2m", "memory": "2"});
    let same = || list("1", "1", "2", "3", "4");
    assert!(!check(json!({}), list("1", "1", "1", "1", "1"), list("1", "2", "2", "2", "2")));
    assert!(!check(json!({GPU: "0"}), same(), list("1", "1", "2", "3", "9")));
    assert!(check(json!({}), list("1", "1", "1", "1", "1"), list("2", "1", "1", "1", "1")));
    assert!(!check(all(), same(), list("1", "1", "2", "1", "1")), "it has shrunk");
    assert!(check(all(), same(), list("1", "3", "4", "3", "4")));
    assert!(check(all(), same(), list("1", "1", "2", "3", "5")));
    assert!(!check(few(), same(), list("1", "1", "2", "1", "1")));
    assert!(!check(few(), same(), list("1", "1", "2", "5", "6")), "it has grown by other resources");
    let served = |amount: &str| json!({"cpu": "1", SERVED: amount});
    assert!(!check(json!({SERVED: "2"}), served("4"), served("1")));
    assert!(check(json!({SERVED: "2"}), json!({"cpu": "1"}), json!({"cpu": "1"})), "devices may be there");
    assert!(check(json!({SERVED: "1"}), served("0"), served("0")));
    assert!(!check(json!({GPU: "2"}), json!({"cpu": "1"}), json!({"cpu": "1"})));
}

#[test]
fn pods_wake_when_a_device_class_serves_what_they_request() {
    let class = |name: &str, extended: Value| -> Arc<DeviceClass> {
        Arc::new(
            from_value(json!({"metadata": {"name": name}, "spec": {"extendedResourceName": extended}}))
                .unwrap(),
        )
    };
    let hint = |requests: &str, old: Option<&Arc<DeviceClass>>, new: &Arc<DeviceClass>| {
        let change = Change::DeviceClass(Versions { old, new: Some(new) });
        let pod = requesting("p", &[json!({requests: "1"})]);
        NodeResourcesFit::default().hint(&pod, &change, &Cluster::default())
    };
    let (none, gpu, other) = (class("c", Value::Null), class("c", json!(GPU)), class("c", json!(OTHER)));
    let implied = "deviceclass.resource.kubernetes.io/c";
    assert_eq!(hint(GPU, Some(&none), &none), Hint::Skip);
    assert_eq!(hint(GPU, Some(&gpu), &gpu), Hint::Skip);
    assert_eq!(hint(implied, None, &none), Hint::Queue);
    assert_eq!(hint(implied, None, &class("d", Value::Null)), Hint::Skip);
    assert_eq!(hint(GPU, None, &other), Hint::Skip);
    assert_eq!(hint(implied, Some(&none), &gpu), Hint::Skip, "classes keep their names");
    assert_eq!(hint(GPU, None, &gpu), Hint::Queue);
    assert_eq!(hint(GPU, Some(&other), &gpu), Hint::Queue);
    assert_eq!(hint(GPU, Some(&gpu), &none), Hint::Skip);
}

#[test]
fn plugin_waits_for_pods_that_go_or_shrink_nodes_that_grow_and_classes() {
    let pods = Actions::DELETE | Actions::POD_SCALE_DOWN;
    let expected = [
        Event::new(Resource::AssignedPod, pods),
        Event::new(Resource::UnscheduledPod, pods),
        Event::new(Resource::Node, Actions::ADD | Actions::NODE_ALLOCATABLE),
        Event::new(Resource::DeviceClass, Actions::ADD | Actions::UPDATE),
    ];
    assert_eq!(NodeResourcesFit::default().events(), expected);
}
