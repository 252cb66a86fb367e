//! PersistentVolumeClaims.

use apiserver_meta::quantity;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{
    Errors, IMMUTABLE, given, items, label_selector, lenient_selector, metadata, names, same, text,
    with_metadata,
};
use serde_json::{Value, json};

use crate::core::persistent_volume::{self, ACCESS, ATTRIBUTES, CLASS, MODE, VOLUME_MODES};
use crate::kind::Kind;
use crate::shared::cells::UNSET;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{Object, fill_absent, is_empty, with_spec};
use crate::shared::quantities::{one, positive};
use crate::shared::{cells, changes, gates};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "persistentvolumeclaims",
    short_names: &["pvc"],
    default,
    prepare_create,
    prepare_update,
    drop_disabled: Some(drop_disabled),
    validate,
    validate_change: Some(validate_change),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// A new claim waits for a volume.
pub(crate) fn prepare_create(value: &mut Value) {
    persistent_volume::prepare_create_pending(value);
    sources_of_claim(value);
}

/// Completes an update of a claim that leaves out the second field of its data source. Arguments: new, old.
fn prepare_update(new: &mut Value, old: &Value) {
    let said = |field: &str| !old["spec"][field].is_null();
    if said("dataSource") || said("dataSourceRef") {
        with_spec(new, both_sources);
    } else {
        sources_of_claim(new);
    }
}

/// Fills in both fields for the source of a claim. The older one knows claims and snapshots; other kinds are
/// ignored there, as they always were.
fn sources_of_claim(value: &mut Value) {
    with_spec(value, |spec| {
        let source = spec.get("dataSource").filter(|source| !source.is_null());
        let group = |source: &Value| source["apiGroup"].as_str().unwrap_or_default().to_owned();
        let known = source.is_some_and(|source| {
            matches!(
                (source["kind"].as_str(), group(source).as_str()),
                (Some("PersistentVolumeClaim"), "") | (Some("VolumeSnapshot"), "snapshot.storage.k8s.io")
            )
        });
        if !known && spec.get("dataSourceRef").is_none_or(Value::is_null) {
            spec.remove("dataSource");
        }
        both_sources(spec);
    });
}

/// Readers use either of the two fields.
fn both_sources(spec: &mut Object) {
    let set = |spec: &Object, key: &str| spec.get(key).is_some_and(|v| !v.is_null());
    let (source, reference) = (set(spec, "dataSource"), set(spec, "dataSourceRef"));
    if source && !reference {
        let copy = spec["dataSource"].clone();
        spec.insert("dataSourceRef".into(), copy);
    } else if reference && !source {
        let Value::Object(mut copy) = spec["dataSourceRef"].clone() else { return };
        // Nothing of another namespace fits the older field.
        let local = is_empty(&copy, "namespace");
        copy.remove("namespace");
        if local {
            spec.insert("dataSource".into(), copy.into());
        }
    }
}

/// Defaults of a PersistentVolumeClaim.
fn default(value: &mut Value) {
    with_spec(value, |spec| fill_absent(spec, "volumeMode", "Filesystem"));
}

/// CrossNamespaceVolumeDataSource: a claim is filled from its own namespace.
fn drop_disabled(new: &mut Value, old: Option<&Value>) {
    let foreign = gates::is_used(new, "spec.dataSourceRef.namespace");
    if foreign && !old.is_some_and(|old| gates::is_used(old, "spec.dataSourceRef")) {
        gates::remove(new, "spec.dataSourceRef", false);
    }
}

/// Errors of a PersistentVolumeClaim.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    validate_spec(&object["spec"], "spec", &mut errors);
    errors.list()
}

/// Returns the errors of a change of a PersistentVolumeClaim; existing faults may stay. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
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
    let may = ExistingFaults { values: faults.count() > 0, groups: grouped };
    let mut errors = with_metadata(new);
    changed_claim_spec(&new["spec"], may, "spec", &mut errors);
    errors.extend(claim_update(new, old));
    errors.list()
}

/// The faults that a claim had before and may keep.
#[derive(Clone, Copy, Default)]
struct ExistingFaults {
    /// Values that the selector compares with.
    values: bool,
    /// API groups of data sources.
    groups: bool,
}

/// The spec of a claim, or of a template of claims, at `path`.
pub(crate) fn validate_spec(spec: &Value, path: &str, errors: &mut Errors) {
    changed_claim_spec(spec, ExistingFaults::default(), path, errors);
}

fn changed_claim_spec(spec: &Value, may: ExistingFaults, path: &str, errors: &mut Errors) {
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        errors.required(format!("{path}.accessModes"), "at least 1 access mode is required");
    }
    lenient_selector(spec.get("selector"), may.values, &format!("{path}.selector"), errors);
    persistent_volume::access_modes(modes, path, errors);
    let at = format!("{path}.resources[storage]");
    match spec.pointer("/resources/requests/storage") {
        None => errors.required(at, ""),
        Some(amount) => positive(amount, &at, errors),
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
        errors.invalid(format!("metadata.annotations[{BETA_CLASS}]"), &shown, IMMUTABLE);
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
        errors.forbidden("spec", &immutable_detail(spec, before, unbound, bound));
    }
    size_change(new, old, &mut errors);
    persistent_volume::volume_mode(spec, before, &mut errors);
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
fn immutable_detail(spec: &Value, before: &Value, unbound: bool, bound: bool) -> String {
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
fn size_change(new: &Value, old: &Value, errors: &mut Errors) {
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
        one(name, amount, &format!("status.allocatedResources[{name}]"), errors);
    }
}

fn allocated_name(name: &str, path: &str, errors: &mut Errors) {
    errors.faults(path, name, names::qualified_name(name));
    if (!name.contains('/') || name.contains("kubernetes.io/")) && name != "storage" {
        errors.not_supported(path, &json!(name), &["storage"]);
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Status", "string", 0, "Phase of the claim"),
        ("Volume", "string", 0, "Volume that it is bound to"),
        ("Capacity", "string", 0, "Size of that volume"),
        ACCESS,
        CLASS,
        ATTRIBUTES,
        AGE,
        MODE,
    ],
    cells: |object, now| {
        let bound = !meta::text(object, "/spec/volumeName").is_empty();
        let when_bound = |value: Value| if bound { value } else { json!("") };
        vec![
            cells::name(object),
            persistent_volume::phase(object),
            cells::text_or(object, "/spec/volumeName", ""),
            when_bound(cells::text_or(object, "/status/capacity/storage", "0")),
            when_bound(persistent_volume::modes(object, "/status/accessModes")),
            persistent_volume::class(object),
            cells::text_or(object, "/spec/volumeAttributesClassName", UNSET),
            cells::age(object, now),
            cells::text_or(object, "/spec/volumeMode", UNSET),
        ]
    },
};

/// Returns the warnings about the spec of a claim.
pub(crate) fn spec_warnings(spec: &Value, path: &str) -> Vec<String> {
    let amount = |list: &str| spec.pointer(&format!("/resources/{list}/storage"));
    ["requests", "limits"]
        .iter()
        .filter_map(|list| {
            persistent_volume::fractional(amount(list), &format!("{path}.resources.{list}[storage]"))
        })
        .collect()
}

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings: Vec<String> = persistent_volume::class_annotation(new).into_iter().collect();
    warnings.extend(spec_warnings(&new["spec"], "spec"));
    warnings
}
