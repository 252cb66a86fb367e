use std::collections::{BTreeMap, BTreeSet};

use apiserver_registry::Verb;
use serde_json::json;

use crate::conversion::Conversion;
use crate::table;

#[test]
fn the_kinds_of_kubernetes_are_registered() {
    let registry = crate::registry();
    let wanted = [
        ("", "v1", "pods", "po", "/registry/pods"),
        ("", "v1", "services", "svc", "/registry/services/specs"),
        ("", "v1", "endpoints", "ep", "/registry/services/endpoints"),
        ("", "v1", "nodes", "no", "/registry/minions"),
        ("", "v1", "namespaces", "ns", "/registry/namespaces"),
        ("", "v1", "replicationcontrollers", "rc", "/registry/controllers"),
        ("apps", "v1", "deployments", "deploy", "/registry/deployments"),
        ("batch", "v1", "cronjobs", "cj", "/registry/cronjobs"),
        ("networking.k8s.io", "v1", "ingresses", "ing", "/registry/ingress"),
        ("autoscaling", "v2", "horizontalpodautoscalers", "hpa", "/registry/horizontalpodautoscalers"),
        ("storage.k8s.io", "v1", "storageclasses", "sc", "/registry/storageclasses"),
    ];
    for (group, version, plural, short, prefix) in wanted {
        let resource = registry.lookup(group, version, plural).unwrap_or_else(|| panic!("{plural}"));
        assert_eq!(resource.short_names, [short]);
        assert_eq!(resource.storage_prefix, prefix);
        assert!(resource.stored);
    }
    let leases = registry.lookup("coordination.k8s.io", "v1", "leases").unwrap();
    assert_eq!(leases.storage_prefix, "/registry/leases");
    assert_eq!(registry.by_kind("rbac.authorization.k8s.io/v1", "Role").unwrap().plural, "roles");
    assert!(registry.by_kind("v1", "Deployment").is_none());
}

#[test]
fn reviews_and_bindings_are_not_stored() {
    let registry = crate::registry();
    let unstored: BTreeSet<&str> = registry.iter().filter(|r| !r.stored).map(|r| r.plural.as_str()).collect();
    let expected = [
        "bindings",
        "componentstatuses",
        "localsubjectaccessreviews",
        "selfsubjectaccessreviews",
        "selfsubjectreviews",
        "selfsubjectrulesreviews",
        "subjectaccessreviews",
        "tokenreviews",
    ];
    assert_eq!(unstored, BTreeSet::from(expected));
    let review = registry.lookup("authorization.k8s.io", "v1", "subjectaccessreviews").unwrap();
    assert!((review.behaviour.validate)(&json!({"metadata": {}, "spec": {"user": "u"}})).is_empty());
    for resource in registry.iter().filter(|r| r.stored) {
        for verb in
            [Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete]
        {
            assert!(resource.verbs.contains(&verb), "{} {verb:?}", resource.plural);
        }
    }
}

#[test]
fn each_row_has_a_cell_for_each_column() {
    let registry = crate::registry();
    let now = "2024-01-01T00:00:00Z".parse().unwrap();
    for resource in registry.iter() {
        let row = (resource.cells)(&json!({}), now);
        assert_eq!(row.len(), resource.columns.len(), "{}", resource.plural);
        assert_eq!(resource.singular, resource.kind.to_lowercase());
    }
    assert!(registry.iter().count() >= 95);
}

#[test]
fn subresources_name_the_kind_that_they_carry() {
    let registry = crate::registry();
    let pods = registry.lookup("", "v1", "pods").unwrap();
    let find = |name: &str| pods.subresources.iter().find(|s| s.name == name).unwrap();
    assert_eq!((find("eviction").kind, find("eviction").group), ("Eviction", "policy"));
    assert_eq!(find("exec").verbs, [Verb::Create, Verb::Get]);
    assert_eq!((find("status").kind, find("log").kind), ("", ""));
    let deployments = registry.lookup("apps", "v1", "deployments").unwrap();
    let scale = deployments.subresources.iter().find(|s| s.name == "scale").unwrap();
    assert_eq!((scale.kind, scale.group, scale.version), ("Scale", "autoscaling", "v1"));
    assert!(deployments.behaviour.status_subresource && deployments.behaviour.generation);
    assert!(pods.behaviour.graceful_delete);
}

