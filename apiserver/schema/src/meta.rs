//! Access to the `metadata` of an object that is a JSON value. Getters of text return `""` for a missing
//! value, as in Kubernetes.

use serde_json::{Map, Value, json};

/// The value at a JSON pointer: [`Value::pointer`] without a copy of each name on the way, which every
/// request would pay for some fifty times.
pub fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    if pointer.is_empty() {
        return Some(object);
    }
    if pointer.contains('~') {
        return object.pointer(pointer);
    }
    let mut found = object;
    for name in pointer.strip_prefix('/')?.split('/') {
        found = match found {
            Value::Object(map) => map.get(name)?,
            // A pointer with an index is left to the general look-up.
            Value::Array(_) => return object.pointer(pointer),
            _ => return None,
        };
    }
    Some(found)
}

/// The text at a JSON pointer, `""` if there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer, empty if there is none.
pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    at(object, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn field<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(name)).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`
pub fn name(object: &Value) -> &str {
    field(object, "name")
}

/// `metadata.namespace`
pub fn namespace(object: &Value) -> &str {
    field(object, "namespace")
}

/// `metadata.generateName`
pub fn generate_name(object: &Value) -> &str {
    field(object, "generateName")
}

/// `metadata.uid`
pub fn uid(object: &Value) -> &str {
    field(object, "uid")
}

/// `metadata.creationTimestamp`, if it is set.
pub fn creation_timestamp(object: &Value) -> Option<&str> {
    Some(field(object, "creationTimestamp")).filter(|t| !t.is_empty())
}

/// `metadata.deletionTimestamp`, if the object is being deleted.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    Some(field(object, "deletionTimestamp")).filter(|t| !t.is_empty())
}

/// `metadata.deletionGracePeriodSeconds`
pub fn deletion_grace_period_seconds(object: &Value) -> Option<i64> {
    at(object, "/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64)
}

/// Returns `metadata.resourceVersion` unparsed.
pub fn resource_version(object: &Value) -> &str {
    field(object, "resourceVersion")
}

/// `metadata.generation`, 0 if missing.
pub fn generation(object: &Value) -> i64 {
    at(object, "/metadata/generation").and_then(Value::as_i64).unwrap_or_default()
}

/// `metadata.labels`
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("labels")?.as_object()
}

/// One label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    labels(object)?.get(key)?.as_str()
}

/// `metadata.annotations`
pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("annotations")?.as_object()
}

/// One annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    annotations(object)?.get(key)?.as_str()
}

/// `metadata.finalizers`
pub fn finalizers(object: &Value) -> Vec<&str> {
    list(object, "/metadata/finalizers").iter().filter_map(Value::as_str).collect()
}

/// `metadata.ownerReferences`
pub fn owner_references(object: &Value) -> &[Value] {
    list(object, "/metadata/ownerReferences")
}

/// The owner reference with `controller: true`.
pub fn controller_of(object: &Value) -> Option<&Value> {
    owner_references(object).iter().find(|owner| owner["controller"] == true)
}

/// Returns `metadata`, made if it is missing. On a value that is not an object the result is of no use; the
/// schema check refuses those before.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let metadata = object
        .as_object_mut()
        .expect("made an object above")
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object above")
}

/// Sets one field of `metadata`.
pub fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    metadata_mut(object).insert(field.to_owned(), value.into());
}

/// Returns `true` if the status has a condition of this type that is `True`.
pub fn condition_is_true(object: &Value, kind: &str) -> bool {
    let conditions = list(object, "/status/conditions");
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Sets a condition in the status, replacing the one of its type. The transition time is retained if its
/// status is the same.
pub fn set_condition(object: &mut Value, mut condition: Value) {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if !object["status"].is_object() {
        object["status"] = Value::Object(Map::new());
    }
    let list = &mut object["status"]["conditions"];
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|present| present["type"] == condition["type"]) {
        Some(present) => {
            if present["status"] == condition["status"] && present["lastTransitionTime"].is_string() {
                condition["lastTransitionTime"] = present["lastTransitionTime"].take();
            }
            *present = condition;
        }
        None => list.push(condition),
    }
}

/// Returns `true` if objects and lists are nested more than `levels` deep.
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    let below = |value: &Value| is_deeper(value, levels - 1);
    match value {
        Value::Object(fields) => levels == 0 || fields.values().any(below),
        Value::Array(items) => levels == 0 || items.iter().any(below),
        _ => false,
    }
}

/// Removes one field of `metadata`.
pub fn unset(object: &mut Value, field: &str) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove(field);
    }
}

/// Removes lists and maps of `metadata` that hold nothing: to Kubernetes they are the same as none.
pub fn drop_empty(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        for field in ["annotations", "finalizers", "labels", "managedFields", "ownerReferences"] {
            let empty = match metadata.get(field) {
                Some(Value::Object(map)) => map.is_empty(),
                Some(Value::Array(list)) => list.is_empty(),
                Some(Value::Null) => true,
                _ => false,
            };
            if empty {
                metadata.remove(field);
            }
        }
    }
}

/// Sets `metadata.resourceVersion`.
pub fn set_resource_version(object: &mut Value, revision: u64) {
    set(object, "resourceVersion", revision.to_string());
}

/// Sets `metadata.finalizers`; an empty list removes the field.
pub fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    if finalizers.is_empty() {
        unset(object, "finalizers");
    } else {
        set(object, "finalizers", finalizers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_mean_what_they_mean_to_the_parser() {
        let object = json!({"a": {"b": [{"c": 1}, null], "x~y": {"": 2}, "p/q": 3}, "": {"": 4}});
        let pointers = [
            "",
            "/",
            "//",
            "a",
            "/a",
            "/a/",
            "/a/b",
            "/a/b/0",
            "/a/b/0/c",
            "/a/b/00",
            "/a/b/+1",
            "/a/b/1",
            "/a/b/2",
            "/a/b/1/c",
            "/a/x~0y/",
            "/a/p~1q",
            "/a/p/q",
            "/a/b/0/c/d",
            "/z",
        ];
        for pointer in pointers {
            assert_eq!(at(&object, pointer), object.pointer(pointer), "{pointer}");
        }
    }

    #[test]
    fn empty_lists_and_maps_are_dropped() {
        let mut object = json!({"metadata": {"labels": {}, "annotations": {"a": ""}, "finalizers": [],
                                             "name": "n", "ownerReferences": null}, "data": {}});
        drop_empty(&mut object);
        assert_eq!(object, json!({"metadata": {"annotations": {"a": ""}, "name": "n"}, "data": {}}));
        drop_empty(&mut json!(7));
    }

    #[test]
    fn missing_metadata_reads_as_empty_and_is_made_on_write() {
        let mut object = json!({"kind": "Pod"});
        assert_eq!((name(&object), uid(&object), generation(&object)), ("", "", 0));
        assert!(finalizers(&object).is_empty() && labels(&object).is_none());
        set_resource_version(&mut object, 7);
        set_finalizers(&mut object, vec!["a".into()]);
        assert_eq!(resource_version(&object), "7");
        assert_eq!(finalizers(&object), ["a"]);
        set_finalizers(&mut object, Vec::new());
        assert_eq!(object, json!({"kind": "Pod", "metadata": {"resourceVersion": "7"}}));
    }

    #[test]
    fn the_controller_is_the_owner_that_says_so() {
        let object = json!({"metadata": {"ownerReferences": [
            {"name": "a"}, {"name": "b", "controller": false}, {"name": "c", "controller": true}]}});
        assert_eq!(controller_of(&object).unwrap()["name"], "c");
    }
}
