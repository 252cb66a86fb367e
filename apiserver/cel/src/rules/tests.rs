//! Tests of rules: validation, results on objects, and bounds.

use serde_json::{Value, json};

use super::*;
use crate::limits::CALL_COST;
use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_structural::Patterns;

fn schema(value: Value) -> Structural {
    Structural::compile(&value)
}

/// Returns the errors of the rules in a definition that has only this schema.
fn errors_of(schema: &Structural) -> Vec<FieldError> {
    rule_errors(schema, "s", &[], &mut Patterns::default())
}

fn with_rule(rule: Value) -> Structural {
    schema(
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule],
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"}, "ratio": {"type": "number"},
            "name": {"type": "string", "maxLength": 100}, "free": {"type": "string"},
            "a-b": {"type": "string", "maxLength": 10}, "while": {"type": "integer"}, "when": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "tags": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 20}},
            "loose": {"type": "array", "items": {"type": "string"}},
            "map": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "integer"}}}}}}),
    )
}

fn faults(rule: Value) -> Vec<String> {
    errors_of(&with_rule(rule)).iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

fn errors(rule: Value, spec: Value, old: Option<Value>) -> Vec<String> {
    let schema = with_rule(rule);
    let rules = Rules::compile(&schema).unwrap();
    let old = old.map(|spec| json!({"spec": spec}));
    let found = rules.errors(&schema, &json!({"spec": spec}), old.as_ref());
    let found = found.iter().filter(|error| error.reason != FieldReason::Tolerated);
    found.map(|e| format!("{}: {} ({})", e.field, e.message, e.reason.as_str())).collect()
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
        "self.tags.sortBy(t, t) == self.tags",
        "self.map.all(k, v, k != '' && v > 0)",
        "self.tags.exists(i, t, i > 0 && t == 'x')",
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
    let found = errors_of(&items);
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
        [
            "spec: Invalid value: \"object\": no such key: max evaluating rule: min is too large (FieldValueInvalid)"
        ]
    );
    let placed = json!({"rule": "self.min > 5", "reason": "FieldValueForbidden", "fieldPath": ".min",
        "messageExpression": "'min is ' + string(self.min)"});
    assert_eq!(
        errors(placed, json!({"min": 3}), None),
        ["spec.min: Forbidden: min is 3 (FieldValueForbidden)"]
    );
    for (rule, spec, holds) in [
        ("self.a__dash__b == 'x'", json!({"a-b": "x"}), true),
        ("self.while == 3 && self.__while__ == 3 && has(self.while)", json!({"while": 3}), true),
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
    // Existing faults that did not change are tolerated.
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
    assert!(errors_of(&schema).is_empty());
    let rules = Rules::compile(&schema).unwrap();
    let object =
        |n: &str| json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "a"}, "spec": {"n": n}});
    assert!(rules.errors(&schema, &object("a"), None).is_empty());
    assert_eq!(rules.errors(&schema, &object("b"), None)[0].field, "<nil>");
    let labels = Structural::compile(&json!({"type": "object",
        "x-kubernetes-validations": [{"rule": "self.metadata.labels.size() > 0"}]}));
    assert!(errors_of(&labels)[0].message.contains("undefined field 'labels'"));
}

