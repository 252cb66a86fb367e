//! PersistentVolume and PersistentVolumeClaim.

use serde_json::{Value, json};

use super::{
    Errors, changes, given, items, label_selector, lenient_selector, metadata, names, plugins, resources,
    same, scheduling, text, volume, with_metadata,
};
use apiserver_meta::quantity;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
/// The error detail for fields that a volume may not have inside another object.
const INLINE: &str = "may not be specified in the context of inline volumes";

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
    volume_spec(&object["spec"], false, "spec", &mut errors);
    errors.list()
}

/// The spec of a volume at `path`; `inline` if it is part of another object.
pub(super) fn volume_spec(spec: &Value, inline: bool, path: &str, errors: &mut Errors) {
    if inline {
        not_inline(spec, &["claimRef", "capacity"], path, errors);
        if given(spec, "csi").is_none() {
            let detail = "has to be specified in the context of inline volumes";
            errors.required(format!("{path}.csi"), detail);
        }
    }
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        errors.required(format!("{path}.accessModes"), "");
    }
    access_modes(modes, path, errors);
    if inline {
        let policy = text(spec, "persistentVolumeReclaimPolicy");
        if !matches!(policy, "" | "Retain") {
            let detail = "may only be Retain in the context of inline volumes";
            errors.forbidden(format!("{path}.persistentVolumeReclaimPolicy"), detail);
        }
        not_inline(spec, &["nodeAffinity"], path, errors);
    } else {
        capacity(spec, path, errors);
        let policy = spec.get("persistentVolumeReclaimPolicy");
        let at = format!("{path}.persistentVolumeReclaimPolicy");
        errors.one_of_if_set(&at, policy, &["Delete", "Recycle", "Retain"]);
        affinity(spec, path, errors);
    }
    sources(spec, !inline && given(spec, "nodeAffinity").is_some(), path, errors);
    if inline {
        not_inline(spec, &["storageClassName"], path, errors);
        if !matches!(text(spec, "volumeMode"), "" | "Filesystem") {
            let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            errors.forbidden(format!("{path}.volumeMode"), detail);
        }
    } else {
        let class = text(spec, "storageClassName");
        errors.name_if_set(&format!("{path}.storageClassName"), class, names::dns_subdomain);
        errors.one_of_if_given(&format!("{path}.volumeMode"), spec.get("volumeMode"), &VOLUME_MODES);
    }
    if let Some(class) = given(spec, "volumeAttributesClassName").and_then(Value::as_str) {
        let at = format!("{path}.volumeAttributesClassName");
        if class.is_empty() {
            errors.required(at, "an empty string is disallowed");
        } else {
            errors.faults(&at, class, names::dns_subdomain(class));
        }
        if given(spec, "csi").is_none() {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.required(format!("{path}.csi"), detail);
        }
    }
}

fn not_inline(spec: &Value, fields: &[&str], path: &str, errors: &mut Errors) {
    for field in fields.iter().filter(|field| !same(spec.get(**field), None)) {
        errors.forbidden(format!("{path}.{field}"), INLINE);
    }
}

fn affinity(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(affinity) = given(spec, "nodeAffinity") else { return };
    let path = format!("{path}.nodeAffinity.required");
    match given(affinity, "required") {
        Some(required) => scheduling::node_selector(required, &path, errors),
        None => errors.required(path, "must specify required node constraints"),
    }
}

fn capacity(spec: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.capacity");
    let capacity = spec.get("capacity").and_then(Value::as_object);
    let count = capacity.map_or(0, serde_json::Map::len);
    if count == 0 {
        errors.required(path.as_str(), "");
    }
    if count != 1 || capacity.is_none_or(|c| !c.contains_key("storage")) {
        errors.not_supported(path.as_str(), spec.get("capacity").unwrap_or(&Value::Null), &["storage"]);
    }
    for (name, amount) in capacity.into_iter().flatten() {
        let path = format!("{path}[{name}]");
        if let Some(amount) = quantity::parse_value(amount).ok().filter(|amount| amount.value() < 0) {
            errors.invalid(path.as_str(), &json!(amount.value()), "must be a valid resource quantity");
        }
        resources::positive(amount, &path, errors);
    }
}

