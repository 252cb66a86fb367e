//! The definitions of all types as Kubernetes publishes them, from `data/definitions`. References are
//! `#/$defs/NAME`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

/// The definitions: the input of every later step.
pub struct Definitions {
    /// The schemas by name, `io.k8s.api.core.v1.Pod`.
    pub schemas: BTreeMap<String, Value>,
}

impl Definitions {
    /// Reads the files of a directory, each with the definitions of the package that names it.
    pub fn read(directory: &Path) -> Self {
        let mut schemas = BTreeMap::new();
        let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        for entry in entries {
            let path = entry.expect("a directory can be read to its end").path();
            let package =
                path.file_stem().and_then(|name| name.to_str()).expect("files are named by packages");
            let Value::Object(file) = crate::read(&path) else { panic!("{}: not a map", path.display()) };
            schemas.extend(file.into_iter().map(|(name, schema)| (format!("{package}.{name}"), schema)));
        }
        expand(&mut schemas);
        Self { schemas }
    }

    /// The definition of a kind.
    pub fn of_kind(&self, group: &str, version: &str, kind: &str) -> Option<&str> {
        let is = |k: &Value| k["group"] == group && k["version"] == version && k["kind"] == kind;
        let has = |schema: &Value| schema[crate::KINDS].as_array().is_some_and(|kinds| kinds.iter().any(is));
        self.schemas.iter().find(|(_, schema)| has(schema)).map(|(name, _)| name.as_str())
    }
}

/// Replaces the name of a definition in place of a property by the property that it has there.
fn expand(schemas: &mut BTreeMap<String, Value>) {
    let mut found: Vec<(String, Map<String, Value>)> = Vec::new();
    for (name, schema) in &*schemas {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let named = properties.filter_map(|(field, property)| {
            let origin = property.as_str()?;
            let original = schemas.get(origin).map_or(&Value::Null, |schema| &schema["properties"][field]);
            assert!(original.is_object(), "{name}.{field}: {origin} does not define it");
            Some((field.clone(), original.clone()))
        });
        found.push((name.clone(), named.collect()));
    }
    for (name, properties) in found {
        let schema = schemas.get_mut(&name).expect("the names come from this map");
        if let Some(all) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            all.extend(properties);
        }
    }
}
