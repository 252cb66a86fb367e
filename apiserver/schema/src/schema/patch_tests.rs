//! Vectors written from the documented behaviour of strategic merge patches.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{go_text, strategic_merge};

const POD: &str = "io.k8s.api.core.v1.Pod";
const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const SERVICE: &str = "io.k8s.api.core.v1.Service";

fn patched(definition: &str, mut current: Value, patch: &Value) -> Value {
    strategic_merge(definition, &mut current, patch).unwrap_or_else(|e| panic!("{e}: {patch}"));
    current
}

fn pod(containers: Value) -> Value {
    json!({"spec": {"containers": containers}})
}

#[test]
fn scalars_maps_and_nulls_merge_as_in_a_merge_patch() {
    let current = json!({
        "metadata": {"name": "a", "labels": {"x": "1", "y": "2"}, "annotations": {"k": "v"}},
        "spec": {"restartPolicy": "Always", "nodeSelector": {"a": "b"}}});
    let patch = json!({
        "metadata": {"labels": {"y": null, "z": "3"}, "annotations": null},
        "spec": {"restartPolicy": "Never", "nodeSelector": {"c": "d"}}});
    assert_eq!(
        patched(POD, current, &patch),
        json!({
            "metadata": {"name": "a", "labels": {"x": "1", "z": "3"}},
            "spec": {"restartPolicy": "Never", "nodeSelector": {"a": "b", "c": "d"}}})
    );
}

#[test]
fn keyed_lists_merge_by_key() {
    let current = pod(json!([
        {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"name": "b", "image": "b:1"}]));
    let patch = pod(json!([
        {"name": "a", "image": "a:2", "env": [{"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}]},
        {"name": "c", "image": "c:1"}]));
    assert_eq!(
        patched(POD, current, &patch),
        pod(json!([
            {"name": "a", "image": "a:2", "env": [
                {"name": "X", "value": "1"}, {"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}]},
            {"name": "c", "image": "c:1"},
            {"name": "b", "image": "b:1"}]))
    );
}

#[test]
fn the_items_of_a_patch_come_in_its_order_and_new_ones_first() {
    // The results of `kubectl patch --local` 1.36.
    let names = |names: &str| pod(names.chars().map(|name| json!({"name": name.to_string()})).collect());
    for (patch, expected) in [("z", "zab"), ("ba", "ba"), ("zb", "zab"), ("bz", "abz")] {
        assert_eq!(patched(POD, names("ab"), &names(patch)), names(expected), "{patch}");
    }
    let finalizers = |names: Value| json!({"metadata": {"finalizers": names}});
    let patch = finalizers(json!(["c"]));
    assert_eq!(patched(POD, finalizers(json!(["a", "b"])), &patch), finalizers(json!(["c", "a", "b"])));
    let directive = pod(json!([{"name": "a", "$patch": "delete"}, {"name": "z"}]));
    assert_eq!(patched(POD, names("abc"), &directive), names("zbc"));
}

#[test]
fn atomic_lists_are_replaced() {
    let current = json!({"spec": {"tolerations": [{"key": "a"}],
        "containers": [{"name": "a", "args": ["1", "2"]}]}});
    let patch = json!({"spec": {"tolerations": [{"key": "b"}],
        "containers": [{"name": "a", "args": ["3"]}]}});
    assert_eq!(patched(POD, current, &patch), patch);
}

#[test]
fn items_are_deleted_and_replaced_by_directive() {
    let current = pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]));
    let deleted = patched(POD, current.clone(), &pod(json!([{"name": "a", "$patch": "delete"}])));
    assert_eq!(deleted, pod(json!([{"name": "b", "image": "1"}])));
    let replaced_item =
        patched(POD, current.clone(), &pod(json!([{"name": "c", "image": "2"}, {"$patch": "replace"}])));
    assert_eq!(replaced_item, pod(json!([{"name": "c", "image": "2"}])));
    let merged = patched(POD, current, &pod(json!([{"name": "a", "$patch": "merge", "image": "2"}])));
    assert_eq!(merged, pod(json!([{"name": "a", "image": "2"}, {"name": "b", "image": "1"}])));
}

#[test]
fn objects_are_replaced_and_deleted_by_directive() {
    let current =
        json!({"spec": {"securityContext": {"runAsUser": 1, "fsGroup": 2}, "restartPolicy": "Always"}});
    let replace = json!({"spec": {"securityContext": {"$patch": "replace", "runAsUser": 3}}});
    assert_eq!(
        patched(POD, current.clone(), &replace),
        json!({"spec": {"securityContext": {"runAsUser": 3}, "restartPolicy": "Always"}})
    );
    let delete = json!({"spec": {"securityContext": {"$patch": "delete"}}});
    assert_eq!(patched(POD, current, &delete), json!({"spec": {"restartPolicy": "Always"}}));
}

#[test]
fn retain_keys_clears_what_belongs_to_the_former_variant() {
    let current = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(
        patched(DEPLOYMENT, current.clone(), &patch),
        json!({"spec": {"strategy": {"type": "Recreate"}}})
    );
    let volumes =
        json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}});
    let patch = json!({"spec": {"volumes": [
        {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}});
    assert_eq!(
        patched(POD, volumes, &patch),
        json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {}}]}})
    );
    let bad = json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}});
    let error = strategic_merge(DEPLOYMENT, &mut current.clone(), &bad).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "invalid patch format of retainKeys"));
}

