//! Scenario files: objects in, the plan of a controller out.
//!
//! A file tells its story in lines that begin with `#`, and goes on in sections:
//!
//! ```text
//! # An update waits for pods that are not available.
//! -- given at 100 --
//! {kind: Deployment, name: web, image: "image:2", spec: {replicas: 3}}
//! ---
//! {kind: ReplicaSet, name: web-1, owner: Deployment/web, image: "image:1", spec: {replicas: 3}}
//! -- plan --
//! create ReplicaSet web-76f5
//! -- then at 160 --
//! {kind: ReplicaSet, name: web-1, status: {availableReplicas: 2}}
//! ---
//! {kind: Pod, name: a, gone: true}
//! -- plan --
//! (nothing)
//! ```
//!
//! `given` and `then` contain YAML, which is merged into the objects of the same kind and name; each `plan` is what the
//! controller would do then. `HAWSER_BLESS=1` writes the plans anew, which are to be read before they are believed. Times are
//! seconds after 2027-01-15T08:00:00Z. [`SHORTHANDS`] are the fields that no Kubernetes object has.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::merge::merge;
use super::{at, meta, selector, slim, template};
use crate::pods::Pod;

/// Returns what the value of a shorthand stands for.
type Meaning = fn(&Value) -> Value;

/// Fields that stand for others, with what they stand for.
const SHORTHANDS: &[(&str, Meaning)] = &[
    ("name", |name| json!({"metadata": {"name": name}})),
    ("labels", |labels| json!({"metadata": {"labels": labels}})),
    ("annotations", |annotations| json!({"metadata": {"annotations": annotations}})),
    ("created", |second| json!({"metadata": {"creationTimestamp": time(second)}})),
    // The second at which it began to be deleted.
    ("leaving", |second| json!({"metadata": {"deletionTimestamp": time(second)}})),
    // `KIND/NAME` of the controller.
    ("owner", owned),
    ("node", |node| json!({"spec": {"nodeName": node}})),
    // Image of the only container in the template, whose pods have the label `app=test`.
    (
        "image",
        |image| json!({"spec": {"selector": selector(), "template": template(image.as_str().unwrap())}}),
    ),
    // `WORD` or `WORD since SECOND`: `ready`, `unready` (while it runs), or a phase.
    ("is", state),
];

/// Objects at some time.
pub struct Scene {
    pub now: Timestamp,
    objects: BTreeMap<(String, String), Value>,
}

impl Scene {
    /// Returns the objects of a kind as they are in the file, by name.
    pub fn values(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((of, _), _)| of == kind).map(|(_, object)| object)
    }

    pub fn all<K: DeserializeOwned>(&self, kind: &str) -> Vec<Arc<K>> {
        let read = |object: &Value| {
            let read = serde_json::from_value(object.clone());
            Arc::new(read.unwrap_or_else(|error| panic!("{error}: {object}")))
        };
        self.values(kind).map(read).collect()
    }

    /// Returns the only object of a kind.
    pub fn one<K: DeserializeOwned + Clone>(&self, kind: &str) -> K {
        let all = self.all(kind);
        assert_eq!(all.len(), 1, "objects of the kind {kind}");
        K::clone(&all[0])
    }

    pub fn pods(&self) -> Vec<Arc<Pod>> {
        slim(self.all::<v1::Pod>("Pod").into_iter().map(Arc::unwrap_or_clone))
    }

    fn change(&mut self, mut change: Value) {
        let text = |field: &Value| field.as_str().map(str::to_owned);
        let name = text(&change["name"]).or_else(|| text(&change["metadata"]["name"])).expect("a name");
        let key = (text(&change["kind"]).expect("a kind"), name);
        if change["gone"] == true {
            assert!(self.objects.remove(&key).is_some(), "{key:?} is not there");
            return;
        }
        let object = self.objects.entry(key).or_insert_with_key(|(_, name)| json!({"metadata": meta(name)}));
        for (field, meaning) in SHORTHANDS {
            if let Some(short) = change.as_object_mut().unwrap().remove(*field) {
                merge(object, &meaning(&short));
            }
        }
        merge(object, &change);
    }
}

