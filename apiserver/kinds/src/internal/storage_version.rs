//! StorageVersions.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, metadata, names, text};
use serde_json::{Value, json};

use crate::kind::{Kind, METADATA_OF_STATUS};
use crate::shared::cells::{self, UNSET};
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "internal.apiserver.k8s.io",
    plural: "storageversions",
    needs_version: true,
    validate,
    columns: COLUMNS,
    unowned: METADATA_OF_STATUS,
    ..Kind::DEFAULT
};

/// Returns the errors of a StorageVersion, whose name is `GROUP.RESOURCE`.
fn validate(object: &Value) -> Vec<FieldError> {
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
    let given = status.get("commonEncodingVersion").and_then(Value::as_str);
    let path = "status.commonEncodingVersion";
    match (given, common) {
        (Some(given), None) => {
            errors.invalid(path, &json!(given), "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet");
        }
        (None, Some(common)) => {
            let detail = format!("the common encoding version is {common}");
            errors.invalid(path, &Value::Null, &detail);
        }
        (Some(given), Some(common)) if given != common => {
            let detail = format!("the actual common encoding version is {common}");
            errors.invalid(path, &json!(given), &detail);
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

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("CommonEncodingVersion", "string", 0, "Version that all servers write"),
        ("StorageVersions", "string", 0, "Versions that each server writes"),
        AGE,
    ],
    cells: |object, now| {
        let servers = meta::list(object, "/status/storageVersions");
        let shown = |server: &Value| {
            format!("{}={}", meta::text(server, "/apiServerID"), meta::text(server, "/encodingVersion"))
        };
        let mut all: Vec<String> = servers.iter().take(3).map(shown).collect();
        if servers.len() > 3 {
            all.push(format!("{} more...", servers.len() - 3));
        }
        vec![
            cells::name(object),
            cells::text_or(object, "/status/commonEncodingVersion", UNSET),
            json!(if all.is_empty() { UNSET.to_owned() } else { all.join(",") }),
            cells::age(object, now),
        ]
    },
};