#[test]
fn lists_of_scalars_merge_as_sets() {
    let current = json!({"metadata": {"finalizers": ["a", "b"]}});
    let patch = json!({"metadata": {"finalizers": ["b", "c"]}});
    assert_eq!(patched(POD, current.clone(), &patch), json!({"metadata": {"finalizers": ["a", "b", "c"]}}));
    let delete = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}});
    assert_eq!(patched(POD, current.clone(), &delete), json!({"metadata": {"finalizers": ["c", "b"]}}));
    let order = json!({"metadata": {"$setElementOrder/finalizers": ["c", "b", "a"], "finalizers": ["c"]}});
    assert_eq!(patched(POD, current, &order), json!({"metadata": {"finalizers": ["c", "b", "a"]}}));
}

#[test]
fn element_order_places_new_items_and_keeps_those_of_others() {
    let current = pod(json!([{"name": "a"}, {"name": "sidecar"}, {"name": "b"}]));
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "new"}, {"name": "a"}, {"name": "b"}],
        "containers": [{"name": "new", "image": "n"}]}});
    assert_eq!(
        patched(POD, current.clone(), &patch),
        pod(json!([{"name": "new", "image": "n"}, {"name": "a"}, {"name": "sidecar"}, {"name": "b"}]))
    );
    let only_order = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}});
    let result = patched(POD, current.clone(), &only_order);
    let order: Vec<&str> = result["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    let place = |name: &str| order.iter().position(|n| *n == name).unwrap();
    assert!(place("b") < place("a") && order.len() == 3, "{order:?}");
    let disagreeing = json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{"name": "unlisted"}]}});
    assert_eq!(strategic_merge(POD, &mut current.clone(), &disagreeing).unwrap_err().code, 500);
}

#[test]
fn patch_of_kubectl_removes_and_reorders_at_once() {
    let current = pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]));
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "b"}],
        "containers": [{"$patch": "delete", "name": "a"}]}});
    assert_eq!(patched(POD, current, &patch), pod(json!([{"name": "b", "image": "1"}])));
}

/// A patch as `kubectl apply` computes it from the OpenAPI v3 document: a variable removed, an image changed.
#[test]
fn an_apply_with_nested_orders_and_deletions() {
    let current = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "c", "image": "i:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]},
        {"name": "injected", "image": "p:1"}]}}}});
    let patch = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "c"}],
        "containers": [{
            "name": "c", "image": "i:2",
            "$setElementOrder/env": [{"name": "Y"}],
            "env": [{"$patch": "delete", "name": "X"}]}]}}}});
    assert_eq!(
        patched(DEPLOYMENT, current, &patch),
        json!({"spec": {"template": {"spec": {"containers": [
            {"name": "c", "image": "i:2", "env": [{"name": "Y", "value": "1"}]},
            {"name": "injected", "image": "p:1"}]}}}})
    );
}

#[test]
fn keys_may_be_numbers() {
    let current = json!({"spec": {"ports": [{"port": 80, "nodePort": 30000}, {"port": 443}]}});
    let patch =
        json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}, {"port": 443, "$patch": "delete"}]}});
    assert_eq!(
        patched(SERVICE, current, &patch),
        json!({"spec": {"ports": [{"port": 80, "nodePort": 30000, "targetPort": 8080}]}})
    );
}

#[test]
fn new_values_come_without_directives_and_nulls() {
    let patch = json!({"spec": {
        "containers": [{"name": "a", "image": null, "$retainKeys": ["name"]}, {"name": "b", "$patch": "delete"}],
        "$setElementOrder/containers": [{"name": "a"}],
        "affinity": {"$patch": "replace", "nodeAffinity": {}}}});
    assert_eq!(
        patched(POD, json!({}), &patch),
        // An object with any `$patch` that has nothing to work on is not added.
        json!({"spec": {"containers": [{"name": "a"}]}})
    );
}

#[test]
fn unknown_fields_merge_as_in_a_merge_patch() {
    let current = json!({"extra": {"a": 1, "list": [1, 2]}});
    let patch = json!({"extra": {"b": 2, "list": [3]}});
    assert_eq!(patched(POD, current, &patch), json!({"extra": {"a": 1, "b": 2, "list": [3]}}));
}

