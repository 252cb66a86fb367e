//! PersistentVolume, PersistentVolumeClaim, StorageClass, and the objects of CSI drivers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Errors, given, items, label_selector, names, plugins, resources, same, scheduling, text, volume,
    with_metadata,
};
use crate::error::FieldError;
use crate::meta;
use crate::quantity;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
/// Longest id that a driver gives a node, in bytes.
const NODE_ID_LENGTH: usize = 192;
/// Parameters of a class: how many, and how many bytes together.
const PARAMETERS: usize = 512;
const PARAMETERS_SIZE: usize = 256 * 1024;

/// Fields of a PersistentVolume's spec that are not its source.
const COMMON: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn access_modes(modes: &[Value], path: &str, errors: &mut Errors) {
    let path = format!("{path}.accessModes");
    let known = |mode: &Value| mode.as_str().is_some_and(|m| MODES.contains(&m));
    for mode in modes.iter().filter(|mode| !known(mode)) {
        errors.not_supported(path.as_str(), mode, &MODES);
    }
    let alone = modes.iter().any(|m| m == "ReadWriteOncePod");
    if alone && modes.iter().any(|m| known(m) && m != "ReadWriteOncePod") {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Errors of a PersistentVolume.
pub fn volume(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        errors.required("spec.accessModes", "");
    }
    access_modes(modes, "spec", &mut errors);
    capacity(spec, &mut errors);
    let policies = ["Delete", "Recycle", "Retain"];
    let policy = spec.get("persistentVolumeReclaimPolicy");
    errors.one_of_if_set("spec.persistentVolumeReclaimPolicy", policy, &policies);
    let affinity = given(spec, "nodeAffinity");
    if let Some(affinity) = affinity {
        match given(affinity, "required") {
            Some(required) => {
                scheduling::node_selector(required, "spec.nodeAffinity.required", &mut errors);
            }
            None => {
                errors.required("spec.nodeAffinity.required", "must specify required node constraints");
            }
        }
    }
    sources(spec, affinity.is_some(), &mut errors);
    errors.name_if_set("spec.storageClassName", text(spec, "storageClassName"), names::dns_subdomain);
    errors.one_of_if_set("spec.volumeMode", spec.get("volumeMode"), &VOLUME_MODES);
    if let Some(class) = given(spec, "volumeAttributesClassName").and_then(Value::as_str) {
        let path = "spec.volumeAttributesClassName";
        if class.is_empty() {
            errors.required(path, "an empty string is disallowed");
        } else {
            errors.faults(path, class, names::dns_subdomain(class));
        }
        if given(spec, "csi").is_none() {
            errors.required("spec.csi", "has to be specified when using volumeAttributesClassName");
        }
    }
    errors.list()
}

fn capacity(spec: &Value, errors: &mut Errors) {
    let path = "spec.capacity";
    let capacity = spec.get("capacity").and_then(Value::as_object);
    let count = capacity.map_or(0, serde_json::Map::len);
    if count == 0 {
        errors.required(path, "");
    }
    if count != 1 || capacity.is_none_or(|c| !c.contains_key("storage")) {
        errors.not_supported(path, spec.get("capacity").unwrap_or(&Value::Null), &["storage"]);
    }
    for (name, amount) in capacity.into_iter().flatten() {
        resources::positive(amount, &format!("{path}[{name}]"), errors);
    }
}

fn sources(spec: &Value, affinity: bool, errors: &mut Errors) {
    let fields = spec.as_object().into_iter().flatten();
    let mut sources = fields.filter(|(key, value)| !COMMON.contains(&key.as_str()) && !value.is_null());
    match sources.next() {
        None => errors.required("spec", "must specify a volume type"),
        Some((kind, source)) => {
            plugins::source(kind, source, true, &format!("spec.{kind}"), errors);
            if kind == "local" && !affinity {
                errors.required("spec.nodeAffinity", "Local volume requires node affinity");
            }
        }
    }
    for (more, _) in sources {
        errors.forbidden(format!("spec.{more}"), volume::ONE_TYPE);
    }
    let root = given(spec, "hostPath").is_some_and(|h| {
        let path = text(h, "path");
        path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
    });
    if root && spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden("spec.persistentVolumeReclaimPolicy", detail);
    }
}

