//! Places at which a container sees the volumes of its pod.

use std::collections::BTreeSet;

use apiserver_schema::validation::{Errors, given, items, text};
use serde_json::{Value, json};

use crate::core::pod::container::Pod;
use crate::shared::paths;

/// `volumeMounts` of a container at `path`, which ends in that name.
pub(crate) fn mounts(container: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let devices = texts(container, "volumeDevices", ["name", "devicePath"]);
    let mut seen = BTreeSet::new();
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        let at = format!("{path}[{index}]");
        let (name, target) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.required(format!("{at}.name"), "");
        }
        if !pod.volumes.contains_key(name) {
            errors.not_found(format!("{at}.name"), &json!(name));
        }
        if target.is_empty() {
            errors.required(format!("{at}.mountPath"), "");
        }
        if !seen.insert(target) {
            errors.invalid(format!("{at}.mountPath"), &json!(target), "must be unique");
        }
        if devices[0].contains(name) {
            errors.invalid(format!("{at}.name"), &json!(name), "must not already exist in volumeDevices");
        }
        if devices[1].contains(target) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.invalid(format!("{at}.mountPath"), &json!(target), detail);
        }
        sub_paths(mount, &at, path, errors);
        propagation(mount, container, path, errors);
    }
}

/// Returns the texts under each of the fields in the items of a list.
fn texts<'a>(container: &'a Value, list: &str, fields: [&str; 2]) -> [BTreeSet<&'a str>; 2] {
    fields.map(|field| items(container, list).iter().map(|item| text(item, field)).collect())
}

fn sub_paths(mount: &Value, at: &str, path: &str, errors: &mut Errors) {
    let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    if !sub.is_empty() {
        paths::relative(sub, &format!("{path}.subPath"), errors);
    }
    if !expression.is_empty() {
        if !sub.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(format!("{at}.subPathExpr"), &json!(expression), detail);
        }
        paths::relative(expression, &format!("{path}.subPathExpr"), errors);
    }
}

fn propagation(mount: &Value, container: &Value, path: &str, errors: &mut Errors) {
    let mode = given(mount, "mountPropagation");
    if let Some(mode) = mode {
        let path = format!("{path}.mountPropagation");
        if !matches!(mode.as_str(), Some("Bidirectional" | "HostToContainer" | "None")) {
            errors.not_supported(path.as_str(), mode, &["Bidirectional", "HostToContainer", "None"]);
        }
        if mode == "Bidirectional" && container["securityContext"]["privileged"] != true {
            let detail = "Bidirectional mount propagation is available only to privileged containers";
            errors.forbidden(path, detail);
        }
    }
    let path = format!("{path}.recursiveReadOnly");
    match mount.get("recursiveReadOnly").and_then(Value::as_str) {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount["readOnly"] != true {
                errors.forbidden(path.as_str(), "may only be specified when readOnly is true");
            }
            if mode.is_some_and(|m| m != "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(path, detail);
            }
        }
        Some(other) => {
            errors.not_supported(path, &json!(other), &["Disabled", "Enabled", "IfPossible"]);
        }
    }
}

/// `volumeDevices` of a container at `path`, which ends in that name.
pub(crate) fn devices(container: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let mounts = texts(container, "volumeMounts", ["name", "mountPath"]);
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        let at = format!("{path}[{index}]");
        let (name, target) = (text(device, "name"), text(device, "devicePath"));
        let block =
            |v: &&Value| ["persistentVolumeClaim", "ephemeral"].iter().any(|kind| given(v, kind).is_some());
        let volume = pod.volumes.get(name).copied();
        if name.is_empty() {
            errors.required(format!("{at}.name"), "");
        }
        if names.contains(name) {
            errors.invalid(format!("{at}.name"), &json!(name), "must be unique");
        }
        match volume {
            Some(volume) if !block(&volume) => {
                let detail =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(format!("{at}.name"), &json!(name), detail);
            }
            Some(_) => {}
            None => errors.not_found(format!("{at}.name"), &json!(name)),
        }
        if target.is_empty() {
            errors.required(format!("{at}.devicePath"), "");
        }
        let mut invalid = |field: &str, value: &str, detail: &str| {
            errors.invalid(format!("{at}.{field}"), &json!(value), detail);
        };
        if paths.contains(target) {
            invalid("devicePath", target, "must be unique");
        }
        if paths::has_backsteps(target) {
            invalid("devicePath", target, "can not contain backsteps ('..')");
        } else {
            paths.insert(target);
        }
        if mounts[0].contains(name) {
            invalid("name", name, "must not already exist in volumeMounts");
        }
        if mounts[1].contains(target) {
            invalid("devicePath", target, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
