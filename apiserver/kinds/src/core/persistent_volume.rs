//! PersistentVolumes.

use apiserver_meta::quantity;
use apiserver_meta::time;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, items, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::core::pod;
use crate::core::pod::warnings::PLUGINS;
use crate::kind::Kind;
use crate::shared::cells::UNSET;
use crate::shared::columns::{AGE, Columns, Header, NAME};
use crate::shared::defaults::{Object, fill, fill_absent, object, with_spec};
use crate::shared::quantities::positive;
use crate::shared::{cells, changes};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "persistentvolumes",
    short_names: &["pv"],
    default,
    prepare_create,
    validate,
    validate_update,
    validate_status: Some(|_, _| Vec::new()),
    warnings: Some(warnings),
    columns: COLUMNS,
    prepare_status_times: Some(|new, old, now| record_phase_time(new, old, &time::rfc3339(now))),
    ..Kind::DEFAULT
};

/// Defaults of a PersistentVolume.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "persistentVolumeReclaimPolicy", "Retain");
        fill_absent(spec, "volumeMode", "Filesystem");
        default_source(spec);
    });
}

/// Defaults of the sources that pods and PersistentVolumes share.
pub(crate) fn default_source(parent: &mut Object) {
    if let Some(path) = object(parent, "hostPath")
        && !path.contains_key("type")
    {
        path.insert("type".into(), "".into());
    }
    let defaults: [(&str, &[(&str, &str)]); 4] = [
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("kind", "Shared"), ("fsType", "ext4")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ];
    for (kind, fields) in defaults {
        if let Some(source) = object(parent, kind) {
            // Azure disk fields are optional in the API, so an empty string is a value and stays.
            let pointers = kind == "azureDisk";
            for (field, value) in fields {
                if pointers { fill_absent(source, field, *value) } else { fill(source, field, *value) }
            }
            if pointers {
                fill_absent(source, "readOnly", false);
            }
        }
    }
}

/// A new volume or claim waits for the other.
pub(crate) fn prepare_create_pending(value: &mut Value) {
    if let Value::Object(map) = value {
        map.insert("status".into(), json!({"phase": "Pending"}));
    }
}

/// The field with the time at which a PersistentVolume entered its phase (KEP-3762).
const PHASE_TIME: &str = "lastPhaseTransitionTime";

/// A new PersistentVolume waits since it was made.
pub(crate) fn prepare_create(value: &mut Value) {
    prepare_create_pending(value);
    let created = meta::creation_timestamp(value).map(str::to_owned);
    if let (Some(created), Some(status)) = (created, value.get_mut("status")) {
        status[PHASE_TIME] = created.into();
    }
}

/// Sets the time at which a PersistentVolume changes its phase to `now`, unless the writer sets a time.
/// Arguments: new, old.
pub fn record_phase_time(new: &mut Value, old: &Value, now: &str) {
    let new_field = |field: &str| new["status"].get(field).filter(|value| !value.is_null());
    let was = |field: &str| old["status"].get(field);
    let unsaid = new_field(PHASE_TIME).is_none() || new_field(PHASE_TIME) == was(PHASE_TIME);
    if new_field("phase") != was("phase")
        && unsaid
        && let Some(Value::Object(status)) = new.get_mut("status")
    {
        status.insert(PHASE_TIME.to_owned(), now.into());
    }
}

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(crate) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

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

pub(crate) fn access_modes(modes: &[Value], path: &str, errors: &mut Errors) {
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
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    validate_spec(&object["spec"], false, "spec", &mut errors);
    errors.list()
}

