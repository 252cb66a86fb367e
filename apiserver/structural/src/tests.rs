//! Pruning, defaulting and validation, table by table.

use serde_json::{Value, json};

use super::*;

fn schema(value: Value) -> Structural {
    Structural::compile(&value)
}

/// `{type: object, properties: {spec: {type: object, properties: …}}}`
fn with_spec(properties: Value) -> Structural {
    schema(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}))
}

fn texts(errors: &[apiserver_schema::error::FieldError]) -> Vec<String> {
    errors.iter().map(|e| format!("{}: {} ({})", e.field, e.message, e.reason.as_str())).collect()
}

#[test]
fn unknown_fields_are_taken_out_and_named() {
    let schema = schema(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "integer"},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "string"}}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                 "properties": {"d": {"type": "object", "properties": {"e": {"type": "string"}}}}},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
    }}}}));
    let mut object = json!({
        "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "foo": 1}, "x": 1,
        "spec": {"a": 1, "y": 2, "map": {"k": {"b": "1", "z": 1}}, "list": [{"c": "1", "z": 1}, 7],
                 "free": {"any": {"thing": 1}, "d": {"e": "1", "z": 1}},
                 "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "z": 1}}});
    let unknown = schema.prune(&mut object);
    assert_eq!(unknown, ["spec.free.d.z", "spec.list[0].z", "spec.map.k.z", "spec.pod.z", "spec.y", "x"]);
    assert_eq!(object["spec"]["free"], json!({"any": {"thing": 1}, "d": {"e": "1"}}));
    assert_eq!(object["metadata"]["foo"], 1);
    assert!(schema.prune(&mut object).is_empty());
}

#[test]
fn defaults_fill_what_is_absent_and_null_counts_as_absent_unless_allowed() {
    let schema = with_spec(json!({
        "a": {"type": "integer", "default": 5},
        "b": {"type": "object", "default": {}, "properties": {"c": {"type": "string", "default": "x"}}},
        "n": {"type": "string", "nullable": true, "default": "d"},
        "p": {"type": "string"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "boolean", "default": true}}}},
        "map": {"type": "object", "additionalProperties": {"type": "integer", "default": 3}},
    }));
    let mut object =
        json!({"spec": {"a": null, "n": null, "p": null, "list": [{}], "map": {"k": null, "l": 1}}});
    schema.prune_nulls(&mut object);
    schema.apply_defaults(&mut object);
    let wanted =
        json!({"spec": {"a": 5, "b": {"c": "x"}, "n": null, "list": [{"e": true}], "map": {"k": 3, "l": 1}}});
    assert_eq!(object, wanted);
    // Nothing is made for a parent that is absent and has no default.
    let mut empty = json!({});
    schema.apply_defaults(&mut empty);
    assert_eq!(empty, json!({}));
}

/// A schema with a field of each sort.
fn one_of_each() -> Structural {
    with_spec(json!({
        "replicas": {"type": "integer", "minimum": 0, "maximum": 10},
        "size": {"type": "integer", "format": "int32"},
        "ratio": {"type": "number", "exclusiveMinimum": true, "minimum": 0, "multipleOf": 0.5},
        "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^a"},
        "color": {"type": "string", "enum": ["red", "green"]},
        "ip": {"type": "string", "format": "ipv4"},
        "port": {"x-kubernetes-int-or-string": true},
        "list": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
        "map": {"type": "object", "maxProperties": 1, "minProperties": 1, "additionalProperties": {"type": "integer"}},
        "obj": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}},
    }))
}

#[test]
fn errors_of_scalars_read_as_those_of_kubernetes() {
    let schema = one_of_each();
    let table = [
        (
            json!({"replicas": "x"}),
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"replicas": 1.5}),
            "spec.replicas: Invalid value: \"number\": spec.replicas in body must be of type integer: \"number\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"replicas": null}),
            "spec.replicas: Invalid value: \"null\": spec.replicas in body must be of type integer: \"null\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"replicas": 11}),
            "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10 (FieldValueInvalid)",
        ),
        (
            json!({"replicas": -1}),
            "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0 (FieldValueInvalid)",
        ),
        (
            json!({"ratio": -0.5}),
            "spec.ratio: Invalid value: -0.5: spec.ratio in body should be greater than 0 (FieldValueInvalid)",
        ),
        (
            // A whole number is compared with the whole part of the factor.
            json!({"ratio": 1}),
            "spec.ratio: Invalid value: 0: factor MultipleOf declared for spec.ratio must be positive: 0 (FieldValueInvalid)",
        ),
        (
            json!({"ratio": 0.7}),
            "spec.ratio: Invalid value: 0.7: spec.ratio in body should be a multiple of 0.5 (FieldValueInvalid)",
        ),
        (
            json!({"name": "a"}),
            "spec.name: Invalid value: \"a\": spec.name in body should be at least 2 chars long (FieldValueInvalid)",
        ),
        (json!({"name": "aaaaa"}), "spec.name: Too long: may not be more than 4 bytes (FieldValueTooLong)"),
        (
            json!({"name": "bb"}),
            "spec.name: Invalid value: \"bb\": spec.name in body should match '^a' (FieldValueInvalid)",
        ),
        (
            json!({"color": "blue"}),
            "spec.color: Unsupported value: \"blue\": supported values: \"red\", \"green\" (FieldValueNotSupported)",
        ),
        (
            json!({"ip": "x"}),
            "spec.ip: Invalid value: \"x\": spec.ip in body must be of type ipv4: \"x\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"port": true}),
            "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"size": 3_000_000_000i64}),
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.size (FieldValueInvalid)",
        ),
    ];
    for (spec, wanted) in table {
        assert_eq!(texts(&schema.validate(&json!({"spec": spec})))[0], wanted, "{spec}");
    }
}