fn time(second: &Value) -> Value {
    second.as_i64().map_or(Value::Null, |second| json!(Time(at(second))))
}

fn owned(owner: &Value) -> Value {
    let Some((kind, name)) = owner.as_str().and_then(|text| text.split_once('/')) else {
        return json!({"metadata": {"ownerReferences": null}});
    };
    let version = match kind {
        "Job" | "CronJob" => "batch/v1",
        "Service" => "v1",
        _ => "apps/v1",
    };
    json!({"metadata": {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": name,
        "uid": format!("uid-{name}"), "controller": true, "blockOwnerDeletion": true}]}})
}

fn state(text: &Value) -> Value {
    let text = text.as_str().unwrap();
    let (word, since) = text.split_once(" since ").unwrap_or((text, "0"));
    let (phase, ready) = match word {
        "ready" => ("Running", "True"),
        "unready" => ("Running", "False"),
        phase => (phase, "False"),
    };
    let ready =
        json!({"type": "Ready", "status": ready, "lastTransitionTime": Time(at(since.parse().unwrap()))});
    json!({"status": {"phase": phase, "conditions": [ready]}})
}

/// A part of a file, beginning with its head.
struct Section<'a> {
    head: &'a str,
    body: &'a str,
}

fn sections(text: &str) -> (&str, Vec<Section<'_>>) {
    let is_head = |line: &str| line.starts_with("-- ") && line.trim_end().ends_with(" --");
    let mut starts = Vec::new();
    let mut place = 0;
    for line in text.split_inclusive('\n') {
        if is_head(line) {
            starts.push((place, place + line.len()));
        }
        place += line.len();
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
    let section = |((start, body), end): (&(usize, usize), usize)| {
        let head = text[*start..*body].trim_end();
        Section { head: &head[3..head.len() - 3], body: &text[*body..end] }
    };
    let all = starts.iter().zip(ends).map(section).collect();
    (&text[..starts.first().map_or(text.len(), |(start, _)| *start)], all)
}

/// Returns the text of a file with the plans that `plan` makes.
fn played(text: &str, mut plan: impl FnMut(&Scene) -> Vec<String>) -> String {
    let (story, sections) = sections(text);
    assert!(story.lines().any(|line| line.starts_with("# ")), "a story");
    let mut scene = Scene { now: at(0), objects: BTreeMap::new() };
    let mut new = story.to_owned();
    let count = sections.len();
    for (place, Section { head, body }) in sections.into_iter().enumerate() {
        new += &format!("-- {head} --\n");
        match head.split_once(" at ").unwrap_or((head, "")) {
            ("plan", "") => {
                let found = plan(&scene);
                let found = if found.is_empty() { "(nothing)".to_owned() } else { found.join("\n") };
                new += &found;
                new += if place + 1 == count { "\n" } else { "\n\n" };
            }
            ("given" | "then", second) => {
                if let Ok(second) = second.parse() {
                    scene.now = at(second);
                }
                if !body.trim().is_empty() {
                    let changes: Vec<Value> = serde_saphyr::from_multiple(body).unwrap();
                    changes.into_iter().for_each(|change| scene.change(change));
                }
                new += body;
            }
            _ => panic!("unknown section {head:?}"),
        }
    }
    new
}

/// Compares the plans of all scenarios of a folder with those of `planner`, which begins anew for each file.
pub fn check<P: FnMut(&Scene) -> Vec<String>>(folder: &str, planner: impl Fn() -> P) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
    let mut paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    assert!(!paths.is_empty(), "{} has no scenarios", dir.display());
    let mut wrong = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| played(&text, planner())));
        let found = found.unwrap_or_else(|_| panic!("{}", path.display()));
        if found == text {
            continue;
        }
        if std::env::var_os("HAWSER_BLESS").is_some() {
            fs::write(&path, found).unwrap();
        } else {
            wrong.push(format!("{}\nfound:\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nHAWSER_BLESS=1 takes what was found", wrong.join("\n"));
}

/// Returns the differences between two objects or parts of objects, one a line: `PATH: OLD -> NEW`. Conditions are listed
/// by their types and without their times.
pub fn changes(old: &impl Serialize, new: &impl Serialize) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", &listed(json!(old)), &listed(json!(new)), &mut lines);
    lines
}

