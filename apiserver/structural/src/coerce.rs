//! `metadata` of objects, their own and those of objects embedded in them: types are checked and
//! unknown fields taken out.

use serde_json::Value;

use super::Structural;
use super::path::Path;
use apiserver_schema::schema;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Checks and prunes `metadata` at the root (`root`) and in embedded objects; gives the unknown
/// fields, `spec.template.metadata.foo`. With `lenient` what cannot be read is dropped, as for
/// objects from storage; else the first value of a wrong type is the error.
pub fn coerce(
    schema: &Structural,
    value: &mut Value,
    root: bool,
    lenient: bool,
) -> Result<Vec<String>, String> {
    let mut walk = Walk { lenient, unknown: Vec::new() };
    walk.value(value, schema, root, &Path::Root)?;
    walk.unknown.sort();
    Ok(walk.unknown)
}

struct Walk {
    lenient: bool,
    unknown: Vec<String>,
}

impl Walk {
    fn value(
        &mut self,
        value: &mut Value,
        schema: &Structural,
        root: bool,
        path: &Path<'_>,
    ) -> Result<(), String> {
        match value {
            Value::Object(map) => {
                if root || schema.embedded {
                    for key in ["apiVersion", "kind"] {
                        let wrong = map.get(key).is_some_and(|v| !v.is_string());
                        if wrong && self.lenient {
                            map.remove(key);
                        } else if wrong {
                            let shown = map.get(key).cloned().unwrap_or_default();
                            return Err(format!(
                                "{}: Invalid value: {shown}: must be a string",
                                path.field(key)
                            ));
                        }
                    }
                    if let Some(metadata) = map.get_mut("metadata") {
                        self.metadata(metadata, path)?;
                        if metadata.is_null() {
                            map.remove("metadata");
                        }
                    }
                }
                for (key, value) in map.iter_mut() {
                    if let Some(child) = schema.field(key) {
                        self.value(value, child, false, &path.field(key))?;
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &schema.items else { return Ok(()) };
                for (index, item) in list.iter_mut().enumerate() {
                    self.value(item, items, false, &path.index(index))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn metadata(&mut self, metadata: &mut Value, path: &Path<'_>) -> Result<(), String> {
        if metadata.is_null() {
            return Ok(());
        }
        let mut problems = schema::check(OBJECT_META, metadata);
        if !problems.type_errors.is_empty() && self.lenient {
            drop_malformed(metadata);
            problems = schema::check(OBJECT_META, metadata);
        }
        if let Some(error) = problems.type_errors.first() {
            // A fault of the object itself is found before anything has a path.
            return Err(match path {
                Path::Root => error.clone(),
                _ => format!("{}: Invalid value: {metadata}: {error}", path.field("metadata")),
            });
        }
        let at = path.field("metadata").to_string();
        for unknown in problems.unknown_fields {
            self.unknown.push(format!("{at}.{unknown}"));
        }
        schema::drop_unknown(OBJECT_META, metadata);
        Ok(())
    }
}

/// Field by field: what can be read stays.
fn drop_malformed(metadata: &mut Value) {
    match metadata {
        Value::Object(map) => map.retain(|key, value| {
            let single = serde_json::json!({ key.as_str(): value });
            schema::check(OBJECT_META, &single).type_errors.is_empty()
        }),
        other => *other = Value::Null,
    }
}