#[test]
fn numbers_that_are_not_whole_are_refused_twice() {
    let twice = texts(&one_of_each().validate(&json!({"spec": {"replicas": 1.5}})));
    assert_eq!(
        twice[1..],
        [
            "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.replicas (FieldValueInvalid)"
        ]
    );
}

#[test]
fn errors_of_lists_and_maps_read_as_those_of_kubernetes() {
    let schema = one_of_each();
    let table = [
        (
            json!({"list": []}),
            "spec.list: Invalid value: 0: spec.list in body should have at least 1 items (FieldValueInvalid)",
        ),
        (
            json!({"list": ["a", "b", "c"]}),
            "spec.list: Too many: 3: must have at most 2 items (FieldValueTooMany)",
        ),
        (
            json!({"list": [1]}),
            "spec.list[0]: Invalid value: \"integer\": spec.list[0] in body must be of type string: \"integer\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"map": {"a": "x"}}),
            "spec.map.a: Invalid value: \"string\": spec.map.a in body must be of type integer: \"string\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"map": {"a": 1, "b": 2}}),
            "spec.map: Too many: 2: must have at most 1 item (FieldValueTooMany)",
        ),
        (
            json!({"map": {}}),
            "spec.map: Invalid value: 0: spec.map in body should have at least 1 properties (FieldValueInvalid)",
        ),
        (json!({"obj": {}}), "spec.obj.x: Required value (FieldValueRequired)"),
    ];
    for (spec, wanted) in table {
        assert_eq!(texts(&schema.validate(&json!({"spec": spec}))), [wanted], "{spec}");
    }
    let good = json!({"spec": {"replicas": 1.0, "ratio": 1.5, "name": "aé", "color": "red", "ip": "10.0.0.1",
        "port": "80%", "list": ["a"], "map": {"a": 1}, "obj": {"x": ""}}});
    assert_eq!(texts(&schema.validate(&good)), Vec::<String>::new());
}

