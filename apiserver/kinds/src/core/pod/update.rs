//! Validation of changes to an existing Pod: by update, by `ephemeralcontainers` and by `resize`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use apiserver_meta::pods::MIRROR;
use apiserver_meta::quantity;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, same, text};
use serde_json::{Value, json};

use crate::core::pod;
use crate::core::pod::apparmor::ANNOTATION;
use crate::core::pod::container;
use crate::shared::changes;

const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Changes that a Pod allows: images, a shorter deadline, more tolerations, fewer scheduling gates,
/// and of a gated pod where it may go. Arguments: new, old. Binding, resizing and ephemeral
/// containers have their own subresources and do not come through here.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    annotations(new, old, &mut errors);
    if new["spec"] == old["spec"] {
        // Most updates are of metadata.
        deadline(&new["spec"], &old["spec"], &mut errors);
        return errors.list();
    }
    // An object stored by an earlier version may lack defaults that the new object has by now.
    let mut old = old.clone();
    pod::default(&mut old);
    let (spec, before) = (&new["spec"], &old["spec"]);
    let mut allowed = spec.clone();
    for list in ["containers", "initContainers"] {
        if items(spec, list).len() != items(before, list).len() {
            errors.forbidden(format!("spec.{list}"), "pod updates may not add or remove containers");
            return errors.list();
        }
        images(spec, list, &mut errors);
        restore_images(&mut allowed, list, before);
    }
    if !deadline(spec, before, &mut errors) {
        return errors.list();
    }
    tolerations(spec, before, &mut errors);
    gates(spec, before, &mut errors);
    restore(&mut allowed, before, &["activeDeadlineSeconds", "tolerations", "schedulingGates"]);
    if before["terminationGracePeriodSeconds"].as_i64().is_some_and(|s| s < 0)
        && allowed["terminationGracePeriodSeconds"] == 1
    {
        restore(&mut allowed, before, &["terminationGracePeriodSeconds"]);
    }
    if !items(before, "schedulingGates").is_empty() {
        gated(&mut allowed, before, &mut errors);
    }
    if !equal(&allowed, before) {
        errors.forbidden("spec", &format!("{ONLY}{}", changes::named(&allowed, before)));
    }
    errors.list()
}

fn equal(a: &Value, b: &Value) -> bool {
    let keys =
        |v: &Value| v.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect::<BTreeSet<_>>();
    keys(a).union(&keys(b)).all(|key| same(a.get(key), b.get(key)))
}

/// Validates images as on creation, because they may change.
fn images(spec: &Value, list: &str, errors: &mut Errors) {
    for (index, container) in items(spec, list).iter().enumerate() {
        let path = format!("spec.{list}[{index}]");
        if text(container, "image").is_empty() {
            errors.required(format!("{path}.image"), "");
        }
        container::trimmed_image(container, &path, errors);
    }
}

fn restore_images(allowed: &mut Value, list: &str, before: &Value) {
    let containers = allowed.get_mut(list).and_then(Value::as_array_mut);
    for (new, old) in containers.into_iter().flatten().zip(items(before, list)) {
        restore(new, old, &["image"]);
    }
}

/// Restores fields to their old values.
fn restore(new: &mut Value, old: &Value, fields: &[&str]) {
    let Value::Object(new) = new else { return };
    for field in fields {
        match old.get(field) {
            Some(value) => new.insert((*field).to_owned(), value.clone()),
            None => new.remove(*field),
        };
    }
}

