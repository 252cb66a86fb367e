//! Lists whose items must differ: sets, and maps by their keys.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path::Path;
use super::{Additional, ListType, Structural};
use apiserver_schema::error::FieldError;

impl Structural {
    /// Returns an error for each value that occurs more than once in a list of type `set` or `map`.
    pub fn list_errors(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        walk(self, value, &Path::Root, &mut errors);
        errors
    }
}

fn walk(schema: &Structural, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if let Some(property) = schema.properties.get(key) {
                    walk(property, value, &path.field(key), errors);
                } else if let Additional::Schema(values) = &schema.additional {
                    walk(values, value, &path.key(key), errors);
                }
            }
        }
        Value::Array(list) => {
            match schema.list {
                ListType::Set => duplicates(list.iter().map(Value::clone), path, errors),
                ListType::Map => keyed(schema, list, path, errors),
                ListType::Atomic | ListType::Unspecified => {}
            }
            let Some(items) = &schema.items else { return };
            for (index, item) in list.iter().enumerate() {
                walk(items, item, &path.index(index), errors);
            }
        }
        _ => {}
    }
}

fn keyed(schema: &Structural, list: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let wrong = list.iter().position(|item| !item.is_object() && !item.is_null());
    if let Some(index) = wrong {
        let at = path.index(index).to_string();
        errors.push(FieldError::invalid(at, &list[index], "must be an object for an array of list-type map"));
        return;
    }
    let key = |item: &Value| {
        let keys = schema.list_keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
        Value::Object(keys.collect::<Map<_, _>>())
    };
    duplicates(list.iter().map(key), path, errors);
}

/// One error for each value that comes again, at its second place.
fn duplicates(values: impl Iterator<Item = Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, value) in values.enumerate() {
        // The text of a JSON value tells values of different types apart.
        let times = seen.entry(canonical(&value)).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(path.index(index).to_string(), &value));
        }
    }
}

/// Returns a text that is the same for equal values, in any order of their fields.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, String> = map.iter().map(|(k, v)| (k, canonical(v))).collect();
            let fields: Vec<String> = sorted.into_iter().map(|(k, v)| format!("{k:?}:{v}")).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}
