//! Tests of updates: new owners, changes of the entries by clients, and scale.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fixture::{Renamed, Toy, World};
use super::*;
use crate::limits::MANAGER_NAME;
use apiserver_schema::schema::shape::Builtin;

fn with_metadata(world: &World, mut body: Value) -> Value {
    body["metadata"] = world.object.as_ref().unwrap()["metadata"].clone();
    body
}

#[test]
fn update_of_a_field_transfers_ownership() {
    let mut world = World::new();
    world.update("maker", json!({"text": "x", "spec": {"number": 1}, "tags": ["a"]}));
    assert_eq!(world.owns("maker Update"), [".spec", ".tags", ".text", ".spec.number", ".tags[=\"a\"]"]);
    let next = with_metadata(&world, json!({"text": "y", "spec": {"number": 1}, "tags": ["a", "b"]}));
    world.update("editor", next);
    assert_eq!(world.owns("maker Update"), [".spec", ".tags", ".spec.number", ".tags[=\"a\"]"]);
    assert_eq!(world.owns("editor Update"), [".text", ".tags[=\"b\"]"]);
    assert_eq!((world.time("maker"), world.time("editor")), (Some(1), Some(2)));
    // A removed field has no owner, and a manager without fields is dropped.
    let next = with_metadata(&world, json!({"spec": {"number": 1}}));
    world.update("remover", next);
    assert_eq!(world.owns("maker Update"), [".spec", ".spec.number"]);
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["maker Update"]);
}

#[test]
fn an_update_that_changes_nothing_leaves_the_entries_and_their_times() {
    let mut world = World::new();
    world.update("maker", json!({"text": "x"}));
    let before = world.object.clone();
    let same = with_metadata(&world, json!({"text": "x"}));
    world.update("other", same.clone()).update("maker", same);
    assert_eq!(world.object, before);
}

#[test]
fn one_manager_has_an_entry_for_each_operation_and_subresource() {
    let mut world = World::new();
    world.update("m", json!({"text": "x"}));
    world.apply("m", json!({"text": "x", "flag": true}));
    world.subresource = "status";
    let next = with_metadata(&world, json!({"text": "x", "flag": true, "status": {"number": 1}}));
    world.update("m", next);
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["m Apply", "m Update", "m Update status"]);
}

#[test]
fn clients_may_reset_and_edit_the_entries_but_not_lose_them_by_accident() {
    let mut world = World::new();
    world.update("maker", json!({"text": "x"}));
    // A client that knows nothing of managed fields sends none.
    world.update("editor", json!({"metadata": {"uid": "u"}, "text": "y"}));
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["editor Update"]);
    // One that sends rubbish is ignored.
    let rubbish = json!([{"manager": "x", "operation": "Frob"}]);
    world.update("editor", json!({"metadata": {"uid": "u", "managedFields": rubbish}, "text": "y"}));
    assert_eq!(world.owns("editor Update"), [".text"]);
    // One that edits them on purpose is obeyed, except through subresources.
    let edited = json!([{"manager": "heir", "operation": "Apply", "apiVersion": "toy/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:text": {}}}]);
    world.subresource = "status";
    world.update("editor", json!({"metadata": {"uid": "u", "managedFields": edited}, "text": "y"}));
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["editor Update"]);
    world.subresource = "";
    world.update("editor", json!({"metadata": {"uid": "u", "managedFields": edited}, "text": "y"}));
    assert_eq!(world.owners().into_keys().collect::<Vec<_>>(), ["heir Apply"]);
    for (entries, left) in [(json!([]), 1), (json!([{}]), 0)] {
        let mut world = World::new();
        world.update("maker", json!({"text": "x"}));
        world.update("editor", json!({"metadata": {"uid": "u", "managedFields": entries}, "text": "x"}));
        assert_eq!(world.owners().len(), left);
    }
}

#[test]
fn the_servers_own_fields_are_nobodys() {
    let mut world = World::new();
    world.update("maker", json!({"metadata": {"name": "o", "namespace": "n", "labels": {"a": "b"}}}));
    assert_eq!(world.owns("maker Update"), [".metadata.labels", ".metadata.labels.a"]);
}

#[test]
fn objects_with_items_that_occur_twice_are_tracked_by_updates() {
    let mut world = World::new();
    let twice = |value: &str| json!({"items": [{"name": "a"}, {"name": "a", "value": value}]});
    world.update("maker", twice("1"));
    let next = with_metadata(&world, twice("2"));
    world.update("editor", next);
    assert_eq!(world.owns("editor Update"), [".items[name=\"a\",protocol=\"TCP\"]"]);
    // Items without any key cannot be compared: no owner is recorded.
    let broken = with_metadata(&world, json!({"items": ["x"]}));
    world.update("breaker", broken);
    assert_eq!(world.owners(), BTreeMap::new());
}

