//! Helpers that fill in what a client leaves out.

use serde_json::{Map, Value};

/// A JSON object that is being completed.
pub(crate) type Object = Map<String, Value>;

/// Sets `key` where it is missing, null or the empty text.
pub(crate) fn fill(object: &mut Object, key: &str, value: impl Into<Value>) {
    let missing = object.get(key).is_none_or(|v| v.is_null() || v.as_str() == Some(""));
    if missing {
        object.insert(key.to_owned(), value.into());
    }
}

/// Sets `key` where it is missing or null, for texts behind a pointer: the empty text is a value of its own,
/// and validation decides about it.
pub(crate) fn fill_absent(object: &mut Object, key: &str, value: impl Into<Value>) {
    if object.get(key).is_none_or(Value::is_null) {
        object.insert(key.to_owned(), value.into());
    }
}

/// Sets a number where it is missing or 0, for fields in which 0 means "unset".
pub(crate) fn fill_zero(object: &mut Object, key: &str, value: i64) {
    let missing = object.get(key).is_none_or(|v| v.is_null() || v.as_i64() == Some(0));
    if missing {
        object.insert(key.to_owned(), value.into());
    }
}

/// The object under `key`, if there is one.
pub(crate) fn object<'a>(parent: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    parent.get_mut(key)?.as_object_mut()
}

/// The object under `key`, made if it is missing. `None` if something else is there.
pub(crate) fn object_or_insert<'a>(parent: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    fill(parent, key, Map::new());
    object(parent, key)
}

/// Calls `f` for each object in the list under `key`.
pub(crate) fn each_object(parent: &mut Object, key: &str, mut f: impl FnMut(&mut Object)) {
    let items = parent.get_mut(key).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut).for_each(&mut f);
}

/// Calls `f` with the object under `spec`, if there is one.
pub(crate) fn with_spec(value: &mut Value, f: impl FnOnce(&mut Object)) {
    if let Some(Value::Object(spec)) = value.get_mut("spec") {
        f(spec);
    }
}

/// A field that was single before it was a list: readers use either, and both are kept. Of two that
/// differ the single one counts, for the clients that know no list
/// (Kubernetes' conversions of PodStatus and NodeSpec). `inner` is the field of the list's items, where they are objects.
pub(crate) fn singular_and_list(object: &mut Object, singular: &str, list: &str, inner: Option<&str>) {
    let first = object.get(list).and_then(|list| list.get(0)).cloned();
    let first = first.and_then(|item| match inner {
        Some(inner) => item.get(inner).cloned(),
        None => Some(item),
    });
    if is_empty(object, singular) {
        if let Some(first) = first {
            object.insert(singular.to_owned(), first);
        }
    } else if first.as_ref() != object.get(singular) {
        let single = object[singular].clone();
        let item = match inner {
            Some(inner) => Value::Object(Map::from_iter([(inner.to_owned(), single)])),
            None => single,
        };
        object.insert(list.to_owned(), Value::Array(vec![item]));
    }
}

pub(crate) fn has_text(object: &Object, key: &str, text: &str) -> bool {
    object.get(key).and_then(Value::as_str) == Some(text)
}

pub(crate) fn is_empty(object: &Object, key: &str) -> bool {
    match object.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// Gives a new object an empty status, which clients expect to be there.
pub(crate) fn empty_status(value: &mut Value) {
    if let Value::Object(map) = value {
        fill(map, "status", Map::new());
    }
}

/// Restores the spec of an object, which updates of the whole object cannot change. Arguments: new, old.
pub(crate) fn restore_spec(new: &mut Value, old: &Value) {
    if let (Value::Object(map), Some(spec)) = (new, old.get("spec")) {
        map.insert("spec".into(), spec.clone());
    }
}