#[test]
fn versions_of_a_kind_share_a_prefix_and_one_is_stored() {
    let registry = crate::registry();
    let mut stored: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for resource in registry.iter().filter(|r| r.stored) {
        let versions = stored.entry(&resource.storage_prefix).or_default();
        if Conversion::of(&resource.group, &resource.version, &resource.plural).is_none() {
            versions.push(resource.api_version());
        }
    }
    for (prefix, versions) in &stored {
        assert_eq!(versions.len(), 1, "{prefix}: {versions:?}");
    }
    assert_eq!(stored["/registry/events"], ["v1"]);
    assert_eq!(stored["/registry/mutatingadmissionpolicies"], ["admissionregistration.k8s.io/v1beta1"]);
    assert_eq!(stored["/registry/apiregistration.k8s.io/apiservices"], ["apiregistration.k8s.io/v1"]);
    assert_eq!(
        stored["/registry/apiextensions.k8s.io/customresourcedefinitions"],
        ["apiextensions.k8s.io/v1"]
    );
}

#[test]
fn every_kind_has_a_schema_and_a_message() {
    for resource in crate::registry().iter() {
        let (version, kind) = (resource.api_version(), &resource.kind);
        assert!(apiserver_schema::schema::definition(&resource.schema).is_some(), "{}", resource.schema);
        assert!(apiserver_schema::protobuf::of_kind(&version, kind).is_some(), "{version} {kind}");
        if resource.verbs.contains(&Verb::List) {
            assert!(
                apiserver_schema::protobuf::of_kind(&version, &format!("{kind}List")).is_some(),
                "{version} {kind}"
            );
        }
    }
}

/// Hooks see anything that a client sends: none may panic, on any kind, on objects of the wrong shape.
#[test]
fn hooks_accept_any_json() {
    let shapes = [
        json!({}),
        json!({"metadata": {}, "spec": {}, "status": {}}),
        json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"template": {"spec": {"containers": [{}]}}}}),
        json!({"spec": {"containers": [{"ports": [{}], "env": [{}], "resources": {"limits": {"cpu": "x"}}}]}}),
        json!({"spec": {"ports": [{}], "type": "LoadBalancer", "rules": [{}], "limits": [{}]}}),
        json!({"spec": 7, "metadata": []}),
        json!([]),
    ];
    for resource in crate::registry().iter() {
        let behaviour = &resource.behaviour;
        for shape in &shapes {
            let mut object = shape.clone();
            (behaviour.default)(&mut object);
            let once = object.clone();
            (behaviour.default)(&mut object);
            assert_eq!(object, once, "{}: defaulting twice differs", resource.plural);
            (behaviour.prepare_create)(&mut object);
            let _ = (behaviour.validate)(&object);
            for old in &shapes {
                let mut new = object.clone();
                (behaviour.prepare_update)(&mut new, old);
                let _ = (behaviour.validate_update)(&new, old);
            }
            let _ = (resource.cells)(&object, "2024-01-01T00:00:00Z".parse().unwrap());
        }
    }
}

#[test]
fn kinds_that_can_be_read_and_entries_correspond() {
    let served: BTreeSet<(String, String)> = crate::registry()
        .iter()
        .filter(|resource| resource.verbs.contains(&Verb::Get))
        .map(|resource| (resource.group.clone(), resource.plural.clone()))
        .collect();
    let mut entries = BTreeSet::new();
    for kinds in table::GROUPS {
        for kind in *kinds {
            assert_eq!(kind.group, kinds[0].group, "{} is listed in another group", kind.plural);
            assert!(entries.insert((kind.group.to_owned(), kind.plural.to_owned())), "{} twice", kind.plural);
        }
    }
    assert_eq!(entries, served);
}

#[test]
fn versions_of_entries_are_served_and_converted() {
    let registry = crate::registry();
    for kind in table::GROUPS.iter().copied().flatten() {
        for version in kind.versions {
            let resource = registry.lookup(kind.group, version.name, kind.plural);
            assert!(resource.is_some(), "{}/{} {}", kind.group, version.name, kind.plural);
            let conversion = Conversion::of(kind.group, version.name, kind.plural);
            assert!(conversion.is_some() || version.shape.is_none(), "{} is stored as it is", kind.plural);
        }
    }
}
