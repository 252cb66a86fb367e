//! Writes the type graph as static arrays of integers, so that it needs neither parsing nor
//! relocation nor heap at run time.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde_json::Value;

use crate::definitions::Definitions;

const PREFIX: &str = "#/$defs/";

#[derive(Default)]
struct Graph {
    /// All names, one after the other.
    names: String,
    interned: HashMap<String, (u32, u16)>,
    /// Source text of each distinct type.
    types: Vec<String>,
    type_index: HashMap<String, u16>,
    fields: Vec<String>,
    merges: Vec<String>,
    merge_index: HashMap<String, u16>,
    map_keys: Vec<(u32, u16)>,
    /// Distinct defaults of scalar fields, in JSON.
    defaults: Vec<String>,
    definitions: Vec<String>,
}

/// The source of the statics that `src/schema/graph.rs` includes.
pub fn source(definitions: &Definitions) -> String {
    let mut graph = Graph::default();
    // Only definitions with fields are nodes; scalars and open objects are resolved where used.
    let nodes: Vec<&String> =
        definitions.schemas.iter().filter(|(name, s)| is_struct(name, s)).map(|(n, _)| n).collect();
    let index: BTreeMap<&str, usize> = nodes.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    // Index 0 means "no merge semantics".
    graph.merge(&Value::Null);
    // Here it means "no default".
    graph.defaults.push(String::new());
    for name in nodes {
        graph.definition(name, &definitions.schemas, &index);
    }
    graph.finish()
}

impl Graph {
    fn intern(&mut self, name: &str) -> (u32, u16) {
        if let Some(&known) = self.interned.get(name) {
            return known;
        }
        let at = (
            u32::try_from(self.names.len()).expect("names fit"),
            u16::try_from(name.len()).expect("name fits"),
        );
        self.names.push_str(name);
        self.interned.insert(name.to_owned(), at);
        at
    }

    fn definition(&mut self, name: &str, schemas: &BTreeMap<String, Value>, index: &BTreeMap<&str, usize>) {
        let schema = &schemas[name];
        let (at, len) = self.intern(name);
        let start = self.fields.len();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // A BTreeMap, because the order of a serde_json map depends on a feature of that crate.
        let properties: BTreeMap<&String, &Value> =
            schema["properties"].as_object().into_iter().flatten().collect();
        for (field, property) in properties {
            let (at, len) = self.intern(field);
            let ty = self.type_of(property, schemas, index);
            let merge = self.merge(property);
            let required = required.contains(&field.as_str());
            let default = self.default_of(property);
            self.fields.push(format!(
                "RawField{{at:{at},len:{len},ty:{ty},merge:{merge},required:{required},default:{default}}}"
            ));
        }
        let atomic = schema["x-kubernetes-map-type"] == "atomic";
        let count = self.fields.len() - start;
        self.definitions
            .push(format!("RawDefinition{{at:{at},len:{len},start:{start},count:{count},atomic:{atomic}}}"));
    }

