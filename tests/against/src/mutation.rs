//! Changes that make a manifest wrong, or different: one place, one change.

use serde_json::{Map, Value, json};

use crate::schema::Schemas;
use crate::seeded::Seeded;
use crate::words;

/// Marks a key that stands beside an equal one; [`text`] takes it out, so that the JSON has the key twice.
const AGAIN: char = '\u{1}';

/// JSON with the duplicate keys that a mutation asked for.
pub fn text(value: &Value) -> String {
    value.to_string().replace("\\u0001", "")
}

/// Changes one place of a manifest; returns what was done, for the report.
pub fn mutate(manifest: &mut Value, schemas: &Schemas, definition: &str, from: &mut Seeded) -> String {
    match from.below(20) {
        0..=3 => {
            let before = manifest.clone();
            if schemas.grow(manifest, definition, from) {
                let place = crate::patch::changes(&before, manifest);
                return format!(
                    "add {}",
                    place.first().map(|(pointer, _)| pointer.as_str()).unwrap_or_default()
                );
            }
            change(manifest, from)
        }
        4 | 5 => metadata(manifest, from),
        _ => change(manifest, from),
    }
}

/// Every place below the root but those that say which kind the manifest is of.
fn places(value: &Value, pointer: &str, found: &mut Vec<String>) {
    let mut visit = |key: &str, below: &Value| {
        let place = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
        places(below, &place, found);
        found.push(place);
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !pointer.is_empty() || !["apiVersion", "kind"].contains(&key.as_str()))
            .for_each(|(key, below)| visit(key, below)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, below)| visit(&index.to_string(), below));
        }
        _ => {}
    }
}

fn change(manifest: &mut Value, from: &mut Seeded) -> String {
    let mut found = Vec::new();
    places(manifest, "", &mut found);
    let Some(pointer) = from.choose(&found).cloned() else { return "nothing to change".to_owned() };
    match from.below(16) {
        0 | 1 => {
            remove(manifest, &pointer);
            format!("remove {pointer}")
        }
        2 => set(manifest, &pointer, Value::Null),
        3 => {
            let wrong = other_type(manifest.pointer(&pointer).unwrap_or(&Value::Null), from);
            set(manifest, &pointer, wrong)
        }
        4 => {
            let empty = match manifest.pointer(&pointer) {
                Some(Value::Object(_)) => json!({}),
                Some(Value::Array(_)) => json!([]),
                Some(Value::String(_)) => json!(""),
                _ => json!(0),
            };
            set(manifest, &pointer, empty)
        }
        5 => repeat(manifest, &pointer),
        6 => unknown(manifest, &pointer, from),
        _ => {
            let value = match manifest.pointer(&pointer) {
                Some(Value::String(was)) => json!(words::odd_string(was, from)),
                Some(Value::Number(_)) => words::odd_number(from),
                Some(Value::Bool(was)) => json!(!was),
                Some(Value::Object(fields)) => return odd_key(fields.clone(), manifest, &pointer, from),
                Some(Value::Array(items)) => return odd_items(items.clone(), manifest, &pointer, from),
                _ => json!("x"),
            };
            set(manifest, &pointer, value)
        }
    }
}

fn set(manifest: &mut Value, pointer: &str, value: Value) -> String {
    let shown: String = value.to_string().chars().take(80).collect();
    if let Some(place) = manifest.pointer_mut(pointer) {
        *place = value;
    }
    format!("set {pointer} = {shown}")
}

fn remove(manifest: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    match manifest.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&last.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(items)) => drop(last.parse().map(|index: usize| items.remove(index))),
        _ => {}
    }
}

fn other_type(was: &Value, from: &mut Seeded) -> Value {
    let of = [json!("text"), json!(7), json!(true), json!({"a": "b"}), json!(["a"]), json!([{}]), json!(1.5)];
    let same = |value: &&Value| std::mem::discriminant(*value) != std::mem::discriminant(was);
    let others: Vec<&Value> = of.iter().filter(same).collect();
    from.choose(&others).map(|value| (*value).clone()).unwrap_or_default()
}

/// Writes a key or an item twice.
fn repeat(manifest: &mut Value, pointer: &str) -> String {
    let (parent, last) = pointer.rsplit_once('/').unwrap_or_default();
    match manifest.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            let key = last.replace("~1", "/").replace("~0", "~");
            let value = fields.get(&key).cloned().unwrap_or_default();
            fields.insert(format!("{key}{AGAIN}"), value);
        }
        Some(Value::Array(items)) => {
            if let Some(item) = last.parse().ok().and_then(|index: usize| items.get(index).cloned()) {
                items.push(item);
            }
        }
        _ => {}
    }
    format!("repeat {pointer}")
}