/// A schema around one property `x` of the root, which has the rule.
fn judged(property: Value, rule: &str) -> Vec<String> {
    let mut property = property;
    property["x-kubernetes-validations"] = json!([{"rule": rule}]);
    let schema = schema(json!({"type": "object", "properties": {"x": property}}));
    errors_of(&schema).iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

#[test]
fn errors_name_the_rule_and_the_place_in_it() {
    let found = faults(json!({"rule": "self.min + self.name == 1", "message": "m"}));
    assert_eq!(
        found,
        ["s.properties[spec].x-kubernetes-validations[0].rule: Invalid value: \
          {\"Rule\":\"self.min + self.name == 1\",\"Message\":\"m\",\"MessageExpression\":\"\",\"Reason\":null,\
          \"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed: ERROR: <input>:1:10: found no \
          matching overload for '_+_' applied to '(int, string)'\n | self.min + self.name == 1\n | .........^"]
    );
    let found = faults(json!({"rule": "true", "messageExpression": "self.none"}));
    assert!(found[0].contains("messageExpression: Invalid value: ") && found.len() == 1, "{found:?}");
    assert!(
        found[0].contains("messageExpression compilation failed: ERROR: <input>:1:5: undefined field 'none'")
    );
    // The value of an int-or-string may be a bool for all that is known.
    assert!(faults(json!({"rule": "self.port"}))[0].ends_with("cel expression must evaluate to a bool"));
}

#[test]
fn every_rule_is_told_what_is_wrong_with_it() {
    let schema = schema(json!({"type": "object",
        "x-kubernetes-validations": [{"rule": "self.other == 1"}],
        "properties": {
            "a": {"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": [
                {"rule": ""}, {"rule": "self.n == 'x'"}, {"rule": "self.n", "messageExpression": "1"}]},
            "b": {"type": "integer", "x-kubernetes-validations": [{"rule": "self + 1"}, {"rule": "self.x == 1"}]}}}));
    let at = |others: &[FieldError]| -> Vec<String> {
        rule_errors(&schema, "s", others, &mut Patterns::default())
            .into_iter()
            .map(|error| error.field)
            .collect()
    };
    let all = [
        "s.x-kubernetes-validations[0].rule",
        "s.properties[a].x-kubernetes-validations[1].rule",
        "s.properties[a].x-kubernetes-validations[2].rule",
        "s.properties[b].x-kubernetes-validations[0].rule",
        "s.properties[b].x-kubernetes-validations[1].rule",
    ];
    assert_eq!(at(&[]), all);
    // An error in a part of the schema suppresses only the rules of it and around it.
    let empty =
        FieldError::required("s.properties[a].x-kubernetes-validations[0].rule", "rule is not specified");
    assert_eq!(at(&[empty]), all[3..]);
}

#[test]
fn schemas_have_the_types_that_kubernetes_gives_them() {
    for (property, rule) in [
        (json!({"type": "string", "format": "date"}), "self.getFullYear() > 2000"),
        (json!({"type": "string", "format": "date-time"}), "self > timestamp('2024-01-01T00:00:00Z')"),
        (json!({"type": "string", "format": "duration"}), "self.getSeconds() > 1"),
        (json!({"type": "string", "format": "byte", "maxLength": 9}), "self == b'abc' || self.size() < 3"),
        (json!({"type": "string", "enum": ["a", "b"]}), "self == 'a' || self.matches('^b')"),
        (json!({"type": "string", "nullable": true, "maxLength": 5}), "self.size() > 1"),
        (json!({"x-kubernetes-int-or-string": true}), "type(self) == int ? self > 1 : self == 'a'"),
        (json!({"type": "number"}), "self > 1 && self < 2.5"),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            "self.kind == 'K' && self.apiVersion.startsWith('v') && self.metadata.name != ''",
        ),
        (
            json!({"type": "object", "properties": {"a.b": {"type": "integer"}, "c-d": {"type": "integer"}, "e/f": {"type": "integer"},
            "for": {"type": "integer"}, "g__h": {"type": "integer"}, "namespace": {"type": "integer"}}}),
            "self.a__dot__b + self.c__dash__d + self.e__slash__f + self.__for__ + self.g__underscores__h + self.__namespace__ + self.for + self.namespace > 0",
        ),
        (
            json!({"type": "object", "maxProperties": 5, "additionalProperties": {"type": "object", "properties": {"n": {"type": "integer"}}}}),
            "self.all(k, v, k != '' && v.n > 0) && self.transformMap(k, v, v.n).size() > 0",
        ),
        (
            json!({"type": "array", "maxItems": 5, "items": {"type": "object", "properties": {"n": {"type": "string", "maxLength": 9}}}}),
            "self.sortBy(e, e.n) == self && self.map(e, e.n).size() < 9",
        ),
        (
            json!({"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}}),
            "self.join(',').size() < 9 && self.indexOf('a') < 3 && self.isSorted()",
        ),
    ] {
        assert_eq!(judged(property.clone(), rule), Vec::<String>::new(), "{property}");
    }
    // Nothing tells how long the texts of a list are that was made on the way.
    let texts = json!({"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}});
    let dear = judged(texts, "self.filter(e, e != '').join(',').size() < 9");
    assert!(dear[0].contains("exceeds budget by factor of more than 100x"), "{dear:?}");
}

#[test]
fn rule_on_an_undeclared_field_is_refused() {
    for (property, rule, wanted) in [
        (
            json!({"type": "integer"}),
            "uint(-1) == 1u || self > 1",
            "program instantiation failed: unsigned integer overflow",
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            "self.any == 1",
            "undefined field 'any'",
        ),
        (
            json!({"type": "object", "properties": {"p": {"x-kubernetes-preserve-unknown-fields": true}}}),
            "has(self.p)",
            "undefined field 'p'",
        ),
        (
            json!({"type": "object", "properties": {"p": {"type": "string"}}}),
            "self.metadata.name == ''",
            "undefined field 'metadata'",
        ),
        (
            json!({"type": "object", "properties": {"p": {"type": "string"}}}),
            "self.all(k, true)",
            "cannot be range of a comprehension",
        ),
        (
            json!({"type": "object", "properties": {"p": {"type": "string"}}}),
            "self['p'] == ''",
            "found no matching overload for '_[_]'",
        ),
        (
            json!({"type": "object", "properties": {"a-b": {"type": "string"}}}),
            "self.a - self.b == ''",
            "undefined field 'a'",
        ),
        (json!({"type": "string", "nullable": true}), "self == null", "'(string, null)'"),
        (json!({"type": "string", "format": "date-time"}), "self == 'x'", "'(timestamp, string)'"),
        (json!({"type": "string", "format": "byte"}), "self == 'x'", "'(bytes, string)'"),
    ] {
        let found = judged(property, rule);
        assert!(found.len() == 1 && found[0].contains(wanted), "{rule}: {found:?}");
    }
}

#[test]
fn costs_are_estimated_by_the_limits_of_a_schema() {
    let list = |most: u64, length: u64| json!({"type": "array", "maxItems": most, "items": {"type": "string", "maxLength": length}});
    // For each item three units of the loop, one for the variable, and two for a text of at most
    // 4 × 5 bytes at a tenth each.
    let rule = "self.all(x, x != 'abcdefghijklmnopqrstuvwxyz')";
    assert_eq!(judged(list(1_000_000, 5), rule), Vec::<String>::new());
    let found = judged(list(2_000_000, 5), rule);
    assert!(
        found[0].contains("Forbidden: estimated rule cost exceeds budget by factor of 1.200000x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"),
        "{found:?}"
    );
    let found = judged(list(10_000, 5), "self.all(x, self.all(y, x != y))");
    assert!(found[0].contains("exceeds budget by factor of 70.0x"), "{found:?}");
    let open = json!({"type": "array", "items": {"type": "string"}});
    assert!(judged(open.clone(), "self.all(x, x.contains('a'))")[0].contains("more than 100x"));
    assert!(judged(json!({"type": "string"}), "self.matches('^[a-z]+$')").is_empty());
    assert!(judged(open, "self.size() < 10").is_empty());
    // A rule of items counts once for each item that there may be.
    let items = |most: u64| {
        let schema = schema(
            json!({"type": "object", "properties": {"x": {"type": "array", "maxItems": most, "items":
            {"type": "string", "maxLength": 100, "x-kubernetes-validations": [{"rule": "self.matches('^a{1,9}$')"}]}}}}),
        );
        errors_of(&schema).len()
    };
    // 41 units for the text, by 2 for the pattern, and 1 for `self`.
    assert_eq!((items(120_481), items(120_482)), (0, 1));
    // A hundred rules may each be cheap enough and too much together.
    let rule = json!({"rule": "self.all(x, x != 'abcdefghijklmnopqrstuvwxyz')"});
    let property = |most: u64| {
        let mut list = list(most, 5);
        list["x-kubernetes-validations"] = json!([rule]);
        list
    };
    let properties: serde_json::Map<String, Value> =
        (0..20).map(|i| (format!("p{i}"), property(1_000_000))).collect();
    let found = errors_of(&schema(json!({"type": "object", "properties": properties})));
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found[4].message.contains(
        "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.200000x"
    ));
    assert!(found[0].message.contains("contributed to estimated rule cost total"));
}

#[test]
fn the_budget_of_an_object_is_that_of_all_its_rules() {
    // 1 unit each for `self`, its field and the `!`; 100 for each ten characters and one more.
    let rule = format!("!self.s.matches('{}')", "b".repeat(400));
    let schema =
        schema(json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object",
        "properties": {"s": {"type": "string"}}, "x-kubernetes-validations": [{"rule": rule}]}}}}));
    let rules = Rules::compile(&schema).unwrap();
    let errors = |items: usize, length: usize| {
        let items: Vec<Value> = (0..items).map(|_| json!({"s": "a".repeat(length)})).collect();
        let found = rules.errors(&schema, &json!({"l": items}), None);
        found.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect::<Vec<_>>()
    };
    // Ten of the longest texts that one evaluation may look through are what an object may have.
    let most = 99_989;
    assert_eq!((most as u64 + 1) / 10 * 100 + 3, CALL_COST - 97);
    assert_eq!(errors(10, most), Vec::<String>::new());
    assert_eq!(
        errors(11, most),
        [
            "l[10]: Invalid value: \"object\": validation failed due to running out of cost budget, no further validation \
          rules will be run"
        ]
    );
    let found = errors(2, most + 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(
        "l[0]: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation rules \
         will be run due to call cost exceeds limit for rule: !self.s.matches('bbb"
    ));
    assert!(found[0].ends_with(&rule));
}

