//! Variables of a container's environment, and references to fields of the pod.

use std::collections::BTreeMap;

use apiserver_meta::quantity;
use apiserver_schema::validation::{Errors, given, items, names, text};
use serde_json::{Value, json};

use crate::core::pod::volume;
use crate::shared::paths;

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields that a volume can show; labels and annotations also as a whole.
const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// The place where a pod's fields and resources are exposed, which decides which of them are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Variable,
    Volume,
}

/// `env` at `path`.
pub(crate) fn variables(variables: &[Value], path: &str, errors: &mut Errors) {
    for (index, variable) in variables.iter().enumerate() {
        let path = format!("{path}[{index}]");
        errors.name(&format!("{path}.name"), text(variable, "name"), names::environment_name);
        let Some(from) = given(variable, "valueFrom") else { continue };
        let path = format!("{path}.valueFrom");
        let mut count = 0;
        for key in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
            let Some(source) = given(from, key) else { continue };
            count += 1;
            let path = format!("{path}.{key}");
            match key {
                "fieldRef" => field(source, Place::Variable, &path, errors),
                "resourceFieldRef" => resource(source, Place::Variable, &path, errors),
                "fileKeyRef" => file_reference(source, &path, errors),
                _ => key_reference(source, &path, errors),
            }
        }
        let wrong = if count == 0 {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        } else if !text(variable, "value").is_empty() {
            "may not be specified when `value` is not empty"
        } else if count > 1 {
            "may not have more than one field specified at a time"
        } else {
            continue;
        };
        errors.invalid(path, &json!(""), wrong);
    }
}

/// `envFrom` at `path`.
pub(crate) fn sources(sources: &[Value], path: &str, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let inner = format!("{path}[{index}]");
        errors.name_if_set(&format!("{inner}.prefix"), text(source, "prefix"), names::environment_name);
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            if let Some(reference) = given(source, kind) {
                count += 1;
                errors.name(&format!("{inner}.{kind}.name"), text(reference, "name"), names::dns_subdomain);
            }
        }
        match count {
            0 => errors.invalid(path, &json!(""), "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(path, &json!(""), "may not have more than one field specified at a time"),
        }
    }
}

fn key_reference(reference: &Value, path: &str, errors: &mut Errors) {
    let name = text(reference, "name");
    errors.faults(&format!("{path}.name"), name, names::dns_subdomain(name));
    errors.name(&format!("{path}.key"), text(reference, "key"), names::config_key);
}

/// A variable from a file in an empty directory of the pod (KEP-3721).
fn file_reference(reference: &Value, path: &str, errors: &mut Errors) {
    errors.name(&format!("{path}.key"), text(reference, "key"), names::environment_name);
    errors.name(&format!("{path}.volumeName"), text(reference, "volumeName"), names::dns_label);
    let file = text(reference, "path");
    if file.is_empty() {
        errors.required(format!("{path}.path"), "");
    } else {
        paths::no_backsteps(file, &format!("{path}.path"), errors);
    }
}

