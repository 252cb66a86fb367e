//! Fields that Kubernetes 1.36 has behind feature gates that are off by default. They are dropped from what
//! clients write, unless the object uses them already: so an object of a cluster that had the gate on stays
//! whole.

use apiserver_schema::meta;
use serde_json::{Map, Value};

/// The fields of one feature gate. A path is made of names with dots between them; `[]` stands for each item
/// of a list and `{}` for each value of a map.
pub(crate) struct Gate {
    pub(crate) paths: &'static [&'static str],
    /// The parent object of a dropped field is removed too if that leaves it empty.
    pub(crate) with_empty_parent: bool,
}

pub(crate) const fn gate(paths: &'static [&'static str]) -> Gate {
    Gate { paths, with_empty_parent: false }
}

/// Drops the fields below a pointer from a new object. `old` is the object that it replaces.
pub(crate) fn drop_at(new: &mut Value, old: Option<&Value>, pointer: &str, gates: &[Gate]) {
    if let Some(new) = new.pointer_mut(pointer) {
        drop_gates(gates, new, old.and_then(|old| meta::at(old, pointer)));
    }
}

fn drop_gates(gates: &[Gate], new: &mut Value, old: Option<&Value>) {
    for gate in gates {
        if !old.is_some_and(|old| gate.paths.iter().any(|path| is_used(old, path))) {
            gate.paths.iter().for_each(|path| remove(new, path, gate.with_empty_parent));
        }
    }
}

/// `true` if there is a value at the path.
pub(crate) fn is_used(value: &Value, path: &str) -> bool {
    let Some((name, rest)) = path.split_once('.') else { return is_given(value.get(path)) };
    match (name, value) {
        ("[]", Value::Array(items)) => items.iter().any(|item| is_used(item, rest)),
        ("{}", Value::Object(map)) => map.values().any(|value| is_used(value, rest)),
        (name, Value::Object(map)) => map.get(name).is_some_and(|value| is_used(value, rest)),
        _ => false,
    }
}

fn is_given(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

pub(crate) fn remove(value: &mut Value, path: &str, with_empty_parent: bool) {
    let Some((name, rest)) = path.split_once('.') else {
        value.as_object_mut().map(|map| map.remove(path));
        return;
    };
    match (name, value) {
        ("[]", Value::Array(items)) => {
            items.iter_mut().for_each(|item| remove(item, rest, with_empty_parent));
        }
        ("{}", Value::Object(map)) => {
            map.values_mut().for_each(|value| remove(value, rest, with_empty_parent));
        }
        (name, Value::Object(map)) => {
            let Some(inner) = map.get_mut(name) else { return };
            let had = inner.get(rest).is_some();
            remove(inner, rest, with_empty_parent);
            if had && with_empty_parent && inner.as_object().is_some_and(Map::is_empty) {
                map.remove(name);
            }
        }
        _ => {}
    }
}