/// The source of a PersistentVolume stays. Arguments: new, old.
pub fn volume_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let source = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, value| !COMMON.contains(&key.as_str()) && !value.is_null());
        }
        spec
    };
    let (mut now, was) = (source(new), source(old));
    if was.get("csi").is_some_and(|c| given(c, "controllerExpandSecretRef").is_none())
        && let Some(Value::Object(csi)) = now.get_mut("csi")
    {
        csi.remove("controllerExpandSecretRef");
    }
    if now != was {
        errors.forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        );
    }
    // Paths without `spec` are Kubernetes' own.
    let (spec, before) = (&new["spec"], &old["spec"]);
    volume_mode(spec, before, &mut errors);
    if let Some(affinity) = given(before, "nodeAffinity")
        && !same_affinity(spec.get("nodeAffinity"), affinity)
    {
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.invalid("nodeAffinity", spec.get("nodeAffinity").unwrap_or(&Value::Null), detail);
    }
    let class = |spec: &Value| given(spec, "volumeAttributesClassName").is_some();
    if class(before) && !class(spec) {
        errors.forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
    }
    errors.list()
}

fn volume_mode(spec: &Value, before: &Value, errors: &mut Errors) {
    if !same(spec.get("volumeMode"), before.get("volumeMode")) {
        errors.invalid("volumeMode", spec.get("volumeMode").unwrap_or(&Value::Null), super::IMMUTABLE);
    }
}

/// Equal, or with labels of today in place of those of long ago.
fn same_affinity(now: Option<&Value>, was: &Value) -> bool {
    const RENAMED: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    let Some(now) = now else { return false };
    let mut renamed = was.clone();
    let terms = |affinity: &Value| -> Vec<Value> {
        affinity.pointer("/required/nodeSelectorTerms").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let wanted = terms(now);
    let list = renamed.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for (term, wanted) in list.into_iter().flatten().zip(&wanted) {
        let expressions = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for (expression, wanted) in expressions.into_iter().flatten().zip(items(wanted, "matchExpressions")) {
            let (old, new) = (text(expression, "key").to_owned(), text(wanted, "key"));
            if RENAMED.contains(&(old.as_str(), new)) {
                expression["key"] = json!(new);
            }
        }
    }
    &renamed == now
}

/// Errors of a PersistentVolumeClaim.
pub fn claim(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    claim_spec(&object["spec"], "spec", &mut errors);
    errors.list()
}

/// The spec of a claim, or of a template of claims, at `path`.
pub(super) fn claim_spec(spec: &Value, path: &str, errors: &mut Errors) {
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        errors.required(format!("{path}.accessModes"), "at least 1 access mode is required");
    }
    label_selector(spec.get("selector"), &format!("{path}.selector"), errors);
    access_modes(modes, path, errors);
    let at = format!("{path}.resources[storage]");
    match spec.pointer("/resources/requests/storage") {
        None => errors.required(at, ""),
        Some(amount) => resources::positive(amount, &at, errors),
    }
    let class = text(spec, "storageClassName");
    errors.name_if_set(&format!("{path}.storageClassName"), class, names::dns_subdomain);
    errors.one_of_if_set(&format!("{path}.volumeMode"), spec.get("volumeMode"), &VOLUME_MODES);
    data_sources(spec, path, errors);
    let class = text(spec, "volumeAttributesClassName");
    errors.name_if_set(&format!("{path}.volumeAttributesClassName"), class, names::dns_subdomain);
}

fn data_sources(spec: &Value, path: &str, errors: &mut Errors) {
    for field in ["dataSource", "dataSourceRef"] {
        let Some(source) = given(spec, field) else { continue };
        let path = format!("{path}.{field}");
        errors.required_texts(source, &path, &["name", "kind"]);
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid(path.as_str(), &json!(kind), detail);
        }
        errors.name_if_set(&format!("{path}.apiGroup"), group, names::dns_subdomain);
        errors.name_if_set(&format!("{path}.namespace"), text(source, "namespace"), names::dns_label);
    }
    let (Some(source), Some(reference)) = (given(spec, "dataSource"), given(spec, "dataSourceRef")) else {
        return;
    };
    let shown = json!(format!("{path}.dataSource"));
    if !text(reference, "namespace").is_empty() {
        errors.invalid(path, &shown, "may not be specified when dataSourceRef.namespace is specified");
    } else if ["apiGroup", "kind", "name"].iter().any(|f| text(source, f) != text(reference, f)) {
        errors.invalid(path, &shown, "must match dataSourceRef");
    }
}