/// Returns a value with maps in place of lists of conditions.
fn listed(value: Value) -> Value {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match value {
        Value::Array(all) if all.iter().any(|one| one["type"].is_string() && one["status"].is_string()) => {
            let of = |one: &Value| {
                let whole =
                    format!("{} {}: {}", word(&one["status"]), word(&one["reason"]), word(&one["message"]));
                (word(&one["type"]), json!(whole.trim_end_matches([' ', ':'])))
            };
            Value::Object(all.iter().map(of).collect())
        }
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, listed(value))).collect(),
        other => other,
    }
}

fn compare(path: &str, old: &Value, new: &Value, lines: &mut Vec<String>) {
    if old == new {
        return;
    }
    let none = serde_json::Map::new();
    let fields = |value: &'_ Value| value.as_object().cloned().unwrap_or_else(|| none.clone());
    if (old.is_object() || old.is_null()) && (new.is_object() || new.is_null()) {
        let (old, new) = (fields(old), fields(new));
        let mut keys: Vec<_> = old.keys().chain(new.keys()).collect();
        keys.sort();
        keys.dedup();
        let of =
            |fields: &serde_json::Map<String, Value>, key: &str| fields.get(key).cloned().unwrap_or_default();
        for key in keys {
            let whole = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            compare(&whole, &of(&old, key), &of(&new, key), lines);
        }
        return;
    }
    let shown = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let line = if old.is_null() { shown(new) } else { format!("{} -> {}", shown(old), shown(new)) };
    lines.push(format!("{path}: {line}"));
}

/// Returns a line with others below it.
pub fn headed(head: impl Into<String>, lines: Vec<String>) -> impl Iterator<Item = String> {
    std::iter::once(head.into()).chain(lines.into_iter().map(|line| format!("  {line}")))
}

/// Returns lines about the difference between two statuses; none if they are equal.
pub fn status(old: &impl Serialize, new: &impl Serialize) -> Vec<String> {
    let lines = changes(old, new);
    if lines.is_empty() { lines } else { headed("status", lines).collect() }
}

/// Returns a line about the next look at an object, if there is one.
pub fn again(after: Option<Duration>) -> Option<String> {
    after.map(|after| format!("again after {} s", after.as_secs_f64()))
}

#[test]
fn plans_of_a_file_are_those_of_its_scenes() {
    let file = "# Two scenes.\n-- given at 5 --\n{kind: Pod, name: a, is: ready since 3}\n---\n{kind: Pod, name: b}\n\
        -- plan --\nwrong\n-- then --\n{kind: Pod, name: a, node: n1}\n---\n{kind: Pod, name: b, gone: true}\n-- plan --\n";
    let found = played(file, |scene| {
        let pod = |pod: &Arc<Pod>| {
            format!("{} {} {}", crate::meta::name(&pod.metadata), pod.node_name(), pod.is_ready())
        };
        scene.pods().iter().map(pod).collect()
    });
    let plans: Vec<_> = found.split("-- plan --\n").skip(1).collect();
    assert_eq!(
        plans[0],
        "a  true\nb  false\n\n-- then --\n{kind: Pod, name: a, node: n1}\n---\n{kind: Pod, name: b, gone: true}\n"
    );
    assert_eq!(plans[1], "a n1 true\n");
    assert_eq!(
        found,
        played(&found, |scene| scene
            .pods()
            .iter()
            .map(|pod| format!("{} {} {}", crate::meta::name(&pod.metadata), pod.node_name(), pod.is_ready()))
            .collect()),
        "blessed"
    );
}

#[test]
fn changes_name_paths_and_conditions() {
    let old = json!({"replicas": 1, "conditions": [{"type": "A", "status": "True", "reason": "R", "lastUpdateTime": "1"}]});
    let new = json!({"ready": 2, "conditions": [{"type": "A", "status": "True", "reason": "R", "lastUpdateTime": "2"},
        {"type": "B", "status": "False", "reason": "S", "message": "no"}]});
    assert_eq!(changes(&old, &new), ["conditions.B: False S: no", "ready: 2", "replicas: 1 -> -"]);
}
