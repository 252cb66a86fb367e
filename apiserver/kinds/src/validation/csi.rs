//! CSIDriver, CSINode, VolumeAttachment: drivers, the nodes that run them, and attachments.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Value, json};

use super::{Errors, IMMUTABLE, given, items, names, plugins, same, storage, text, with_metadata};
use apiserver_schema::error::FieldError;

/// Longest id that a driver gives a node, in bytes.
const NODE_ID_LENGTH: usize = 256;
/// The limit of an attachment's metadata, and of one message, in bytes.
const METADATA_SIZE: usize = 256 * 1024;
const MESSAGE_LENGTH: usize = 1024;

/// Returns the errors of a CSIDriver, whose name is that of its driver.
pub fn driver(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    errors.one_of_if_given("spec.fsGroupPolicy", spec.get("fsGroupPolicy"), &policies);
    let mut seen = BTreeSet::new();
    for (index, request) in items(spec, "tokenRequests").iter().enumerate() {
        let path = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "audience");
        if !seen.insert(audience) {
            errors.duplicate(format!("{path}.audience"), &json!(audience));
            continue;
        }
        let at = format!("{path}.expirationSeconds");
        match request["expirationSeconds"].as_i64() {
            Some(seconds) if seconds < 600 => {
                errors.invalid(at, &json!(seconds), "may not specify a duration less than 10 minutes");
            }
            Some(seconds) if seconds > 1 << 32 => {
                errors.invalid(at, &json!(seconds), "may not specify a duration larger than 2^32 seconds");
            }
            _ => {}
        }
    }
    for mode in items(spec, "volumeLifecycleModes") {
        if mode != "Persistent" && mode != "Ephemeral" {
            errors.not_supported("spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
        }
    }
    if let Some(seconds) = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64().filter(|s| *s < 10) {
        let path = "spec.nodeAllocatableUpdatePeriodSeconds";
        errors.invalid(path, &json!(seconds), "must be greater than or equal to 10 seconds");
    }
    if let Some(secrets) = given(spec, "serviceAccountTokenInSecrets")
        && items(spec, "tokenRequests").is_empty()
    {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.invalid("spec.serviceAccountTokenInSecrets", secrets, detail);
    }
    errors.list()
}

/// Validates that the attachment and lifecycle settings of a CSIDriver do not change. Arguments: new, old.
pub fn driver_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    // The name of the first path is Kubernetes' own.
    for (field, path) in
        [("attachRequired", "spec.attachedRequired"), ("volumeLifecycleModes", "spec.volumeLifecycleModes")]
    {
        let (now, was) = (new["spec"].get(field), old["spec"].get(field));
        if !same(now, was) {
            errors.invalid(path, now.unwrap_or(&Value::Null), IMMUTABLE);
        }
    }
    errors.list()
}

/// Errors of a CSINode.
pub fn node(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut seen = BTreeSet::new();
    for (index, driver) in items(&object["spec"], "drivers").iter().enumerate() {
        let path = format!("spec.drivers[{index}]");
        let (name, id) = (text(driver, "name"), text(driver, "nodeID"));
        plugins::csi_driver_name(name, &format!("{path}.name"), &mut errors);
        if id.is_empty() {
            errors.required(format!("{path}.nodeID"), "");
        }
        if id.len() > NODE_ID_LENGTH {
            let detail = format!("must be {NODE_ID_LENGTH} characters or less");
            errors.invalid(format!("{path}.nodeID"), &json!(id), &detail);
        }
        errors.not_negative(format!("{path}.allocatable.count"), driver.pointer("/allocatable/count"));
        if !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        // Faults of keys are reported for the driver, as in Kubernetes.
        let mut keys = BTreeSet::new();
        for key in items(driver, "topologyKeys").iter().filter_map(Value::as_str) {
            if key.is_empty() {
                errors.required(path.as_str(), "");
            }
            if !keys.insert(key) {
                errors.duplicate(path.as_str(), &json!(key));
            }
            errors.faults(&path, key, names::qualified_name(key));
        }
    }
    errors.list()
}

/// Validates that the drivers of a CSINode do not change except in the number of volumes that fit. Arguments:
/// new, old.
pub fn node_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let is_fixed = |now: &Value, was: &Value| {
        ["name", "nodeID", "topologyKeys"].iter().all(|field| same(now.get(*field), was.get(*field)))
    };
    let now = items(&new["spec"], "drivers");
    let (same_as, mut named): (HashSet<&Value>, BTreeMap<&str, Vec<&Value>>) =
        (now.iter().collect(), BTreeMap::new());
    for driver in now {
        named.entry(text(driver, "name")).or_default().push(driver);
    }
    for had in items(&old["spec"], "drivers").iter().filter(|had| !same_as.contains(had)) {
        for has in named.get(text(had, "name")).into_iter().flatten() {
            if !is_fixed(has, had) {
                errors.invalid("spec.drivers", has, IMMUTABLE);
            }
        }
    }
    errors.list()
}

/// Errors of a VolumeAttachment.
pub fn attachment(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    plugins::csi_driver_name(text(spec, "attacher"), "spec.attacher", &mut errors);
    let source = &spec["source"];
    let path = "spec.source";
    match (given(source, "inlineVolumeSpec"), given(source, "persistentVolumeName")) {
        (None, None) => {
            errors.required(path, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (Some(_), Some(_)) => {
            errors.forbidden(path, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
        }
        (None, Some(name)) if name == "" => {
            errors
                .required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName");
        }
        (None, Some(_)) => {}
        (Some(inline), None) => {
            storage::volume_spec(inline, true, &format!("{path}.inlineVolumeSpec"), &mut errors);
        }
    }
    let node = text(spec, "nodeName");
    errors.faults("spec.nodeName", node, names::dns_subdomain(node));
    attachment_told(&object["status"], &mut errors);
    errors.name_if_given(
        "spec.source.persistentVolumeName",
        source.get("persistentVolumeName"),
        names::dns_subdomain,
    );
    errors.list()
}

/// Validates the metadata and the errors that a driver reports about an attachment.
fn attachment_told(status: &Value, errors: &mut Errors) {
    let told = status["attachmentMetadata"].as_object().into_iter().flatten();
    let size: usize = told.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > METADATA_SIZE {
        errors.too_long("status.attachmentMetadata", METADATA_SIZE);
    }
    for field in ["attachError", "detachError"] {
        let Some(error) = given(status, field) else { continue };
        if text(error, "message").len() > MESSAGE_LENGTH {
            // Kubernetes names the other limit here.
            errors.too_long(format!("status.{field}.message"), METADATA_SIZE);
        }
        if let Some(code) = error["errorCode"].as_i64().filter(|code| *code < 0) {
            let detail = "must be between 0 and 2147483647, inclusive";
            errors.invalid(format!("status.{field}.errorCode"), &json!(code), detail);
        }
    }
}

/// Errors of a write of a VolumeAttachment's status. Arguments: new, old.
pub fn attachment_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    attachment_told(&new["status"], &mut errors);
    errors.list()
}

/// Validates that the spec of a VolumeAttachment does not change. Arguments: new, old.
pub fn attachment_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec", new, old);
    errors.list()
}