/// Says whether there is a point in looking further.
fn deadline(spec: &Value, before: &Value, errors: &mut Errors) -> bool {
    let path = "spec.activeDeadlineSeconds";
    let old = before["activeDeadlineSeconds"].as_i64();
    match (old, spec["activeDeadlineSeconds"].as_i64()) {
        (_, Some(new)) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            errors.invalid(path, &json!(new), &format!("must be between 0 and {}, inclusive", i32::MAX));
            false
        }
        (Some(old), Some(new)) if new > old => {
            errors.invalid(path, &json!(new), "must be less than or equal to previous value");
            false
        }
        (Some(_), None) => {
            errors.invalid(path, &Value::Null, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}

fn tolerations(spec: &Value, before: &Value, errors: &mut Errors) {
    // The seconds of one that is there may change.
    let identity = |toleration: &Value| {
        let mut copy = toleration.clone();
        if let Value::Object(map) = &mut copy {
            map.remove("tolerationSeconds");
        }
        copy
    };
    let now: HashSet<Value> = items(spec, "tolerations").iter().map(identity).collect();
    if !items(before, "tolerations").iter().all(|old| now.contains(&identity(old))) {
        errors.forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
}

fn gates(spec: &Value, before: &Value, errors: &mut Errors) {
    let old: HashSet<&Value> = items(before, "schedulingGates").iter().collect();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        if !old.contains(gate) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
            errors.forbidden(format!("spec.schedulingGates[{index}].name"), &detail);
        }
    }
}

/// Nothing has placed the pod yet, so where it may go can still be narrowed.
fn gated(allowed: &mut Value, before: &Value, errors: &mut Errors) {
    let (now, was) = (allowed.get("nodeSelector"), before.get("nodeSelector"));
    if !same(now, was) {
        let kept = was
            .and_then(Value::as_object)
            .is_none_or(|was| was.iter().all(|(key, value)| now.and_then(|n| n.get(key)) == Some(value)));
        if !kept {
            let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.invalid("spec.nodeSelector", now.unwrap_or(&Value::Null), detail);
        }
        restore(allowed, before, &["nodeSelector"]);
    }
    let affinity = |spec: &Value| spec.pointer("/affinity/nodeAffinity").cloned();
    let (now, was) = (affinity(allowed), affinity(before));
    if same(now.as_ref(), was.as_ref()) {
        return;
    }
    node_affinity(now.as_ref(), was.as_ref(), errors);
    if before.get("affinity").is_some_and(|a| !a.is_null()) {
        if !allowed["affinity"].is_object() {
            allowed["affinity"] = json!({});
        }
        restore(&mut allowed["affinity"], &before["affinity"], &["nodeAffinity"]);
    } else if let Value::Object(map) = &mut allowed["affinity"] {
        map.remove("nodeAffinity");
    }
    if !before.get("affinity").is_some_and(Value::is_object) && same(allowed.get("affinity"), None) {
        restore(allowed, before, &["affinity"]);
    }
}

fn node_affinity(now: Option<&Value>, was: Option<&Value>, errors: &mut Errors) {
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let list = |affinity: Option<&Value>| {
        let required = affinity.and_then(|a| a.get("requiredDuringSchedulingIgnoredDuringExecution"));
        required.and_then(|required| required.get("nodeSelectorTerms")).cloned().unwrap_or_default()
    };
    let terms = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let (old, new) = (terms(&list(was)), terms(&list(now)));
    if old.is_empty() {
        return;
    }
    if old.len() != new.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return errors.invalid(path, &list(now), detail);
    }
    let grown = |new: &Value, old: &Value| {
        let lists = ["matchExpressions", "matchFields"];
        let was_empty = lists.iter().all(|list| items(old, list).is_empty());
        let is_empty = lists.iter().all(|list| items(new, list).is_empty());
        (!was_empty || is_empty) && lists.iter().all(|list| items(new, list).starts_with(items(old, list)))
    };
    for (index, (new, old)) in new.iter().zip(&old).enumerate() {
        if !grown(new, old) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.invalid(format!("{path}[{index}]"), new, detail);
        }
    }
}

/// Annotations that a pod has or lacks for good, as they decide whose it is and how it is confined.
pub(crate) fn annotations(new: &Value, old: &Value, errors: &mut Errors) {
    let of = |pod: &Value| pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let (now, before) = (of(new), of(old));
    let fixed = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        key if key.starts_with(ANNOTATION) => Some("AppArmor annotations"),
        _ => None,
    };
    for key in before.keys().chain(now.keys().filter(|key| !before.contains_key(*key))) {
        if let Some(what) = fixed(key).filter(|_| now.get(key) != before.get(key)) {
            let verb = if before.contains_key(key) { "remove or update" } else { "add" };
            errors.forbidden(format!("metadata.annotations[{key}]"), &format!("may not {verb} {what}"));
        }
    }
}

