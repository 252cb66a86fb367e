//! Properties that hold for every schema and every value.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use apiserver_structural::Structural;

const NAMES: [&str; 4] = ["a", "b", "c", "metadata"];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..4).prop_map(Value::from),
        Just(json!(0.5)),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner, 0..4).prop_map(|map| {
                Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>())
            }),
        ]
    })
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string", "maxLength": 2, "pattern": "^a", "default": "ab"})),
        Just(json!({"type": "string", "nullable": true, "enum": ["a", "b"]})),
        Just(json!({"type": "integer", "minimum": -1, "default": 1})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "number", "multipleOf": 0.5})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        Just(json!({"type": "object", "x-kubernetes-embedded-resource": true,
                    "x-kubernetes-preserve-unknown-fields": true})),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let named = prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner.clone(), 0..4);
        prop_oneof![
            (named, any::<bool>()).prop_map(|(properties, preserve)| {
                let mut schema = json!({"type": "object", "properties": properties, "required": ["a"]});
                if preserve {
                    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                schema
            }),
            inner.clone().prop_map(|s| json!({"type": "object", "additionalProperties": s})),
            inner.prop_map(|s| json!({"type": "array", "x-kubernetes-list-type": "set", "items": s})),
        ]
    })
}

fn prepared(schema: &Structural, value: &Value) -> Value {
    let mut out = value.clone();
    schema.prune(&mut out);
    schema.prune_nulls(&mut out);
    schema.apply_defaults(&mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn preparing_twice_changes_nothing(schema in schema(), value in value()) {
        let schema = Structural::compile(&schema);
        let once = prepared(&schema, &value);
        prop_assert_eq!(&prepared(&schema, &once), &once);
        prop_assert!(schema.prune(&mut once.clone()).is_empty());
    }

    #[test]
    fn an_update_that_changes_nothing_is_never_refused(schema in schema(), value in value()) {
        let schema = Structural::compile(&schema);
        prop_assert!(schema.validate_change(&value, &value).is_empty());
        let errors = schema.validate(&value);
        let without_old = schema.validate_change(&value, &Value::Null);
        if !value.is_null() {
            prop_assert_eq!(errors, without_old);
        }
    }

    #[test]
    fn nothing_panics_on_schemas_of_any_shape(schema in value(), value in value()) {
        let _ = apiserver_structural::structural_errors(&schema, "s", &mut Default::default());
        let _ = apiserver_structural::schema_errors(&schema, "s");
        let compiled = Structural::compile(&schema);
        let _ = super::defaults::default_errors(&compiled, "s");
        let mut out = prepared(&compiled, &value);
        let _ = apiserver_structural::coerce(&compiled, &mut out, true, true);
        let _ = (compiled.validate(&out), compiled.list_errors(&out), compiled.embedded_errors(&out, true));
    }
}