/// The spec of a volume at `path`; `inline` if it is part of another object.
pub(crate) fn validate_spec(spec: &Value, inline: bool, path: &str, errors: &mut Errors) {
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
        Some(required) => pod::scheduling::node_selector(required, &path, errors),
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
        positive(amount, &path, errors);
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
    pod::volume::one_source(sources, path, errors, |kind, source, errors| {
        pod::volume_source::source(kind, source, true, &format!("{path}.{kind}"), errors);
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
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    // The rules of a volume are asked twice, once as for a new one.
    let mut errors =
        Errors::of(validate(new).into_iter().filter(|e| !e.field.starts_with("metadata.")).collect());
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

pub(crate) fn volume_mode(spec: &Value, before: &Value, errors: &mut Errors) {
    if !same(spec.get("volumeMode"), before.get("volumeMode")) {
        errors.invalid("volumeMode", spec.get("volumeMode").unwrap_or(&Value::Null), IMMUTABLE);
    }
}

/// Returns `true` if both are equal, or differ only in current labels that replace old ones.
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

pub(crate) const ACCESS: Header = ("Access Modes", "string", 0, "How it can be mounted");

pub(crate) const CLASS: Header = ("StorageClass", "string", 0, "Class of storage");

pub(crate) const ATTRIBUTES: Header = ("VolumeAttributesClass", "string", 0, "Class of attributes");

pub(crate) const MODE: Header = ("VolumeMode", "string", 1, "Filesystem or Block");

pub(crate) fn modes(object: &Value, pointer: &str) -> Value {
    let modes = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let given = meta::list(object, pointer);
    let shown = modes.iter().filter(|(mode, _)| given.iter().any(|g| g == mode)).map(|(_, short)| *short);
    json!(shown.collect::<Vec<_>>().join(","))
}

/// The class, also where the annotation of long ago names it.
pub(crate) fn class(object: &Value) -> Value {
    match meta::annotation(object, "volume.beta.kubernetes.io/storage-class") {
        Some(class) => json!(class),
        None => cells::text_or(object, "/spec/storageClassName", ""),
    }
}

/// Returns the phase of a volume or claim, or `Terminating` once it is being deleted.
pub(crate) fn phase(object: &Value) -> Value {
    if meta::deletion_timestamp(object).is_some() {
        json!("Terminating")
    } else {
        cells::text_or(object, "/status/phase", "")
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Capacity", "string", 0, "Size"),
        ACCESS,
        ("Reclaim Policy", "string", 0, "What becomes of it after its claim"),
        ("Status", "string", 0, "Phase of the volume"),
        ("Claim", "string", 0, "Claim that it is bound to"),
        CLASS,
        ATTRIBUTES,
        ("Reason", "string", 0, "Why it is in this phase"),
        AGE,
        MODE,
    ],
    cells: |object, now| {
        let claim = object
            .pointer("/spec/claimRef")
            .map_or(String::new(), |c| format!("{}/{}", meta::text(c, "/namespace"), meta::text(c, "/name")));
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/capacity/storage", "0"),
            modes(object, "/spec/accessModes"),
            cells::text_or(object, "/spec/persistentVolumeReclaimPolicy", ""),
            phase(object),
            json!(claim),
            class(object),
            cells::text_or(object, "/spec/volumeAttributesClassName", UNSET),
            cells::text_or(object, "/status/reason", ""),
            cells::age(object, now),
            cells::text_or(object, "/spec/volumeMode", UNSET),
        ]
    },
};

/// A warning for an amount of bytes that is not whole.
pub(crate) fn fractional(amount: Option<&Value>, path: &str) -> Option<String> {
    let amount = quantity::parse_value(amount?).ok().filter(|q| q.milli() % 1000 != 0)?;
    Some(format!("{path}: fractional byte value \"{amount}\" is invalid, must be an integer"))
}

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

pub(crate) fn class_annotation(new: &Value) -> Option<String> {
    meta::annotation(new, BETA_CLASS).map(|_| {
        format!(
            "metadata.annotations[{BETA_CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
        )
    })
}

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let spec = &new["spec"];
    let mut warnings: Vec<String> = class_annotation(new).into_iter().collect();
    if meta::annotation(new, MOUNT_OPTIONS).is_some() {
        warnings.push(format!(
            "metadata.annotations[{MOUNT_OPTIONS}]: deprecated since v1.31; use \"mountOptions\" attribute instead"
        ));
    }
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    if let Some(required) = spec.pointer("/nodeAffinity/required") {
        for (index, term) in items(required, "nodeSelectorTerms").iter().enumerate() {
            let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]");
            pod::warnings::node_term(term, false, &path, &mut warnings);
        }
    }
    for (plugin, message) in PLUGINS.iter().filter(|(plugin, _)| given(spec, plugin).is_some()) {
        let shown = if *plugin == "storageos" { "storageOS" } else { plugin };
        warnings.push(format!("spec.{shown}: {message}"));
    }
    warnings.extend(fractional(spec.pointer("/capacity/storage"), "spec.capacity[storage]"));
    warnings
}