/// The volumes of the files that variables of the containers of the pod spec at `path` come from.
pub(crate) fn file_volumes(spec: &Value, path: &str, errors: &mut Errors) {
    let volumes: BTreeMap<&str, &Value> =
        items(spec, "volumes").iter().map(|volume| (text(volume, "name"), volume)).collect();
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let containers = lists.into_iter().flat_map(|list| {
        items(spec, list).iter().enumerate().map(move |(index, container)| (list, index, container))
    });
    for (list, index, container) in containers {
        for (variable, from) in items(container, "env").iter().enumerate() {
            let Some(reference) = given(from, "valueFrom").and_then(|from| given(from, "fileKeyRef")) else {
                continue;
            };
            let name = text(reference, "volumeName");
            let path = format!("{path}.{list}[{index}].env[{variable}].valueFrom.fileKeyRef.volumeName");
            match volumes.get(name) {
                None => errors.not_found(path, &json!(name)),
                Some(volume) if given(volume, "emptyDir").is_none() => {
                    errors.invalid(path, &json!(name), "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    }
}

/// A reference to a field of the pod.
fn field(reference: &Value, place: Place, path: &str, errors: &mut Errors) {
    let version = text(reference, "apiVersion");
    let name = text(reference, "fieldPath");
    if version.is_empty() || name.is_empty() {
        errors
            .required(format!("{path}.{}", if version.is_empty() { "apiVersion" } else { "fieldPath" }), "");
        return;
    }
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        errors.invalid(format!("{path}.fieldPath"), &json!(name), &detail);
        return;
    }
    if let Some((field, rest)) = name.split_once("['")
        && let Some(key) = rest.strip_suffix("']")
    {
        match field {
            "metadata.annotations" => {
                errors.faults(path, &key.to_lowercase(), names::qualified_name(&key.to_lowercase()));
            }
            "metadata.labels" => errors.faults(path, key, names::qualified_name(key)),
            _ => errors.invalid(
                format!("{path}.fieldPath"),
                &json!(name),
                &format!("error converting fieldPath: field label does not support subscript: {field}"),
            ),
        }
        return;
    }
    let supported: &[&str] = if place == Place::Volume { &VOLUME_FIELDS } else { &FIELDS };
    let known = FIELDS.contains(&name)
        || VOLUME_FIELDS.contains(&name)
        || matches!(name, "spec.restartPolicy" | "spec.schedulerName" | "status.phase" | "spec.host");
    if !known {
        let detail = format!("error converting fieldPath: field label not supported: {name}");
        errors.invalid(format!("{path}.fieldPath"), &json!(name), &detail);
    } else if !supported.contains(&name) {
        errors.not_supported(format!("{path}.fieldPath"), &json!(name), supported);
    }
}

/// A reference to a request or limit of a container.
fn resource(reference: &Value, place: Place, path: &str, errors: &mut Errors) {
    let name = text(reference, "resource");
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|p| name.starts_with(p));
    if place == Place::Volume && text(reference, "containerName").is_empty() {
        errors.required(format!("{path}.containerName"), "");
    } else if name.is_empty() {
        errors.required(format!("{path}.resource"), "");
    } else if !RESOURCES.contains(&name) && !huge {
        errors.not_supported(format!("{path}.resource"), &json!(name), &RESOURCES);
    }
    let Some(divisor) = reference.get("divisor").and_then(|d| quantity::parse_value(d).ok()) else { return };
    if divisor.nano() == 0 {
        return;
    }
    const SIZES: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
    let shown = divisor.to_string();
    let (allowed, what) = match name.split_once('.').map_or("", |(_, resource)| resource) {
        "cpu" => ("1m and 1", "cpu"),
        "memory" => (SIZES, "memory"),
        "ephemeral-storage" => (SIZES, "local ephemeral storage"),
        other if other.starts_with("hugepages-") => (SIZES, "hugepages"),
        _ => return,
    };
    let good = allowed.replace(" and ", ", ").split(", ").any(|size| size == shown);
    if !good {
        let detail = format!("only divisor's values {allowed} are supported with the {what} resource");
        errors.invalid(format!("{path}.divisor"), &json!(name), &detail);
    }
}

/// `items` of a volume that shows fields of the pod; the path of an item is that of the volume, as
/// Kubernetes has it.
pub(crate) fn files(source: &Value, path: &str, errors: &mut Errors) {
    for item in items(source, "items") {
        file(item, path, errors);
    }
}

/// One file that shows a field of the pod.
pub(crate) fn file(item: &Value, path: &str, errors: &mut Errors) {
    paths::required_local(text(item, "path"), &format!("{path}.path"), errors);
    match (given(item, "fieldRef"), given(item, "resourceFieldRef")) {
        (Some(reference), other) => {
            field(reference, Place::Volume, &format!("{path}.fieldRef"), errors);
            if other.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(path, &json!("resource"), detail);
            }
        }
        (None, Some(reference)) => {
            resource(reference, Place::Volume, &format!("{path}.resourceFieldRef"), errors);
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    volume::mode(item, "mode", path, errors);
}
