//! Sets of fields, what objects mention, what changed, merging and removing: tables.

use serde_json::{Value, json};

use super::fixture::Toy;
use super::*;
use apiserver_schema::schema::shape::{Builtin, Untyped};

fn set(paths: Value) -> FieldSet {
    FieldSet::from_fields_v1(&paths).unwrap()
}

fn shown(set: &FieldSet) -> Vec<String> {
    set.paths().iter().map(|path| display(path)).collect()
}

#[test]
fn fields_v1_says_what_is_below_and_what_is_itself() {
    let text = r#"{"f:a":{},"f:b":{".":{},"f:c":{}},"f:d":{"k:{\"name\":\"x\",\"protocol\":\"TCP\"}":{".":{},"f:name":{}},"v:\"y\"":{}}}"#;
    let value: Value = serde_json::from_str(text).unwrap();
    let set = FieldSet::from_fields_v1(&value).unwrap();
    assert_eq!(
        shown(&set),
        [
            ".a",
            ".b",
            ".b.c",
            ".d[name=\"x\",protocol=\"TCP\"]",
            ".d[=\"y\"]",
            ".d[name=\"x\",protocol=\"TCP\"].name"
        ]
    );
    assert_eq!(set.to_fields_v1(), value);
    assert_eq!(set.len(), 6);
    assert_eq!(FieldSet::new().to_fields_v1(), json!({}));
    // Unknown element types are skipped; malformed elements are refused.
    assert_eq!(shown(&FieldSet::from_fields_v1(&json!({"x:later": {}, "f:a": {}})).unwrap()), [".a"]);
    for bad in [json!([]), json!({"a": {}}), json!({"f:a": 7}), json!({"k:7": {}})] {
        assert!(FieldSet::from_fields_v1(&bad).is_err(), "{bad}");
    }
}

#[test]
fn sets_are_united_intersected_and_told_apart() {
    let a = set(json!({"f:a": {}, "f:b": {".": {}, "f:c": {}}, "f:d": {"f:e": {}, "f:f": {}}}));
    let b = set(json!({"f:b": {}, "f:d": {"f:e": {}}, "f:z": {}}));
    assert_eq!(shown(&a.union(&b)), [".a", ".b", ".z", ".b.c", ".d.e", ".d.f"]);
    assert_eq!(shown(&a.intersection(&b)), [".b", ".d.e"]);
    assert_eq!(shown(&a.difference(&b)), [".a", ".b.c", ".d.f"]);
    assert_eq!(shown(&a.recursive_difference(&b)), [".a", ".d.f"]);
    assert_eq!(shown(&a.leaves()), [".a", ".b.c", ".d.e", ".d.f"]);
    assert!(a.difference(&a).is_empty() && a.intersection(&FieldSet::new()).is_empty());
    assert!(a.contains(&field_path(&["b", "c"])) && !b.contains(&field_path(&["b", "c"])));
    assert!(!a.contains(&[]));
}

#[test]
fn structs_on_the_way_become_members_and_maps_do_not() {
    let mentioned = set(json!({"f:spec": {"f:number": {}}, "f:map": {"f:x": {}},
        "f:items": {"k:{\"name\":\"a\",\"protocol\":\"TCP\"}": {"f:nested": {"f:number": {}}}}}));
    let named = mentioned.with_named_parents(Some(Toy::Root));
    let item = ".items[name=\"a\",protocol=\"TCP\"]";
    for path in [".spec", ".spec.number", ".map", ".map.x", ".items", &format!("{item}.nested")] {
        assert!(shown(&named).contains(&path.to_owned()), "{path}");
    }
    assert!(!shown(&named).contains(&item.to_owned()));
    let untyped = set(json!({"f:a": {"f:b": {}}}));
    assert_eq!(untyped.with_named_parents(Some(Untyped)), untyped);
}