#[test]
fn items_of_lists_are_told_apart_by_their_keys_and_else_not() {
    let rule = json!([{"rule": "self.n >= oldSelf.n", "message": "n may only grow"}]);
    let list = |kind: Value| {
        let mut list = json!({"type": "array", "maxItems": 9, "items": {"type": "object", "required": ["k"],
            "properties": {"k": {"type": "string"}, "n": {"type": "integer"}}, "x-kubernetes-validations": rule}});
        if let (Some(list), Some(kind)) = (list.as_object_mut(), kind.as_object()) {
            list.extend(kind.clone());
        }
        schema(json!({"type": "object", "properties": {"l": list}}))
    };
    let keyed = list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}));
    assert!(errors_of(&keyed).is_empty());
    for kind in
        [json!({}), json!({"x-kubernetes-list-type": "atomic"}), json!({"x-kubernetes-list-type": "set"})]
    {
        let found = errors_of(&list(kind));
        assert!(found[0].message.ends_with(
            "oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"
        ));
    }
    let rules = Rules::compile(&keyed).unwrap();
    let object = |items: &[(&str, i64)]| {
        let items: Vec<Value> = items.iter().map(|(k, n)| json!({"k": k, "n": n})).collect();
        json!({"l": items})
    };
    let errors = |new: &[(&str, i64)], old: &[(&str, i64)]| {
        let found = rules.errors(&keyed, &object(new), Some(&object(old)));
        found.into_iter().map(|error| error.field).collect::<Vec<_>>()
    };
    assert!(
        errors(&[("b", 2), ("a", 1), ("c", 0)], &[("a", 1), ("b", 2)]).is_empty(),
        "order is nothing, new items are free"
    );
    assert_eq!(errors(&[("b", 1), ("a", 0)], &[("a", 1), ("b", 2)]), ["l[0]", "l[1]"]);
    // An item that was wrong before and is left as it was is tolerated, its neighbour is not.
    let plain = json!([{"rule": "self.n > 5"}]);
    let mut tolerant = json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "integer"}},
        "x-kubernetes-validations": plain}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
    let judge = |list: &Value, new: &[(&str, i64)], old: &[(&str, i64)]| {
        let schema = schema(json!({"type": "object", "properties": {"l": list}}));
        let found = Rules::compile(&schema).unwrap().errors(&schema, &object(new), Some(&object(old)));
        let shown = |error: FieldError| match error.reason {
            FieldReason::Tolerated => format!("{} is tolerated", error.field),
            _ => error.field,
        };
        found.into_iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(
        judge(&tolerant, &[("z", 9), ("a", 1), ("b", 2)], &[("a", 1), ("b", 1)]),
        ["l[1] is tolerated", "l[2]"]
    );
    // Without keys the whole list decides.
    tolerant["x-kubernetes-list-type"] = json!("atomic");
    assert_eq!(judge(&tolerant, &[("a", 1), ("b", 2)], &[("a", 1), ("b", 1)]), ["l[0]", "l[1]"]);
    assert_eq!(judge(&tolerant, &[("a", 1)], &[("a", 1)]), ["l[0] is tolerated"]);
}

