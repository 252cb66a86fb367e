//! Volumes of a pod.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, container, items, names, text};
use crate::quantity;

/// Highest file mode: 0777.
const MODE_LIMIT: i64 = 0o777;

/// Volumes at `path`; gives their names.
pub(super) fn volumes<'a>(volumes: &'a [Value], path: &str, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let name = text(volume, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else {
            let faults = names::dns_label(name);
            if faults.is_empty() && !seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
            errors.faults(&format!("{path}.name"), name, faults);
        }
        let sources: Vec<(&String, &Value)> =
            volume.as_object().into_iter().flatten().filter(|(key, _)| *key != "name").collect();
        match sources.split_first() {
            None => errors.required(path, "must specify a volume type"),
            Some(((kind, source), more)) => {
                for (other, _) in more {
                    errors.forbidden(format!("{path}.{other}"), "may not specify more than 1 volume type");
                }
                self::source(kind, source, &format!("{path}.{kind}"), errors);
            }
        }
    }
    seen
}

fn source(kind: &str, source: &Value, path: &str, errors: &mut Errors) {
    let required = |field: &str, errors: &mut Errors| {
        if text(source, field).is_empty() {
            errors.required(format!("{path}.{field}"), "");
        }
    };
    match kind {
        "secret" => {
            required("secretName", errors);
            mode(source, "defaultMode", path, errors);
            keys(source, path, errors);
        }
        "configMap" => {
            required("name", errors);
            mode(source, "defaultMode", path, errors);
            keys(source, path, errors);
        }
        "hostPath" => {
            required("path", errors);
            if text(source, "path").split('/').any(|part| part == "..") {
                errors.invalid(format!("{path}.path"), &source["path"], "must not contain '..'");
            }
            let types = [
                "",
                "DirectoryOrCreate",
                "Directory",
                "FileOrCreate",
                "File",
                "Socket",
                "CharDevice",
                "BlockDevice",
            ];
            errors.one_of_if_set(&format!("{path}.type"), source.get("type"), &types);
        }
        "emptyDir" => {
            if let Some(limit) = source.get("sizeLimit")
                && quantity::parse_value(limit).is_ok_and(|q| q.is_negative())
            {
                errors.forbidden(
                    format!("{path}.sizeLimit"),
                    "SizeLimit field must be a valid resource quantity",
                );
            }
        }
        "persistentVolumeClaim" => required("claimName", errors),
        "downwardAPI" => {
            mode(source, "defaultMode", path, errors);
            downward(source, path, errors);
        }
        "projected" => projected(source, path, errors),
        "nfs" => {
            required("server", errors);
            required("path", errors);
            if !text(source, "path").starts_with('/') {
                errors.invalid(format!("{path}.path"), &source["path"], "must be an absolute path");
            }
        }
        "csi" => required("driver", errors),
        _ => {}
    }
}

fn mode(source: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(mode) = source.get(field)
        && !mode.as_i64().is_some_and(|m| (0..=MODE_LIMIT).contains(&m))
    {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(format!("{path}.{field}"), mode, detail);
    }
}

fn keys(source: &Value, path: &str, errors: &mut Errors) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        if text(item, "key").is_empty() {
            errors.required(format!("{path}.key"), "");
        }
        if text(item, "path").is_empty() {
            errors.required(format!("{path}.path"), "");
        } else {
            container::relative(text(item, "path"), &format!("{path}.path"), errors);
        }
        mode(item, "mode", &path, errors);
    }
}

fn downward(source: &Value, path: &str, errors: &mut Errors) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        if text(item, "path").is_empty() {
            errors.required(format!("{path}.path"), "");
        } else {
            container::relative(text(item, "path"), &format!("{path}.path"), errors);
        }
        match (item.get("fieldRef").is_some(), item.get("resourceFieldRef").is_some()) {
            (true, true) => {
                errors.invalid(
                    path,
                    item,
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
            (false, false) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
            _ => {}
        }
    }
}

fn projected(source: &Value, path: &str, errors: &mut Errors) {
    mode(source, "defaultMode", path, errors);
    for (index, item) in items(source, "sources").iter().enumerate() {
        let path = format!("{path}.sources[{index}]");
        let given: Vec<(&String, &Value)> = item.as_object().into_iter().flatten().collect();
        let [(kind, one)] = given.as_slice() else {
            errors.forbidden(path, "may not specify more than 1 volume type per source");
            continue;
        };
        let path = format!("{path}.{kind}");
        match kind.as_str() {
            "secret" | "configMap" => {
                if text(one, "name").is_empty() {
                    errors.required(format!("{path}.name"), "");
                }
                keys(one, &path, errors);
            }
            "downwardAPI" => downward(one, &path, errors),
            "serviceAccountToken" => {
                let seconds = one["expirationSeconds"].as_i64().unwrap_or(0);
                if seconds < 600 {
                    let detail = "may not specify a duration less than 10 minutes";
                    errors.invalid(format!("{path}.expirationSeconds"), &json!(seconds), detail);
                }
                if text(one, "path").is_empty() {
                    errors.required(format!("{path}.path"), "");
                } else {
                    container::relative(text(one, "path"), &format!("{path}.path"), errors);
                }
            }
            _ => {}
        }
    }
}
