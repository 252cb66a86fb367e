//! PersistentVolume, PersistentVolumeClaim, StorageClass.

use serde_json::{Value, json};

use super::{Errors, items, names, resources, same, text, with_metadata};
use crate::error::FieldError;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(spec: &Value, errors: &mut Errors) {
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        errors.required("spec.accessModes", "at least 1 access mode is required");
    }
    for mode in modes {
        errors.one_of("spec.accessModes", Some(mode), &MODES);
    }
    errors.one_of_if_set("spec.volumeMode", spec.get("volumeMode"), &["Block", "Filesystem"]);
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        errors.faults("spec.storageClassName", class, names::dns_subdomain(class));
    }
}

/// Errors of a PersistentVolume.
pub fn volume(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    access_modes(spec, &mut errors);
    if spec.pointer("/capacity/storage").is_none() {
        errors.required("spec.capacity", "");
    }
    resources::amounts(spec.get("capacity"), "spec.capacity", &mut errors);
    let policies = ["Delete", "Recycle", "Retain"];
    errors.one_of("spec.persistentVolumeReclaimPolicy", spec.get("persistentVolumeReclaimPolicy"), &policies);
    let common = [
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
    let mut sources =
        spec.as_object().into_iter().flatten().filter(|(key, _)| !common.contains(&key.as_str()));
    if sources.next().is_none() {
        errors.required("spec", "must specify a volume type");
    }
    for (more, _) in sources {
        errors.forbidden(format!("spec.{more}"), "may not specify more than 1 volume type");
    }
    errors.list()
}

/// The source of a PersistentVolume stays. Arguments: new, old.
pub fn volume_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let source = |object: &Value| {
        let mutable = [
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
        let mut spec = object["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, _| !mutable.contains(&key.as_str()));
        }
        spec
    };
    if source(new) != source(old) {
        errors.forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        );
    }
    errors.immutable("spec.volumeMode", new, old);
    errors.list()
}

/// Errors of a PersistentVolumeClaim.
pub fn claim(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    access_modes(spec, &mut errors);
    if spec.pointer("/resources/requests/storage").is_none() {
        errors.required("spec.resources[storage]", "");
    }
    if let Some(requests) = spec.pointer("/resources/requests") {
        resources::amounts(Some(requests), "spec.resources.requests", &mut errors);
    }
    errors.list()
}

/// A claim can ask for more and be bound; the rest stays. Arguments: new, old.
pub fn claim_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    let fixed = |spec: &Value, unbound: bool, classless: bool| {
        let mut spec = spec.clone();
        if let Value::Object(map) = &mut spec {
            map.remove("resources");
            map.remove("volumeAttributesClassName");
            if unbound {
                map.remove("volumeName");
            }
            if classless {
                map.remove("storageClassName");
            }
        }
        spec
    };
    let unbound = text(before, "volumeName").is_empty();
    let classless = before.get("storageClassName").is_none();
    if fixed(spec, unbound, classless) != fixed(before, unbound, classless) {
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    let size = |spec: &Value| {
        spec.pointer("/resources/requests/storage").and_then(|v| crate::quantity::parse_value(v).ok())
    };
    if let (Some(now), Some(was)) = (size(spec), size(before))
        && now < was
    {
        errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
    }
    errors.list()
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
    errors.one_of("reclaimPolicy", object.get("reclaimPolicy"), &["Delete", "Retain"]);
    let modes = ["Immediate", "WaitForFirstConsumer"];
    errors.one_of("volumeBindingMode", object.get("volumeBindingMode"), &modes);
    errors.list()
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
    if !same(new.get("volumeBindingMode"), old.get("volumeBindingMode")) {
        errors.invalid("volumeBindingMode", &json!(text(new, "volumeBindingMode")), super::IMMUTABLE);
    }
    errors.list()
}
