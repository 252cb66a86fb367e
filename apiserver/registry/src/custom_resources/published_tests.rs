//! The rules of Kubernetes' builder of OpenAPI, schema by schema.

use super::*;

/// The schema as v2 has it, without the fields that every object has.
fn v2(schema: Value) -> Value {
    let mut published = object(schema, Dialect::V2);
    let Some(properties) = published.get_mut("properties").and_then(Value::as_object_mut) else {
        return published;
    };
    for field in ["apiVersion", "kind", "metadata"] {
        assert!(properties.remove(field).is_some(), "{field}");
    }
    published
}

#[test]
fn schemas_expressible_in_v2_are_published_unchanged() {
    let spec = json!({"type": "object", "description": "d", "required": ["a"], "properties": {
        "a": {"type": "string", "enum": ["x", "y"], "pattern": "x|y"},
        "b": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}},
            "x-kubernetes-list-type": "atomic", "minItems": 0},
        "c": {"type": "object", "additionalProperties": true, "example": {"nullable": false}},
        "d": {"x-kubernetes-int-or-string": true}}});
    let schema = json!({"description": "Foo", "type": "object", "properties": {"spec": spec}});
    assert_eq!(v2(schema.clone()), schema);
}

#[test]
fn defaults_are_published_in_v3_alone() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "x"}, "default": {"type": "object", "default": {}}}});
    let plain =
        json!({"type": "object", "properties": {"a": {"type": "string"}, "default": {"type": "object"}}});
    assert_eq!(v2(schema.clone()), plain);
    let v3 = object(schema, Dialect::V3);
    assert_eq!(v3["properties"]["a"]["default"], "x");
}

/// Go's encoder leaves them out, other clients do not.
#[test]
fn flags_that_are_false_and_empty_texts_are_not_published() {
    let sent = json!({"type": "object", "description": "", "properties": {"a": {"type": "string", "format": "",
        "nullable": false, "uniqueItems": false, "exclusiveMinimum": false, "required": [],
        "x-kubernetes-embedded-resource": false, "x-kubernetes-int-or-string": false,
        "x-kubernetes-preserve-unknown-fields": false, "default": ""}}});
    let published = json!({"type": "object", "properties": {"a": {"type": "string", "default": ""}}});
    assert_eq!(object(sent, Dialect::V3)["properties"]["a"], published["properties"]["a"]);
}

#[test]
fn an_object_that_keeps_unknown_fields_is_no_more_than_an_object_in_v2() {
    let schema = json!({"description": "Foo", "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"spec": {"type": "object"}}});
    assert_eq!(v2(schema.clone()), json!({"type": "object"}));
    let v3 = object(schema, Dialect::V3);
    assert_eq!((&v3["description"], &v3["properties"]["spec"]), (&json!("Foo"), &json!({"type": "object"})));
    assert!(v3["properties"]["metadata"].is_object());
    assert_eq!(object(Value::Null, Dialect::V2), json!({"type": "object"}));
}

#[test]
fn schemas_beyond_v2_are_published_open() {
    let property =
        |schema: Value| v2(json!({"type": "object", "properties": {"a": schema}}))["properties"]["a"].clone();
    for (written, published) in [
        (
            json!({"type": "string", "nullable": true, "maxLength": 3, "description": "d"}),
            json!({"maxLength": 3, "description": "d"}),
        ),
        (json!({"type": "object", "nullable": true, "properties": {"b": {"type": "string"}}}), json!({})),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "description": "d",
                "properties": {"b": {"type": "string"}}, "required": ["b"]}),
            json!({"x-kubernetes-preserve-unknown-fields": true, "description": "d", "required": ["b"]}),
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        ),
        (
            json!({"type": "string", "anyOf": [{"minLength": 1}], "allOf": [{}], "oneOf": [{}], "not": {"enum": ["x"]}}),
            json!({"type": "string"}),
        ),
        (
            json!({"type": "object", "required": ["b", "c"], "properties":
                {"b": {"type": "string", "nullable": true}, "c": {"type": "string"}}}),
            json!({"type": "object", "required": ["c"], "properties": {"b": {}, "c": {"type": "string"}}}),
        ),
        (
            json!({"type": "object", "required": ["b"], "additionalProperties": {"type": "string", "nullable": true}}),
            json!({"type": "object", "additionalProperties": {}}),
        ),
    ] {
        assert_eq!(property(written.clone()), published, "{written}");
    }
}

#[test]
fn v3_says_what_numbers_or_texts_are() {
    let property = |schema: Value| {
        let whole = json!({"type": "object", "properties": {"a": schema}});
        object(whole, Dialect::V3)["properties"]["a"].clone()
    };
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let plain = json!({"x-kubernetes-int-or-string": true});
    assert_eq!(property(plain)["anyOf"], either);
    let said = json!({"x-kubernetes-int-or-string": true, "anyOf": either, "pattern": "x"});
    assert_eq!(property(said.clone()), said);
    let among_all =
        json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": either}, {"maxLength": 2}]});
    assert_eq!(property(among_all.clone()), among_all);
    let other = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"minimum": 1}, {"pattern": "x"}]});
    let found = property(other);
    assert_eq!((&found["allOf"], &found["anyOf"][0]), (&json!([{"anyOf": either}]), &json!({"minimum": 1})));
    let nullable = json!({"type": "string", "nullable": true});
    assert_eq!(property(nullable.clone()), nullable);
}
