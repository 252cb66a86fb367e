//! The status of definitions: which names are accepted, and whether objects are served.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value, json};

use super::CLEANUP;
use super::validate::{approval_state, is_protected};
use apiserver_meta::time;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::names;

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: String,
    pub message: String,
}

impl Condition {
    pub fn new(kind: &'static str, holds: bool, reason: &str, message: &str) -> Self {
        Self { kind, holds, reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// Sets a condition; its time changes with its status alone. `now` is RFC 3339.
pub fn set_condition(definition: &mut Value, condition: &Condition, now: &str) {
    let status = if condition.holds { "True" } else { "False" };
    let new = json!({"type": condition.kind, "status": status, "lastTransitionTime": now,
        "reason": condition.reason, "message": condition.message});
    meta::set_condition(definition, new);
}

/// The status, made if it is missing.
fn status_mut(definition: &mut Value) -> &mut Map<String, Value> {
    if !definition.is_object() {
        *definition = json!({});
    }
    let status = &mut definition["status"];
    if !status.is_object() {
        *status = json!({});
    }
    status.as_object_mut().expect("made an object above")
}

/// Errors of `spec.names` or `status.acceptedNames`, where something is named.
pub(super) fn names_errors(found: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |field: &str| found.get(field).and_then(Value::as_str).unwrap_or_default();
    let mut check = |at: String, shown: &str, label: &str, intro: &str| {
        let faults = names::dns_1035_label(label);
        if !shown.is_empty() && !faults.is_empty() {
            let detail = format!("{intro}{}", faults.join(","));
            errors.push(FieldError::invalid(at, &json!(shown), &detail));
        }
    };
    for field in ["plural", "singular"] {
        check(format!("{path}.{field}"), text(field), text(field), "");
    }
    for field in ["kind", "listKind"] {
        let intro = "may have mixed case, but should otherwise match: ";
        check(format!("{path}.{field}"), text(field), &text(field).to_lowercase(), intro);
    }
    for field in ["shortNames", "categories"] {
        for (i, name) in meta::list(found, &format!("/{field}")).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let shown = if name.is_empty() { " " } else { name };
            check(format!("{path}.{field}[{i}]"), shown, name, "");
        }
    }
    if !text("kind").is_empty() && text("kind") == text("listKind") {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(format!("{path}.listKind"), &json!(text("listKind")), detail));
    }
    errors
}

/// The names that other definitions of a group have been granted.
#[derive(Clone, Debug, Default)]
pub struct AcceptedNames {
    /// Plurals, singulars and short names.
    pub resources: BTreeSet<String>,
    /// Kinds and list kinds.
    pub kinds: BTreeSet<String>,
}

impl AcceptedNames {
    /// Adds those of one definition: its `status.acceptedNames`.
    pub fn add(&mut self, accepted: &Value) {
        let mut put = |set: fn(&mut Self) -> &mut BTreeSet<String>, value: Option<&Value>| {
            if let Some(text) = value.and_then(Value::as_str).filter(|t| !t.is_empty()) {
                set(self).insert(text.to_owned());
            }
        };
        put(|s| &mut s.resources, accepted.get("plural"));
        put(|s| &mut s.resources, accepted.get("singular"));
        for short in meta::list(accepted, "/shortNames") {
            put(|s| &mut s.resources, Some(short));
        }
        put(|s| &mut s.kinds, accepted.get("kind"));
        put(|s| &mut s.kinds, accepted.get("listKind"));
    }
}

/// The definition with the status that it should have, or `None` where it has it. `others` are
/// the names of all other definitions of its group.
pub fn reconcile(definition: &Value, others: &AcceptedNames, now: jiff::Timestamp) -> Option<Value> {
    let now = time::rfc3339(now);
    let mut new = definition.clone();
    let (accepted, conflict) =
        accept(&definition["spec"]["names"], &definition["status"]["acceptedNames"], others);
    status_mut(&mut new).insert("acceptedNames".to_owned(), accepted);
    let condition = match &conflict {
        None => Condition::new("NamesAccepted", true, "NoConflicts", "no conflicts found"),
        Some((reason, message)) => Condition::new("NamesAccepted", false, reason, message),
    };
    set_condition(&mut new, &condition, &now);
    // Once objects may exist, their kind stays served even if further names conflict.
    if !meta::condition_is_true(definition, "Established") {
        let condition = if conflict.is_none() {
            Condition::new(
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted",
            )
        } else {
            Condition::new("Established", false, "NotAccepted", "not all names are accepted")
        };
        set_condition(&mut new, &condition, &now);
    }
    if is_protected(meta::text(definition, "/spec/group")) {
        let kind = "KubernetesAPIApprovalPolicyConformant";
        let condition = match approval_state(definition) {
            Ok((reason, message)) => Condition::new(kind, reason == "ApprovedAnnotation", reason, &message),
            Err((true, message)) => Condition::new(kind, false, "MissingAnnotation", &message),
            Err((false, message)) => Condition::new(kind, false, "InvalidAnnotation", &message),
        };
        set_condition(&mut new, &condition, &now);
    }
    (new != *definition).then_some(new)
}

/// The names that are granted, and the first conflict.
fn accept(wanted: &Value, granted: &Value, others: &AcceptedNames) -> (Value, Option<(String, String)>) {
    let mut accepted = if granted.is_object() { granted.clone() } else { json!({}) };
    let mut conflict = None;
    let in_use = |name: &str| format!("\"{name}\" is already in use");
    for (field, taken, reason) in [
        ("plural", &others.resources, "PluralConflict"),
        ("singular", &others.resources, "SingularConflict"),
        ("shortNames", &others.resources, "ShortNamesConflict"),
        ("kind", &others.kinds, "KindConflict"),
        ("listKind", &others.kinds, "ListKindConflict"),
    ] {
        let value = wanted.get(field).cloned().unwrap_or_default();
        let list = match &value {
            Value::Array(list) => list.clone(),
            other => vec![other.clone()],
        };
        let had: HashSet<Value> = match granted.get(field) {
            Some(Value::Array(list)) => list.iter().cloned().collect(),
            Some(other) => [other.clone()].into(),
            None => HashSet::new(),
        };
        let clashes: Vec<String> = list
            .iter()
            .filter(|name| !had.contains(*name))
            .filter_map(Value::as_str)
            .filter(|name| taken.contains(*name))
            .map(in_use)
            .collect();
        if !clashes.is_empty() {
            let text = if let [one] = clashes.as_slice() {
                one.clone()
            } else {
                format!("[{}]", clashes.join(", "))
            };
            conflict = Some((reason.to_owned(), text));
        } else if value.is_null() {
            remove(&mut accepted, field);
        } else {
            accepted[field] = value;
        }
    }
    match wanted.get("categories") {
        Some(categories) => accepted["categories"] = categories.clone(),
        None => remove(&mut accepted, "categories"),
    }
    for required in ["plural", "kind"] {
        if accepted.get(required).is_none() {
            accepted[required] = "".into();
        }
    }
    (accepted, conflict)
}

fn remove(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

/// Returns `true` if a definition is being deleted and still waits for its objects to go.
pub fn awaits_cleanup(definition: &Value) -> bool {
    meta::deletion_timestamp(definition).is_some() && meta::finalizers(definition).contains(&CLEANUP)
}
