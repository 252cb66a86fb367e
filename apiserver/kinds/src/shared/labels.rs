//! Labels that an object takes over from its template.

use serde_json::{Map, Value};

/// Returns `true` if an object as it was written has no labels of its own but has labels at a pointer, which
/// defaulting then copies.
pub fn shares_labels(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some_and(Value::is_object)
        && apiserver_schema::meta::labels(object).is_none_or(Map::is_empty)
}

/// Makes the labels at a pointer those of the object.
pub fn share_labels(object: &mut Value, pointer: &str) {
    if let Some(labels) = object.pointer(pointer).cloned() {
        apiserver_schema::meta::set(object, "labels", labels);
    }
}
