//! From `JSONSchemaProps` to a [`Structural`]. Whether the schema may be used is asked elsewhere;
//! here what makes no sense is left out.

use serde_json::{Map, Value};

use super::{Additional, Checks, Choices, Format, Kind, ListType, Pattern, Rule, Structural};

impl Structural {
    /// Reads a schema.
    pub fn compile(schema: &Value) -> Self {
        let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
        let flag = |key: &str| schema.get(key) == Some(&Value::Bool(true));
        let kind = Kind::parse(text("type"));
        let int_or_string = flag("x-kubernetes-int-or-string");
        Self {
            kind,
            nullable: flag("nullable"),
            default: schema.get("default").filter(|d| !d.is_null()).cloned(),
            items: schema.get("items").filter(|i| i.is_object()).map(|i| Box::new(Self::compile(i))),
            properties: object(schema, "properties")
                .map(|(name, property)| (name.clone(), Self::compile(property)))
                .collect(),
            additional: match schema.get("additionalProperties") {
                Some(Value::Bool(flag)) => Additional::Flag(*flag),
                Some(values @ Value::Object(_)) => Additional::Schema(Box::new(Self::compile(values))),
                _ => Additional::Unset,
            },
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string,
            list: match text("x-kubernetes-list-type") {
                "atomic" => ListType::Atomic,
                "set" => ListType::Set,
                "map" => ListType::Map,
                _ => ListType::Unspecified,
            },
            list_keys: texts(schema, "x-kubernetes-list-map-keys"),
            atomic_map: text("x-kubernetes-map-type") == "atomic",
            rules: list(schema, "x-kubernetes-validations").iter().map(rule).collect(),
            checks: checks(schema, kind.filter(|_| !int_or_string)),
        }
    }
}

fn rule(value: &Value) -> Rule {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Rule {
        rule: text("rule"),
        message: text("message"),
        message_expression: text("messageExpression"),
        reason: text("reason"),
        field_path: text("fieldPath"),
        optional_old_self: value.get("optionalOldSelf") == Some(&Value::Bool(true)),
    }
}

/// Keywords of which a schema that checks values has at least one.
const CHECKS: [&str; 18] = [
    "format",
    "maximum",
    "minimum",
    "multipleOf",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "maxProperties",
    "minProperties",
    "enum",
    "required",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "uniqueItems",
];

fn checks(schema: &Value, kind: Option<Kind>) -> Option<Box<Checks>> {
    if !CHECKS.iter().any(|key| schema.get(key).is_some()) {
        return None;
    }
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let count = |key: &str| schema.get(key).and_then(Value::as_u64);
    let flag = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    let text = |key: &str| schema.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
    let schemas = |key: &str| list(schema, key).iter().map(Structural::compile).collect();
    Some(Box::new(Checks {
        format: text("format").and_then(|format| Format::of(format, kind)),
        maximum: number("maximum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        minimum: number("minimum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        multiple_of: number("multipleOf"),
        max_length: count("maxLength"),
        min_length: count("minLength"),
        pattern: text("pattern").map(Pattern::new),
        max_items: count("maxItems"),
        min_items: count("minItems"),
        max_properties: count("maxProperties"),
        min_properties: count("minProperties"),
        choices: Choices::new(list(schema, "enum")),
        required: texts(schema, "required"),
        all_of: schemas("allOf"),
        any_of: schemas("anyOf"),
        one_of: schemas("oneOf"),
        not: schema.get("not").filter(|n| n.is_object()).map(|n| Box::new(Structural::compile(n))),
    }))
}

/// Iterates over the entries of an object under a key; over none if there is no object.
pub(super) fn object<'v>(schema: &'v Value, key: &str) -> serde_json::map::Iter<'v> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    schema.get(key).and_then(Value::as_object).unwrap_or(&NONE).iter()
}

/// Returns the items of a list under a key; none if there is no list.
pub(super) fn list<'v>(schema: &'v Value, key: &str) -> &'v [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts of a list under a key.
pub(super) fn texts(schema: &Value, key: &str) -> Vec<String> {
    list(schema, key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