#[test]
fn managers_are_called_as_user_agents_begin() {
    let table = [
        ("kubectl/v1.36.0 (linux/amd64) kubernetes/abc", "kubectl"),
        ("Mozilla", "Mozilla"),
        ("", ""),
        ("/x", ""),
        ("a\tb\u{7}c\u{200b} d/1", "abc d"),
    ];
    for (agent, manager) in table {
        assert_eq!(manager_of_user_agent(agent), manager);
    }
    assert_eq!(manager_of_user_agent(&"é".repeat(100)).len(), MANAGER_NAME);
    assert_eq!(ManagerId::new("", Operation::Update, "v1", "").name, "unknown");
    assert!(check_manager_name("fieldManager", "kubectl ü").is_empty());
    let errors = check_manager_name("fieldManager", &format!("{}\n", "x".repeat(128)));
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[0].message, "Too long: may not be more than 128 bytes");
    assert!(
        errors[1].message.ends_with("invalid character U+000A (at position 128)"),
        "{}",
        errors[1].message
    );
}

#[test]
fn replicas_change_hands_between_an_object_and_its_scale() {
    let owned = |fields: Value| Owned {
        fields: FieldSet::from_fields_v1(&fields).unwrap(),
        api_version: "apps/v1".to_owned(),
        time: Some("2026-01-01T00:00:00Z".to_owned()),
    };
    let maker = ManagerId::new("maker", Operation::Apply, "apps/v1", "");
    let editor = ManagerId::new("editor", Operation::Update, "apps/v1", "");
    let parent = Managers(BTreeMap::from([
        (maker.clone(), owned(json!({"f:spec": {"f:replicas": {}, "f:paused": {}}}))),
        (editor.clone(), owned(json!({"f:metadata": {"f:labels": {"f:a": {}}}}))),
    ]));
    let replicas = BTreeMap::from([("apps/v1".to_owned(), field_path(&["spec", "replicas"]))]);
    let owners = ScaleOwners { parent: &parent, api_version: "apps/v1", replicas: &replicas };
    let scale = owners.to_scale();
    assert_eq!(scale.0.keys().collect::<Vec<_>>(), [&maker]);
    assert_eq!(scale.0[&maker].api_version, "autoscaling/v1");
    assert_eq!(owners.to_parent(scale), parent);
    // A manager scales.
    let scaler = ManagerId::new("hpa", Operation::Update, "autoscaling/v1", "scale");
    let stolen = Managers(BTreeMap::from([(
        scaler.clone(),
        Owned {
            fields: FieldSet::of_fields(&[&["spec", "replicas"]]),
            api_version: "autoscaling/v1".to_owned(),
            time: None,
        },
    )]));
    let after = owners.to_parent(stolen);
    assert_eq!(after.0[&maker].fields, FieldSet::of_fields(&[&["spec", "paused"]]));
    assert_eq!(after.0[&editor], parent.0[&editor]);
    assert_eq!(after.0[&scaler].api_version, "apps/v1");
    assert_eq!(after.0[&scaler].fields, FieldSet::of_fields(&[&["spec", "replicas"]]));
}

/// A field manager of a built-in kind that is served in one version.
fn built_in(kind: &str, api_version: &str, schema: &str, live: Option<&Value>, new: &Value) -> Value {
    struct One(Builtin, String);
    impl Versions<Builtin> for One {
        fn shape(&self, api_version: &str) -> Option<Builtin> {
            (api_version == self.1).then_some(self.0)
        }
        fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
            Ok((api_version == self.1).then(|| object.clone()))
        }
    }
    let shape = Builtin::of(schema).unwrap();
    let fields = FieldManager {
        versions: &One(shape, api_version.to_owned()),
        shape,
        api_version,
        kind,
        subresource: "",
        reset: &FieldSet::new(),
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    let mut new = new.clone();
    fields.update(live, &mut new, "m").unwrap();
    new.pointer_mut("/metadata/managedFields/0/fieldsV1").map_or(Value::Null, Value::take)
}

#[test]
fn fields_that_are_always_encoded_are_owned_once_they_leave_their_zero() {
    let role = |live, new| built_in("Role", "rbac/v1", "io.k8s.api.rbac.v1.Role", live, &new);
    let metadata = || json!({"name": "a"});
    assert_eq!(role(None, json!({"metadata": metadata()})), json!(null));
    // An empty list is not the null of a list that was not set.
    assert_eq!(role(None, json!({"metadata": metadata(), "rules": []})), json!({"f:rules": {}}));
    let class = |live, new| {
        built_in("PriorityClass", "scheduling/v1", "io.k8s.api.scheduling.v1.PriorityClass", live, &new)
    };
    assert_eq!(class(None, json!({"metadata": metadata(), "value": 0})), json!(null));
    let live = json!({"metadata": metadata(), "value": 5});
    // A manager that removes the value makes it zero.
    assert_eq!(class(Some(&live), json!({"metadata": metadata()})), json!({"f:value": {}}));
}