#[test]
fn objects_mention_leaves_items_and_keys_of_maps() {
    let table: [(Value, &[&str]); 12] = [
        (json!({"text": "x", "flag": false}), &[".flag", ".text"]),
        (json!({"text": null}), &[".text"]),
        (json!({"spec": {"number": 1}}), &[".spec.number"]),
        (json!({"spec": {}}), &[".spec"]),
        (json!({"spec": null}), &[".spec"]),
        (json!({"map": {"a": "b"}}), &[".map.a"]),
        (json!({"atomicList": ["a"], "atomicMap": {"a": "b"}}), &[".atomicList", ".atomicMap"]),
        (json!({"tags": ["b", "a"]}), &[".tags[=\"a\"]", ".tags[=\"b\"]"]),
        (json!({"tags": []}), &[]),
        (
            json!({"items": [{"name": "a", "value": "x"}, {"name": "a", "protocol": "UDP"}]}),
            &[
                ".items[name=\"a\",protocol=\"TCP\"]",
                ".items[name=\"a\",protocol=\"UDP\"]",
                ".items[name=\"a\",protocol=\"TCP\"].name",
                ".items[name=\"a\",protocol=\"TCP\"].value",
                ".items[name=\"a\",protocol=\"UDP\"].name",
                ".items[name=\"a\",protocol=\"UDP\"].protocol",
            ],
        ),
        (json!({"any": {"a": {"b": 1}, "c": [1]}}), &[".any.a", ".any.c", ".any.a.b"]),
        (
            json!({"pairs": [{"a": "1"}, {"a": "1", "b": "2"}]}),
            &[
                ".pairs[a=\"1\"]",
                ".pairs[a=\"1\",b=\"2\"]",
                ".pairs[a=\"1\"].a",
                ".pairs[a=\"1\",b=\"2\"].a",
                ".pairs[a=\"1\",b=\"2\"].b",
            ],
        ),
    ];
    for (object, paths) in table {
        assert_eq!(shown(&field_set(Toy::Root, &object)), paths, "{object}");
    }
    // Items with the same key are owned as one.
    let twice = json!({"items": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]});
    assert_eq!(shown(&field_set(Toy::Root, &twice)), [".items[name=\"a\",protocol=\"TCP\"]"]);
}

#[test]
fn comparison_says_what_was_removed_modified_and_added() {
    let item = ".items[name=\"a\",protocol=\"TCP\"]";
    let nested = format!("{item}.nested");
    type Row<'a> = (Value, Value, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let table: [Row<'_>; 14] = [
        (json!({"text": "a"}), json!({"text": "b"}), &[], &[".text"], &[]),
        (json!({"number": 1}), json!({"number": 1.0}), &[], &[], &[]),
        (json!({"text": "a"}), json!({}), &[".text"], &[], &[]),
        (json!({}), json!({"spec": {"number": 1}}), &[], &[], &[".spec", ".spec.number"]),
        (json!({"spec": {"number": 1}}), json!({"spec": {}}), &[".spec.number"], &[], &[]),
        (json!({"map": {"a": "1"}}), json!({"map": {"a": "2", "b": "3"}}), &[], &[".map.a"], &[".map.b"]),
        (json!({"atomicMap": {"a": "1"}}), json!({"atomicMap": {"a": "2"}}), &[], &[".atomicMap"], &[]),
        (json!({"atomicList": ["1", "2"]}), json!({"atomicList": ["2", "1"]}), &[], &[".atomicList"], &[]),
        (
            json!({"tags": ["a", "b"]}),
            json!({"tags": ["b", "c"]}),
            &[".tags[=\"a\"]"],
            &[],
            &[".tags[=\"c\"]"],
        ),
        (json!({"tags": ["a", "b"]}), json!({"tags": ["b", "a"]}), &[], &[], &[]),
        (
            json!({"items": [{"name": "a", "value": "1"}]}),
            json!({"items": [{"name": "a", "value": "2", "nested": {}}]}),
            &[],
            &[&format!("{item}.value")],
            &[&nested],
        ),
        (json!({"map": {}}), json!({"map": null}), &[], &[".map"], &[]),
        (json!({"any": {"a": 1}}), json!({"any": [1]}), &[".any.a"], &[".any"], &[]),
        (json!({"any": 1}), json!({"any": {"a": 1}}), &[], &[".any"], &[".any.a"]),
    ];
    for (old, new, removed, modified, added) in table {
        let changes = compare(Toy::Root, &old, &new).unwrap();
        assert_eq!(shown(&changes.removed), removed, "{old} {new}");
        assert_eq!(shown(&changes.modified), modified, "{old} {new}");
        assert_eq!(shown(&changes.added), added, "{old} {new}");
    }
}

