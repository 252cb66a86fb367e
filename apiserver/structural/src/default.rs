//! Absent fields get the value that the schema names.

use serde_json::Value;

use super::{Additional, Structural};
use crate::limits::DEFAULTS_BYTES;

impl Structural {
    /// Fills in defaults, at every depth. A null where none is allowed counts as absent. The object grows by
    /// 32 MiB of memory at most.
    pub fn apply_defaults(&self, value: &mut Value) {
        self.defaults_within(value, &mut DEFAULTS_BYTES.clone());
    }

    fn defaults_within(&self, value: &mut Value, room: &mut usize) {
        match value {
            Value::Object(map) => {
                for (name, property) in &self.properties {
                    let Some(default) = &property.default else { continue };
                    let absent = match map.get(name) {
                        None => true,
                        Some(value) => value.is_null() && !property.nullable,
                    };
                    if absent && take(room, default) {
                        map.insert(name.clone(), default.clone());
                    }
                }
                for (key, value) in map.iter_mut() {
                    if let Some(property) = self.properties.get(key) {
                        property.defaults_within(value, room);
                    } else if let Additional::Schema(values) = &self.additional {
                        values.default_null(value, room);
                        values.defaults_within(value, room);
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &self.items else { return };
                for item in list {
                    items.default_null(item, room);
                    items.defaults_within(item, room);
                }
            }
            _ => {}
        }
    }

    fn default_null(&self, value: &mut Value, room: &mut usize) {
        if value.is_null()
            && !self.nullable
            && let Some(default) = &self.default
            && take(room, default)
        {
            *value = default.clone();
        }
    }

    /// Removes null fields that the schema neither allows nor has a default for.
    pub fn prune_nulls(&self, value: &mut Value) {
        prune_nulls(value, Some(self));
    }
}

/// Takes the memory of a value, if there is so much room.
fn take(room: &mut usize, value: &Value) -> bool {
    let left = room.checked_sub(memory(value));
    *room = left.unwrap_or(0);
    left.is_some()
}

/// Roughly the memory that a value takes, bytes.
fn memory(value: &Value) -> usize {
    const NODE: usize = 64;
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(memory).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + memory(value)).sum(),
        _ => 0,
    }
}

fn prune_nulls(value: &mut Value, schema: Option<&Structural>) {
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let schema = schema.and_then(|s| s.field(key));
            if value.is_null() && schema.is_some_and(|s| !s.nullable && s.default.is_none()) {
                return false;
            }
            prune_nulls(value, schema);
            true
        }),
        Value::Array(list) => {
            let items = schema.and_then(|s| s.items.as_deref());
            list.iter_mut().for_each(|item| prune_nulls(item, items));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_default_that_many_items_lack_does_not_multiply_without_bound() {
        let schema = json!({
            "type": "array",
            "items": {"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(100_000)}}},
        });
        let schema = Structural::compile(&schema);
        let mut few = json!([{}, {}]);
        schema.apply_defaults(&mut few);
        assert_eq!(few[1]["a"].as_str().map(str::len), Some(100_000));
        let mut many = Value::Array(vec![json!({}); 10_000]);
        schema.apply_defaults(&mut many);
        let filled = many.as_array().unwrap().iter().filter(|item| item.get("a").is_some()).count();
        assert!((300..400).contains(&filled), "{filled} of 10,000 items have a copy");
    }
}
