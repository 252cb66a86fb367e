//! The published OpenAPI document, as the shapes that manifests are generated from.

use std::collections::BTreeMap;
use std::io::Read as _;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::seeded::Seeded;
use crate::words;

/// The definitions of OpenAPI v2.
pub struct Schemas {
    definitions: Map<String, Value>,
    kinds: BTreeMap<(String, String), String>,
}

/// The most fields below each other that are generated.
const DEPTH: usize = 6;

impl Schemas {
    /// Reads the document of every built-in kind.
    pub fn published() -> Result<Self> {
        let mut text = String::new();
        flate2::read::GzDecoder::new(apiserver_schema::openapi::v2_gz())
            .read_to_string(&mut text)
            .context("cannot unpack the OpenAPI document")?;
        let mut document: Value = serde_json::from_str(&text).context("the OpenAPI document is not JSON")?;
        let definitions = document["definitions"].take();
        let Value::Object(definitions) = definitions else { anyhow::bail!("OpenAPI has no definitions") };
        let mut kinds = BTreeMap::new();
        for (name, definition) in &definitions {
            for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
                let word = |field: &str| kind[field].as_str().unwrap_or_default().to_owned();
                let version = match word("group").as_str() {
                    "" => word("version"),
                    group => format!("{group}/{}", word("version")),
                };
                kinds.insert((version, word("kind")), name.clone());
            }
        }
        Ok(Self { definitions, kinds })
    }

    /// The name of a kind's definition.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<&str> {
        self.kinds.get(&(api_version.to_owned(), kind.to_owned())).map(String::as_str)
    }

    fn definition(&self, name: &str) -> &Value {
        self.definitions.get(name).unwrap_or(&Value::Null)
    }

    /// The definition that a schema refers to.
    fn referred(schema: &Value) -> Option<&str> {
        schema["$ref"].as_str().and_then(|path| path.rsplit('/').next())
    }

    /// Adds a generated field to some object of a manifest. False if the chosen object has all.
    pub fn grow(&self, manifest: &mut Value, definition: &str, from: &mut Seeded) -> bool {
        let mut places = Vec::new();
        self.objects(manifest, definition, "", &mut places);
        let Some((pointer, name)) = from.choose(&places).cloned() else { return false };
        let properties = &self.definition(&name)["properties"];
        let Some(place) = manifest.pointer_mut(&pointer).and_then(Value::as_object_mut) else { return false };
        let absent: Vec<&String> = properties
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .filter(|field| !place.contains_key(*field) && !SERVERS.contains(&field.as_str()))
            .collect();
        let Some(field) = from.choose(&absent) else { return false };
        let value = self.value(&properties[field.as_str()], field, 0, from);
        place.insert((*field).clone(), value);
        true
    }

    /// The places of a manifest's objects with the names of their definitions.
    fn objects(&self, value: &Value, name: &str, pointer: &str, places: &mut Vec<(String, String)>) {
        let properties = &self.definition(name)["properties"];
        let Some(object) = value.as_object().filter(|_| properties.is_object()) else { return };
        places.push((pointer.to_owned(), name.to_owned()));
        for (field, value) in object {
            let below = format!("{pointer}/{}", field.replace('~', "~0").replace('/', "~1"));
            let schema = &properties[field.as_str()];
            if let Some(name) = Self::referred(schema) {
                self.objects(value, name, &below, places);
            }
            if let (Some(items), Some(name)) = (value.as_array(), Self::referred(&schema["items"])) {
                for (index, item) in items.iter().enumerate() {
                    self.objects(item, name, &format!("{below}/{index}"), places);
                }
            }
        }
    }

    /// A value that a schema allows, and that validation often does.
    fn value(&self, schema: &Value, field: &str, depth: usize, from: &mut Seeded) -> Value {
        if let Some(name) = Self::referred(schema) {
            return self.named(name, field, depth, from);
        }
        if let Some(allowed) =
            [&schema["enum"], &schema["items"]["enum"]].into_iter().find_map(Value::as_array)
        {
            let one = from.choose(allowed).cloned().unwrap_or_default();
            return if schema["type"] == "array" { json!([one]) } else { one };
        }
        match schema["type"].as_str() {
            Some("array") => {
                let items = if from.chance(80) { 1 } else { 2 };
                (0..items).map(|_| self.value(&schema["items"], field, depth + 1, from)).collect()
            }
            Some("object") if schema["additionalProperties"].is_object() => {
                let value = self.value(&schema["additionalProperties"], field, depth + 1, from);
                json!({ words::map_key(field, from): value })
            }
            Some("object") => json!({}),
            Some("boolean") => json!(from.chance(60)),
            Some("integer") => json!(words::integer(field, from)),
            Some("number") => json!(0.5),
            Some("string") if schema["format"] == "byte" => json!("aGVsbG8="),
            Some("string") if schema["format"] == "date-time" => json!("2026-01-02T03:04:05Z"),
            Some("string") => json!(words::string(field, from)),
            _ => json!({"a": 1}),
        }
    }

    fn named(&self, name: &str, field: &str, depth: usize, from: &mut Seeded) -> Value {
        let definition = self.definition(name);
        match name.rsplit('.').next() {
            Some("Quantity") => return json!(from.pick(words::QUANTITIES)),
            Some("IntOrString") => {
                return from.choose(&[json!(1), json!("50%"), json!("http")]).cloned().unwrap_or_default();
            }
            Some("MicroTime") => return json!("2026-01-02T03:04:05.000006Z"),
            _ => {}
        }
        let Some(properties) = definition["properties"].as_object() else {
            return self.value(definition, field, depth, from);
        };
        let required: Vec<&str> =
            definition["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut object = Map::new();
        for (field, schema) in properties {
            let wanted = required.contains(&field.as_str())
                || (depth < DEPTH && !SERVERS.contains(&field.as_str()) && from.chance(45 / (depth + 1)));
            if wanted && depth < 2 * DEPTH {
                object.insert(field.clone(), self.value(schema, field, depth + 1, from));
            }
        }
        Value::Object(object)
    }
}

/// Fields that servers fill in, and `status`, which creation drops.
const SERVERS: [&str; 11] = [
    "status",
    "uid",
    "resourceVersion",
    "managedFields",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generation",
    "kind",
    "apiVersion",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Schemas;
    use crate::seeded::Seeded;

    #[test]
    fn a_pod_grows_by_fields_of_its_schema_and_equally_from_equal_seeds() {
        let schemas = Schemas::published().unwrap();
        let pod = schemas.of_kind("v1", "Pod").unwrap().to_owned();
        let grown = |seed| {
            let mut manifest =
                json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
            let mut from = Seeded::new(seed);
            for _ in 0..20 {
                schemas.grow(&mut manifest, &pod, &mut from);
            }
            manifest
        };
        assert_eq!(grown(1), grown(1));
        assert_ne!(grown(1), grown(2));
        assert!(grown(1).to_string().len() > 200);
        assert!(grown(1)["status"].is_null(), "the server's fields are left out");
    }
}