#[test]
fn a_rule_that_fails_is_called_by_its_message() {
    let named = json!({"rule": "self.min <= self.max", "message": " not in order "});
    assert_eq!(
        errors(named, json!({"min": 3}), None),
        [
            "spec: Invalid value: \"object\": no such key: max evaluating rule: not in order (FieldValueInvalid)"
        ]
    );
}

#[test]
fn a_message_has_no_more_than_the_rules_have() {
    let text = "a".repeat(200_000);
    let dear = json!({"rule": "self.min > 5", "message": "no",
        "messageExpression": "self.free.matches('^(a+)+b(a+)+b(a+)+b(a+)+b(a+)+b(a+)+b(a+)+b(a+)+b$') ? 'a' : self.free.replace('a', '') + 'x'"});
    assert_eq!(
        errors(dear.clone(), json!({"min": 1, "free": "a"}), None),
        ["spec: Invalid value: x (FieldValueInvalid)"]
    );
    let found = errors(dear, json!({"min": 1, "free": text.repeat(4)}), None);
    assert!(found[0].contains("call cost exceeds limit for messageExpression: \"self.free"), "{found:?}");
    // If the message expression fails, the message is used.
    for expression in ["self.free", "self.free + '\\n.'", "string(10 / (self.min - 1))"] {
        let rule = json!({"rule": "self.min > 5", "message": "no", "messageExpression": expression});
        let free = if expression == "self.free" { "a".repeat(5121) } else { "a".to_owned() };
        assert_eq!(
            errors(rule, json!({"min": 1, "free": free}), None),
            ["spec: Invalid value: no (FieldValueInvalid)"]
        );
    }
}

#[test]
fn an_evaluation_that_would_take_too_long_is_cut_off() {
    let rule = json!({"rule": "self.loose.all(x, self.loose.all(y, self.loose.all(z, x != y || y != z || x == z)))"});
    let many: Vec<String> = (0..300).map(|i| format!("item-{i}")).collect();
    let found = errors(rule, json!({"loose": many}), None);
    assert!(found[0].contains("call cost exceeds limit for rule"), "{found:?}");
}
