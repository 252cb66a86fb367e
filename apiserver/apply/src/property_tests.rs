//! Laws that hold for any object, configuration and set.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::fixture::{Toy, World};
use super::*;

fn text() -> impl Strategy<Value = Value> {
    prop::sample::select(vec!["a", "b", "c"]).prop_map(Value::from)
}

fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> =
        fields.into_iter().map(|(name, value)| option::of(value).prop_map(move |v| (name, v))).collect();
    fields
        .prop_map(|fields| {
            let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(present.collect::<Map<_, _>>())
        })
        .boxed()
}

fn strings() -> BoxedStrategy<Value> {
    btree_map("[abc]", text(), 0..3).prop_map(|map| Value::Object(map.into_iter().collect())).boxed()
}

fn tags() -> BoxedStrategy<Value> {
    btree_set("[a-e]", 1..4).prop_map(|tags| tags.into_iter().map(Value::from).collect()).prop_shuffle_list()
}

trait Shuffle {
    fn prop_shuffle_list(self) -> BoxedStrategy<Value>;
}

impl<S: Strategy<Value = Value> + 'static> Shuffle for S {
    fn prop_shuffle_list(self) -> BoxedStrategy<Value> {
        self.prop_map(|list| list.as_array().cloned().unwrap_or_default())
            .prop_shuffle()
            .prop_map(Value::Array)
            .boxed()
    }
}

fn items(depth: u32) -> BoxedStrategy<Value> {
    let mut fields = vec![("value", text().boxed()), ("tags", tags())];
    if depth > 0 {
        fields.push((
            "nested",
            object(vec![("number", (0..3).prop_map(Value::from).boxed()), ("items", items(depth - 1))]),
        ));
    }
    let item = (option::of(Just("UDP")), object(fields));
    btree_map("[abc]", item, 1..4)
        .prop_map(|items| {
            items
                .into_iter()
                .map(|(name, (protocol, mut item))| {
                    item["name"] = name.into();
                    if let Some(protocol) = protocol {
                        item["protocol"] = protocol.into();
                    }
                    item
                })
                .collect()
        })
        .prop_shuffle_list()
}

/// An object, or a configuration, of the toy kind. Empty objects and lists are left out where Go's
/// types would not keep them.
fn body() -> BoxedStrategy<Value> {
    object(vec![
        ("text", text().boxed()),
        ("number", (0..3).prop_map(Value::from).boxed()),
        ("flag", any::<bool>().prop_map(Value::from).boxed()),
        ("map", strings()),
        ("tags", tags()),
        ("items", items(1)),
        ("atomicList", vec(text(), 0..3).prop_map(Value::Array).boxed()),
        ("atomicMap", strings()),
        ("spec", object(vec![("number", (0..3).prop_map(Value::from).boxed()), ("items", items(0))])),
        ("any", object(vec![("x", text().boxed()), ("y", object(vec![("z", text().boxed())]))])),
    ])
}

fn set() -> BoxedStrategy<FieldSet> {
    body().prop_map(|body| field_set(Toy::Root, &body)).boxed()
}

