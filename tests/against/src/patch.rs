//! Patches that bring one manifest to another.

use serde_json::{Map, Value, json};

use crate::seeded::Seeded;

/// Fields whose values are the merge keys of lists in built-in kinds, the most telling first.
const MERGE_KEYS: [&str; 6] = ["containerPort", "mountPath", "devicePath", "port", "name", "type"];

/// The places that differ with what is there afterwards, `None` where a value was removed.
pub fn changes(old: &Value, new: &Value) -> Vec<(String, Option<Value>)> {
    let mut found = Vec::new();
    compare(old, new, "", &mut found);
    found
}

fn compare(old: &Value, new: &Value, pointer: &str, found: &mut Vec<(String, Option<Value>)>) {
    let place = |key: &str| format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            found.extend(a.keys().filter(|key| !b.contains_key(*key)).map(|key| (place(key), None)));
            for (key, value) in b {
                match a.get(key) {
                    Some(before) => compare(before, value, &place(key), found),
                    None => found.push((place(key), Some(value.clone()))),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (before, value)) in a.iter().zip(b).enumerate() {
                compare(before, value, &place(&index.to_string()), found);
            }
        }
        _ if old != new => found.push((pointer.to_owned(), Some(new.clone()))),
        _ => {}
    }
}

/// A JSON patch; a further operation, mostly a useless one, in some cases.
pub fn json_patch(old: &Value, new: &Value, from: &mut Seeded) -> Value {
    let mut operations: Vec<Value> = changes(old, new)
        .into_iter()
        .map(|(path, value)| match value {
            None => json!({"op": "remove", "path": path}),
            Some(value) if old.pointer(&path).is_some() => {
                json!({"op": "replace", "path": path, "value": value})
            }
            Some(value) => json!({"op": "add", "path": path, "value": value}),
        })
        .collect();
    let further = [
        json!({"op": "test", "path": "/metadata/name", "value": "other"}),
        json!({"op": "remove", "path": "/spec/nothing/here"}),
        json!({"op": "replace", "path": "/spec/nothing", "value": 1}),
        json!({"op": "add", "path": "/metadata/labels/x", "value": "y"}),
        json!({"op": "copy", "from": "/metadata/name", "path": "/metadata/annotations"}),
        json!({"op": "move", "from": "/spec", "path": "/other"}),
        json!({"op": "increment", "path": "/spec"}),
        json!({"op": "add", "path": "no/slash", "value": 1}),
        json!({"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/x"}),
    ];
    if from.chance(15) {
        operations.extend(from.choose(&further).cloned());
    }
    Value::Array(operations)
}

/// A merge patch: lists are replaced, `null` removes.
pub fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Value::Object(a), Value::Object(b)) = (old, new) else { return new.clone() };
    let removed = a.keys().filter(|key| !b.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut patch: Map<String, Value> = removed.collect();
    for (key, value) in b {
        match a.get(key) {
            Some(before) if before == value => {}
            Some(before) => drop(patch.insert(key.clone(), merge_patch(before, value))),
            None => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

/// A strategic merge patch: of lists whose items have a key only those that differ; with a directive in some cases.
pub fn strategic_patch(old: &Value, new: &Value, from: &mut Seeded) -> Value {
    let mut patch = strategic(old, new);
    if !from.chance(20) {
        return patch;
    }
    let (field, value) = match from.below(6) {
        0 => ("$patch", json!("replace")),
        1 => ("$patch", json!("delete")),
        2 => ("$patch", json!("wrong")),
        3 => ("$retainKeys", json!(["name", "type"])),
        4 => ("$setElementOrder/finalizers", json!(["example.com/a"])),
        _ => ("$deleteFromPrimitiveList/finalizers", json!(["example.com/a"])),
    };
    let below = if field.contains("finalizers") { "metadata" } else { "spec" };
    if let Some(fields) = patch.as_object_mut() {
        let place = fields.entry(below).or_insert_with(|| json!({}));
        if let Some(place) = place.as_object_mut() {
            place.insert(field.to_owned(), value);
        }
    }
    patch
}

fn strategic(old: &Value, new: &Value) -> Value {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let removed = a.keys().filter(|key| !b.contains_key(*key)).map(|key| (key.clone(), Value::Null));
            let mut patch: Map<String, Value> = removed.collect();
            for (key, value) in b {
                match a.get(key) {
                    Some(before) if before == value => {}
                    Some(before) => drop(patch.insert(key.clone(), strategic(before, value))),
                    None => drop(patch.insert(key.clone(), value.clone())),
                }
            }
            Value::Object(patch)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let key = MERGE_KEYS.iter().find(|key| b.iter().chain(a).all(|item| item.get(**key).is_some()));
            let Some(key) = key else { return new.clone() };
            let changed = a.iter().zip(b).filter(|(before, item)| before != item);
            let item = |(before, item): (&Value, &Value)| {
                let mut patch = strategic(before, item);
                patch[*key] = item[*key].clone();
                patch
            };
            changed.map(item).collect()
        }
        _ => new.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{changes, merge_patch, strategic};

    #[test]
    fn patches_name_what_differs() {
        let old = json!({"a": 1, "b": {"c": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]}, "d": 1});
        let new = json!({"a": 1, "b": {"c": [{"name": "x", "v": 1}, {"name": "y", "v": 3}]}, "e": 1});
        assert_eq!(
            changes(&old, &new),
            [
                ("/d".to_owned(), None),
                ("/b/c/1/v".to_owned(), Some(json!(3))),
                ("/e".to_owned(), Some(json!(1)))
            ]
        );
        assert_eq!(
            merge_patch(&old, &new),
            json!({"b": {"c": [{"name": "x", "v": 1}, {"name": "y", "v": 3}]}, "d": null, "e": 1})
        );
        assert_eq!(strategic(&old, &new), json!({"b": {"c": [{"name": "y", "v": 3}]}, "d": null, "e": 1}));
    }
}