    fn type_of(
        &mut self,
        schema: &Value,
        schemas: &BTreeMap<String, Value>,
        index: &BTreeMap<&str, usize>,
    ) -> u16 {
        let text = if let Some(target) = schema["$ref"].as_str().and_then(|r| r.strip_prefix(PREFIX)) {
            if let Some(node) = index.get(target) {
                format!("Type::Object({node})")
            } else {
                named(target, &schemas[target])
            }
        } else if let Some(items) = schema.get("items") {
            format!("Type::List({})", self.type_of(items, schemas, index))
        } else if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
            format!("Type::Map({})", self.type_of(values, schemas, index))
        } else {
            scalar(schema)
        };
        if let Some(&known) = self.type_index.get(&text) {
            return known;
        }
        let at = u16::try_from(self.types.len()).expect("types fit");
        self.types.push(text.clone());
        self.type_index.insert(text, at);
        at
    }

    fn merge(&mut self, property: &Value) -> u16 {
        let text = |key: &str| property[key].as_str().unwrap_or_default();
        let strategies: Vec<&str> = text("x-kubernetes-patch-strategy").split(',').collect();
        let (key_at, key_len) = self.intern(text("x-kubernetes-patch-merge-key"));
        let list = match text("x-kubernetes-list-type") {
            "atomic" => "ListType::Atomic",
            "set" => "ListType::Set",
            "map" => "ListType::Map",
            _ => "ListType::Unspecified",
        };
        let keys: Vec<(u32, u16)> = property["x-kubernetes-list-map-keys"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(|k| self.intern(k))
            .collect();
        let (keys_start, keys_count) = (self.map_keys.len(), keys.len());
        let source = |start: usize| {
            format!(
                "RawMerge{{key_at:{key_at},key_len:{key_len},merge:{},replace:{},retain_keys:{},list:{list},atomic:{},granular:{},\
                 keys_start:{start},keys_count:{keys_count}}}",
                strategies.contains(&"merge"),
                strategies.contains(&"replace"),
                strategies.contains(&"retainKeys"),
                text("x-kubernetes-map-type") == "atomic",
                text("x-kubernetes-map-type") == "granular",
            )
        };
        let identity = format!("{}{keys:?}", source(0));
        if let Some(&known) = self.merge_index.get(&identity) {
            return known;
        }
        self.map_keys.extend(&keys);
        let at = u16::try_from(self.merges.len()).expect("merge semantics fit");
        self.merges.push(source(keys_start));
        self.merge_index.insert(identity, at);
        at
    }

    /// Returns the index of the default of a scalar; those of objects are empty and say nothing.
    fn default_of(&mut self, property: &Value) -> u8 {
        let text = property.get("default").filter(|value| !value.is_object()).map(Value::to_string);
        let text = text.unwrap_or_default();
        let at = self.defaults.iter().position(|known| *known == text).unwrap_or_else(|| {
            self.defaults.push(text);
            self.defaults.len() - 1
        });
        u8::try_from(at).expect("defaults fit")
    }

    fn finish(self) -> String {
        let mut out = String::new();
        let mut array = |name: &str, ty: &str, rows: &[String]| {
            writeln!(out, "static {name}: [{ty}; {}] = [\n{}\n];", rows.len(), rows.join(",\n"))
                .expect("writing to a string");
        };
        let keys: Vec<String> = self.map_keys.iter().map(|k| format!("{k:?}")).collect();
        array("DEFINITIONS", "RawDefinition", &self.definitions);
        array("FIELDS", "RawField", &self.fields);
        array("TYPES", "Type", &self.types);
        array("MERGES", "RawMerge", &self.merges);
        array("MAP_KEYS", "(u32, u16)", &keys);
        let defaults: Vec<String> = self.defaults.iter().map(|text| format!("{text:?}")).collect();
        array("DEFAULTS", "&str", &defaults);
        writeln!(out, "static NAMES: &str = {:?};", self.names).expect("writing to a string");
        out
    }
}

/// Types of Go that have no fields but are not open objects either.
const WITHOUT_FIELDS: [&str; 2] = [
    "io.k8s.api.apiserverinternal.v1alpha1.StorageVersionSpec",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceSubresourceStatus",
];

fn is_struct(name: &str, schema: &Value) -> bool {
    schema.get("properties").is_some() || WITHOUT_FIELDS.contains(&name)
}

/// A definition without fields.
fn named(name: &str, schema: &Value) -> String {
    match name.rsplit('.').next() {
        Some("Quantity") => "Type::Quantity".into(),
        Some("IntOrString") => "Type::IntOrString".into(),
        Some("Time") => "Type::Time".into(),
        Some("MicroTime") => "Type::MicroTime".into(),
        Some("JSON" | "RawExtension") => "Type::Any".into(),
        _ => scalar(schema),
    }
}

fn scalar(schema: &Value) -> String {
    let format = schema["format"].as_str();
    match (schema["type"].as_str(), format) {
        (Some("string"), Some("byte")) => "Type::Bytes",
        (Some("string"), _) => "Type::String",
        (Some("integer"), Some("int64")) => "Type::Int64",
        (Some("integer"), _) => "Type::Int32",
        (Some("number"), _) => "Type::Number",
        (Some("boolean"), _) => "Type::Bool",
        _ => "Type::Any",
    }
    .to_owned()
}
