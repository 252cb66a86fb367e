//! Tables of the amounts that objects use, and of the quotas that count them.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuotaSpec, Service};
use serde_json::{Value, from_value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
}

fn used(kind: &str, object: Object<'_>) -> String {
    shown(&usage(kind, object, true))
}

#[test]
fn resources_count_the_kinds_that_use_them() {
    for (kind, resource, expected) in [
        ("pods", "cpu", true),
        ("pods", "pods", true),
        ("pods", "count/pods", true),
        ("pods", "limits.ephemeral-storage", true),
        ("pods", "requests.hugepages-2Mi", true),
        ("pods", "hugepages-2Mi", true),
        ("pods", "limits.hugepages-2Mi", false),
        ("pods", "requests.nvidia.com/gpu", true),
        ("pods", "nvidia.com/gpu", false),
        ("pods", "requests.kubernetes.io/x", false),
        ("pods", "requests.deviceclass.resource.kubernetes.io/c", true),
        ("pods", "requests.storage", false),
        ("services", "services.nodeports", true),
        ("services", "count/services", true),
        ("services", "count/services.example.com", false),
        ("persistentvolumeclaims", "requests.storage", true),
        ("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", true),
        ("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/pods", false),
        (
            "persistentvolumeclaims",
            "a.storageclass.storage.k8s.io/b.storageclass.storage.k8s.io/requests.storage",
            true,
        ),
        ("persistentvolumeclaims", "storageclass.storage.k8s.io/requests.storage", false),
        ("secrets", "secrets", true),
        ("secrets", "count/secrets", true),
        ("widgets.example.com", "count/widgets.example.com", true),
        ("widgets.example.com", "widgets.example.com", false),
        ("events", "count/events", false),
        ("", "count/", false),
    ] {
        assert_eq!(counts(kind, resource), expected, "{kind} {resource}");
    }
    let named = ["count/deployments.apps", "secrets", "pods", "count/events", "count/"].map(by_name);
    assert_eq!(named, [Some("deployments.apps"), Some("secrets"), None, None, None]);
    assert_eq!([kind_name("", "pods"), kind_name("apps", "deployments")], ["pods", "deployments.apps"]);
}

#[test]
fn a_pod_uses_requests_and_limits_under_all_of_their_names() {
    let resources = json!({
        "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi",
            "nvidia.com/gpu": "2",
            "example.kubernetes.io/native": "1"},
        "limits": {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "2Gi", "hugepages-2Mi": "4Mi",
            "nvidia.com/gpu": "2"}});
    let pod =
        pod(json!({"containers": [{"name": "c", "resources": resources}], "overhead": {"cpu": "500m"}}));
    assert_eq!(
        used("pods", Object::Pod(&pod)),
        "count/pods=1,cpu=1500m,ephemeral-storage=1Gi,hugepages-2Mi=4Mi,limits.cpu=2500m,\
         limits.ephemeral-storage=2Gi,limits.memory=2Gi,memory=1Gi,pods=1,requests.cpu=1500m,\
         requests.ephemeral-storage=1Gi,requests.hugepages-2Mi=4Mi,requests.memory=1Gi,requests.nvidia.com/gpu=2"
    );
    assert_eq!(shown(&usage("pods", Object::Pod(&pod), false)), "count/pods=1");
}

#[test]
fn a_pod_counts_until_it_has_ended_or_its_time_to_end_is_over() {
    let pod = |phase: &str, deleted: bool| -> Pod {
        let mut pod = json!({"metadata": {}, "status": {"phase": phase}});
        if deleted {
            pod["metadata"] =
                json!({"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30});
        }
        from_value(pod).unwrap()
    };
    for (phase, deleted, now, expected) in [
        ("Running", false, "2026-01-01T00:00:00Z", true),
        ("Succeeded", false, "2026-01-01T00:00:00Z", false),
        ("Failed", false, "2026-01-01T00:00:00Z", false),
        ("Running", true, "2026-01-01T00:01:00Z", true),
        ("Running", true, "2026-01-01T00:01:01Z", false),
    ] {
        assert_eq!(
            is_counted(&pod(phase, deleted), now.parse().unwrap()),
            expected,
            "{phase} {deleted} {now}"
        );
    }
}

#[test]
fn a_service_uses_node_ports_by_what_it_wants() {
    let service = |spec: Value| from_value::<Service>(json!({"spec": spec})).unwrap();
    let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30001}]);
    for (spec, ports_used, balancers) in [
        (json!({"type": "ClusterIP", "ports": ports}), 0, 0),
        (json!({"type": "NodePort", "ports": ports}), 2, 0),
        (json!({"type": "LoadBalancer", "ports": ports}), 2, 1),
        (json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": true}), 2, 1),
        (json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}), 1, 1),
    ] {
        assert_eq!(
            used("services", Object::Service(&service(spec))),
            format!(
                "count/services=1,services=1,services.loadbalancers={balancers},services.nodeports={ports_used}"
            )
        );
    }
}

#[test]
fn a_claim_uses_whole_bytes_of_its_storage_class() {
    let claim = |value: Value| from_value::<PersistentVolumeClaim>(value).unwrap();
    let spec = json!({"storageClassName": "gold", "resources": {"requests": {"storage": "1.5"}}});
    assert_eq!(
        used("persistentvolumeclaims", Object::Claim(&claim(json!({"spec": spec})))),
        "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
         gold.storageclass.storage.k8s.io/requests.storage=2,persistentvolumeclaims=1,requests.storage=2"
    );
    let old = json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": ""}}, "spec": spec,
        "status": {"allocatedResources": {"storage": "5"}}});
    assert_eq!(
        used("persistentvolumeclaims", Object::Claim(&claim(old))),
        "count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=5"
    );
}

