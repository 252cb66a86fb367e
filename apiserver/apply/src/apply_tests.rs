//! Tests of apply: the owners afterwards, removals, and conflicts.

use serde_json::{Value, json};

use super::fixture::{Toy, World};
use super::*;

const NONE: Vec<String> = Vec::new();

#[test]
fn an_object_is_made_and_its_fields_are_the_appliers() {
    let mut world = World::new();
    world.apply(
        "a",
        json!({"metadata": {"name": "o", "labels": {"l": "1"}}, "text": "x", "items": [{"name": "i"}]}),
    );
    assert_eq!(world.body(), json!({"text": "x", "items": [{"name": "i"}]}));
    assert_eq!(
        world.owns("a Apply"),
        [
            ".text",
            ".items[name=\"i\",protocol=\"TCP\"]",
            ".items[name=\"i\",protocol=\"TCP\"].name",
            ".metadata.labels.l",
        ]
    );
    assert_eq!(world.owners().len(), 1);
    assert_eq!(world.time("a"), Some(1));
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let mut world = World::new();
    let config =
        json!({"text": "x", "map": {"a": "1"}, "tags": ["t"], "items": [{"name": "i", "nested": {}}]});
    world.apply("a", config.clone());
    let before = world.object.clone();
    world.apply("a", config.clone());
    assert_eq!(world.object, before);
    // Another manager that applies the same value becomes an owner too, at once.
    world.apply("b", config);
    assert_eq!(world.owns("a Apply"), world.owns("b Apply"));
    assert_eq!((world.time("a"), world.time("b")), (Some(1), None));
}

#[test]
fn field_left_out_of_the_next_apply_is_removed() {
    let table: [(Value, Value, Value); 11] = [
        (json!({"text": "x", "flag": true}), json!({"flag": true}), json!({"flag": true})),
        (json!({"map": {"a": "1", "b": "2"}}), json!({"map": {"b": "2"}}), json!({"map": {"b": "2"}})),
        (json!({"spec": {"number": 1}}), json!({}), json!({})),
        (
            json!({"spec": {"number": 1}, "text": "x"}),
            json!({"spec": {}, "text": "x"}),
            json!({"spec": {}, "text": "x"}),
        ),
        (json!({"tags": ["a", "b"]}), json!({"tags": ["b"]}), json!({"tags": ["b"]})),
        (
            json!({"items": [{"name": "a", "value": "1"}, {"name": "b"}]}),
            json!({"items": [{"name": "b"}]}),
            json!({"items": [{"name": "b"}]}),
        ),
        (
            json!({"items": [{"name": "a", "value": "1"}]}),
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"name": "a"}]}),
        ),
        (
            json!({"items": [{"name": "a", "nested": {"number": 1, "items": [{"name": "n"}]}}]}),
            json!({"items": [{"name": "a", "nested": {"number": 1}}]}),
            json!({"items": [{"name": "a", "nested": {"number": 1, "items": null}}]}),
        ),
        (json!({"atomicList": ["a", "b"]}), json!({"atomicList": ["b"]}), json!({"atomicList": ["b"]})),
        (json!({"any": {"a": {"b": 1}, "c": 1}}), json!({"any": {"c": 1}}), json!({"any": {"c": 1}})),
        (
            json!({"pairs": [{"a": "1"}, {"a": "1", "b": "1"}]}),
            json!({"pairs": [{"a": "1"}]}),
            json!({"pairs": [{"a": "1"}]}),
        ),
    ];
    for (first, second, left) in table {
        let mut world = World::new();
        world.apply("a", first.clone()).apply("a", second.clone());
        let mut body = world.body();
        strip_nulls(&mut body);
        let mut left = left;
        strip_nulls(&mut left);
        assert_eq!(body, left, "{first} {second}");
    }
}

/// Kinds with Go types lose nulls when they are stored.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