/// Validates a change through `ephemeralcontainers`, which may only add containers. Arguments: new, old.
pub fn validate_ephemeral(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if meta::annotation(old, MIRROR).is_some() {
        errors.forbidden("", "static pods do not support ephemeral containers");
        return errors.list();
    }
    let path = "spec.ephemeralContainers";
    let list = |pod: &Value| items(&pod["spec"], "ephemeralContainers").to_vec();
    let now = list(new);
    let by_name: BTreeMap<&str, &Value> = now.iter().rev().map(|c| (text(c, "name"), c)).collect();
    for had in list(old) {
        let name = text(&had, "name");
        match by_name.get(name) {
            None => errors
                .forbidden(path, &format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(has) if !equal(has, &had) => {
                errors
                    .forbidden(path, &format!("existing ephemeral containers {name:?} may not be changed\n"));
            }
            Some(_) => {}
        }
    }
    errors.list()
}

/// Validates a change through `resize`, which may only change CPU and memory of containers and sidecars
/// (KEP-1287). Arguments: new, old.
pub fn validate_resize(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let as_whole = |pod: &Value| {
        ["requests", "limits"].iter().any(|list| !same(pod["spec"]["resources"].get(*list), None))
    };
    let refused = if as_whole(old) || as_whole(new) {
        Some("pods with pod-level resources cannot be resized")
    } else if meta::annotation(old, MIRROR).is_some() {
        Some("static pods cannot be resized")
    } else if old["spec"]["os"]["name"] == "windows" {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(why) = refused {
        errors.forbidden("", why);
        return errors.list();
    }
    let class = pod::qos_class(new);
    if pod::qos_class(old) != class {
        errors.invalid("spec", &json!(class), "Pod QOS Class may not change as a result of resizing");
    }
    for list in ["initContainers", "containers"] {
        for (index, (new, old)) in items(&new["spec"], list).iter().zip(items(&old["spec"], list)).enumerate()
        {
            if list == "containers" || container::is_sidecar(old) {
                removed(new, old, &format!("spec.{list}[{index}].resources"), &mut errors);
                others(new, old, list, &mut errors);
            } else if !same(new.get("resources"), old.get("resources")) {
                errors.forbidden("spec", "resources for non-sidecar init containers are immutable");
            }
        }
    }
    errors.list()
}

fn removed(new: &Value, old: &Value, path: &str, errors: &mut Errors) {
    for list in ["requests", "limits"] {
        let amounts = |c: &Value| c["resources"][list].as_object().cloned().unwrap_or_default();
        let now = amounts(new);
        if amounts(old).keys().any(|name| !now.contains_key(name)) {
            errors.forbidden(format!("{path}.{list}"), &format!("resource {list} cannot be removed"));
        }
    }
}

/// Resources other than CPU and memory stay as they are.
fn others(new: &Value, old: &Value, list: &str, errors: &mut Errors) {
    let fixed = |container: &Value| {
        let mut fixed = Vec::new();
        for kind in ["requests", "limits"] {
            for (name, amount) in container["resources"][kind].as_object().into_iter().flatten() {
                if !matches!(name.as_str(), "cpu" | "memory") {
                    let amount = quantity::parse_value(amount).map(|q| q.nano()).unwrap_or_default();
                    fixed.push((kind, name.clone(), amount));
                }
            }
        }
        fixed.sort();
        (fixed, items(&container["resources"], "claims").to_vec())
    };
    if fixed(new) != fixed(old) {
        let which = if list == "containers" { "" } else { " for sidecar containers" };
        errors.forbidden("spec", &format!("only cpu and memory resources{which} are mutable"));
    }
}