/// The sources of a PersistentVolume, in the order in which Kubernetes checks them: the first counts.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn sources(spec: &Value, affinity: bool, path: &str, errors: &mut Errors) {
    let sources = SOURCES.iter().filter_map(|kind| Some((*kind, given(spec, kind)?)));
    volume::one_source(sources, path, errors, |kind, source, errors| {
        plugins::source(kind, source, true, &format!("{path}.{kind}"), errors);
        if kind == "local" && !affinity {
            errors.required(format!("{path}.nodeAffinity"), "Local volume requires node affinity");
        }
    });
    let root = given(spec, "hostPath").is_some_and(|h| {
        let path = text(h, "path");
        path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
    });
    if root && spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(format!("{path}.persistentVolumeReclaimPolicy"), detail);
    }
}

/// The source of a PersistentVolume stays. Arguments: new, old.
pub fn volume_update(new: &Value, old: &Value) -> Vec<FieldError> {
    // The rules of a volume are asked twice, once as for a new one.
    let mut errors =
        Errors::of(volume(new).into_iter().filter(|e| !e.field.starts_with("metadata.")).collect());
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
    if !same(Some(&now), Some(&was)) {
        let detail =
            format!("spec.persistentvolumesource is immutable after creation{}", changes::named(&now, &was));
        errors.forbidden("spec.persistentvolumesource", &detail);
    }
    // Paths without `spec` are Kubernetes' own.
    let (spec, before) = (&new["spec"], &old["spec"]);
    volume_mode(spec, before, &mut errors);
    if let Some(affinity) = given(before, "nodeAffinity")
        && !same_affinity(spec.get("nodeAffinity"), affinity)
    {
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.invalid("nodeAffinity", &spec["nodeAffinity"], detail);
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

/// Returns true if both are equal, or differ only in current labels that replace old ones.
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

/// Returns the errors of a change of a PersistentVolumeClaim; existing faults may stay. Arguments: new, old.
pub fn claim_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Status {
        let mut errors = Errors::default();
        metadata::common(new, &mut errors);
        claim_status(&new["status"], &mut errors);
        return errors.list();
    }
    let before = &old["spec"];
    let mut faults = Errors::default();
    label_selector(before.get("selector"), "spec.selector", &mut faults);
    let grouped =
        ["dataSource", "dataSourceRef"].iter().any(|source| given(&before[*source], "apiGroup").is_some());
    let may = MayStay { values: faults.count() > 0, groups: grouped };
    let mut errors = with_metadata(new);
    changed_claim_spec(&new["spec"], may, "spec", &mut errors);
    errors.extend(claim_update(new, old));
    errors.list()
}

/// The faults that a claim had before and may keep.
#[derive(Clone, Copy, Default)]
struct MayStay {
    /// Values that the selector compares with.
    values: bool,
    /// API groups of data sources.
    groups: bool,
}

/// The spec of a claim, or of a template of claims, at `path`.
pub(super) fn claim_spec(spec: &Value, path: &str, errors: &mut Errors) {
    changed_claim_spec(spec, MayStay::default(), path, errors);
}

fn changed_claim_spec(spec: &Value, may: MayStay, path: &str, errors: &mut Errors) {
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        errors.required(format!("{path}.accessModes"), "at least 1 access mode is required");
    }
    lenient_selector(spec.get("selector"), may.values, &format!("{path}.selector"), errors);
    access_modes(modes, path, errors);
    let at = format!("{path}.resources[storage]");
    match spec.pointer("/resources/requests/storage") {
        None => errors.required(at, ""),
        Some(amount) => resources::positive(amount, &at, errors),
    }
    let class = text(spec, "storageClassName");
    errors.name_if_set(&format!("{path}.storageClassName"), class, names::dns_subdomain);
    errors.one_of_if_given(&format!("{path}.volumeMode"), spec.get("volumeMode"), &VOLUME_MODES);
    data_sources(spec, may.groups, path, errors);
    let class = text(spec, "volumeAttributesClassName");
    errors.name_if_set(&format!("{path}.volumeAttributesClassName"), class, names::dns_subdomain);
}

