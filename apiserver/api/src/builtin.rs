//! The built-in kinds: `data/resources.json` says which exist, the table here what is particular to
//! each. A kind without a line gets the defaults.

mod table;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::columns;
use crate::definition;
use crate::error::FieldError;
use crate::registry::{
    Behaviour, CheckChange, CheckFrom, Mark, Registry, Resource, Subresource, Verb, Warnings,
};
use crate::validation::status;
use crate::warnings;

use table::Row;

/// One entry of `data/resources.json`.
#[derive(Deserialize)]
struct Entry {
    group: String,
    version: String,
    plural: String,
    kind: String,
    namespaced: bool,
    verbs: Vec<String>,
    subresources: std::collections::BTreeMap<String, Vec<String>>,
    /// Why the kind is known and not served.
    unserved: Option<String>,
    /// Verbs of a kind that is not served which are answered as if it were, and had no objects.
    #[serde(default)]
    still: Vec<String>,
}

/// The registry of all built-in kinds that are served.
pub fn registry() -> Registry {
    let resources = entries().into_iter().filter_map(answered).map(resource).collect();
    Registry::new(resources)
}

/// Kinds of Kubernetes 1.36's stable API that are not served: `GROUP/VERSION/PLURAL` and why.
pub fn unserved() -> Vec<(String, String)> {
    entries()
        .into_iter()
        .filter_map(|e| Some((format!("{}/{}/{}", e.group, e.version, e.plural), e.unserved?)))
        .collect()
}

fn entries() -> Vec<Entry> {
    serde_json::from_str(include_str!("../data/resources.json")).expect("the build script has read this file")
}

/// The part of an entry that requests may name.
fn answered(mut entry: Entry) -> Option<Entry> {
    if entry.unserved.is_some() {
        entry.verbs = std::mem::take(&mut entry.still);
        entry.subresources.clear();
    }
    (!entry.verbs.is_empty()).then_some(entry)
}

fn resource(entry: Entry) -> Resource {
    let row = table::row(&entry.group, &entry.plural);
    let verbs = verbs(&entry.verbs);
    // Reviews and bindings can be created and nothing else; nothing is kept of them.
    let stored = verbs.contains(&Verb::Create) && verbs.contains(&Verb::Get);
    let package = match entry.group.as_str() {
        "" => "io.k8s.api.core".to_owned(),
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions".to_owned(),
        group => format!("io.k8s.api.{}", group.split('.').next().unwrap_or_default()),
    };
    let layout = columns::layout(&entry.group, &entry.plural);
    let prefix = if row.prefix.is_empty() { entry.plural.as_str() } else { row.prefix };
    Resource {
        schema: format!("{package}.{}.{}", entry.version, entry.kind),
        singular: entry.kind.to_lowercase(),
        subresources: entry
            .subresources
            .iter()
            .filter_map(|(name, verbs)| subresource(name, verbs))
            .collect(),
        short_names: row.short_names.iter().map(ToString::to_string).collect(),
        categories: if row.all { vec!["all".to_owned()] } else { row.categories() },
        storage_prefix: format!("/registry/{prefix}"),
        selectable: row.selectable.iter().map(ToString::to_string).collect(),
        columns: layout.columns(),
        cells: Arc::new(layout.cells),
        custom: None,
        behaviour: behaviour(&entry, row, stored),
        group: entry.group,
        version: entry.version,
        plural: entry.plural,
        kind: entry.kind,
        namespaced: entry.namespaced,
        verbs,
        stored,
    }
}

fn behaviour(entry: &Entry, row: &Row, stored: bool) -> Behaviour {
    let definition = row.group == definition::GROUP;
    Behaviour {
        generation: row.generation,
        graceful_delete: row.graceful_delete,
        status_subresource: entry.subresources.contains_key("status"),
        needs_version: definition,
        default: Arc::new(row.default),
        prepare_create: Arc::new(row.prepare_create),
        prepare_update: Arc::new(row.prepare_update),
        // What is not kept needs no name.
        validate: if stored { Arc::new(row.validate) } else { Arc::new(no_errors) },
        validate_update: Arc::new(row.validate_update),
        validate_status: status::check(&entry.group, &entry.plural)
            .map(|check| -> CheckFrom { Arc::new(check) }),
        validate_change: definition.then(|| -> CheckChange { Arc::new(definition::validate_change) }),
        warnings: if definition {
            Some(Arc::new(definition::warnings))
        } else {
            warnings::of(&entry.group, &entry.plural).map(|warnings| -> Warnings { Arc::new(warnings) })
        },
        prepare_delete: definition.then(|| -> Mark { Arc::new(definition::prepare_delete) }),
    }
}

fn verbs(names: &[String]) -> Vec<Verb> {
    let known = |name: &String| match name.as_str() {
        "get" => Some(Verb::Get),
        "list" => Some(Verb::List),
        "watch" => Some(Verb::Watch),
        "create" => Some(Verb::Create),
        "update" => Some(Verb::Update),
        "patch" => Some(Verb::Patch),
        "delete" => Some(Verb::Delete),
        "deletecollection" => Some(Verb::DeleteCollection),
        _ => None,
    };
    names.iter().filter_map(known).collect()
}

/// Subresources of another kind than their parent: name, kind, group, version.
const SUBRESOURCE_KINDS: &[(&str, &str, &str, &str)] = &[
    ("binding", "Binding", "", "v1"),
    ("eviction", "Eviction", "policy", "v1"),
    ("scale", "Scale", "autoscaling", "v1"),
    ("token", "TokenRequest", "authentication.k8s.io", "v1"),
    ("attach", "PodAttachOptions", "", "v1"),
    ("exec", "PodExecOptions", "", "v1"),
    ("portforward", "PodPortForwardOptions", "", "v1"),
];

/// Subresources of their parent's own kind. `proxy` is missing: it has no verb of its own.
const OWN_SUBRESOURCES: &[&str] = &["approval", "ephemeralcontainers", "finalize", "log", "resize", "status"];

fn subresource(name: &str, names: &[String]) -> Option<Subresource> {
    let (name, kind, group, version) = SUBRESOURCE_KINDS
        .iter()
        .copied()
        .find(|row| row.0 == name)
        .or_else(|| OWN_SUBRESOURCES.iter().find(|own| **own == name).map(|own| (*own, "", "", "")))?;
    let verbs =
        if names.iter().any(|n| n == "connect") { vec![Verb::Create, Verb::Get] } else { verbs(names) };
    Some(Subresource { name, kind, group, version, verbs })
}

fn nothing(_: &mut Value) {}

fn nothing_on_update(_: &mut Value, _: &Value) {}

fn no_errors(_: &Value) -> Vec<FieldError> {
    Vec::new()
}

fn no_immutable_fields(_: &Value, _: &Value) -> Vec<FieldError> {
    Vec::new()
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