#[test]
fn a_quantity_that_was_not_sent_differs_from_zero_where_a_list_is_one_value() {
    let item = |divisor: Option<&str>| {
        let mut reference = json!({"resource": "limits.cpu"});
        if let Some(divisor) = divisor {
            reference["divisor"] = divisor.into();
        }
        json!({"metadata": {"name": "a"}, "spec": {"containers": [], "volumes": [
            {"name": "v", "downwardAPI": {"items": [{"path": "p", "resourceFieldRef": reference}]}}]}})
    };
    let live = item(Some("0"));
    let update = |mut new: Value| {
        apiserver_schema::protobuf::normalize_as_sent(
            apiserver_schema::protobuf::message("core/v1.Pod").unwrap(),
            &mut new,
        );
        built_in("Pod", "v1", "io.k8s.api.core.v1.Pod", Some(&live), &new)
    };
    let owned = update(item(None));
    assert_eq!(owned["f:spec"]["f:volumes"]["k:{\"name\":\"v\"}"]["f:downwardAPI"], json!({"f:items": {}}));
    assert_eq!(update(item(Some("0")))["f:spec"]["f:volumes"], json!(null));
}

/// A kind whose objects somebody else converts.
#[derive(Default)]
struct Fetched(Vec<(NeedsConversion, Value)>);

impl Versions<Toy> for Fetched {
    fn shape(&self, api_version: &str) -> Option<Toy> {
        Renamed.shape(api_version)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
        let needed = NeedsConversion { object: object.clone(), api_version: api_version.to_owned() };
        let known = self.0.iter().find(|(request, _)| *request == needed);
        known.map(|(_, converted)| Some(converted.clone())).ok_or(needed)
    }
}

fn toy_fields<'a>(versions: &'a dyn Versions<Toy>, reset: &'a FieldSet) -> FieldManager<'a, Toy> {
    FieldManager {
        versions,
        shape: Toy::Root,
        api_version: "toy/v1",
        kind: "Toy",
        subresource: "",
        reset,
        now: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// Takes a step until it has its conversions; returns its result and the versions converted to.
fn fetching<T, E>(
    mut step: impl FnMut(&Fetched) -> Result<T, E>,
    needed: impl Fn(E) -> NeedsConversion,
) -> (T, Vec<String>) {
    let mut fetched = Fetched::default();
    loop {
        match step(&fetched) {
            Ok(done) => return (done, fetched.0.into_iter().map(|(asked, _)| asked.api_version).collect()),
            Err(error) => {
                let needed = needed(error);
                let converted = Renamed.convert(&needed.object, &needed.api_version).unwrap().unwrap();
                fetched.0.push((needed, converted));
            }
        }
    }
}

/// An object that has an owner in another version.
fn owned_in_v2() -> Value {
    let mut world = World::new();
    world.version = "toy/v2";
    world.update("old", json!({"map": {"text": "x", "k": "1"}}));
    world.apply("a", json!({"number": 1}));
    Renamed.convert(world.object.as_ref().unwrap(), "toy/v1").unwrap().unwrap()
}

#[test]
fn update_with_an_owner_in_another_version_asks_for_both_objects_and_keeps_the_new_one() {
    let (live, reset) = (owned_in_v2(), FieldSet::new());
    let mut new = live.clone();
    new["text"] = "y".into();
    let sent = new.clone();
    let needed = toy_fields(&Fetched::default(), &reset).update(Some(&live), &mut new, "m").unwrap_err();
    assert_eq!((&needed.object, needed.api_version.as_str()), (&live, "toy/v2"));
    assert_eq!(new, sent);
    let step = |fetched: &Fetched| toy_fields(fetched, &reset).update(Some(&live), &mut new, "m");
    let ((), asked) = fetching(step, |needed| needed);
    assert_eq!(asked, ["toy/v2", "toy/v2"]);
    let mut at_once = sent;
    toy_fields(&Renamed, &reset).update(Some(&live), &mut at_once, "m").unwrap();
    assert_eq!(new, at_once);
}

#[test]
fn apply_over_an_older_version_equals_one_that_converts_itself() {
    let (live, reset) = (owned_in_v2(), FieldSet::new());
    let config = json!({"apiVersion": "toy/v1", "kind": "Toy", "text": "x"});
    let step = |fetched: &Fetched| toy_fields(fetched, &reset).apply(Some(&live), &config, "a", true);
    let (applied, asked) = fetching(step, |why| match why {
        Incomplete::NeedsConversion(needed) => needed,
        Incomplete::Refused(error) => panic!("{error}"),
    });
    // The pruned object goes to the version of its last apply, and back.
    assert!(
        asked.iter().any(|version| version == "toy/v2") && asked.iter().any(|version| version == "toy/v1")
    );
    assert_eq!(applied, toy_fields(&Renamed, &reset).apply(Some(&live), &config, "a", true).unwrap());
}
