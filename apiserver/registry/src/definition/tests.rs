//! Tests of definitions: refusals, defaults, the status, and the served kinds.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::behaviour::Written;
use crate::custom_resources::{Dialect, operations, schemas};
use apiserver_schema::meta::condition_is_true;

const NOW: &str = "2024-01-01T00:00:00Z";

fn widgets() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com", "uid": "u"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"replicas": {"type": "integer", "default": 1},
                                                              "color": {"type": "string"}}},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer", "maximum": 5},
                                                                "selector": {"type": "string"}}}}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                                             {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
            }],
        },
    })
}

fn prepared(mut definition: Value) -> Value {
    default(&mut definition);
    prepare_create(&mut definition);
    definition
}

fn established(definition: Value) -> Value {
    let prepared = prepared(definition);
    reconcile(&prepared, &AcceptedNames::default(), NOW.parse().unwrap()).unwrap()
}

fn texts(errors: &[apiserver_schema::error::FieldError]) -> Vec<String> {
    errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

fn read(definition: &Value) -> Arc<Definition> {
    Arc::new(Definition::read(Arc::new(definition.to_string())).unwrap())
}

#[test]
fn names_and_conversion_are_filled_in_and_the_stored_version_is_noted() {
    let definition = prepared(widgets());
    assert_eq!(definition["spec"]["names"]["singular"], "widget");
    assert_eq!(definition["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(definition["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(texts(&validate(&definition)), Vec::<String>::new());
    let mut next = definition.clone();
    next["spec"]["versions"][0]["storage"] = false.into();
    let mut second = next["spec"]["versions"][0].clone();
    (second["name"], second["storage"]) = (json!("v2"), json!(true));
    next["spec"]["versions"].as_array_mut().unwrap().push(second);
    prepare_update(&mut next, &definition);
    assert_eq!(next["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn wrong_names_and_versions_are_refused_in_the_words_of_kubernetes() {
    refused(&[
        (
            "/metadata/name",
            json!("other"),
            "metadata.name: Invalid value: \"other\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "/spec/group",
            json!("nodots"),
            "spec.group: Invalid value: \"nodots\": should be a domain with at least one dot",
        ),
        ("/spec/group", json!(""), "spec.group: Required value"),
        (
            "/spec/scope",
            json!("Galaxy"),
            "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        ("/spec/scope", json!(null), "spec.scope: Required value"),
        (
            "/spec/names/plural",
            json!("Widgets"),
            "spec.names.plural: Invalid value: \"Widgets\": a DNS-1035 label must consist of",
        ),
        (
            "/spec/names/kind",
            json!("WidgetList"),
            "spec.names.listKind: Invalid value: \"WidgetList\": kind and listKind may not be the same",
        ),
        (
            "/spec/versions/0/storage",
            json!(false),
            "spec.versions: Invalid value: [\"v1\"]: must have exactly one version marked as storage version",
        ),
        (
            "/spec/versions/0/name",
            json!("1"),
            "spec.versions[0].name: Invalid value: \"1\": a DNS-1035 label must consist of",
        ),
        ("/spec/versions/0/schema", json!(null), "spec.versions[0].schema.openAPIV3Schema: Required value"),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/type",
            json!(null),
            "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/nullable",
            json!(true),
            "spec.validation.openAPIV3Schema.nullable: Forbidden: nullable cannot be true at the root",
        ),
    ]);
    let mut protected = widgets();
    protected["metadata"]["name"] = "widgets.x.k8s.io".into();
    protected["spec"]["group"] = "x.k8s.io".into();
    let found = texts(&validate(&prepared(protected)));
    assert!(
        found[0].starts_with(
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have"
        ),
        "{found:?}"
    );
}

#[test]
fn wrong_parts_of_versions_are_refused_in_the_words_of_kubernetes() {
    refused(&[
        (
            "/spec/versions/0/deprecationWarning",
            json!("x"),
            "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions",
        ),
        (
            "/spec/versions/0/subresources/scale/specReplicasPath",
            json!("spec"),
            "spec.subresources.scale.specReplicasPath: Invalid value: \"spec\": must be a simple json path starting with .",
        ),
        (
            "/spec/versions/0/subresources/scale/statusReplicasPath",
            json!(".spec.x"),
            "spec.subresources.scale.statusReplicasPath: Invalid value: \".spec.x\": should be a json path under .status",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns/0/type",
            json!("colour"),
            "spec.additionalPrinterColumns[0].type: Invalid value: \"colour\": must be one of boolean,date,integer,number,string",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns/0/jsonPath",
            json!("spec"),
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .",
        ),
        (
            "/spec/versions/0/selectableFields/0/jsonPath",
            json!(".spec"),
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or integer.",
        ),
        (
            "/spec/versions/0/selectableFields/0/jsonPath",
            json!(".spec.none"),
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook"}),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "http://a"}, "conversionReviewVersions": ["v9"]}}),
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        ),
        (
            "/spec/preserveUnknownFields",
            json!(true),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true",
        ),
        (
            "/metadata/generateName",
            json!("widgets"),
            "metadata.generateName: Invalid value: \"widgets\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "/spec/versions/0/name",
            json!("a/b"),
            "spec.version: Invalid value: \"a/b\": a DNS-1035 label must consist of",
        ),
    ]);
}

#[test]
fn conflicts_with_preserved_fields_and_repeats_are_refused() {
    let mut preserving = prepared(widgets());
    preserving["spec"]["preserveUnknownFields"] = true.into();
    preserving["spec"]["conversion"] = json!({"strategy": "Odd", "webhook": {"clientConfig": {}}});
    preserving["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"] =
        json!({"type": "string", "default": "b"});
    let found = texts(&validate(&preserving));
    for wanted in [
        "spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema",
        "spec.conversion.strategy: Invalid value: \"Odd\": must be None if spec.preserveUnknownFields is true",
        "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
    ] {
        assert!(found.iter().any(|text| text == wanted), "{wanted}: {found:#?}");
    }
    let mut twice = prepared(widgets());
    let version = twice["spec"]["versions"][0].clone();
    twice["spec"]["versions"].as_array_mut().unwrap().push(version);
    let told = "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v1";
    assert!(texts(&validate(&twice)).iter().any(|text| text == told));
}

/// Each value, put at its place of a good definition, is refused with the text.
fn refused(table: &[(&str, Value, &str)]) {
    for (pointer, value, wanted) in table {
        let mut definition = prepared(widgets());
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        definition.pointer_mut(parent).unwrap()[field] = value.clone();
        let found = texts(&validate(&definition));
        assert!(found.iter().any(|text| text.starts_with(wanted)), "{pointer}\n{wanted}\n{found:#?}");
    }
}

#[test]
fn names_and_scope_of_a_definition_are_immutable() {
    let old = established(widgets());
    for (pointer, value, wanted) in [
        ("/spec/scope", json!("Cluster"), "spec.scope: Invalid value: \"Cluster\": field is immutable"),
        (
            "/spec/names/kind",
            json!("Gadget"),
            "spec.names.kind: Invalid value: \"Gadget\": field is immutable",
        ),
        ("/spec/group", json!("other.com"), "spec.group: Invalid value: \"other.com\": field is immutable"),
        (
            "/spec/names/plural",
            json!("gadgets"),
            "spec.names.plural: Invalid value: \"gadgets\": field is immutable",
        ),
        (
            "/spec/versions/0/name",
            json!("v2"),
            "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2",
        ),
    ] {
        let mut new = old.clone();
        *new.pointer_mut(pointer).unwrap() = value;
        let found = texts(&validate_change(&new, &old, Written::Main));
        assert!(found.iter().any(|text| text == wanted), "{pointer}: {found:?}");
    }
    // A schema that was accepted once is not judged again.
    let mut before = old.clone();
    before["spec"]["versions"][0]["selectableFields"] = json!([]);
    before["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({});
    let mut after = before.clone();
    after["spec"]["names"]["shortNames"] = json!(["w"]);
    assert_eq!(texts(&validate_change(&after, &before, Written::Main)), Vec::<String>::new());
}

#[test]
fn names_that_are_taken_are_not_accepted() {
    let now = NOW.parse().unwrap();
    let first = established(widgets());
    assert!(condition_is_true(&first, "NamesAccepted") && condition_is_true(&first, "Established"));
    assert_eq!(first["status"]["acceptedNames"]["shortNames"], json!(["wd"]));
    assert_eq!(reconcile(&first, &AcceptedNames::default(), now), None);
    let mut taken = AcceptedNames::default();
    taken.add(&json!({"plural": "other", "shortNames": ["wd"], "kind": "Other", "listKind": "OtherList"}));
    let second = reconcile(&prepared(widgets()), &taken, now).unwrap();
    assert!(!condition_is_true(&second, "NamesAccepted") && !condition_is_true(&second, "Established"));
    let condition = &second["status"]["conditions"][0];
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("ShortNamesConflict"), &json!("\"wd\" is already in use"))
    );
    // An established kind stays so, without the name that it cannot have.
    let mut wish = first.clone();
    wish["spec"]["names"]["shortNames"] = json!(["wd", "taken"]);
    taken.add(&json!({"plural": "taken"}));
    let kept = reconcile(&wish, &taken, now).unwrap();
    assert!(condition_is_true(&kept, "Established") && !condition_is_true(&kept, "NamesAccepted"));
    assert_eq!(kept["status"]["acceptedNames"]["shortNames"], json!(["wd"]));
}

#[test]
fn a_definition_that_goes_waits_for_its_objects() {
    let mut definition = established(widgets());
    meta::set(&mut definition, "deletionTimestamp", NOW);
    prepare_delete(&mut definition, NOW.parse().unwrap());
    assert_eq!(meta::finalizers(&definition), [CLEANUP]);
    assert!(awaits_cleanup(&definition) && condition_is_true(&definition, "Terminating"));
    let served = read(&definition).resources();
    assert!(!served[0].verbs.contains(&crate::behaviour::Verb::Create));
}

#[test]
fn kinds_are_served_as_the_definition_says() {
    assert!(read(&prepared(widgets())).resources().is_empty());
    let definition = read(&established(widgets()));
    let served = definition.resources();
    let [widget] = served.as_slice() else { panic!("one version") };
    assert_eq!(widget.storage_prefix, "/registry/example.com/widgets");
    assert_eq!(
        (widget.schema.as_str(), widget.api_version().as_str()),
        ("com.example.v1.Widget", "example.com/v1")
    );
    assert_eq!(
        (widget.selectable.as_slice(), widget.short_names.as_slice()),
        (&["spec.color".to_owned()][..], &["wd".to_owned()][..])
    );
    let mut object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w",
        "creationTimestamp": "2023-12-31T00:00:00Z"}, "spec": {"color": "red"}, "status": {"replicas": 3}});
    (widget.behaviour.default)(&mut object);
    assert_eq!(object["spec"]["replicas"], 1);
    assert_eq!((widget.cells)(&object, NOW.parse().unwrap()), [json!("w"), json!("red"), json!("24h")]);
    assert!((widget.behaviour.validate)(&object).is_empty());
    let custom = widget.custom.as_ref().unwrap();
    assert_eq!(custom.scale_of(&object).unwrap()["status"], json!({"replicas": 3}));
    custom.set_replicas(&mut object, 7);
    assert_eq!(object["spec"]["replicas"], 7);
    let mut bad = object.clone();
    bad["status"]["replicas"] = 9.into();
    let change = widget.behaviour.validate_change.as_ref().unwrap();
    assert_eq!(
        texts(&change(&bad, &object, Written::Status)),
        ["status.replicas: Invalid value: 9: replicas in body should be less than or equal to 5"]
    );
    bad["spec"]["replicas"] = json!(-1);
    let found = texts(&(widget.behaviour.validate)(&bad));
    assert!(
        found.contains(&".spec.replicas: Invalid value: -1: should be a non-negative integer".to_owned()),
        "{found:?}"
    );
    (widget.behaviour.prepare_create)(&mut object);
    assert_eq!(object.get("status"), None);
}

#[test]
fn versions_are_preferred_by_stability_and_deprecated_ones_name_their_successor() {
    let mut names = vec!["v1beta1", "foo", "v1", "v2alpha1", "v10", "v2", "v1beta2"];
    names.sort_by(|a, b| version_order(a, b));
    assert_eq!(names, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "foo"]);
    let mut definition = widgets();
    let mut old = definition["spec"]["versions"][0].clone();
    (old["name"], old["storage"], old["deprecated"]) = (json!("v1beta1"), json!(false), json!(true));
    old["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] =
        json!({"type": "string", "default": "l"});
    definition["spec"]["versions"].as_array_mut().unwrap().push(old);
    let served = read(&established(definition)).resources();
    assert_eq!(served.iter().map(|r| r.version.as_str()).collect::<Vec<_>>(), ["v1", "v1beta1"]);
    let old = served[1].custom.as_ref().unwrap();
    assert_eq!(
        old.deprecation().unwrap(),
        "example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget"
    );
    assert_eq!(served[0].custom.as_ref().unwrap().deprecation(), None);
    // From storage to this version and back.
    let mut object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"gone": 1}});
    old.adopt(&mut object);
    assert_eq!(
        object,
        json!({"apiVersion": "example.com/v1beta1", "kind": "Widget",
        "metadata": {"name": "w", "generation": 1}, "spec": {"replicas": 1, "size": "l"}})
    );
    old.to_stored(&mut object);
    assert_eq!((&object["apiVersion"], &object["spec"]), (&json!("example.com/v1"), &json!({"replicas": 1})));
}