fn selector(scope: &str, operator: &str, values: &[&str]) -> Selector {
    let expression = json!({"scopeName": scope, "operator": operator, "values": values});
    let spec = json!({"scopeSelector": {"matchExpressions": [expression]}});
    selectors(&from_value::<ResourceQuotaSpec>(spec).unwrap()).remove(0)
}

#[test]
fn pods_are_in_scopes_by_deadline_quality_class_and_affinity() {
    let plain = json!({"containers": [{"name": "c"}]});
    let with = |field: &str, value: Value| {
        let mut spec = plain.clone();
        spec[field] = value;
        spec
    };
    let term = |more: Value| {
        let mut term = json!({"topologyKey": "k", "labelSelector": {}});
        term.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        term
    };
    let required = |more: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": [term(more)]});
    let preferred = |more: Value| {
        let weighted = json!({"weight": 1, "podAffinityTerm": term(more)});
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [weighted]})
    };
    let affinity = |kind: &str, terms: Value| with("affinity", json!({kind: terms}));
    let rows = [
        ("Terminating", "Exists", vec![], plain.clone(), false),
        ("NotTerminating", "Exists", vec![], plain.clone(), true),
        ("Terminating", "Exists", vec![], with("activeDeadlineSeconds", json!(0)), true),
        ("BestEffort", "Exists", vec![], plain.clone(), true),
        ("NotBestEffort", "Exists", vec![], with("resources", json!({"requests": {"cpu": "1"}})), true),
        ("PriorityClass", "Exists", vec![], plain.clone(), false),
        ("PriorityClass", "DoesNotExist", vec![], plain.clone(), true),
        ("PriorityClass", "NotIn", vec!["high"], plain.clone(), true),
        ("PriorityClass", "In", vec!["high"], with("priorityClassName", json!("high")), true),
        ("PriorityClass", "In", vec!["low"], with("priorityClassName", json!("high")), false),
        ("PriorityClass", "NotIn", vec!["high"], with("priorityClassName", json!("high")), false),
        ("VolumeAttributesClass", "DoesNotExist", vec![], plain.clone(), false),
        ("CrossNamespacePodAffinity", "Exists", vec![], affinity("podAffinity", required(json!({}))), false),
        (
            "CrossNamespacePodAffinity",
            "Exists",
            vec![],
            affinity("podAffinity", required(json!({"namespaces": ["a"]}))),
            true,
        ),
        (
            "CrossNamespacePodAffinity",
            "Exists",
            vec![],
            affinity("podAntiAffinity", preferred(json!({"namespaceSelector": {}}))),
            true,
        ),
        (
            "CrossNamespacePodAffinity",
            "Exists",
            vec![],
            affinity("podAntiAffinity", preferred(json!({"namespaces": []}))),
            false,
        ),
    ];
    for (scope, operator, values, spec, expected) in rows {
        let shown = format!("{scope} {operator} {values:?} {spec}");
        assert_eq!(selector(scope, operator, &values).matches(Object::Pod(&pod(spec))), expected, "{shown}");
    }
    assert!(!selector("Terminating", "Exists", &[]).matches(Object::Other));
}

#[test]
fn claims_are_in_scopes_by_all_of_their_attribute_classes() {
    let claim = |value: Value| from_value::<PersistentVolumeClaim>(value).unwrap();
    let changing = claim(json!({"spec": {"volumeAttributesClassName": "new"}, "status": {
        "currentVolumeAttributesClassName": "old",
        "modifyVolumeStatus": {"status": "InProgress", "targetVolumeAttributesClassName": "mid"}}}));
    let none = claim(json!({"spec": {}}));
    for (operator, values, of_changing, of_none) in [
        ("In", vec!["old"], true, false),
        ("In", vec!["mid"], true, false),
        ("In", vec!["other"], false, false),
        ("NotIn", vec!["new", "old"], true, true),
        ("NotIn", vec!["new", "old", "mid"], false, true),
        ("Exists", vec![], true, false),
        ("DoesNotExist", vec![], false, true),
    ] {
        let selector = selector("VolumeAttributesClass", operator, &values);
        let found = [&changing, &none].map(|claim| selector.matches(Object::Claim(claim)));
        assert_eq!(found, [of_changing, of_none], "{operator} {values:?}");
    }
}

#[test]
fn amounts_are_added_subtracted_and_compared_by_resource() {
    let of = |pairs: &[(&str, &str)]| -> Usage {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
    };
    let mut total = of(&[("a", "1"), ("b", "0")]);
    add(&mut total, &of(&[("b", "1Gi"), ("c", "5")]));
    assert_eq!(shown(&total), "a=1,b=1Gi,c=5");
    let rest = subtract_to_zero(
        &of(&[("a", "3"), ("b", "1"), ("c", "1")]),
        &of(&[("a", "1"), ("b", "2"), ("c", "1")]),
    );
    assert_eq!(shown(&rest), "a=2");
    let (asked, used, hard) =
        (of(&[("a", "1"), ("b", "1"), ("c", "9")]), of(&[("a", "1")]), of(&[("a", "1"), ("b", "1")]));
    assert_eq!(beyond(&asked, &used, &hard), ["a"]);
    assert_eq!(parsed(Some(&to_api(&total))), total);
}
