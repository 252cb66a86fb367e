//! Rules: which are accepted, what they say of objects, and what bounds them.

use serde_json::{Value, json};

use super::*;

fn schema(value: Value) -> Structural {
    Structural::compile(&value)
}

fn with_rule(rule: Value) -> Structural {
    schema(
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule],
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"}, "ratio": {"type": "number"},
            "name": {"type": "string", "maxLength": 100}, "free": {"type": "string"},
            "a-b": {"type": "string", "maxLength": 10}, "when": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "tags": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 20}},
            "loose": {"type": "array", "items": {"type": "string"}},
            "map": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "integer"}}}}}}),
    )
}

fn faults(rule: Value) -> Vec<String> {
    rule_errors(&with_rule(rule), "s", &[]).iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

fn errors(rule: Value, spec: Value, old: Option<Value>) -> Vec<String> {
    let schema = with_rule(rule);
    let rules = Rules::compile(&schema).unwrap();
    let old = old.map(|spec| json!({"spec": spec}));
    let found = rules.errors(&schema, &json!({"spec": spec}), old.as_ref());
    found.iter().map(|e| format!("{}: {} ({})", e.field, e.message, e.reason.as_str())).collect()
}

#[test]
fn good_rules_are_accepted() {
    for rule in [
        "self.min <= self.max",
        "has(self.name) && self.name.startsWith('a')",
        "self.tags.all(t, t.size() < 5) || self.tags.exists(t, t == 'x')",
        "self.map.all(k, self.map[k] > 0)",
        "self.map.all(k, k.matches('^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$'))",
        "self.a__dash__b == 'x'",
        "self.name.matches('^[a-z]+$')",
        "self.when > timestamp('2024-01-01T00:00:00Z')",
        "self.port == 80 || self.port == 'http'",
        "sets.contains(self.tags, ['a'])",
        "self.ratio > 0.5 && self.ratio < 2",
        "oldSelf.min == self.min",
        "self.tags.map(t, t + '!').size() > 0",
        "quantity('1Gi').isGreaterThan(quantity('1Mi'))",
    ] {
        assert_eq!(faults(json!({"rule": rule})), Vec::<String>::new(), "{rule}");
    }
}

#[test]
fn bad_rules_are_refused_when_they_are_written() {
    let at = "s.properties[spec].x-kubernetes-validations[0]";
    for (rule, place, wanted) in [
        (json!({"rule": "self.min <"}), "rule", "compilation failed: "),
        (json!({"rule": "self.none > 1"}), "rule", "undefined field 'none'"),
        (json!({"rule": "other > 1"}), "rule", "undeclared reference to 'other' (in container '')"),
        (json!({"rule": "nothing(self.min)"}), "rule", "undeclared reference to 'nothing'"),
        (json!({"rule": "self.min"}), "rule", "cel expression must evaluate to a bool"),
        (
            json!({"rule": "self.min == 'x'"}),
            "rule",
            "found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (json!({"rule": "self.min.all(x, x > 1)"}), "rule", "cannot be range of a comprehension"),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            "optionalOldSelf",
            "may not be set if oldSelf is not used in rule",
        ),
        (
            json!({"rule": "true", "messageExpression": "1 + 1"}),
            "messageExpression",
            "messageExpression must evaluate to a string",
        ),
        (
            json!({"rule": "self.free.contains(self.free)"}),
            "rule",
            "Forbidden: estimated rule cost exceeds budget by factor of",
        ),
        (
            json!({"rule": "self.loose.all(x, self.loose.all(y, x == y))"}),
            "rule",
            "exceeds budget by factor of more than 100x",
        ),
        (json!({"rule": "(".repeat(500) + "true" + &")".repeat(500)}), "rule", "compilation failed"),
        (json!({"rule": vec!["1"; 2000].join("+") + " > 0"}), "rule", "expression is nested deeper"),
    ] {
        let found = faults(rule.clone());
        let hit = found.iter().any(|f| f.starts_with(&format!("{at}.{place}: ")) && f.contains(wanted));
        assert!(hit || wanted.contains("estimated rule cost") && found.is_empty(), "{rule}\n{found:#?}");
    }
    let items = schema(json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 3,
        "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}}));
    let found = rule_errors(&items, "s", &[]);
    assert!(found[0].message.contains(
        "oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"
    ));
}

#[test]
fn objects_are_judged_by_the_rules() {
    let rule = json!({"rule": "self.min <= self.max", "message": "min is too large"});
    assert_eq!(errors(rule.clone(), json!({"min": 1, "max": 2}), None), Vec::<String>::new());
    assert_eq!(
        errors(rule.clone(), json!({"min": 3, "max": 2}), None),
        ["spec: Invalid value: min is too large (FieldValueInvalid)"]
    );
    assert_eq!(
        errors(json!({"rule": "self.min > 5"}), json!({"min": 3}), None),
        ["spec: Invalid value: failed rule: self.min > 5 (FieldValueInvalid)"]
    );
    assert_eq!(
        errors(rule, json!({"min": 3}), None),
        ["spec: Invalid value: \"object\": no such key: max evaluating rule: self.min <= self.max (FieldValueInvalid)"]
    );
    let placed = json!({"rule": "self.min > 5", "reason": "FieldValueForbidden", "fieldPath": ".min",
        "messageExpression": "'min is ' + string(self.min)"});
    assert_eq!(
        errors(placed, json!({"min": 3}), None),
        ["spec.min: Forbidden: min is 3 (FieldValueForbidden)"]
    );
    for (rule, spec, holds) in [
        ("self.a__dash__b == 'x'", json!({"a-b": "x"}), true),
        ("self.when > timestamp('2024-01-01T00:00:00Z')", json!({"when": "2025-01-01T00:00:00Z"}), true),
        ("self.ratio > 0.5", json!({"ratio": 1}), true),
        ("self.port == 80 || self.port == 'http'", json!({"port": "http"}), true),
        ("type(self.port) == int ? int(self.port) < 100 : self.port == 'http'", json!({"port": 80}), true),
        ("type(self.port) == int ? int(self.port) < 100 : self.port == 'http'", json!({"port": "x"}), false),
        ("dyn(self.min) == 3", json!({"min": 3}), true),
        ("self.map.all(k, self.map[k] > 0)", json!({"map": {"a": 1, "b": 0}}), false),
        ("!has(self.name) || self.name != ''", json!({}), true),
        ("self.tags.exists(t, t.matches('^b+$'))", json!({"tags": ["a", "bb"]}), true),
    ] {
        assert_eq!(errors(json!({"rule": rule}), spec.clone(), None).is_empty(), holds, "{rule} {spec}");
    }
}

#[test]
fn rules_about_changes_see_what_was_there() {
    let rule = json!({"rule": "self.min >= oldSelf.min", "message": "min may only grow"});
    assert!(errors(rule.clone(), json!({"min": 1}), None).is_empty());
    assert!(errors(rule.clone(), json!({"min": 2}), Some(json!({"min": 1}))).is_empty());
    assert_eq!(
        errors(rule, json!({"min": 0}), Some(json!({"min": 1}))),
        ["spec: Invalid value: min may only grow (FieldValueInvalid)"]
    );
    let optional = json!({"rule": "!oldSelf.hasValue() ? self.min == 1 : oldSelf.value().min < self.min", "optionalOldSelf": true});
    assert!(errors(optional.clone(), json!({"min": 1}), None).is_empty());
    assert_eq!(errors(optional.clone(), json!({"min": 2}), None).len(), 1);
    assert!(errors(optional, json!({"min": 2}), Some(json!({"min": 1}))).is_empty());
    // What was wrong before and did not change is tolerated.
    let plain = json!({"rule": "self.min > 5"});
    assert!(errors(plain.clone(), json!({"min": 1}), Some(json!({"min": 1}))).is_empty());
    assert_eq!(errors(plain, json!({"min": 1, "max": 1}), Some(json!({"min": 1}))).len(), 1);
}

#[test]
fn the_root_has_a_type_and_names_and_nothing_else_of_its_metadata() {
    let schema = schema(
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "string", "maxLength": 9}}}},
        "x-kubernetes-validations": [{"rule": "self.metadata.name == self.spec.n && self.kind == 'K'"}]}),
    );
    assert!(rule_errors(&schema, "s", &[]).is_empty());
    let rules = Rules::compile(&schema).unwrap();
    let object =
        |n: &str| json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "a"}, "spec": {"n": n}});
    assert!(rules.errors(&schema, &object("a"), None).is_empty());
    assert_eq!(rules.errors(&schema, &object("b"), None)[0].field, "<nil>");
    let labels = super::super::Structural::compile(&json!({"type": "object",
        "x-kubernetes-validations": [{"rule": "self.metadata.labels.size() > 0"}]}));
    assert!(rule_errors(&labels, "s", &[])[0].message.contains("undefined field 'labels'"));
}

#[test]
fn an_evaluation_that_would_take_too_long_is_not_begun() {
    let rule = json!({"rule": "self.loose.all(x, self.loose.all(y, self.loose.all(z, x != y || y != z || x == z)))"});
    let many: Vec<String> = (0..300).map(|i| format!("item-{i}")).collect();
    let found = errors(rule, json!({"loose": many}), None);
    assert!(found[0].contains("call cost exceeds limit for rule"), "{found:?}");
}