/// A bound claim can ask for more, and any claim be bound; the rest stays. Arguments: new, old.
pub fn claim_update(new: &Value, old: &Value) -> Vec<FieldError> {
    const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    let bound = new["status"]["phase"] == "Bound";
    let annotated = meta::annotation(old, BETA_CLASS);
    if meta::annotation(new, BETA_CLASS) != annotated
        && !(given(before, "storageClassName").is_none() && annotated == Some(text(spec, "storageClassName")))
    {
        let shown = json!(meta::annotation(new, BETA_CLASS).unwrap_or_default());
        errors.invalid(format!("metadata.annotations[{BETA_CLASS}]"), &shown, super::IMMUTABLE);
    }
    let classless = given(before, "storageClassName").is_none()
        && annotated.is_none_or(|class| class == text(spec, "storageClassName"));
    let unbound = text(before, "volumeName").is_empty();
    let fixed = |spec: &Value| {
        let mut spec = spec.clone();
        if let Value::Object(map) = &mut spec {
            for (field, free) in [
                ("volumeName", unbound),
                ("storageClassName", classless),
                ("volumeAttributesClassName", bound),
            ] {
                if free {
                    map.remove(field);
                }
            }
            map.retain(|_, value| !same(Some(value), None));
        }
        if let Some(Value::Object(requests)) = spec.pointer_mut("/resources/requests") {
            if bound {
                requests.remove("storage");
            }
            for amount in requests.values_mut() {
                *amount = quantity::parse_value(amount).map_or(Value::Null, |q| json!(q.nano().to_string()));
            }
        }
        spec
    };
    if fixed(spec) != fixed(before) {
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    size(new, old, &mut errors);
    volume_mode(spec, before, &mut errors);
    if given(before, "volumeAttributesClassName").is_some() {
        let why = match spec.get("volumeAttributesClassName").and_then(Value::as_str) {
            None => Some("update from non-nil value to nil is forbidden"),
            Some("") => Some("update from non-nil value to an empty string is forbidden"),
            Some(_) => None,
        };
        if let Some(why) = why {
            errors.forbidden("spec.volumeAttributesClassName", why);
        }
    }
    errors.list()
}

/// A size that was asked for and not yet reached may be taken back (KEP-1790).
fn size(new: &Value, old: &Value, errors: &mut Errors) {
    let read = |object: &Value, pointer: &str| {
        object.pointer(pointer).and_then(|v| quantity::parse_value(v).ok()).map_or(0, |q| q.nano())
    };
    let requested = "/spec/resources/requests/storage";
    let (now, was) = (read(new, requested), read(old, requested));
    if now < was && now <= read(old, "/status/capacity/storage") {
        let detail = "field can not be less than status.capacity";
        errors.forbidden("spec.resources.requests.storage", detail);
    }
}

/// Errors of a write of a claim's status. Arguments: new, old.
pub fn claim_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let mut errors = Errors::default();
    let status = &new["status"];
    for (name, amount) in status["capacity"].as_object().into_iter().flatten() {
        if let Some(amount) = quantity::parse_value(amount).ok().filter(|q| q.is_negative()) {
            let path = format!("status.capacity[{name}]");
            errors.invalid(path, &json!(amount.value()), "must be a valid resource quantity");
        }
    }
    for (name, state) in status["allocatedResourceStatuses"].as_object().into_iter().flatten() {
        let path = "status.allocatedResourceStatus";
        allocated_name(name, path, &mut errors);
        if !state.as_str().is_some_and(|s| STATES.contains(&s)) {
            errors.not_supported(path, &json!(name), &STATES);
        }
    }
    for (name, amount) in status["allocatedResources"].as_object().into_iter().flatten() {
        allocated_name(name, "status.allocatedResources", &mut errors);
        resources::one(name, amount, &format!("status.allocatedResources[{name}]"), &mut errors);
    }
    errors.list()
}

fn allocated_name(name: &str, path: &str, errors: &mut Errors) {
    errors.faults(path, name, names::qualified_name(name));
    if (!name.contains('/') || name.contains("kubernetes.io/")) && name != "storage" {
        errors.not_supported(path, &json!(name), &["storage"]);
    }
}

/// Errors of a StorageClass.
pub fn class(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let provisioner = text(object, "provisioner");
    if provisioner.is_empty() {
        errors.required("provisioner", "");
    } else {
        errors.faults("provisioner", provisioner, names::qualified_name(&provisioner.to_lowercase()));
    }
    parameters(object, &mut errors);
    errors.one_of_if_set("reclaimPolicy", object.get("reclaimPolicy"), &["Delete", "Retain"]);
    let modes = ["Immediate", "WaitForFirstConsumer"];
    errors.one_of("volumeBindingMode", object.get("volumeBindingMode"), &modes);
    let terms = items(object, "allowedTopologies");
    for (index, term) in terms.iter().enumerate() {
        let path = format!("allowedTopologies[{index}].matchLabelExpressions");
        let mut keys = BTreeSet::new();
        for (index, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let path = format!("{path}[{index}]");
            let (key, values) = (text(expression, "key"), items(expression, "values"));
            if values.is_empty() {
                errors.required(format!("{path}.values"), "");
            }
            for (index, value) in values.iter().enumerate().filter(|(i, v)| values[..*i].contains(v)) {
                errors.duplicate(format!("{path}.values[{index}]"), value);
            }
            errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
            if !keys.insert(key) {
                errors.duplicate(format!("{path}.key"), &json!(key));
            }
        }
        if terms[..index].contains(term) {
            errors.duplicate(format!("allowedTopologies[{index}]"), &json!(""));
        }
    }
    errors.list()
}

