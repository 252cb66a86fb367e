//! Fields behind feature gates that are off, in every kind that has some.

use serde_json::{Value, json};

/// Returns the kind, the place of the fields, an object with them, and the object without them.
fn table() -> Vec<(&'static str, &'static str, &'static str, Value, Value)> {
    let sources = json!([{"clusterTrustBundle": {"path": "a"}}, {"podCertificate": {"signerName": "a"}}]);
    let pod = json!({
        "schedulingGroup": {"podGroupName": "g"},
        "volumes": [{"name": "a", "projected": {"sources": sources}}],
        "containers": [{"name": "a", "lifecycle": {"stopSignal": "SIGUSR1"}}],
        "initContainers": [{"name": "b", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {}}}],
    });
    let plain_pod = json!({
        "volumes": [{"name": "a", "projected": {"sources": [{}, {}]}}],
        "containers": [{"name": "a"}],
        "initContainers": [{"name": "b", "lifecycle": {"preStop": {}}}],
    });
    let group = json!({"name": "g", "schedulingConstraints": {}, "resourceClaims": [{"name": "a"}],
        "disruptionMode": "Pod", "priorityClassName": "a", "priority": 1});
    let device = |attribute: Value| json!({"name": "d", "attributes": {"a": attribute, "b": {"int": 1}}});
    let mut mapped = device(json!({"ints": [1], "strings": ["a"]}));
    mapped["nodeAllocatableResourceMappings"] = json!({"cpu": {}});
    let reference = json!({"kind": "K", "name": "n", "namespace": "other"});
    vec![
        ("", "pods", "/spec", pod.clone(), plain_pod.clone()),
        ("", "podtemplates", "/template/spec", pod.clone(), plain_pod.clone()),
        ("apps", "deployments", "/spec/template/spec", pod.clone(), plain_pod.clone()),
        ("apps", "statefulsets", "/spec/template/spec", pod.clone(), plain_pod.clone()),
        ("batch", "cronjobs", "/spec/jobTemplate/spec/template/spec", pod, plain_pod),
        (
            "apps",
            "statefulsets",
            "/spec",
            json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2, "partition": 0}}}),
            json!({"updateStrategy": {"rollingUpdate": {"partition": 0}}}),
        ),
        ("", "persistentvolumeclaims", "/spec", json!({"dataSourceRef": reference}), json!({})),
        ("storage.k8s.io", "csidrivers", "/spec", json!({"preventPodSchedulingIfMissing": false}), json!({})),
        ("", "nodes", "/spec", json!({"configSource": {}, "podCIDR": "c"}), json!({"podCIDR": "c"})),
        (
            "coordination.k8s.io",
            "leases",
            "/spec",
            json!({"holderIdentity": "h", "strategy": "S", "preferredHolder": "p"}),
            json!({"holderIdentity": "h"}),
        ),
        (
            "resource.k8s.io",
            "resourceslices",
            "/spec",
            json!({"devices": [mapped]}),
            json!({"devices": [device(json!({}))]}),
        ),
        ("scheduling.k8s.io", "podgroups", "/spec", group.clone(), json!({"name": "g"})),
        (
            "scheduling.k8s.io",
            "workloads",
            "/spec",
            json!({"podGroupTemplates": [group]}),
            json!({"podGroupTemplates": [{"name": "g"}]}),
        ),
    ]
}

/// Drops the fields of a kind whose gates are off.
fn drop_fields(group: &str, plural: &str, new: &mut Value, old: Option<&Value>) {
    if let Some(drop) = crate::table::kind(group, plural).drop_disabled {
        drop(new, old);
    }
}

fn at(pointer: &str, value: Value) -> Value {
    pointer[1..].rsplit('/').fold(value, |value, name| json!({name: value}))
}

#[test]
fn fields_of_gates_that_are_off_are_dropped_unless_the_object_uses_them() {
    for (group, plural, pointer, with, without) in table() {
        let mut new = at(pointer, with.clone());
        drop_fields(group, plural, &mut new, None);
        assert_eq!(new, at(pointer, without.clone()), "{plural}");
        let mut new = at(pointer, with.clone());
        drop_fields(group, plural, &mut new, Some(&at(pointer, without.clone())));
        assert_eq!(new, at(pointer, without), "{plural}");
        let mut new = at(pointer, with.clone());
        drop_fields(group, plural, &mut new, Some(&at(pointer, with.clone())));
        assert_eq!(new, at(pointer, with), "{plural}");
    }
}

#[test]
fn a_claim_keeps_a_source_of_its_own_namespace() {
    let claim = json!({"spec": {"dataSourceRef": {"kind": "K", "name": "n", "namespace": ""}}});
    let mut new = claim.clone();
    drop_fields("", "persistentvolumeclaims", &mut new, None);
    assert_eq!(new, claim);
}

#[test]
fn fields_of_statuses_are_dropped_in_the_same_way() {
    let drop = crate::table::kind("", "pods").drop_disabled_status.unwrap();
    let mount = json!({"name": "v", "volumeStatus": {"image": {}}});
    let status = json!({"containerStatuses": [{"volumeMounts": [mount]}],
        "nodeAllocatableResourceClaimStatuses": [{}]});
    let mut new = json!({"status": status});
    let with = new.clone();
    drop(&mut new, &json!({}));
    assert_eq!(new, json!({"status": {"containerStatuses": [{"volumeMounts": [{"name": "v"}]}]}}));
    let mut new = with.clone();
    drop(&mut new, &with);
    assert_eq!(new, with);
}