#[test]
fn openapi_describes_objects_lists_and_operations() {
    let served = read(&established(widgets())).resources();
    let (resource, custom) = (&served[0], served[0].custom.as_ref().unwrap());
    let schemas = schemas(custom, resource, Dialect::V3);
    assert_eq!(schemas[0].0, "com.example.v1.Widget");
    assert_eq!(schemas[0].1["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
    assert!(schemas[0].1["properties"]["metadata"]["allOf"].is_array());
    assert_eq!(
        schemas[1].1["properties"]["items"]["items"]["$ref"],
        "#/components/schemas/com.example.v1.Widget"
    );
    let paths = operations(resource, Dialect::V2);
    assert!(paths.contains_key("/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/scale"));
    assert_eq!(paths["/apis/example.com/v1/widgets"]["get"]["x-kubernetes-action"], "list");
}

#[test]
fn openapi_describes_objects_within_objects() {
    let mut definition = widgets();
    let template = json!({"type": "object", "x-kubernetes-embedded-resource": true, "required": ["spec", "kind"],
        "properties": {"spec": {"type": "object"}}});
    let open = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true});
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
        json!({"list": {"type": "array", "items": template}, "open": open});
    let served = read(&established(definition)).resources();
    let (resource, custom) = (&served[0], served[0].custom.as_ref().unwrap());
    let properties = |dialect| {
        let (_, schema) = schemas(custom, resource, dialect).swap_remove(0);
        schema["properties"]["spec"]["properties"].clone()
    };
    let v3 = properties(Dialect::V3);
    let item = &v3["list"]["items"];
    assert_eq!(item["required"], json!(["spec", "kind", "apiVersion"]));
    assert!(item["properties"]["metadata"]["allOf"][0]["$ref"].as_str().unwrap().ends_with(".ObjectMeta"));
    assert_eq!(item["properties"]["kind"]["type"], "string");
    assert!(v3["open"]["properties"]["metadata"].is_object());
    // Fields that are open in v2 stay open.
    let v2 = properties(Dialect::V2);
    assert!(v2["list"]["items"]["properties"]["metadata"]["$ref"].is_string());
    assert_eq!(v2["open"].get("properties"), None);
}

#[test]
fn formats_that_nothing_checks_are_warned_of() {
    let mut definition = widgets();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]
        ["format"] = "hue".into();
    assert_eq!(warnings(&definition, None), ["unrecognized format \"hue\""]);
    assert!(warnings(&definition, Some(&definition)).is_empty());
}

/// Hooks see anything that is in the store.
#[test]
fn nothing_panics_on_other_shapes() {
    for mut value in [
        json!({}),
        json!([]),
        json!({"spec": 7, "status": []}),
        json!({"spec": {"versions": [7], "names": []}}),
        json!({"metadata": {"name": 7}, "status": {"conditions": 7}, "spec": {"names": {"shortNames": [[]]}}}),
    ] {
        default(&mut value);
        let _ = (validate(&value), warnings(&value, None));
        let _ = validate_change(&value, &widgets(), Written::Main);
        if value.is_object() {
            let _ = reconcile(&value, &AcceptedNames::default(), NOW.parse().unwrap());
            prepare_delete(&mut value, NOW.parse().unwrap());
        }
        prepare_create(&mut value);
        prepare_update(&mut value, &json!({}));
        assert!(Definition::read(Arc::new(value.to_string())).is_none());
    }
}
