//! All definitions, in one neutral form: references are `#/$defs/NAME`, extensions are in place.

use std::collections::BTreeMap;

use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::roots::{self, Root};

/// The definitions of all types: the input of every later step.
pub struct Definitions {
    /// The schemas by name, `io.k8s.api.core.v1.Pod`.
    pub schemas: BTreeMap<String, Value>,
    /// The kinds among them, lists included.
    pub roots: Vec<Root>,
}

impl Definitions {
    /// The definition of a kind.
    pub fn of_kind(&self, group: &str, version: &str, kind: &str) -> Option<&str> {
        self.roots
            .iter()
            .find(|r| r.group == group && r.version == version && r.kind == kind)
            .map(|r| r.definition.as_str())
    }

    /// Returns the definitions as Kubernetes publishes them. `differences` has the properties that their
    /// types lack, for each definition a merge patch, in which `+description` continues a description.
    /// `defaults` are those of its fields.
    pub fn published(
        mut self,
        defaults: &BTreeMap<String, BTreeMap<String, Value>>,
        differences: &Value,
    ) -> Self {
        for (name, fields) in defaults {
            let Some(properties) = self.schemas.get_mut(name).and_then(|schema| schema.get_mut("properties"))
            else {
                continue;
            };
            for (field, default) in fields {
                if let Some(Value::Object(property)) = properties.get_mut(field) {
                    property.insert("default".to_owned(), default.clone());
                }
            }
        }
        for (name, patch) in differences.as_object().expect("openapi.json is a map") {
            merge(self.schemas.entry(name.clone()).or_insert_with(|| json!({})), patch);
        }
        self
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(patch)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (name, value) in patch {
        if let Some(name) = name.strip_prefix('+') {
            let begin = fields.get(name).and_then(Value::as_str).unwrap_or_default();
            let whole = format!("{begin}{}", value.as_str().expect("a text continues a text"));
            fields.insert(name.to_owned(), whole.into());
        } else if value.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert_with(|| json!({})), value);
        }
    }
}

/// Reads the types, then adds lists, merge semantics and the names of kinds.
pub fn collect(semantics: &Value) -> Definitions {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let mut roots = roots::register(&mut generator);
    let mut schemas: BTreeMap<String, Value> =
        generator.take_definitions(false).into_iter().map(|(name, schema)| (decode(&name), schema)).collect();
    add_lists(&mut schemas, &mut roots);
    for (name, schema) in &mut schemas {
        well_known(name, schema);
        if let Some(fields) = semantics.get(name) {
            overlay(schema, fields.as_object().expect("semantics of a definition are a map"));
        }
    }
    for root in &roots {
        let schema = schemas.get_mut(&root.definition).expect("every root was registered");
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": root.group, "version": root.version, "kind": root.kind}]);
    }
    Definitions { schemas, roots }
}

/// schemars escapes names for JSON pointers; those of Kubernetes hold nothing to escape.
fn decode(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

fn add_lists(schemas: &mut BTreeMap<String, Value>, roots: &mut Vec<Root>) {
    let lists: Vec<Root> = roots
        .iter()
        .filter_map(|root| {
            let kind = root.list_kind?;
            let (package, _) = root.definition.rsplit_once('.').expect("definitions are qualified");
            Some(Root {
                definition: format!("{package}.{kind}"),
                group: root.group.clone(),
                version: root.version.clone(),
                kind: kind.to_owned(),
                list_kind: Some(kind),
            })
        })
        .collect();
    for list in lists {
        let item = list.definition.strip_suffix("List").expect("kinds of lists end in List");
        let kind = list.kind.strip_suffix("List").expect("kinds of lists end in List");
        let single = &schemas[item]["properties"];
        let schema = json!({
            "description": format!("{} is a list of {kind} objects.", list.kind),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": single["apiVersion"],
                "kind": single["kind"],
                "metadata": {
                    "description": "Standard list metadata: resource version, continue token, remaining count.",
                    "$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta",
                },
                "items": {
                    "description": format!("The {kind} objects."),
                    "type": "array",
                    "items": {"$ref": format!("#/$defs/{item}")},
                },
            },
        });
        schemas.insert(list.definition.clone(), schema);
        roots.push(Root { list_kind: None, ..list });
    }
}

/// Types whose JSON is not what their Rust type suggests.
fn well_known(name: &str, schema: &mut Value) {
    let object = schema.as_object_mut().expect("a definition is an object");
    match name.rsplit('.').next() {
        Some("Quantity" | "IntOrString") => {
            object.remove("x-kubernetes-int-or-string");
            object.insert("type".into(), "string".into());
            if name.ends_with("IntOrString") {
                object.insert("format".into(), "int-or-string".into());
            }
        }
        Some(
            "JSON" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray",
        ) => {
            // OpenAPI v2 has no choice between shapes; Kubernetes describes none here either.
            for key in ["type", "oneOf", "anyOf"] {
                object.remove(key);
            }
        }
        _ => {}
    }
}

fn overlay(schema: &mut Value, fields: &Map<String, Value>) {
    for (field, semantics) in fields {
        let target = if field == "." {
            Some(&mut *schema)
        } else {
            schema.get_mut("properties").and_then(|p| p.get_mut(field))
        };
        // The table covers all of Kubernetes 1.36; a field behind a gate may be missing in the types.
        let Some(target) = target.and_then(Value::as_object_mut) else { continue };
        for (key, extension) in [
            ("patchMergeKey", "x-kubernetes-patch-merge-key"),
            ("patchStrategy", "x-kubernetes-patch-strategy"),
            ("listType", "x-kubernetes-list-type"),
            ("listMapKeys", "x-kubernetes-list-map-keys"),
            ("mapType", "x-kubernetes-map-type"),
        ] {
            if let Some(value) = semantics.get(key) {
                target.insert(extension.into(), value.clone());
            }
        }
    }
}