#[test]
fn field_of_another_manager_is_kept() {
    let mut world = World::new();
    world
        .apply("a", json!({"text": "x", "items": [{"name": "i", "value": "v"}], "tags": ["t", "u"]}))
        .apply("b", json!({"text": "x", "items": [{"name": "i", "tags": ["q"]}], "tags": ["t"]}))
        .apply("a", json!({}));
    assert_eq!(world.body(), json!({"text": "x", "items": [{"name": "i", "tags": ["q"]}], "tags": ["t"]}));
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["b Apply"]);
    // Fields and items of a manager that updates stay as well.
    let mut world = World::new();
    world.apply("a", json!({"items": [{"name": "i", "value": "v"}], "map": {"k": "1"}}));
    world.update(
        "c",
        json!({"metadata": world.object.as_ref().unwrap()["metadata"],
        "items": [{"name": "i", "value": "v", "tags": ["q"]}, {"name": "j"}], "map": {"k": "1", "l": "2"}}),
    );
    world.apply("a", json!({"items": [{"name": "i"}]}));
    assert_eq!(
        world.body(),
        json!({"items": [{"name": "i", "tags": ["q"]}, {"name": "j"}], "map": {"l": "2"}})
    );
    // An item is removed with its manager, even if others have added to it.
    world.apply("a", json!({}));
    assert_eq!(world.body(), json!({"items": [{"name": "j"}], "map": {"l": "2"}}));
}

#[test]
fn unowned_list_items_stay_until_the_list_goes() {
    let mut world = World::new();
    world.object = Some(json!({"apiVersion": "toy/v1", "kind": "Toy", "metadata": {"uid": "u"}}));
    world.apply("a", json!({"items": [{"name": "a"}]}));
    let mut object = world.object.clone().unwrap();
    object["items"] = json!([{"name": "a"}, {"name": "wild"}]);
    world.object = Some(object);
    world.apply("a", json!({"items": [{"name": "b"}]}));
    assert_eq!(world.body(), json!({"items": [{"name": "wild"}, {"name": "b"}]}));
    world.apply("a", json!({}));
    assert_eq!(world.body(), json!({}));
}

#[test]
fn change_of_another_managers_field_conflicts_unless_forced() {
    let mut world = World::new();
    world.apply("a", json!({"text": "x", "map": {"k": "1"}, "items": [{"name": "i", "value": "1"}]}));
    world.update(
        "u",
        json!({"metadata": world.object.as_ref().unwrap()["metadata"], "text": "x", "map": {"k": "1"},
        "items": [{"name": "i", "value": "1"}], "number": 7}),
    );
    let config = json!({"text": "y", "map": {"k": "2", "new": "3"}, "number": 8, "items": [{"name": "i", "value": "2"}]});
    assert_eq!(
        world.conflicts("b", config.clone()),
        [
            "\"a\" .text",
            "\"a\" .items[name=\"i\",protocol=\"TCP\"].value",
            "\"a\" .map.k",
            "\"u\" using toy/v1 .number",
        ]
    );
    world.force("b", config);
    assert_eq!(world.body()["text"], "y");
    assert_eq!(
        world.owns("a Apply"),
        [".items[name=\"i\",protocol=\"TCP\"]", ".items[name=\"i\",protocol=\"TCP\"].name"]
    );
    assert_eq!(world.owns("u Update"), NONE);
    assert!(world.owns("b Apply").contains(&".number".to_owned()));
    // An equal value is not a conflict, and a removed field conflicts with nobody.
    world
        .apply("c", json!({"text": "y"}))
        .apply("b", json!({}))
        .apply("c", json!({"text": "y", "number": 9}));
    assert_eq!(world.owns("c Apply"), [".number", ".text"]);
}

#[test]
fn atomic_values_have_one_owner_of_all() {
    let mut world = World::new();
    world.apply("a", json!({"atomicList": ["x"], "atomicMap": {"a": "1"}}));
    let config = json!({"atomicList": ["x", "y"], "atomicMap": {"b": "2"}});
    assert_eq!(world.conflicts("b", config.clone()), ["\"a\" .atomicList", "\"a\" .atomicMap"]);
    world.force("b", config.clone());
    assert_eq!(world.body(), config);
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["b Apply"]);
}

