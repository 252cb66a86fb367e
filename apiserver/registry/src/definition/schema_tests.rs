//! Tests of the schemas that are refused, and of the error texts.

use serde_json::{Value, json};

use super::defaults::default_errors;
use apiserver_structural::*;

fn faults(schema: &Value) -> Vec<String> {
    let mut errors = structural_errors(schema, "s", &mut Default::default());
    if errors.is_empty() {
        errors = default_errors(&Structural::compile(schema), "s");
    }
    errors.extend(schema_errors(schema, "s"));
    errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

fn root(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

#[test]
fn good_schemas_pass() {
    for schema in [
        json!({"type": "object"}),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        root(
            json!({"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}}}}),
        ),
        root(
            json!({"p": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}),
        ),
        root(json!({"p": {"x-kubernetes-int-or-string": true, "pattern": "^1",
            "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "2$"}]}})),
        root(json!({"a": {"type": "object", "properties": {"x": {"type": "string"}},
            "oneOf": [{"required": ["x"]}, {"properties": {"x": {"enum": ["a"]}}}]}})),
        root(
            json!({"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}),
        ),
        root(json!({"d": {"type": "object", "default": {"a": 1}, "properties": {"a": {"type": "integer"}}}})),
        root(json!({"e": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true,
            "default": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}}})),
        root(json!({"any": {"x-kubernetes-preserve-unknown-fields": true}})),
    ] {
        assert_eq!(faults(&schema), Vec::<String>::new(), "{schema}");
    }
}

#[test]
fn non_structural_schemas_are_refused_in_kubernetes_words() {
    let table = [
        (json!({}), "s.type: Required value: must not be empty at the root"),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            "s.type: Invalid value: \"array\": must be object at the root",
        ),
        (
            root(json!({"a": {}})),
            "s.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (root(json!({"a": {"type": "array"}})), "s.properties[a].items: Required value: must be specified"),
        (
            root(json!({"a": {"type": "array", "items": {}}})),
            "s.properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            "s.additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            root(json!({"a": {"type": "integer", "allOf": [{"type": "integer"}]}})),
            "s.properties[a].allOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"x": {"minimum": 1}}}]}),
            "s.properties[x]: Required value: because it is defined in s.anyOf[0].properties[x]",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "object"}},
            "not": {"properties": {"a": {"items": {"minimum": 1}}}}}),
            "s.properties[a].items: Required value: because it is defined in s.not.properties[a].items",
        ),
        (
            root(json!({"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}})),
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            root(json!({"kind": {"type": "integer"}})),
            "s.properties[kind].type: Invalid value: \"integer\": must be string",
        ),
        (
            root(json!({"e": {"type": "object", "x-kubernetes-embedded-resource": true}})),
            "s.properties[e].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ),
        (
            root(
                json!({"p": {"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}}),
            ),
            "s.properties[p].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
        (
            root(json!({"a": {"type": "object", "not": {"properties": {"metadata": {"minimum": 1}}},
            "properties": {"metadata": {"type": "object"}}}})),
            "s.properties[a].not.properties[metadata]: Forbidden: must not be specified in a nested context",
        ),
    ];
    for (schema, wanted) in table {
        assert!(faults(&schema).iter().any(|f| f == wanted), "{schema}\n{wanted}\n{:#?}", faults(&schema));
    }
    let pattern = faults(&root(json!({"a": {"type": "string", "pattern": "("}})));
    assert!(pattern[0].starts_with("s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: "));
}

#[test]
fn unsupported_parts_are_refused_in_the_words_of_kubernetes() {
    let table = [
        (
            root(json!({"a": {"type": "colour"}})),
            "s.properties[a].type: Unsupported value: \"colour\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            root(json!({"a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}})),
            "s.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            root(json!({"a": {"type": "object", "$ref": "#/x"}})),
            "s.properties[a].$ref: Forbidden: $ref is not supported",
        ),
        (
            root(
                json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}}),
            ),
            "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            root(
                json!({"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}}),
            ),
            "s.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata",
        ),
        (
            root(json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": false}})),
            "s.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
        (
            root(json!({"a": {"type": "string", "x-kubernetes-list-type": "set"}})),
            "s.properties[a].type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
        ),
        (
            root(json!({"a": {"type": "integer", "x-kubernetes-validations": [{"message": "m"}]}})),
            "s.properties[a].x-kubernetes-validations[0].rule: Required value: rule is not specified",
        ),
        (
            root(json!({"a": {"type": "object", "properties": {"b": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": "true", "fieldPath": ".c"}]}})),
            "s.properties[a].x-kubernetes-validations[0].fieldPath: Invalid value: \".c\": must be a valid path",
        ),
        (
            root(
                json!({"a": {"type": "integer", "x-kubernetes-validations": [{"rule": "true", "reason": "Odd"}]}}),
            ),
            "s.properties[a].x-kubernetes-validations[0].reason: Unsupported value: \"Odd\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            root(json!({"a": {"type": "integer", "x-kubernetes-validations": [{"rule": "true ||\nfalse"}]}})),
            "s.properties[a].x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks",
        ),
    ];
    for (schema, wanted) in table {
        assert!(faults(&schema).iter().any(|f| f == wanted), "{schema}\n{wanted}\n{:#?}", faults(&schema));
    }
}

#[test]
fn wrong_list_types_are_refused_in_the_words_of_kubernetes() {
    let list = |extra: Value| {
        let mut list = json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"},
            "o": {"type": "object"}}, "required": ["k"]}});
        for (key, value) in extra.as_object().unwrap() {
            list[key] = value.clone();
        }
        root(json!({"l": list}))
    };
    let table = [
        (
            list(json!({"x-kubernetes-list-type": "bag"})),
            "s.properties[l].x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"map\", \"set\"",
        ),
        (
            list(json!({"x-kubernetes-list-type": "set"})),
            "s.properties[l].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (
            list(json!({"x-kubernetes-list-type": "map"})),
            "s.properties[l].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            list(json!({"x-kubernetes-list-map-keys": ["k"]})),
            "s.properties[l].x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ),
        (
            list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["z"]})),
            "s.properties[l].x-kubernetes-list-map-keys: Invalid value: [\"z\"]: entries must all be names of item properties",
        ),
        (
            list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["o"]})),
            "s.properties[l].items.properties[o].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map",
        ),
    ];
    for (schema, wanted) in table {
        assert!(faults(&schema).iter().any(|f| f == wanted), "{schema}\n{wanted}\n{:#?}", faults(&schema));
    }
}

#[test]
fn defaults_must_fit() {
    let table = [
        (
            root(json!({"a": {"type": "integer", "default": "x"}})),
            "s.properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
        ),
        (
            root(
                json!({"a": {"type": "object", "default": {"b": 1}, "properties": {"c": {"type": "integer"}}}}),
            ),
            "s.properties[a].default: Invalid value: {\"b\":1}: must not have unknown fields",
        ),
        (
            root(
                json!({"a": {"type": "object", "default": {"c": "x"}, "properties": {"c": {"type": "integer"}}}}),
            ),
            "s.properties[a].default.c: Invalid value: \"string\": c in body must be of type integer: \"string\"",
        ),
    ];
    for (schema, wanted) in table {
        assert!(faults(&schema).iter().any(|f| f == wanted), "{schema}\n{wanted}\n{:#?}", faults(&schema));
    }
    let embedded = faults(&root(json!({"e": {"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "a/b"}}}}}})));
    assert!(
        embedded[0].contains("must result in valid metadata: metadata.name: Invalid value: \"a/b\""),
        "{embedded:?}"
    );
}
