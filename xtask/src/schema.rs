//! `cargo xtask schema`: writes `apiserver/schema/data/definitions` from the OpenAPI documents of a
//! kube-apiserver.
//!
//! A definition stays as v3 publishes it, with two abbreviations: a reference alone in `allOf` stands beside the
//! other keys, and a property that an earlier definition has with the same content is given by that definition's
//! name.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::shell;

/// Prefix of references in documents of v3.
const PUBLISHED: &str = "#/components/schemas/";
/// Prefix of references in the data.
const NEUTRAL: &str = "#/$defs/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// The definitions by name, `io.k8s.api.core.v1.Pod`.
type Definitions = BTreeMap<String, Map<String, Value>>;

#[derive(clap::Args)]
pub struct Args {
    /// Directory with swagger.json (/openapi/v2) and v3/*.json (the documents of /openapi/v3); see
    /// apiserver/schema/data/README.md
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let v2 = read(&args.from.join("swagger.json"))?;
    let definitions = collect(documents(&args.from.join("v3"))?, &v2)?;
    if !definitions.values().any(has_enumeration) {
        bail!(
            "no definition in {} names the values of an enumeration: the documents were written with \
             --feature-gates=OpenAPIEnums=false; fetch those that a kube-apiserver serves",
            args.from.display()
        );
    }
    let directory = shell::root().join("apiserver/schema/data/definitions");
    let packages = packages(&definitions);
    replace(&directory, &packages)?;
    println!(
        "wrote {} definitions in {} files to {}",
        definitions.len(),
        packages.len(),
        directory.display()
    );
    Ok(())
}

fn documents(directory: &Path) -> Result<Vec<Value>> {
    let what = || format!("cannot read the documents in {}", directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(what)? {
        paths.push(entry.with_context(what)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))
}

/// Returns the definitions of all documents of v3; those that several have must agree. The kinds that use them are
/// taken from v2: a document of v3 names only those of its own group.
fn collect(documents: Vec<Value>, v2: &Value) -> Result<Definitions> {
    let mut all = Definitions::new();
    for mut document in documents {
        let Value::Object(schemas) = document["components"]["schemas"].take() else { continue };
        for (name, schema) in schemas {
            let Value::Object(mut schema) = neutral(schema) else { bail!("{name} is not an object") };
            let published = v2["definitions"].get(&name);
            let published = published.with_context(|| format!("swagger.json does not define {name}"))?;
            if let Some(kinds) = published.get(KINDS) {
                schema.insert(KINDS.to_owned(), kinds.clone());
            }
            match all.get(&name) {
                Some(known) if *known != schema => bail!("two documents define {name} differently"),
                _ => all.insert(name, schema),
            };
        }
    }
    Ok(all)
}

fn neutral(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut map: Map<String, Value> = map.into_iter().map(|(key, v)| (key, neutral(v))).collect();
            let alone = match map.get("allOf") {
                Some(Value::Array(all)) if all.len() == 1 => all[0].get("$ref").cloned(),
                _ => None,
            };
            if let Some(reference) = alone {
                map.remove("allOf");
                map.insert("$ref".to_owned(), reference);
            }
            Value::Object(map)
        }
        Value::Array(list) => Value::Array(list.into_iter().map(neutral).collect()),
        Value::String(text) => match text.strip_prefix(PUBLISHED) {
            Some(name) => format!("{NEUTRAL}{name}").into(),
            None => text.into(),
        },
        other => other,
    }
}

fn has_enumeration(definition: &Map<String, Value>) -> bool {
    let properties = definition.get("properties").and_then(Value::as_object);
    properties.into_iter().flat_map(Map::values).any(|property| property.get("enum").is_some())
}

/// Returns the text of each package, `io.k8s.api.core.v1`: a line for each property.
fn packages(definitions: &Definitions) -> BTreeMap<&str, String> {
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    let mut known = HashMap::new();
    for (name, definition) in definitions {
        let (package, short) = name.rsplit_once('.').unwrap_or(("", name));
        let text = texts.entry(package).or_default();
        text.push_str(if text.is_empty() { "{\n" } else { ",\n" });
        write!(text, "{}: {}", line(&short.into()), block(name, definition, &mut known))
            .expect("writing to a string");
    }
    texts.values_mut().for_each(|text| text.push_str("\n}\n"));
    texts
}