#[test]
fn items_that_occur_twice_change_as_one() {
    let list = |values: &[&str]| {
        let items: Vec<_> = values.iter().map(|value| json!({"name": "a", "value": value})).collect();
        json!({ "items": items })
    };
    let item = ".items[name=\"a\",protocol=\"TCP\"]";
    let changes = |old: &[&str], new: &[&str]| compare(Toy::Root, &list(old), &list(new)).unwrap();
    assert!(changes(&["1", "2"], &["1", "2"]).is_same());
    assert_eq!(shown(&changes(&["1", "2"], &["1", "3"]).modified), [item]);
    assert_eq!(shown(&changes(&["1", "2"], &[]).removed), [item]);
    let joined = changes(&["1", "2"], &["1"]);
    assert_eq!(shown(&joined.removed), [item]);
    assert_eq!(shown(&joined.added), [item.to_owned(), format!("{item}.name"), format!("{item}.value")]);
    let split = changes(&["1"], &["1", "2"]);
    assert_eq!(shown(&split.added), [item]);
    assert_eq!(shown(&split.removed), [item.to_owned(), format!("{item}.name"), format!("{item}.value")]);
}

#[test]
fn a_field_may_be_owned_in_parts_though_its_type_is_atomic() {
    let volume = Builtin::of("io.k8s.api.core.v1.PersistentVolume").unwrap();
    let claim = json!({"spec": {"claimRef": {"kind": "PersistentVolumeClaim", "name": "c"}}});
    let added = shown(&compare(volume, &json!({}), &claim).unwrap().added);
    assert_eq!(added, [".spec.claimRef", ".spec.claimRef.kind", ".spec.claimRef.name"]);
    let claim = Builtin::of("io.k8s.api.core.v1.PersistentVolumeClaim").unwrap();
    let copied = json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}}});
    let added = shown(&compare(claim, &json!({}), &copied).unwrap().added);
    assert_eq!(added, [".spec.dataSource"]);
}

#[test]
fn structs_held_by_value_are_neither_added_nor_removed() {
    let shape = Builtin::of("io.k8s.api.apps.v1.Deployment").unwrap();
    let object = json!({"spec": {"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": 1}},
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let added = shown(&compare(shape, &json!({}), &object).unwrap().added);
    let container = ".spec.template.spec.containers[name=\"c\"]";
    for path in [
        ".spec.replicas",
        ".spec.strategy.rollingUpdate",
        ".spec.strategy.rollingUpdate.maxSurge",
        container,
        &format!("{container}.name"),
        &format!("{container}.resources"),
    ] {
        assert!(added.contains(&path.to_owned()), "{path} {added:?}");
    }
    let template = ".spec.template.spec";
    for path in
        [".spec", ".status", ".spec.strategy", ".spec.template", template, &format!("{template}.containers")]
    {
        assert!(!added.contains(&path.to_owned()), "{path}");
    }
    assert!(compare(shape, &json!({"status": {}}), &json!({"spec": {}})).unwrap().is_same());
}

#[test]
fn configurations_win_where_they_say_something() {
    let table: [(Value, Value, Value); 15] = [
        (json!({"text": "a", "flag": true}), json!({"text": "b"}), json!({"text": "b", "flag": true})),
        (json!({"spec": {"number": 1}}), json!({"spec": {}}), json!({"spec": {"number": 1}})),
        (json!({"spec": {"number": 1}}), json!({"spec": null}), json!({"spec": {"number": 1}})),
        (json!({"number": 1}), json!({"number": null}), json!({"number": null})),
        (json!({}), json!({"map": {}}), json!({"map": {}})),
        (json!({"map": {"a": "1"}}), json!({"map": {"b": "2"}}), json!({"map": {"a": "1", "b": "2"}})),
        (
            json!({"atomicMap": {"a": "1"}}),
            json!({"atomicMap": {"b": "2"}}),
            json!({"atomicMap": {"b": "2"}}),
        ),
        (json!({"atomicList": ["a"]}), json!({"atomicList": []}), json!({"atomicList": []})),
        (json!({"tags": ["a", "b"]}), json!({"tags": []}), json!({"tags": ["a", "b"]})),
        (
            json!({"any": {"a": 1, "l": [1]}}),
            json!({"any": {"b": 2, "l": []}}),
            json!({"any": {"a": 1, "b": 2, "l": []}}),
        ),
        (json!({"any": 1}), json!({"any": {"b": 2}}), json!({"any": {"b": 2}})),
        (json!({"any": {"b": 2}}), json!({"any": "x"}), json!({"any": "x"})),
        (
            json!({"items": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]}),
            json!({"items": [{"name": "b", "protocol": "TCP", "tags": ["t"]}]}),
            json!({"items": [{"name": "a", "value": "1"},
                {"name": "b", "value": "2", "protocol": "TCP", "tags": ["t"]}]}),
        ),
        (
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"name": "a", "protocol": "UDP"}]}),
            json!({"items": [{"name": "a"}, {"name": "a", "protocol": "UDP"}]}),
        ),
        (
            json!({"pairs": [{"a": "1", "value": 1}]}),
            json!({"pairs": [{"a": "1", "b": "2"}, {"a": "1", "value": 3}]}),
            json!({"pairs": [{"a": "1", "b": "2"}, {"a": "1", "value": 3}]}),
        ),
    ];
    for (object, config, merged) in table {
        assert_eq!(merge(Toy::Root, &object, &config).unwrap(), merged, "{object} {config}");
    }
}

