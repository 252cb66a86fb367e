//! StorageVersionMigration and StorageVersion.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::shared::conditions;
use super::{Errors, IMMUTABLE, items, metadata, names, same, text, with_metadata};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;

/// Errors of a StorageVersionMigration.
pub fn migration(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let resource = &object["spec"]["resource"];
    if text(resource, "resource").is_empty() {
        errors.required("spec.resource.resource", "resource is required");
    }
    errors.list()
}

/// Returns the errors of a change: neither the resource to migrate nor a final state may change. Arguments:
/// new, old.
pub fn migration_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Status {
        return migration_status(&new["status"], &old["status"]);
    }
    let mut errors = Errors::of(migration(new));
    for field in ["group", "resource"] {
        let (now, before) = (new["spec"]["resource"].get(field), old["spec"]["resource"].get(field));
        if !same(now, before) {
            errors.invalid(field, now.unwrap_or(&json!("")), IMMUTABLE);
        }
    }
    errors.list()
}

fn migration_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (version, before) = (text(new, "resourceVersion"), text(old, "resourceVersion"));
    let path = "status.resourceVersion";
    if !version.is_empty() && version.parse::<u64>().is_err() {
        let detail = format!("failed to parse resource version \"{version}\"");
        errors.invalid(path, &json!(version), &detail);
    }
    if !before.is_empty() && before != version {
        errors.invalid(path, &json!(version), "cannot be updated");
    }
    let path = "status.conditions";
    let list = items(new, "conditions");
    conditions(list, path, &mut errors);
    let holds = |status: &Value, kind: &str| {
        items(status, "conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    let (done, failed, running) = (holds(new, "Succeeded"), holds(new, "Failed"), holds(new, "Running"));
    for (wrong, detail) in [
        (done && failed, "Both success and failed conditions cannot be true at the same time"),
        (done && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (holds(old, "Succeeded") && !done, "Success condition cannot be set to false once it is true"),
        (holds(old, "Failed") && !failed, "Failed condition cannot be set to false once it is true"),
    ] {
        if wrong {
            errors.invalid(path, &json!(list), detail);
        }
    }
    errors.list()
}

/// Returns the errors of a StorageVersion, whose name is `GROUP.RESOURCE`.
pub fn storage_version(object: &Value) -> Vec<FieldError> {
    let grammar = |name: &str| match name.rsplit_once('.') {
        None => vec!["name must be in the form of <group>.<resource>".to_owned()],
        Some((group, resource)) => {
            let group =
                names::dns_subdomain(group).into_iter().map(|fault| format!("the group segment {fault}"));
            let resource = names::dns_1035_label(resource)
                .into_iter()
                .map(|fault| format!("the resource segment {fault}"));
            group.chain(resource).collect()
        }
    };
    let mut errors = Errors::of(metadata::of_builtin(object, grammar));
    let status = &object["status"];
    let servers = items(status, "storageVersions");
    let mut seen = BTreeSet::new();
    for (index, server) in servers.iter().enumerate() {
        let path = format!("status.storageVersions[{index}]");
        let id = text(server, "apiServerID");
        errors.faults(&format!("{path}.apiServerID"), id, names::dns_subdomain(id));
        if !seen.insert(id) {
            errors.duplicate(format!("{path}.apiServerID"), &json!(id));
        }
        versions(server, &path, &mut errors);
    }
    let encodings: BTreeSet<&str> = servers.iter().map(|s| text(s, "encodingVersion")).collect();
    let common = if encodings.len() == 1 { encodings.first().copied() } else { None };
    let told = status.get("commonEncodingVersion").and_then(Value::as_str);
    let path = "status.commonEncodingVersion";
    match (told, common) {
        (Some(told), None) => {
            errors.invalid(path, &json!(told), "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet");
        }
        (None, Some(common)) => {
            let detail = format!("the common encoding version is {common}");
            errors.invalid(path, &Value::Null, &detail);
        }
        (Some(told), Some(common)) if told != common => {
            let detail = format!("the actual common encoding version is {common}");
            errors.invalid(path, &json!(told), &detail);
        }
        _ => {}
    }
    errors.list()
}

fn versions(server: &Value, path: &str, errors: &mut Errors) {
    let encoding = text(server, "encodingVersion");
    let check = |version: &str, path: String, errors: &mut Errors| {
        let (group, version) = version.split_once('/').map_or((None, version), |(g, v)| (Some(g), v));
        let good = names::dns_1035_label(version).is_empty()
            && group.is_none_or(|group| names::dns_subdomain(group).is_empty());
        if !good {
            errors.invalid(
                path,
                &json!(version),
                "an apiVersion must be in the form of 'group/version' or 'version'",
            );
        }
    };
    check(encoding, format!("{path}.encodingVersion"), errors);
    let decodable = items(server, "decodableVersions");
    for (index, version) in decodable.iter().filter_map(Value::as_str).enumerate() {
        check(version, format!("{path}.decodableVersions[{index}]"), errors);
    }
    if !decodable.iter().any(|version| version == encoding) {
        let detail = format!("decodableVersions must include encodingVersion {encoding}");
        errors.invalid(format!("{path}.decodableVersions"), &json!(decodable), &detail);
    }
}
