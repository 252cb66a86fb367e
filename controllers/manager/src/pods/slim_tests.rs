//! Pods as they are stored and written: fields that come back, and parts that pods share.

use apiserver_messages::random::Random;
use apiserver_messages::{Encoded, Reading};
use apiserver_schema::protobuf;
use serde_json::{Value, from_value, json};

use super::*;
use crate::testing::{at, running, set_ready, time};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Returns a pod of a DaemonSet with much that is stored and nothing else. Pods of other numbers are on other nodes and
/// have other times.
fn full(number: i64) -> Value {
    let (name, node) = (format!("web-{number}"), format!("n{number}"));
    let owner = |kind: &str, is_controller: bool| {
        json!({"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": format!("uid-{kind}"),
            "controller": is_controller, "blockOwnerDeletion": true})
    };
    let metadata = json!({
        "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": number.to_string(),
        "generation": 2, "labels": {"app": "web", "tier": "x"}, "annotations": {"a": "b"},
        "finalizers": ["example.com/a", "example.com/b"],
        "ownerReferences": [owner("DaemonSet", true), owner("Other", false)],
        "creationTimestamp": time(number), "deletionTimestamp": time(number + 100), "deletionGracePeriodSeconds": 30,
    });
    let by_name = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let spec = json!({
        "nodeName": node, "hostname": name, "subdomain": "web", "restartPolicy": "Always",
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": by_name}]}},
            "podAntiAffinity": {}},
        "containers": [{"name": "main", "ports": [{"name": "http", "containerPort": 80}]}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
    });
    let (v4, v6) = (format!("10.0.{number}.1"), format!("fd00::{number}"));
    let status = json!({
        "phase": "Running", "qosClass": "BestEffort", "startTime": time(number + 1), "podIP": v4,
        "podIPs": [{"ip": v4}, {"ip": v6}],
        "conditions": [
            {"type": "Ready", "status": "True", "lastProbeTime": time(0), "lastTransitionTime": time(number + 2),
                "observedGeneration": 2},
            {"type": "PodScheduled", "status": "False", "reason": "R", "message": "m",
                "lastTransitionTime": time(number + 3)},
            {"type": "Untimed", "status": "Unknown"},
        ],
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-gpu"}, {"name": "unneeded"}],
        "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 3,
            "state": {"running": {}}}],
    });
    json!({"metadata": metadata, "spec": spec, "status": status})
}

fn parsed(pod: Value) -> v1::Pod {
    from_value(pod).unwrap()
}

