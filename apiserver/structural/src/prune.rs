//! Fields that the schema does not have are taken out.

use serde_json::Value;

use super::path::Path;
use super::{Additional, Structural};
use crate::limits::UNKNOWN_FIELDS;

/// The fields that every object has, regardless of its schema.
pub const TYPE_AND_META: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Structural {
    /// Removes fields that an object of this schema cannot have, and returns their paths: `spec.foo`,
    /// `spec.list[0].bar`. `metadata` is left alone at the root and in embedded objects.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        let mut walk = Walk { unknown: &mut unknown };
        walk.fields(object, Some(self), true, &Path::Root);
        unknown.sort();
        unknown
    }

    /// Does the same for a value that is not an API object, such as a default.
    pub fn prune_value(&self, value: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        Walk { unknown: &mut unknown }.value(value, Some(self), &Path::Root);
        unknown
    }
}

struct Walk<'u> {
    unknown: &'u mut Vec<String>,
}

impl Walk<'_> {
    fn value(&mut self, value: &mut Value, schema: Option<&Structural>, path: &Path<'_>) {
        let embedded = schema.is_some_and(|s| s.embedded);
        self.fields(value, schema, embedded, path);
    }

    fn fields(&mut self, value: &mut Value, schema: Option<&Structural>, embedded: bool, path: &Path<'_>) {
        if let Some(schema) = schema.filter(|s| s.preserve) {
            return self.preserved(value, schema, embedded, path);
        }
        match value {
            Value::Object(map) => map.retain(|key, value| {
                if embedded && TYPE_AND_META.contains(&key.as_str()) {
                    return true;
                }
                let Some(schema) = schema else {
                    self.report(path, key);
                    return false;
                };
                if let Some(property) = schema.properties.get(key) {
                    self.value(value, Some(property), &path.field(key));
                    return true;
                }
                match &schema.additional {
                    Additional::Unset => {
                        self.report(path, key);
                        return false;
                    }
                    Additional::Flag(_) => self.value(value, None, &path.field(key)),
                    Additional::Schema(values) => self.value(value, Some(values), &path.field(key)),
                }
                true
            }),
            Value::Array(list) => {
                let items = schema.and_then(|s| s.items.as_deref());
                for (index, item) in list.iter_mut().enumerate() {
                    self.value(item, items, &path.index(index));
                }
            }
            _ => {}
        }
    }

    /// Everything stays, but below specified fields pruning begins anew.
    fn preserved(&mut self, value: &mut Value, schema: &Structural, embedded: bool, path: &Path<'_>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map.iter_mut() {
                    if embedded && TYPE_AND_META.contains(&key.as_str()) {
                        continue;
                    }
                    let path = path.field(key);
                    match (schema.properties.get(key), &schema.additional) {
                        (Some(property), _) => self.value(value, Some(property), &path),
                        (None, Additional::Schema(values)) => self.value(value, Some(values), &path),
                        (None, Additional::Flag(_)) => self.value(value, None, &path),
                        (None, Additional::Unset) => {}
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = schema.items.as_deref() else { return };
                for (index, item) in list.iter_mut().enumerate() {
                    self.preserved(item, items, items.embedded, &path.index(index));
                }
            }
            _ => {}
        }
    }

    fn report(&mut self, path: &Path<'_>, key: &str) {
        let of_type = path.is_root() && TYPE_AND_META.contains(&key);
        if !of_type && self.unknown.len() < UNKNOWN_FIELDS {
            self.unknown.push(path.field(key).to_string());
        }
    }
}