/// Returns the value as kinds with Go types are stored: without nulls and empty objects and lists.
fn stored(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().map(|(key, value)| (key.clone(), stored(value))).filter(|(_, value)| {
                !value.is_null()
                    && !value.as_object().is_some_and(Map::is_empty)
                    && !value.as_array().is_some_and(Vec::is_empty)
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(stored).collect()),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sets_obey_their_algebra(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b), a.difference(&a.intersection(&b)));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.union(&b).difference(&c), a.difference(&c).union(&b.difference(&c)));
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert!(a.recursive_difference(&b).difference(&a.difference(&b)).is_empty());
        prop_assert_eq!(a.paths().len(), a.len());
        prop_assert!(a.paths().iter().all(|path| a.contains(path)));
        prop_assert_eq!(FieldSet::from_fields_v1(&a.to_fields_v1()).unwrap(), a.clone());
        prop_assert!(a.leaves().difference(&a).is_empty());
        let changed = |change: &dyn Fn(&mut FieldSet)| {
            let mut set = a.clone();
            change(&mut set);
            set
        };
        prop_assert_eq!(changed(&|set| set.absorb(b.clone())), a.union(&b));
        prop_assert_eq!(changed(&|set| set.subtract(&b)), a.difference(&b));
        prop_assert_eq!(changed(&|set| set.subtract_recursively(&b)), a.recursive_difference(&b));
    }

    #[test]
    fn comparison_is_symmetric_and_agrees_with_the_fields(a in body(), b in body()) {
        let there = compare(Toy::Root, &a, &b).unwrap();
        let back = compare(Toy::Root, &b, &a).unwrap();
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.removed, &back.added);
        prop_assert_eq!(&there.modified, &back.modified);
        prop_assert!(there.added.intersection(&there.modified).is_empty());
        prop_assert!(compare(Toy::Root, &a, &a).unwrap().is_same());
        // Every leaf that only the new object has was added.
        let (a, b) = (stored(&a), stored(&b));
        let there = compare(Toy::Root, &a, &b).unwrap();
        let (before, after) = (field_set(Toy::Root, &a), field_set(Toy::Root, &b));
        prop_assert!(after.leaves().difference(&before).difference(&there.added).is_empty());
        prop_assert!(there.added.leaves().intersection(&before.leaves()).is_empty());
    }

    #[test]
    fn merging_is_idempotent_and_keeps_what_the_configuration_says(live in body(), config in body()) {
        let merged = merge(Toy::Root, &live, &config).unwrap();
        prop_assert_eq!(merge(Toy::Root, &merged, &config).unwrap(), merged.clone());
        prop_assert_eq!(merge(Toy::Root, &merged, &merged).unwrap(), merged.clone());
        prop_assert_eq!(merge(Toy::Root, &json!({}), &config).unwrap(), config.clone());
        prop_assert!(validate(Toy::Root, &merged).is_ok());
        let changes = compare(Toy::Root, &merged, &config).unwrap();
        prop_assert!(changes.added.is_empty() && changes.modified.is_empty(), "{:?}", changes);
        let lost = compare(Toy::Root, &live, &merged).unwrap().removed;
        // Only untyped values of another sort and emptied atomics may be removed.
        prop_assert!(lost.is_empty(), "{:?}", lost);
    }

    #[test]
    fn applying_twice_is_applying_once(live in body(), last in body(), config in body()) {
        let mut world = World::new();
        world.update("maker", live).force("a", last).force("a", config.clone());
        let once = world.object.clone();
        world.apply("a", config);
        prop_assert_eq!(world.object, once);
    }

    #[test]
    fn applying_nothing_undoes_what_was_applied(live in body(), config in body()) {
        let mut world = World::new();
        world.update("maker", live.clone());
        let before = stored(&world.body());
        // Only new fields are removed again: a manager that forces owns the field for good.
        let merged = merge(Toy::Root, &live, &config).unwrap();
        let changes = compare(Toy::Root, &live, &merged).unwrap();
        prop_assume!(changes.modified.is_empty());
        world.force("a", config).apply("a", json!({}));
        prop_assert_eq!(sorted(&stored(&world.body())), sorted(&before));
        prop_assert!(world.owns("a Apply").is_empty());
    }

    #[test]
    fn conflicts_are_the_others_fields_that_would_change(first in body(), second in body()) {
        let mut world = World::new();
        world.apply("a", first.clone());
        let merged = merge(Toy::Root, &first, &second).unwrap();
        let changes = compare(Toy::Root, &first, &merged).unwrap();
        let owned = field_set(Toy::Root, &first);
        let expected = owned.intersection(&changes.modified.union(&changes.added));
        let outcome = world.try_apply("b", second.clone(), false);
        prop_assert_eq!(outcome.is_ok(), expected.is_empty());
        if outcome.is_err() {
            prop_assert_eq!(world.conflicts("b", second).len(), expected.len());
        }
    }

    #[test]
    fn every_field_of_a_tracked_object_has_an_owner(first in body(), second in body(), third in body()) {
        let mut world = World::new();
        world.update("maker", stored(&first)).force("a", stored(&second));
        let metadata = world.object.as_ref().unwrap()["metadata"].clone();
        let mut next = stored(&third);
        next["metadata"] = metadata;
        world.update("editor", next);
        let managers = Managers::of(world.object.as_ref().unwrap()).unwrap();
        let all = managers.0.values().fold(FieldSet::new(), |all, owned| all.union(&owned.fields));
        let mentioned = field_set(Toy::Root, &world.body());
        prop_assert!(mentioned.leaves().difference(&all).is_empty(), "{:?}", mentioned.leaves().difference(&all).paths());
    }
}

/// Sorts lists whose order has no meaning.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(sorted).collect();
            items.sort_by_key(ToString::to_string);
            Value::Array(items)
        }
        other => other.clone(),
    }
}
