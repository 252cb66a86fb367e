//! Writes objects as patches from what was read to what is wanted, which are small and do not affect fields
//! that this build does not know. Each patch contains the version that was read, so that one based on a stale
//! view is refused (409).

use std::fmt::Debug;

use controllers_runtime::{Attempt, Result};
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Returns the merge patch (RFC 7386) that turns `old` into `new`; `None` if they are equal.
pub(crate) fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = Map::new();
            for (key, value) in new {
                match old.get(key) {
                    Some(before) => {
                        if let Some(change) = difference(before, value) {
                            patch.insert(key.clone(), change);
                        }
                    }
                    None => {
                        patch.insert(key.clone(), value.clone());
                    }
                }
            }
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (old != new).then(|| new.clone()),
    }
}

/// Returns the patch of an object, with the version and uid that it was computed from.
fn versioned<K: Resource>(old: &K, patch: Value) -> Value {
    let mut patch = patch;
    let meta = old.meta();
    if let Some(version) = &meta.resource_version {
        patch["metadata"]["resourceVersion"] = json!(version);
    }
    if let Some(uid) = &meta.uid {
        patch["metadata"]["uid"] = json!(uid);
    }
    patch
}

fn encoded<K: Resource + Serialize>(object: &K, part: Part) -> Value {
    // Kubernetes types always serialize to JSON.
    let mut value = serde_json::to_value(object).unwrap_or(Value::Null);
    if let Some(fields) = value.as_object_mut() {
        match part {
            Part::Status => fields.retain(|key, _| key == "status"),
            Part::Main => fields.retain(|key, _| key != "status"),
        }
    }
    value
}

#[derive(Clone, Copy)]
enum Part {
    Main,
    Status,
}

/// Returns the patch for everything but the status, with the version of `old`; `None` if nothing changed.
pub(crate) fn of<K>(old: &K, new: &K) -> Option<Value>
where
    K: Resource + Serialize,
{
    difference(&encoded(old, Part::Main), &encoded(new, Part::Main)).map(|patch| versioned(old, patch))
}

/// Writes everything but the status of `new` over `old`; returns the object as written, `None` if nothing differed.
pub(crate) async fn update<K>(api: &Api<K>, old: &K, new: &K) -> Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let Some(patch) = of(old, new) else { return Ok(None) };
    let name = old.name_any();
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.attempt(|| format!("update {} {name}", K::kind(&()))).map(Some)
}

/// Writes the status of `new` over `old`; returns whether anything was written.
pub(crate) async fn update_status<K>(api: &Api<K>, old: &K, new: &K) -> Result<bool>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    write_status(api, old, new).await.map(|written| written.is_some())
}

/// Writes the status of `new` over `old`; returns the object as written, `None` if nothing differed.
pub(crate) async fn write_status<K>(api: &Api<K>, old: &K, new: &K) -> Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let Some(patch) = difference(&encoded(old, Part::Status), &encoded(new, Part::Status)) else {
        return Ok(None);
    };
    let patch = versioned(old, patch);
    let name = old.name_any();
    let written = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.attempt(|| format!("update the status of {} {name}", K::kind(&()))).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_only_what_changed_and_removes_with_null() {
        let old = json!({"a": 1, "b": {"c": [1, 2], "d": 3}, "e": "x"});
        let new = json!({"a": 1, "b": {"c": [1], "f": 4}, "e": "x"});
        assert_eq!(difference(&old, &new), Some(json!({"b": {"c": [1], "d": null, "f": 4}})));
        assert_eq!(difference(&new, &new), None);
    }
}
