//! The requests of a run, made from its seed.

use http::Method;
use serde_json::{Value, json};

use crate::kinds::{Kind, named};
use crate::mutation::{mutate, text};
use crate::patch;
use crate::schema::Schemas;
use crate::seeded::Seeded;

/// An object that was really created on both servers, for updates and patches in dry run.
#[derive(Clone)]
pub struct Base {
    /// The manifest that was sent.
    pub manifest: Value,
    pub path: String,
}

/// Stands in bodies for what each server gave to the object that is changed.
pub const RESOURCE_VERSION: &str = "@resourceVersion@";
pub const UID: &str = "@uid@";

/// One request to both servers.
#[derive(Clone)]
pub struct Case {
    /// The verb as in the report: `create`, `update`, `merge patch`.
    pub verb: &'static str,
    /// Version and kind.
    pub kind: String,
    pub method: Method,
    pub path: String,
    pub content_type: &'static str,
    /// With [`RESOURCE_VERSION`] and [`UID`] in it.
    pub body: String,
    /// The mutations of a valid manifest.
    pub done: Vec<String>,
    /// The path of the object that is changed.
    pub base: Option<String>,
}

/// The source of the cases.
pub struct Plan<'a> {
    pub seed: u64,
    pub schemas: &'a Schemas,
    pub namespace: &'a str,
    /// Each with what was created of it.
    pub kinds: &'a [(Kind, Vec<Base>)],
}

/// In this share of requests the manifest is right as far as the generator knows, percent.
const RIGHT: usize = 16;

impl Plan<'_> {
    /// The request of a number. Pods are asked for more often than others, as they have the most rules.
    pub fn case(&self, number: usize) -> Case {
        let mut from = Seeded::nth(self.seed, number as u64);
        let pods = self.kinds.iter().find(|(kind, _)| kind.plural == "pods").filter(|_| from.chance(10));
        let Some((kind, bases)) = pods.or_else(|| from.choose(self.kinds)) else {
            unreachable!("a server has kinds")
        };
        let base = from.choose(bases).filter(|_| from.chance(45)).cloned();
        match base {
            Some(base) => self.change(kind, &base, &mut from),
            None => self.create(kind, number, &mut from),
        }
    }

    fn create(&self, kind: &Kind, number: usize, from: &mut Seeded) -> Case {
        let manifest = from.choose(&kind.manifests).cloned().unwrap_or_else(|| json!({}));
        let mut manifest = named(&manifest, self.namespace, &format!("c-{number}"));
        // Nobody names a question.
        if !kind.deletes && from.chance(85) {
            manifest["metadata"] = json!({});
        }
        let done = self.wrong(kind, &mut manifest, from);
        Case {
            verb: "create",
            kind: format!("{} {}", kind.api_version, kind.kind),
            method: Method::POST,
            path: format!("{}{}", kind.collection(self.namespace), query(from)),
            content_type: "application/json",
            body: text(&manifest),
            done,
            base: None,
        }
    }

    /// Makes a manifest larger, then mostly wrong.
    fn wrong(&self, kind: &Kind, manifest: &mut Value, from: &mut Seeded) -> Vec<String> {
        let definition = self.schemas.of_kind(&kind.api_version, &kind.kind).unwrap_or_default();
        for _ in 0..from.below(4) {
            self.schemas.grow(manifest, definition, from);
        }
        if from.chance(RIGHT) {
            return Vec::new();
        }
        let count = if from.chance(75) { 1 } else { 2 };
        (0..count).map(|_| mutate(manifest, self.schemas, definition, from)).collect()
    }

    fn change(&self, kind: &Kind, base: &Base, from: &mut Seeded) -> Case {
        let definition = self.schemas.of_kind(&kind.api_version, &kind.kind).unwrap_or_default();
        let mut manifest = base.manifest.clone();
        let count = if from.chance(80) { 1 } else { 2 };
        let done = (0..count).map(|_| mutate(&mut manifest, self.schemas, definition, from)).collect();
        let (verb, content_type, body, more) = match from.below(10) {
            0..=4 => ("update", "application/json", replacement(&mut manifest, from), ""),
            5 => (
                "JSON patch",
                "application/json-patch+json",
                patch::json_patch(&base.manifest, &manifest, from),
                "",
            ),
            6 => (
                "merge patch",
                "application/merge-patch+json",
                patch::merge_patch(&base.manifest, &manifest),
                "",
            ),
            7 => (
                "strategic patch",
                "application/strategic-merge-patch+json",
                patch::strategic_patch(&base.manifest, &manifest, from),
                "",
            ),
            _ => {
                let force = if from.chance(60) { "&force=true" } else { "" };
                ("apply", "application/apply-patch+yaml", manifest, force)
            }
        };
        Case {
            verb,
            kind: format!("{} {}", kind.api_version, kind.kind),
            method: if verb == "update" { Method::PUT } else { Method::PATCH },
            path: format!("{}{}{more}", base.path, query(from)),
            content_type,
            body: text(&body),
            done,
            base: Some(base.path.clone()),
        }
    }
}

/// The manifest as the body of an update: mostly with the version that it replaces.
fn replacement(manifest: &mut Value, from: &mut Seeded) -> Value {
    if let Some(metadata) = manifest["metadata"].as_object_mut() {
        if from.chance(75) {
            metadata.entry("resourceVersion").or_insert_with(|| json!(RESOURCE_VERSION));
        }
        if from.chance(20) {
            metadata.entry("uid").or_insert_with(|| json!(UID));
        }
    }
    manifest.clone()
}

fn query(from: &mut Seeded) -> String {
    let validation = match from.below(10) {
        0..=5 => "&fieldValidation=Warn",
        6 | 7 => "&fieldValidation=Strict",
        8 => "&fieldValidation=Ignore",
        _ => "",
    };
    format!("?dryRun=All&fieldManager=against{validation}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Base, Plan};
    use crate::kinds::Kind;
    use crate::schema::Schemas;

    #[test]
    fn equal_seeds_ask_equally_and_everything_is_a_dry_run() {
        let schemas = Schemas::published().unwrap();
        let manifest =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b"}});
        let kind = Kind {
            api_version: "v1".to_owned(),
            plural: "configmaps".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespaced: true,
            updates: true,
            deletes: true,
            manifests: vec![manifest.clone()],
        };
        let kinds = [(kind, vec![Base { manifest, path: "/api/v1/namespaces/n/configmaps/a".to_owned() }])];
        let plan = |seed| Plan { seed, schemas: &schemas, namespace: "n", kinds: &kinds };
        let told = |seed, number| {
            let case = plan(seed).case(number);
            format!("{} {} {} {:?}", case.verb, case.path, case.body, case.done)
        };
        let verbs: std::collections::BTreeSet<_> = (0..200).map(|number| plan(1).case(number).verb).collect();
        assert_eq!(verbs.len(), 6, "{verbs:?}");
        for number in 0..200 {
            assert_eq!(told(1, number), told(1, number));
            assert!(plan(1).case(number).path.contains("?dryRun=All&"));
        }
        assert_ne!(told(1, 0), told(2, 0));
    }
}