#[test]
fn a_null_is_owned_and_conflicts_like_a_value() {
    let mut world = World::new();
    world.apply("a", json!({"number": 3}));
    assert_eq!(world.conflicts("b", json!({"number": null})), ["\"a\" .number"]);
    world.force("b", json!({"number": null}));
    assert_eq!(world.owns("b Apply"), [".number"]);
}

#[test]
fn configurations_are_refused_before_anything_is_merged() {
    let mut world = World::new();
    let refused = |world: &mut World, config: Value| {
        let error = world.try_apply("a", config, true).unwrap_err();
        (error.code, error.message)
    };
    assert_eq!(
        refused(&mut world, json!({"metadata": {"name": "o", "namespace": "n"}, "frob": 1})),
        (
            500,
            "failed to create typed patch object (n/o; toy/v1, Kind=Toy): .frob: field not declared in schema".to_owned()
        )
    );
    assert_eq!(
        refused(&mut world, json!({"metadata": {"managedFields": []}})),
        (400, "metadata.managedFields must be nil".to_owned())
    );
    assert_eq!(
        refused(&mut world, json!({"kind": "Other"})),
        (400, "invalid object type: toy/v1, Kind=Other".to_owned())
    );
    assert_eq!(
        refused(&mut world, json!({"apiVersion": "v1", "kind": "Pod"})),
        (400, "invalid object type: /v1, Kind=Pod".to_owned())
    );
    assert_eq!(refused(&mut world, json!({"tags": ["a", "a"]})).0, 500);
    assert!(world.object.is_none());
}

#[test]
fn an_object_without_managers_gets_one_for_what_it_has() {
    let mut world = World::new();
    let bare = json!({"apiVersion": "toy/v1", "kind": "Toy", "metadata": {"uid": "u", "name": "o"}, "text": "x", "flag": true});
    world.object = Some(bare.clone());
    assert_eq!(world.conflicts("a", json!({"text": "y"})), ["\"before-first-apply\" using toy/v1 .text"]);
    world.force("a", json!({"text": "y"}));
    assert_eq!(world.owns("before-first-apply Update"), [".flag"]);
    assert_eq!(world.owns("a Apply"), [".text"]);
    // Updates alone do not begin to track.
    world.object = Some(bare);
    world.update("u", json!({"metadata": {"uid": "u"}, "text": "z"}));
    assert!(world.owners().is_empty());
}

#[test]
fn fields_that_a_request_cannot_write_are_not_owned_by_it() {
    let mut world = World::new();
    world.reset = FieldSet::of_fields(&[&["status"]]);
    world.apply("a", json!({"text": "x", "status": {"number": 1}}));
    assert_eq!(world.owns("a Apply"), [".text"]);
    world.subresource = "status";
    world.reset = FieldSet::of_fields(&[&["text"], &["spec"]]);
    world.apply("a", json!({"text": "other", "status": {"number": 2}}));
    assert_eq!(world.owns("a Apply status"), [".status.number"]);
    assert_eq!(world.owns("a Apply"), [".text"]);
    // Owners keep the fields that the request cannot change.
    world.update("u", json!({"metadata": world.object.as_ref().unwrap()["metadata"], "text": "third", "status": {"number": 3}}));
    assert_eq!(world.owns("a Apply"), [".text"]);
    assert_eq!(world.owns("a Apply status"), NONE);
    assert_eq!(world.owns("u Update status"), [".status.number"]);
}

