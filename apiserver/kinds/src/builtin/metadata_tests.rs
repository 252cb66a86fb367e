//! Metadata of every kind, and the bounds of an answer's errors.

use apiserver_schema::error::ApiError;
use apiserver_schema::validation::{Errors, metadata};
use serde_json::json;

use crate::core::config_map;
use crate::testing::{NONE, errors};

#[test]
fn metadata_of_a_config_map_refuses_events_as_owners_and_bare_finalizers() {
    let owned = json!({"metadata": {"name": "c", "finalizers": ["orphan", "foregroundDeletion", "bare"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"}]}});
    let found = errors("", "configmaps", &owned);
    assert!(found[0].ends_with("/v1, Kind=Event is disallowed from being an owner"), "{found:?}");
    assert!(found[1].ends_with("finalizer orphan and foregroundDeletion cannot be both set"), "{found:?}");
    assert_eq!(
        found[2],
        "metadata.finalizers[2]: Invalid value: \"bare\": name is neither a standard finalizer name nor is it fully qualified"
    );
}

#[test]
fn metadata_with_faults_is_refused() {
    let object = json!({"metadata": {
        "name": "Bad_Name", "namespace": "a.b",
        "labels": {"k": "v v", "/x": "y"},
        "annotations": {"UPPER.example.com/x": "fine", "bad key": "x"},
        "finalizers": ["ok.example.com/f", "two/slashes/here"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": true},
            {"apiVersion": "v1", "kind": "Pod", "name": "b", "controller": true}]}});
    let found = errors("", "configmaps", &object);
    let fields: Vec<&str> = found.iter().map(|e| e.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.namespace",
            "metadata.labels",
            "metadata.labels",
            "metadata.annotations",
            "metadata.ownerReferences.uid",
            "metadata.ownerReferences",
            "metadata.finalizers",
        ],
        "{found:#?}"
    );
    assert_eq!(
        errors("", "configmaps", &json!({"metadata": {}})),
        ["metadata.name: Required value: name or generateName is required"]
    );
    assert_eq!(errors("", "configmaps", &json!({"metadata": {"generateName": "a-"}})), NONE);
    let big = json!({"metadata": {"name": "a", "annotations": {"k": "x".repeat(300_000)}}});
    assert_eq!(
        errors("", "configmaps", &big),
        ["metadata.annotations: Too long: may not be more than 262144 bytes"]
    );
}

#[test]
fn an_invalid_object_is_answered_with_a_status_of_its_causes() {
    let object = json!({"metadata": {"name": "a"}, "data": {"bad/key": "x"}});
    let error = ApiError::invalid("", "ConfigMap", "a", &config_map::validate(&object));
    assert_eq!((error.code, error.reason), (422, "Invalid"));
    let details = error.details.unwrap();
    assert_eq!(details["causes"][0]["field"], "data[bad/key]");
    assert_eq!(details["causes"][0]["reason"], "FieldValueInvalid");
}

#[test]
fn immutable_metadata_refuses_changes() {
    let old = json!({"metadata": {"name": "a", "uid": "1", "generation": 3, "deletionTimestamp": "2024-01-01T00:00:00Z",
        "finalizers": ["a/b"]}});
    let new = json!({"metadata": {"name": "a", "uid": "2", "generation": 2, "deletionTimestamp": "2024-01-01T00:00:00Z",
        "finalizers": ["a/b", "c/d"]}});
    let fields: Vec<String> = metadata::validate_update(&new, &old).into_iter().map(|e| e.field).collect();
    assert_eq!(fields, ["metadata.uid", "metadata.finalizers", "metadata.generation"]);
    assert!(metadata::validate_update(&old, &old).is_empty());
}

#[test]
fn errors_above_the_bound_are_only_counted() {
    let many = |count: usize| {
        let mut errors = Errors::default();
        (0..count).for_each(|n| errors.required(format!("spec.f{n}"), ""));
        assert_eq!(errors.count(), count);
        errors.list()
    };
    let list = many(900_000);
    assert_eq!(list.len(), 1_001);
    let error = apiserver_schema::error::ApiError::invalid("", "Pod", "p", &list);
    assert!(error.message.ends_with(", and 899000 more]"));
    // Lists that are put together keep their counts, in whichever way that is done.
    let mut errors = Errors::of(many(5_000));
    errors.extend(many(3_000));
    assert_eq!(errors.count(), 8_000);
    for list in [errors.list(), [many(5_000), many(3_000)].concat()] {
        let error = apiserver_schema::error::ApiError::invalid("", "Pod", "p", &list);
        assert!(error.message.ends_with(", and 7000 more]"));
        assert_eq!(error.details.unwrap()["causes"].as_array().unwrap().len(), 1_000);
    }
}

#[test]
fn messages_above_the_bound_are_cut() {
    let mut errors = Errors::default();
    (0..900).for_each(|n| errors.required(format!("spec.f{n}"), &"é".repeat(50_000)));
    let list = errors.list();
    assert_eq!(list.len(), 900);
    assert!(list[0].message.len() > 100_000, "the first are whole");
    let bytes: usize = list.iter().map(|error| error.message.len()).sum();
    assert!(bytes < 3 << 20, "{bytes}");
}