fn unknown(manifest: &mut Value, pointer: &str, from: &mut Seeded) -> String {
    let (parent, last) = pointer.rsplit_once('/').unwrap_or_default();
    let (key, value) = match from.below(3) {
        0 => ("unknownField".to_owned(), json!(1)),
        1 => ("unknown".to_owned(), json!({"deep": [1]})),
        _ => (last.to_uppercase(), json!("x")),
    };
    match manifest.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.insert(key.clone(), value)),
        Some(Value::Array(items)) => items.push(json!({ &key: value })),
        _ => {}
    }
    format!("add {parent}/{key}")
}

fn odd_key(mut fields: Map<String, Value>, manifest: &mut Value, pointer: &str, from: &mut Seeded) -> String {
    let keys: Vec<String> = fields.keys().cloned().collect();
    let value = from.choose(&keys).and_then(|key| fields.get(key).cloned()).unwrap_or(json!("x"));
    let key = words::odd_string("key", from);
    let done = format!("add {pointer}/{key}");
    fields.insert(key, value);
    set(manifest, pointer, Value::Object(fields));
    done
}

fn odd_items(mut items: Vec<Value>, manifest: &mut Value, pointer: &str, from: &mut Seeded) -> String {
    match items.first().cloned() {
        Some(Value::String(was)) => items.push(json!(words::odd_string(&was, from))),
        Some(first) if from.chance(50) => items.extend([first.clone(), first]),
        Some(Value::Object(_)) => items.push(json!({})),
        _ => items.push(Value::Null),
    }
    set(manifest, pointer, Value::Array(items))
}

/// Fields of every object's metadata.
fn metadata(manifest: &mut Value, from: &mut Seeded) -> String {
    let odd = words::odd_string("name", from);
    let (field, value) = match from.below(18) {
        0 => ("labels", json!({ &odd: "a" })),
        1 => ("labels", json!({ "a": &odd })),
        2 => ("annotations", json!({ &odd: "a" })),
        3 => ("finalizers", json!([&odd])),
        4 => ("name", json!(odd)),
        5 => ("generateName", json!(odd)),
        6 => ("namespace", json!(odd)),
        7 => ("ownerReferences", json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": odd}])),
        8 => ("ownerReferences", json!([{"apiVersion": odd, "kind": "Pod", "name": "", "uid": "u"}])),
        9 => {
            let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
            ("ownerReferences", json!([owner("a"), owner("b")]))
        }
        10 => ("creationTimestamp", json!(odd)),
        11 => ("deletionTimestamp", json!("2026-01-02T03:04:05Z")),
        12 => ("generation", json!(-1)),
        13 => ("uid", json!("11111111-2222-3333-4444-555555555555")),
        14 => ("resourceVersion", json!("1")),
        15 => ("managedFields", json!([{"manager": odd, "operation": "Other", "fieldsType": "FieldsV1"}])),
        16 => ("selfLink", json!("/x")),
        _ => return set(manifest, "/metadata", [Value::Null, json!({}), json!([])][from.below(3)].clone()),
    };
    let shown = value.to_string();
    if let Some(fields) = manifest["metadata"].as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
    format!("set /metadata/{field} = {}", shown.chars().take(80).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{change, repeat, text};
    use crate::seeded::Seeded;

    #[test]
    fn a_key_is_written_twice() {
        let mut manifest = json!({"metadata": {"name": "a"}});
        repeat(&mut manifest, "/metadata/name");
        assert_eq!(text(&manifest), r#"{"metadata":{"name":"a","name":"a"}}"#);
    }

    #[test]
    fn most_mutations_change_the_text_and_equal_seeds_change_it_equally() {
        let manifest =
            json!({"metadata": {"name": "a"}, "spec": {"replicas": 1, "list": [{"name": "x"}], "on": true}});
        let changed = |seed| {
            let mut copy = manifest.clone();
            change(&mut copy, &mut Seeded::new(seed));
            text(&copy)
        };
        let different = (0..200).filter(|seed| changed(*seed) != text(&manifest)).count();
        assert!(different > 180, "{different}");
        assert!((0..50).all(|seed| changed(seed) == changed(seed)));
    }
}