/// Formats a definition; `known` has the properties before it with the names of their definitions.
fn block<'a>(name: &'a str, definition: &Map<String, Value>, known: &mut HashMap<String, &'a str>) -> String {
    let mut lines = Vec::new();
    for (key, value) in sorted(definition) {
        let Some(properties) = value.as_object().filter(|_| key == "properties") else {
            lines.push(format!(" {}: {}", line(&key.as_str().into()), line(value)));
            continue;
        };
        let rows: Vec<String> = sorted(properties)
            .into_iter()
            .map(|(field, property)| {
                let row = format!("{}: {}", line(&field.as_str().into()), line(property));
                let first = *known.entry(row.clone()).or_insert(name);
                let short = format!("{}: {}", line(&field.as_str().into()), line(&first.into()));
                format!("  {}", if first != name && short.len() * 2 < row.len() { short } else { row })
            })
            .collect();
        lines.push(format!(" \"properties\": {{\n{}\n }}", rows.join(",\n")));
    }
    format!("{{\n{}\n}}", lines.join(",\n"))
}

/// Formats a value on one line, with its keys in order.
fn line(value: &Value) -> String {
    let comma = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Object(map) => {
            let entries = sorted(map).into_iter();
            let entry =
                |(key, value): (&String, &Value)| format!("{}: {}", line(&key.as_str().into()), line(value));
            format!("{{{}}}", comma(entries.map(entry).collect()))
        }
        Value::Array(list) => format!("[{}]", comma(list.iter().map(line).collect())),
        other => other.to_string(),
    }
}

/// Returns the entries by key: the order of a serde_json map depends on a feature of that crate.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// Puts the packages in place of what the directory holds.
fn replace(directory: &Path, packages: &BTreeMap<&str, String>) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for (package, text) in packages {
        let path = directory.join(format!("{package}.json"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LONG: &str =
        "A text that is long enough for a reference to the first definition that has it to be shorter.";

    fn document(schemas: Value) -> Value {
        json!({"openapi": "3.0.0", "components": {"schemas": schemas}})
    }

    fn v2(definitions: Value) -> Value {
        json!({"swagger": "2.0", "definitions": definitions})
    }

    #[test]
    fn equal_properties_are_written_once() {
        let schema =
            json!({"type": "object", "properties": {"kind": {"description": LONG, "type": "string"}}});
        let both = json!({"a.v1.One": schema, "a.v1.Two": schema});
        let all = collect(vec![document(both.clone())], &v2(both)).unwrap();
        let text = packages(&all).remove("a.v1").unwrap();
        assert_eq!(text.matches(LONG).count(), 1);
        assert!(text.contains("\"kind\": \"a.v1.One\""), "{text}");
        assert!(serde_json::from_str::<Value>(&text).is_ok());
    }

    #[test]
    fn shared_definition_has_the_kinds_of_every_group() {
        let kind = |group: &str| json!({"group": group, "version": "v1", "kind": "DeleteOptions"});
        let of = |groups: &[&str]| {
            let kinds: Vec<Value> = groups.iter().map(|group| kind(group)).collect();
            json!({"m.v1.DeleteOptions": {KINDS: kinds}})
        };
        let documents = vec![document(of(&["", "batch"])), document(of(&["", "apps"]))];
        let all = collect(documents, &v2(of(&["", "admission.k8s.io", "apps", "batch"]))).unwrap();
        assert_eq!(all["m.v1.DeleteOptions"][KINDS].as_array().map(Vec::len), Some(4));
    }

    #[test]
    fn documents_that_disagree_are_refused() {
        let of = |ty: &str| json!({"a.v1.One": {"type": ty}});
        let documents = vec![document(of("object")), document(of("string"))];
        let error = collect(documents, &v2(of("object"))).unwrap_err();
        assert_eq!(error.to_string(), "two documents define a.v1.One differently");
    }

    #[test]
    fn a_reference_alone_in_all_of_stands_beside_the_other_keys() {
        let reference = json!({"$ref": "#/components/schemas/a.v1.Spec"});
        assert_eq!(
            neutral(json!({"default": {}, "allOf": [reference]})),
            json!({"default": {}, "$ref": "#/$defs/a.v1.Spec"})
        );
    }
}