#[test]
fn malformed_patches_are_refused_in_kubernetes_words() {
    let current = pod(json!([{"name": "a"}]));
    let bad = [
        (json!([]), 400, "a strategic merge patch must be a JSON object"),
        (
            json!({"spec": {"$patch": "explode", "b": null}}),
            500,
            "unknown patch type: explode in map: map[$patch:explode b:<nil>]",
        ),
        (
            json!({"spec": {"containers": [{"image": "no key", "args": ["a", 1, true]}]}}),
            500,
            "map: map[args:[a 1 true] image:no key] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "explode"}]}}),
            500,
            "unknown patch type: explode in map: map[$patch:explode name:a]",
        ),
        (json!({"spec": {"$retainKeys": "containers"}}), 400, "invalid patch format of retainKeys"),
        (
            json!({"spec": {"containers": [{"name": "a"}], "$setElementOrder/containers": 7}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (json!({"spec": {"$deleteFromPrimitiveList/x": 7}}), 400, "invalid patch format of primitive list"),
    ];
    for (patch, code, message) in bad {
        let error = strategic_merge(POD, &mut current.clone(), &patch).expect_err(&patch.to_string());
        assert_eq!((error.code, error.message.as_str()), (code, message), "{patch}");
    }
}

fn containers() -> impl Strategy<Value = Value> {
    let container = ("[a-e]", "[a-z]{1,3}", proptest::option::of("[a-z]{1,3}"))
        .prop_map(|(name, image, workdir)| json!({"name": name, "image": image, "workingDir": workdir}));
    proptest::collection::vec(container, 0..5).prop_map(|list| {
        let mut seen = std::collections::BTreeSet::new();
        let unique: Vec<Value> = list
            .into_iter()
            .filter(|c| seen.insert(c["name"].to_string()))
            .map(|mut c| {
                c.as_object_mut().unwrap().retain(|_, v| !v.is_null());
                c
            })
            .collect();
        pod(Value::from(unique))
    })
}

proptest! {
    /// An object applied to itself as a patch, or to nothing, is itself.
    #[test]
    fn an_object_is_its_own_patch(object in containers()) {
        prop_assert_eq!(patched(POD, object.clone(), &object), object.clone());
        prop_assert_eq!(patched(POD, json!({}), &object), object);
    }

    /// Applying a patch twice is applying it once, and its values hold afterwards.
    #[test]
    fn patches_without_directives_are_idempotent(current in containers(), patch in containers()) {
        let once = patched(POD, current.clone(), &patch);
        prop_assert_eq!(patched(POD, once.clone(), &patch), once.clone());
        let result = once["spec"]["containers"].as_array().unwrap();
        for wanted in patch["spec"]["containers"].as_array().unwrap() {
            let found = result.iter().find(|c| c["name"] == wanted["name"]).unwrap();
            for (key, value) in wanted.as_object().unwrap() {
                prop_assert_eq!(&found[key], value);
            }
        }
        for kept in current["spec"]["containers"].as_array().unwrap() {
            prop_assert!(result.iter().any(|c| c["name"] == kept["name"]));
        }
    }

    /// With a full element order the result is in exactly that order.
    #[test]
    fn a_full_element_order_is_obeyed(current in containers(), seed in any::<u64>()) {
        let mut order: Vec<Value> = current["spec"]["containers"].as_array().unwrap()
            .iter().map(|c| json!({"name": c["name"]})).collect();
        if !order.is_empty() {
            let by = usize::try_from(seed % order.len() as u64).unwrap();
            order.rotate_left(by);
        }
        let patch = json!({"spec": {"$setElementOrder/containers": order}});
        let result = patched(POD, current, &patch);
        let names: Vec<Value> = result["spec"]["containers"].as_array().unwrap()
            .iter().map(|c| json!({"name": c["name"]})).collect();
        prop_assert_eq!(names, order);
    }
}

#[test]
fn numbers_in_messages_are_those_that_go_prints() {
    for (number, printed) in [
        (json!(100_000.5), "100000.5"),
        (json!(1e6), "1e+06"),
        (json!(1_234_567.5), "1.2345675e+06"),
        (json!(1e21), "1e+21"),
        (json!(0.0001), "0.0001"),
        (json!(0.00001), "1e-05"),
        (json!(-2.5), "-2.5"),
        (json!(2.0), "2"),
        (json!(12), "12"),
    ] {
        assert_eq!(go_text(&number), printed);
    }
}

#[test]
fn an_object_is_replaced_where_its_field_says_so() {
    let budget = json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
    let patch = json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}});
    assert_eq!(
        patched("io.k8s.api.policy.v1.PodDisruptionBudget", budget, &patch),
        json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"c": "d"}}}})
    );
}

#[test]
fn data_of_an_unknown_form_cannot_be_merged() {
    let kind = "io.k8s.api.apps.v1.ControllerRevision";
    let merged = |patch: Value| {
        let mut revision = json!({"data": {"spec": {"a": [1]}, "kind": "X"}, "revision": 1});
        strategic_merge(kind, &mut revision, &patch).map(|()| revision)
    };
    let error = merged(json!({"data": {"spec": {"a": [2]}}})).unwrap_err();
    let why = "unable to find api field in struct RawExtension for the json field \"spec\"";
    assert_eq!((error.code, error.message.as_str()), (500, why));
    let changed = merged(json!({"data": {"kind": "Y", "more": {"b": 1}, "spec": null}})).unwrap();
    assert_eq!(changed["data"], json!({"kind": "Y", "more": {"b": 1}}));
}