fn parameters(object: &Value, errors: &mut Errors) {
    let Some(parameters) = object.get("parameters").and_then(Value::as_object) else { return };
    if parameters.len() > PARAMETERS {
        errors.too_long("parameters", PARAMETERS);
        return;
    }
    let mut size = 0;
    for (key, value) in parameters {
        if key.is_empty() {
            errors.invalid("parameters", &json!(key), "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > PARAMETERS_SIZE {
        errors.too_long("parameters", PARAMETERS_SIZE);
    }
}

/// How a StorageClass provisions stays. Arguments: new, old.
pub fn class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for (field, detail) in [
        ("parameters", "updates to parameters are forbidden."),
        ("provisioner", "updates to provisioner are forbidden."),
        ("reclaimPolicy", "updates to reclaimPolicy are forbidden."),
    ] {
        if !same(new.get(field), old.get(field)) {
            errors.forbidden(field, detail);
        }
    }
    errors.immutable("volumeBindingMode", new, old);
    errors.list()
}

/// Errors of a CSIDriver, which is named as its driver is.
pub fn driver(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    plugins::csi_driver_name(meta::name(object), "name", &mut errors);
    let spec = &object["spec"];
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    errors.one_of_if_set("spec.fsGroupPolicy", spec.get("fsGroupPolicy"), &policies);
    let mut seen = BTreeSet::new();
    for (index, request) in items(spec, "tokenRequests").iter().enumerate() {
        let path = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "audience");
        if !seen.insert(audience) {
            errors.duplicate(format!("{path}.audience"), &json!(audience));
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
    for (index, mode) in items(spec, "volumeLifecycleModes").iter().enumerate() {
        if mode != "Persistent" && mode != "Ephemeral" {
            let path = format!("spec.volumeLifecycleModes[{index}]");
            errors.not_supported(path, mode, &["Ephemeral", "Persistent"]);
        }
    }
    if let Some(seconds) = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64().filter(|s| *s < 10) {
        let path = "spec.nodeAllocatableUpdatePeriodSeconds";
        errors.invalid(path, &json!(seconds), "must be greater than or equal to 10 seconds");
    }
    errors.list()
}

/// What a CSIDriver says about attaching and lifecycles stays. Arguments: new, old.
pub fn driver_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    // The name of the first path is Kubernetes' own.
    for (field, path) in
        [("attachRequired", "spec.attachedRequired"), ("volumeLifecycleModes", "spec.volumeLifecycleModes")]
    {
        let (now, was) = (new["spec"].get(field), old["spec"].get(field));
        if !same(now, was) {
            errors.invalid(path, now.unwrap_or(&Value::Null), super::IMMUTABLE);
        }
    }
    errors.list()
}

/// Errors of a CSINode.
pub fn csi_node(object: &Value) -> Vec<FieldError> {
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
        let mut keys = BTreeSet::new();
        for key in items(driver, "topologyKeys").iter().filter_map(Value::as_str) {
            let path = format!("{path}.topologyKeys");
            if key.is_empty() || !keys.insert(key) {
                errors.invalid(path.as_str(), &json!(key), "must be unique and non-empty");
            }
            errors.faults(&path, key, names::qualified_name(key));
        }
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
    }
    errors.list()
}

/// What a CSINode says about a driver stays, but for how many volumes fit. Arguments: new, old.
pub fn csi_node_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fixed = |driver: &Value| ["name", "nodeID", "topologyKeys"].map(|f| driver.get(f).cloned());
    let now = items(&new["spec"], "drivers");
    for had in items(&old["spec"], "drivers").iter().filter(|had| !now.contains(had)) {
        for has in now.iter().filter(|d| text(d, "name") == text(had, "name")) {
            if fixed(has) != fixed(had) {
                errors.invalid("spec.drivers", has, super::IMMUTABLE);
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
        (Some(_), Some(_)) => errors.forbidden(
            "spec.source.inlineVolumeSpec",
            "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ),
        (None, Some(name)) => {
            let path = format!("{path}.persistentVolumeName");
            errors.name(&path, name.as_str().unwrap_or_default(), names::dns_subdomain);
        }
        (Some(inline), None) => {
            if given(inline, "csi").is_none() {
                let path = format!("{path}.inlineVolumeSpec.csi");
                errors.required(path, "has to be specified in the context of inline volumes");
            }
        }
    }
    let node = text(spec, "nodeName");
    errors.faults("spec.nodeName", node, names::dns_subdomain(node));
    errors.list()
}

/// What a VolumeAttachment asks for stays. Arguments: new, old.
pub fn attachment_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec", new, old);
    errors.list()
}