#[test]
fn pod_that_is_given_back_has_everything_that_is_stored() {
    let pod = parsed(full(1));
    assert_eq!(Pod::from(pod.clone()).to_api(), pod);
    let mut more = full(1);
    more["metadata"]["generateName"] = json!("web-");
    more["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    more["spec"]["schedulerName"] = json!("x");
    more["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"weight": 1, "preference": {}}]);
    more["status"]["hostIP"] = json!("192.168.0.1");
    more["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = json!(time(5));
    assert_eq!(Pod::from(parsed(more)).to_api(), pod);
}

#[test]
fn pin_is_the_only_name_that_is_required_of_a_node() {
    let pinned = |affinity: Value| {
        let spec = json!({"containers": [], "affinity": {"nodeAffinity": affinity}});
        let pod = Pod::from(parsed(json!({"metadata": {}, "spec": spec})));
        let affinity = pod.to_api().spec.unwrap().affinity;
        (pod.pinned_to().map(str::to_owned), affinity.map(|affinity| serde_json::to_value(affinity).unwrap()))
    };
    let required = |term: Value| json!({REQUIRED: {"nodeSelectorTerms": [term]}});
    let named = |operator: &str, names: &[&str]| {
        required(json!({"matchFields": [{"key": NAME_FIELD, "operator": operator, "values": names}]}))
    };
    let pin = named("In", &["n1"]);
    let expected = (Some("n1".to_owned()), Some(json!({"nodeAffinity": pin})));
    assert_eq!(pinned(pin.clone()), expected);
    let mut preferring = pin;
    preferring["preferredDuringSchedulingIgnoredDuringExecution"] = json!([{"weight": 1, "preference": {}}]);
    assert_eq!(pinned(preferring), expected);
    let labelled = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
    for other in [named("In", &["n1", "n2"]), named("NotIn", &["n1"]), required(labelled), json!({})] {
        assert_eq!(pinned(other.clone()), (None, None), "{other}");
    }
}

#[test]
fn addresses_have_the_primary_one_first_wherever_it_stands() {
    let (v4, v6) = ("10.0.0.1", "fd00::1");
    for (primary, all, expected) in [
        (Some(v4), Some(&[v4, v6][..]), &[v4, v6][..]),
        (Some(v4), None, &[v4]),
        (Some(v4), Some(&[]), &[v4]),
        (Some(v4), Some(&[v6]), &[v4, v6]),
        (None, Some(&[v6]), &[v6]),
        (None, None, &[]),
    ] {
        let list = |all: &[&str]| all.iter().map(|ip| PodIP { ip: (*ip).to_owned() }).collect::<Vec<_>>();
        let (pod_ip, pod_ips) = (primary.map(str::to_owned), all.map(list));
        let status = Some(PodStatus { pod_ip, pod_ips, ..PodStatus::default() });
        let pod = Pod::from(v1::Pod { status, ..v1::Pod::default() });
        assert_eq!(pod.addresses().collect::<Vec<_>>(), expected);
        let status = pod.to_api().status.unwrap_or_default();
        assert_eq!(status.pod_ip.as_deref(), expected.first().copied());
        assert_eq!(status.pod_ips.unwrap_or_default(), list(expected));
    }
}

#[test]
fn pods_of_one_owner_share_specification_and_status() {
    let of_set = |name: &str, node: &str, ip: &str, second: i64| {
        let mut pod = running(name, node, ip);
        set_ready(&mut pod, true, second);
        pod.status.as_mut().unwrap().start_time = time(second);
        Pod::from(pod)
    };
    let (a, b) = (of_set("web-a", "n1", "10.0.1.1", 1), of_set("web-b", "n2", "10.0.2.1", 7));
    assert_eq!((a.node_name(), b.node_name()), ("n1", "n2"));
    assert_eq!((a.start_time(), b.start_time()), (Some(at(1)), Some(at(7))));
    let pinned = [1, 2].map(|number| Pod::from(parsed(full(number))));
    assert_eq!(pinned.each_ref().map(Pod::pinned_to), [Some("n1"), Some("n2")]);
    assert_eq!(pinned.each_ref().map(Pod::hostname), [Some("web-1"), Some("web-2")]);
    for (a, b) in [(&a, &b), (&pinned[0], &pinned[1])] {
        assert!(Arc::ptr_eq(&a.spec, &b.spec) && Arc::ptr_eq(&a.status, &b.status));
    }
    assert!(size_of::<Pod>() <= 256, "{} bytes", size_of::<Pod>());
}

#[test]
fn pod_without_specification_and_status_is_pending_and_not_ready() {
    let pod = Pod::from(v1::Pod::default());
    assert_eq!((pod.phase(), pod.node_name(), pod.pinned_to()), ("Pending", "", None));
    assert!(!pod.is_ready() && !pod.is_finished());
    assert_eq!((pod.hostname(), pod.start_time()), (None, None));
    assert_eq!((pod.addresses().count(), pod.conditions().count()), (0, 0));
    assert_eq!(pod.to_api().status, None);
    assert_eq!(pod, Pod::default());
}

#[test]
fn conditions_have_their_own_times() {
    let pod = Pod::from(parsed(full(7)));
    let times = pod.conditions().map(|(kind, condition)| (kind, condition.last_transition_time));
    let expected = [("Ready", Some(at(9))), ("PodScheduled", Some(at(10))), ("Untimed", None)];
    assert_eq!(times.collect::<Vec<_>>(), expected);
    let scheduled = pod.condition("PodScheduled").unwrap();
    assert_eq!((scheduled.status(), scheduled.reason(), scheduled.is_true()), ("False", Some("R"), false));
    assert_eq!(scheduled.last_transition_time, Some(at(10)));
    assert!(pod.is_ready() && pod.condition("Other").is_none());
}

#[test]
fn pods_are_the_same_without_the_fields_that_are_not_read() {
    let message = protobuf::message("core/v1.Pod").unwrap();
    let random = (0..400).map(|seed| Random::new(1 + seed, 1 + seed % 8).object(message, 6).into());
    for pod in random.chain([full(1)]) {
        let bytes = protobuf::encode(message, &pod).unwrap();
        let encoded = Encoded { api_version: "v1", kind: "Pod", message, bytes: &bytes };
        let read = |unread| {
            let pod: v1::Pod = encoded.read(Reading { unread, ..Reading::default() }).unwrap();
            Pod::from(pod)
        };
        assert_eq!(read(None), read(Pod::unread()));
    }
}
