//! Absent fields get the value that the schema names.

use serde_json::Value;

use super::{Additional, Structural};

impl Structural {
    /// Fills in defaults, at every depth. A null where none is allowed counts as absent.
    pub fn apply_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, property) in &self.properties {
                    let Some(default) = &property.default else { continue };
                    let absent = match map.get(name) {
                        None => true,
                        Some(value) => value.is_null() && !property.nullable,
                    };
                    if absent {
                        map.insert(name.clone(), default.clone());
                    }
                }
                for (key, value) in map.iter_mut() {
                    if let Some(property) = self.properties.get(key) {
                        property.apply_defaults(value);
                    } else if let Additional::Schema(values) = &self.additional {
                        values.default_null(value);
                        values.apply_defaults(value);
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &self.items else { return };
                for item in list {
                    items.default_null(item);
                    items.apply_defaults(item);
                }
            }
            _ => {}
        }
    }

    fn default_null(&self, value: &mut Value) {
        if value.is_null()
            && !self.nullable
            && let Some(default) = &self.default
        {
            *value = default.clone();
        }
    }

    /// Takes out fields that are null, where the schema neither allows it nor has a default.
    pub fn prune_nulls(&self, value: &mut Value) {
        prune_nulls(value, Some(self));
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