#[test]
fn kubectl_takes_over_what_it_applied_by_itself() {
    let last = |body: Value| json!({LAST_APPLIED: body.to_string()});
    let applied = json!({"apiVersion": "toy/v1", "kind": "Toy", "metadata": {"annotations": {}}, "text": "x", "map": {"k": "1"}});
    let mut world = World::new();
    world.update(
        "kubectl-client-side-apply",
        json!({"metadata": {"annotations": last(applied.clone())},
        "text": "x", "map": {"k": "1"}}),
    );
    // Another manager has to force, and gets no annotation.
    assert_eq!(
        world.conflicts("argo", json!({"text": "y"})),
        ["\"kubectl-client-side-apply\" using toy/v1 .text"]
    );
    // The map has been changed since by another manager, so kubectl may not take it over.
    world.update(
        "hpa",
        json!({"metadata": world.object.as_ref().unwrap()["metadata"], "text": "x", "map": {"k": "2"}}),
    );
    assert_eq!(
        world.conflicts("kubectl", json!({"text": "y", "map": {"k": "3"}})),
        ["\"hpa\" using toy/v1 .map.k"]
    );
    world.apply("kubectl", json!({"metadata": {"name": "o"}, "text": "y"}));
    assert_eq!(world.owns("kubectl Apply"), [".text"]);
    let annotation = meta_annotation(&world);
    assert_eq!(
        annotation,
        "{\"apiVersion\":\"toy/v1\",\"kind\":\"Toy\",\"metadata\":{\"name\":\"o\"},\"text\":\"y\"}\n"
    );
}

fn meta_annotation(world: &World) -> String {
    apiserver_schema::meta::annotation(world.object.as_ref().unwrap(), LAST_APPLIED).unwrap().to_owned()
}

#[test]
fn the_annotation_of_another_version_allows_nothing() {
    let mut world = World::new();
    let last = json!({"apiVersion": "toy/v0", "kind": "Toy", "text": "x"}).to_string();
    world.update(
        "kubectl-client-side-apply",
        json!({"metadata": {"annotations": {LAST_APPLIED: last}}, "text": "x"}),
    );
    assert_eq!(
        world.conflicts("kubectl", json!({"text": "y"})),
        ["\"kubectl-client-side-apply\" using toy/v1 .text"]
    );
}

#[test]
fn managers_of_other_versions_lose_fields_where_those_have_them() {
    let mut world = World::new();
    world.version = "toy/v2";
    world.update("old", json!({"map": {"text": "x", "k": "1"}}));
    // The same object, asked for in the other version.
    world.version = "toy/v1";
    let mut object = Renamed.convert(world.object.as_ref().unwrap(), "toy/v1").unwrap().unwrap();
    apiserver_schema::meta::set(&mut object, "uid", "u");
    world.object = Some(object);
    let error = world.try_apply("a", json!({"text": "y"}), false).unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"old\" using toy/v2: .map.text");
    world.force("a", json!({"text": "y"}));
    assert_eq!(world.owns("old Update"), [".map", ".map.k"]);
    assert_eq!(world.owns("a Apply"), [".text"]);
    // A field applied in one version is removed if it is missing in another.
    world.version = "toy/v2";
    let mut object = Renamed.convert(world.object.as_ref().unwrap(), "toy/v2").unwrap().unwrap();
    apiserver_schema::meta::set(&mut object, "uid", "u");
    world.object = Some(object);
    world.apply("a", json!({"number": 1}));
    assert_eq!(world.body(), json!({"map": {"k": "1"}, "number": 1}));
    assert_eq!(world.owns("a Apply"), [".number"]);
}

#[test]
fn managers_of_versions_that_are_gone_go() {
    let mut world = World::new();
    let entries = json!([{"manager": "ghost", "operation": "Update", "apiVersion": "toy/gone",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:text": {}}}]);
    world.object = Some(json!({"apiVersion": "toy/v1", "kind": "Toy", "text": "x",
        "metadata": {"uid": "u", "managedFields": entries}}));
    world.apply("a", json!({"text": "y"}));
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["a Apply"]);
}

use super::fixture::Renamed;

#[test]
fn the_shape_of_the_fixture_is_consistent() {
    validate(Toy::Root, &json!({"items": [{"name": "a", "nested": {"items": []}}], "pairs": [{"a": "x"}]}))
        .unwrap();
}