fn data_sources(spec: &Value, any_group: bool, path: &str, errors: &mut Errors) {
    for field in ["dataSource", "dataSourceRef"] {
        let Some(source) = given(spec, field) else { continue };
        let path = format!("{path}.{field}");
        errors.required_texts(source, &path, &["name", "kind"]);
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid(path.as_str(), &json!(kind), detail);
        }
        if !any_group {
            errors.name_if_set(&format!("{path}.apiGroup"), group, names::dns_subdomain);
        }
        errors.name_if_set(&format!("{path}.namespace"), text(source, "namespace"), names::dns_label);
    }
    let (Some(source), Some(reference)) = (given(spec, "dataSource"), given(spec, "dataSourceRef")) else {
        return;
    };
    // Kubernetes shows the path of the other field here, of which JSON has nothing.
    let shown = json!({});
    if !text(reference, "namespace").is_empty() {
        errors.invalid(path, &shown, "may not be specified when dataSourceRef.namespace is specified");
    } else if ["apiGroup", "kind", "name"].iter().any(|f| text(source, f) != text(reference, f)) {
        errors.invalid(path, &shown, "must match dataSourceRef");
    }
}

/// A bound claim can ask for more, and any claim be bound; the rest stays. Arguments: new, old.
fn claim_update(new: &Value, old: &Value) -> Vec<FieldError> {
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
    if !same(Some(&fixed(spec)), Some(&fixed(before))) {
        errors.forbidden("spec", &fixed_detail(spec, before, unbound, bound));
    }
    size(new, old, &mut errors);
    volume_mode(spec, before, &mut errors);
    let class = spec.get("volumeAttributesClassName").and_then(Value::as_str);
    if class.unwrap_or_default().is_empty()
        && given(before, "volumeAttributesClassName").and_then(Value::as_str) != class
        && given(&old["status"], "currentVolumeAttributesClassName").is_some()
    {
        let to = if class.is_none() { "nil" } else { "empty string" };
        let why =
            format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.forbidden("spec.volumeAttributesClassName", &why);
    }
    errors.list()
}

/// Returns the error detail for a change of immutable fields, with the difference. Mutable fields are shown
/// with their old values, except the name of the volume when a claim is bound.
fn fixed_detail(spec: &Value, before: &Value, unbound: bool, bound: bool) -> String {
    let (mut now, mut was) = (spec.clone(), before.clone());
    let take = |to: &mut Value, from: &Value, pointer: &str, key: &str| {
        let value = from.pointer(pointer).and_then(|parent| parent.get(key)).cloned();
        let Some(Value::Object(map)) = to.pointer_mut(pointer) else { return };
        match value {
            Some(value) => drop(map.insert(key.to_owned(), value)),
            None => drop(map.remove(key)),
        }
    };
    if unbound {
        take(&mut was, spec, "", "volumeName");
    }
    if bound {
        take(&mut now, before, "/resources/requests", "storage");
        take(&mut now, before, "", "volumeAttributesClassName");
    }
    let changed = changes::named(&now, &was);
    format!(
        "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims{changed}"
    )
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

/// Errors of a write of a claim's status.
fn claim_status(status: &Value, errors: &mut Errors) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    for (name, amount) in status["capacity"].as_object().into_iter().flatten() {
        if let Some(amount) = quantity::parse_value(amount).ok().filter(|q| q.is_negative()) {
            let path = format!("status.capacity[{name}]");
            errors.invalid(path, &json!(amount.value()), "must be a valid resource quantity");
        }
    }
    for (name, state) in status["allocatedResourceStatuses"].as_object().into_iter().flatten() {
        let path = "status.allocatedResourceStatus";
        allocated_name(name, path, errors);
        if !state.as_str().is_some_and(|s| STATES.contains(&s)) {
            errors.not_supported(path, &json!(name), &STATES);
        }
    }
    for (name, amount) in status["allocatedResources"].as_object().into_iter().flatten() {
        allocated_name(name, "status.allocatedResources", errors);
        resources::one(name, amount, &format!("status.allocatedResources[{name}]"), errors);
    }
}

fn allocated_name(name: &str, path: &str, errors: &mut Errors) {
    errors.faults(path, name, names::qualified_name(name));
    if (!name.contains('/') || name.contains("kubernetes.io/")) && name != "storage" {
        errors.not_supported(path, &json!(name), &["storage"]);
    }
}