#[test]
fn junctors_name_what_failed() {
    let schema = with_spec(json!({"a": {"type": "integer",
        "anyOf": [{"minimum": 10}, {"maximum": 3}], "allOf": [{"multipleOf": 2}], "not": {"enum": [2]}},
        "b": {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "string"}},
              "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}}));
    let table: [(Value, &[&str]); 6] = [
        (json!({"a": 12}), &[]),
        (
            json!({"a": 4}),
            &["must validate at least one schema (anyOf)", "should be greater than or equal to 10"],
        ),
        (
            json!({"a": 13}),
            &["should be a multiple of 2", "must validate all the schemas (allOf). None validated"],
        ),
        (json!({"a": 2}), &["must not validate the schema (not)"]),
        (
            json!({"b": {}}),
            &["must validate one and only one schema (oneOf). Found none valid", "Required value"],
        ),
        (
            json!({"b": {"x": "", "y": ""}}),
            &["must validate one and only one schema (oneOf). Found 2 valid alternatives"],
        ),
    ];
    for (spec, wanted) in table {
        let errors = texts(&schema.validate(&json!({"spec": spec})));
        assert_eq!(errors.len(), wanted.len(), "{spec}: {errors:?}");
        for part in wanted {
            assert!(errors.iter().any(|e| e.contains(part)), "{spec}: {part}: {errors:?}");
        }
    }
    let error = &schema.validate(&json!({"spec": {"a": 2}}))[0];
    assert_eq!(
        (error.field.as_str(), error.message.as_str()),
        ("<nil>", "Invalid value: \"\": \"spec.a\" must not validate the schema (not)")
    );
}

#[test]
fn faults_untouched_by_an_update_are_tolerated() {
    let schema = with_spec(json!({
        "a": {"type": "integer", "maximum": 3},
        "b": {"type": "string"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                 "items": {"type": "object", "required": ["k"],
                           "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 3}}}},
        "plain": {"type": "array", "items": {"type": "integer", "maximum": 3}},
    }));
    let old = json!({"spec": {"a": 9, "list": [{"k": "x", "v": 9}, {"k": "y", "v": 1}], "plain": [9]}});
    let table: [(Value, &[&str]); 5] = [
        (json!({"a": 9, "b": "new", "list": [{"k": "z"}, {"k": "x", "v": 9}], "plain": [9]}), &[]),
        (json!({"a": 8}), &["spec.a"]),
        (json!({"list": [{"k": "x", "v": 8}]}), &["spec.list[0].v"]),
        (json!({"list": [{"k": "new", "v": 9}]}), &["spec.list[0].v"]),
        (json!({"plain": [9, 1]}), &["spec.plain[0]"]),
    ];
    for (spec, wanted) in table {
        let errors = schema.validate_change(&json!({"spec": spec}), &old);
        let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(fields, wanted, "{spec}");
    }
}

#[test]
fn members_of_sets_and_keys_of_maps_differ() {
    let schema = with_spec(json!({
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
                "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
    }));
    let errors = schema.list_errors(&json!({"spec": {"set": ["x", "y", "x", "x"],
        "map": [{"a": "1", "b": 1, "c": 1}, {"a": "1", "b": 2}, {"b": 1, "a": "1"}]}}));
    assert_eq!(
        texts(&errors),
        [
            "spec.map[2]: Duplicate value: {\"a\":\"1\",\"b\":1} (FieldValueDuplicate)",
            "spec.set[2]: Duplicate value: \"x\" (FieldValueDuplicate)",
        ]
    );
    let wrong = schema.list_errors(&json!({"spec": {"map": [1, 2]}}));
    assert!(texts(&wrong)[0].contains("must be an object for an array of list-type map"));
}

#[test]
fn embedded_objects_have_a_type_and_good_metadata() {
    let schema = with_spec(json!({"pod": {"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true}}));
    let mut object = json!({"metadata": {"name": "n", "nonsense": 1},
        "spec": {"pod": {"apiVersion": "v1", "kind": "9", "metadata": {"name": "a/b", "extra": 1, "labels": {"-": "x"}}}}});
    assert_eq!(
        coerce(&schema, &mut object, true, false).unwrap(),
        ["metadata.nonsense", "spec.pod.metadata.extra"]
    );
    assert_eq!(object["spec"]["pod"]["metadata"].get("extra"), None);
    let errors = texts(&schema.embedded_errors(&object, false));
    assert!(errors[0].starts_with("spec.pod.kind: Invalid value: \"9\": may have mixed case"), "{errors:?}");
    assert!(
        errors[1].starts_with("spec.pod.metadata.name: Invalid value: \"a/b\": may not contain '/'"),
        "{errors:?}"
    );
    assert!(errors[2].starts_with("spec.pod.metadata.labels: "), "{errors:?}");
    let missing = texts(&schema.embedded_errors(&json!({"spec": {"pod": {}}}), false));
    assert_eq!(
        missing,
        [
            "spec.pod.apiVersion: Required value (FieldValueRequired)",
            "spec.pod.kind: Required value (FieldValueRequired)",
        ]
    );
    let mut wrong = json!({"metadata": {"labels": 7, "name": "n"}});
    assert!(
        coerce(&schema, &mut wrong.clone(), true, false).unwrap_err().contains("cannot unmarshal number")
    );
    coerce(&schema, &mut wrong, true, true).unwrap();
    assert_eq!(wrong, json!({"metadata": {"name": "n"}}));
}

#[test]
fn paths_are_read_against_the_schema() {
    let schema = with_spec(json!({"a": {"type": "string"},
        "m": {"type": "object", "additionalProperties": {"type": "string"}}}));
    let names = |text: &str, brackets| field_path(text, &schema, brackets).map(|(names, _)| names);
    assert_eq!(names(".spec.a", false).unwrap(), ["spec", "a"]);
    assert_eq!(names(".spec.m['x.y']", true).unwrap(), ["spec", "m", "x.y"]);
    for (text, fault) in [
        ("spec", "expected [ or . but got: spec"),
        (".spec.b", "does not refer to a valid field"),
        (".spec.m['x']", "array notation is not allowed"),
    ] {
        assert_eq!(names(text, false).unwrap_err(), fault);
    }
    assert_eq!(names(".spec.m[x]", true).unwrap_err(), "expected single quoted string but got x");
}

#[test]
fn items_of_long_lists_find_their_counterparts_at_once() {
    let schema = schema(json!({"type": "object", "properties": {"l": {"type": "array",
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "p"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 6},
            "p": {"type": "string", "default": "tcp"}, "n": {"type": "integer"}}}}}}));
    // Each is too long, and was before. One by one this would be ten thousand million comparisons.
    let item = |i: usize| json!({"k": format!("item-{i}"), "n": i});
    let old: Vec<Value> = (0..100_000).map(item).collect();
    let mut new: Vec<Value> = old.iter().rev().cloned().collect();
    let errors = |new: &[Value]| schema.validate_change(&json!({"l": new}), &json!({"l": old}));
    assert_eq!(errors(&new), []);
    new[7]["n"] = json!(-1);
    new[8]["p"] = json!("tcp");
    new[9]["p"] = json!("udp");
    // An absent key has its default; another key is another item.
    let found = errors(&new);
    assert_eq!(found.iter().map(|e| e.field.as_str()).collect::<Vec<_>>(), ["l[9].k"]);
}
