use apiserver_messages::random::Random;
use apiserver_messages::{Encoded, Reading};
use apiserver_schema::protobuf;
use serde_json::{Value, from_value, json};

use super::*;

fn parse(pod: Value) -> PodInfo {
    PodInfo::parse(from_value(pod).unwrap())
}

#[test]
fn pods_of_a_template_share_their_specification_whatever_their_nodes_and_volumes_are() {
    let pod = |name: &str, node: &str, claim: &str| {
        let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
        parse(json!({"metadata": {"name": name}, "spec": {
            "nodeName": node, "hostname": name, "serviceAccountName": "default",
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "token", "projected": {}}],
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}}))
    };
    let (a, b) = (pod("a", "n1", "data-a"), pod("b", "n2", "data-b"));
    assert!(Arc::ptr_eq(&a.spec, &b.spec));
    assert_eq!((a.node.as_deref(), a.pinned_to.as_deref()), (Some("n1"), Some("n1")));
    assert_eq!(a.spec.node_affinity, None, "the pin was all that was required of nodes");
    assert_eq!(a.volumes.len(), 1, "a projected volume is nothing to scheduling");
    assert_ne!(a.volumes, b.volumes);
}

#[test]
fn other_requirements_of_nodes_stay_when_the_pin_is_taken() {
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    let label = json!({"key": "disk", "operator": "Exists"});
    let pod = |terms: Value| {
        parse(json!({"metadata": {"name": "p"}, "spec": {"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}}))
    };
    let one = pod(json!([{"matchFields": [field], "matchExpressions": [label]}]));
    assert_eq!(one.pinned_to.as_deref(), Some("n1"));
    assert_eq!(one.spec.node_affinity.as_ref().unwrap().node_selector_terms.len(), 1);
    let two = pod(json!([{"matchFields": [field]}, {"matchExpressions": [label]}]));
    assert_eq!(two.pinned_to, None, "the other term allows other nodes");
    assert_eq!(two.spec.node_affinity.as_ref().unwrap().node_selector_terms.len(), 2);
}

#[test]
fn scores_count_defaults_for_containers_that_request_nothing() {
    let pod = parse(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}],
        "overhead": {"cpu": "10m"}}}));
    assert_eq!((pod.requests().cpu, pod.requests().memory), (1010, 0));
    assert_eq!(pod.scored(), Scored { cpu: 1110, memory: 400 << 20 });
}

#[test]
fn pods_are_the_same_without_the_fields_that_are_not_read() {
    let message = protobuf::message("core/v1.Pod").unwrap();
    let random = (0..400).map(|seed| {
        let mut pod = Value::Object(Random::new(1 + seed, 1 + seed % 8).object(message, 6));
        // A volume has one source.
        for volume in pod["spec"]["volumes"].as_array_mut().into_iter().flatten() {
            let mut sources = 0_u64..;
            volume
                .as_object_mut()
                .unwrap()
                .retain(|name, _| name == "name" || sources.next() == Some(seed / 8 % 8));
        }
        if seed % 3 == 0 {
            pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "r"},
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
        }
        pod
    });
    let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let resized = json!({"spec": {"containers": [{"name": "c", "resources": resources("1")}]},
        "status": {"containerStatuses": [{"name": "c", "resources": resources("2"), "allocatedResources": {"cpu": "2"}}]}});
    for pod in random.chain([resized]) {
        let bytes = protobuf::encode(message, &pod).unwrap();
        let encoded = Encoded { api_version: "v1", kind: "Pod", message, bytes: &bytes };
        let read = |unread| {
            let pod: v1::Pod = encoded.read(Reading { unread, ..Reading::default() }).unwrap();
            let pod = PodInfo::parse(pod);
            let both =
                (format!("{:?}", pod.metadata), pod.uid, pod.spec, pod.volumes, pod.resized, pod.claims);
            let texts = (pod.node, pod.pinned_to, pod.group, pod.nominated, pod.refusal);
            (both, texts, pod.is_finished, pod.is_preempted, pod.started)
        };
        let (all, some) = (read(None), read(PodInfo::unread()));
        assert!(all == some, "{all:?}\n{some:?}");
    }
}
