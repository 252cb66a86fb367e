//! The fields in which an update differs from the object that it would replace, for the messages of
//! refused updates: people look for the field that they may not change.

use std::collections::BTreeSet;

use apiserver_schema::validation::same;
use serde_json::Value;

use crate::limits::{CHANGED_FIELDS, CHANGED_PATH_BYTES};

/// ` (changed: containers[0].command, nodeSelector)`; empty if nothing differs.
pub(crate) fn named(new: &Value, old: &Value) -> String {
    let mut paths = Vec::new();
    find(new, old, String::new(), &mut paths);
    let more = if paths.len() > CHANGED_FIELDS { ", …" } else { "" };
    paths.truncate(CHANGED_FIELDS);
    if paths.is_empty() { String::new() } else { format!(" (changed: {}{more})", paths.join(", ")) }
}

/// Adds the paths of the smallest values that differ, at most one more than are named.
fn find(new: &Value, old: &Value, path: String, paths: &mut Vec<String>) {
    if paths.len() > CHANGED_FIELDS || same(Some(new), Some(old)) {
        return;
    }
    match (new, old) {
        _ if path.len() >= CHANGED_PATH_BYTES => paths.push(path),
        (Value::Object(now), Value::Object(was)) => {
            let keys: BTreeSet<&String> = now.keys().chain(was.keys()).collect();
            for key in keys {
                let shown = &key[..key.floor_char_boundary(CHANGED_PATH_BYTES)];
                let below = if path.is_empty() { shown.to_owned() } else { format!("{path}.{shown}") };
                find(&new[key], &old[key], below, paths);
            }
        }
        (Value::Array(now), Value::Array(was)) if now.len() == was.len() => {
            for (index, (new, old)) in now.iter().zip(was).enumerate() {
                find(new, old, format!("{path}[{index}]"), paths);
            }
        }
        _ => paths.push(path),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::named;

    #[test]
    fn changed_fields_are_named_by_their_paths() {
        let old = json!({"containers": [{"name": "a", "command": ["x"]}], "hostname": "h", "volumes": []});
        let new = json!({"containers": [{"name": "a", "command": ["y"]}], "nodeSelector": {"a": "b"}});
        assert_eq!(named(&new, &old), " (changed: containers[0].command[0], hostname, nodeSelector)");
        assert_eq!(named(&old, &old), "");
    }

    #[test]
    fn a_message_names_at_most_eight_fields() {
        let new: serde_json::Value = (0..1000).map(|n| (format!("k{n:04}"), json!(n))).collect();
        let message = named(&new, &json!({}));
        assert!(message.starts_with(" (changed: k0000, "), "{message}");
        assert!(message.ends_with(", k0007, …)"), "{message}");
    }
}