#[test]
fn merged_lists_keep_the_order_that_both_agree_on() {
    // Object, configuration, result: one letter an item.
    let table = [
        ("abc", "", "abc"),
        ("", "abc", "abc"),
        ("abc", "abc", "abc"),
        ("abc", "cba", "cba"),
        ("ab", "cd", "abcd"),
        ("abc", "d", "abcd"),
        ("abc", "bd", "abcd"),
        ("abc", "db", "adbc"),
        ("abcd", "db", "acdb"),
        ("abcd", "bxd", "abcxd"),
        ("ab", "bca", "bca"),
        ("axbycz", "cab", "xyczab"),
        ("aa", "a", "a"),
        ("aab", "b", "aab"),
        ("bab", "ba", "ba"),
    ];
    let letters = |text: &str| -> Vec<Value> { text.chars().map(|c| c.to_string().into()).collect() };
    for (object, config, expected) in table {
        let (object, config) = (json!({"tags": letters(object)}), json!({"tags": letters(config)}));
        let merged = merge(Toy::Root, &object, &config).unwrap();
        let text: String = merged["tags"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(text, expected, "{object} {config}");
    }
}

#[test]
fn items_named_twice_are_refused_in_configurations_alone() {
    let twice = json!({"items": [{"name": "a"}, {"name": "a"}]});
    let error = merge(Toy::Root, &json!({}), &twice).unwrap_err().to_string();
    assert_eq!(error, ".items: duplicate entries for key [name=\"a\",protocol=\"TCP\"]");
    let merged = merge(Toy::Root, &twice, &json!({"items": [{"name": "b"}]})).unwrap();
    assert_eq!(merged, json!({"items": [{"name": "a"}, {"name": "a"}, {"name": "b"}]}));
    let merged = merge(Toy::Root, &twice, &json!({"items": [{"name": "a", "value": "x"}]})).unwrap();
    assert_eq!(merged, json!({"items": [{"name": "a", "value": "x"}]}));
}

#[test]
fn removal_leaves_null_where_nothing_is_left() {
    let item = "k:{\"name\":\"a\",\"protocol\":\"TCP\"}";
    let table: [(Value, Value, Value); 6] = [
        (json!({"text": "a", "flag": true}), json!({"f:text": {}}), json!({"flag": true})),
        (json!({"map": {"a": "1", "b": "2"}}), json!({"f:map": {"f:a": {}}}), json!({"map": {"b": "2"}})),
        (json!({"map": {"a": "1"}}), json!({"f:map": {"f:a": {}}}), json!({"map": null})),
        (json!({"tags": ["a", "b"]}), json!({"f:tags": {"v:\"a\"": {}}}), json!({"tags": ["b"]})),
        (
            json!({"items": [{"name": "a", "value": "1"}, {"name": "b"}]}),
            json!({"f:items": {item: {"f:value": {}}}}),
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
        ),
        (json!({"atomicMap": {"a": "1"}}), json!({"f:atomicMap": {}}), Value::Null),
    ];
    for (object, fields, left) in table {
        assert_eq!(remove(Toy::Root, &object, &set(fields)), left, "{object}");
    }
}

#[test]
fn values_unfit_for_the_schema_are_named() {
    let table = [
        (json!({"frob": 1}), ".frob: field not declared in schema"),
        (json!({"number": "x"}), ".number: expected numeric (int or float), got string"),
        (json!({"text": 1}), ".text: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"flag": "yes"}), ".flag: expected boolean, got &{yes}"),
        (json!({"map": [1]}), ".map: expected map, got &{[1]}"),
        (json!({"tags": {"a": 1}}), ".tags: expected list, got &{map[a:1]}"),
        (
            json!({"items": [{"name": "a", "frob": 1}]}),
            ".items[name=\"a\",protocol=\"TCP\"].frob: field not declared in schema",
        ),
        (
            json!({"items": ["a"]}),
            ".items: element 0: associative list with keys may not have non-map elements",
        ),
        (
            json!({"items": [null]}),
            ".items: element 0: associative list with keys may not have a null element",
        ),
        (
            json!({"pairs": [{"value": 1}]}),
            ".pairs: element 0: associative list with keys has an element that omits all key fields [\"a\" \"b\"] (and doesn't have default values for any key fields)",
        ),
        (json!({"tags": ["a", "a"]}), ".tags: duplicate entries for key [=\"a\"]"),
        (
            json!({"tags": [{}]}),
            ".tags: element 0: associative list without keys has an element that's a map type",
        ),
        (
            json!({"text": 1, "number": "x"}),
            "errors:\n  .number: expected numeric (int or float), got string\n  .text: expected string, got &value.valueUnstructured{Value:1}",
        ),
    ];
    for (object, message) in table {
        assert_eq!(validate(Toy::Root, &object).unwrap_err().to_string(), message);
    }
    validate(Toy::Root, &json!({"text": null, "spec": null, "any": {"a": [{"b": 1}]}, "number": 1.5}))
        .unwrap();
}

#[test]
fn owners_of_parts_own_the_whole_when_a_type_becomes_atomic() {
    let parts = set(json!({"f:atomicMap": {"f:a": {}}, "f:atomicList": {"v:\"x\"": {}}, "f:text": {}}));
    assert_eq!(shown(&reconcile(&parts, Toy::Root).unwrap()), [".atomicList", ".atomicMap", ".text"]);
    let whole = set(
        json!({"f:atomicMap": {}, "f:map": {"f:a": {}}, "f:any": {"f:a": {"f:b": {}}}, "f:gone": {"f:x": {}}}),
    );
    assert_eq!(reconcile(&whole, Toy::Root), None);
}

#[test]
fn sets_of_many_items_are_made_and_joined_in_one_pass() {
    // In an order of its own; put in their places one by one they would move hundreds of gigabytes.
    const MANY: u64 = 200_000;
    let tags: Vec<String> = (0..MANY).map(|i| format!("{:06}", i * 7_919 % MANY)).collect();
    let (odd, even): (Vec<&String>, Vec<&String>) =
        tags.iter().partition(|tag| tag.ends_with(['1', '3', '5', '7', '9']));
    let whole = field_set(Toy::Root, &json!({"tags": tags}));
    let mut joined = field_set(Toy::Root, &json!({"tags": odd}));
    joined.absorb(field_set(Toy::Root, &json!({"tags": even})));
    assert_eq!(whole.len() as u64, MANY);
    assert_eq!(joined, whole);
    joined.absorb(whole.clone());
    assert_eq!(joined, whole);
}
