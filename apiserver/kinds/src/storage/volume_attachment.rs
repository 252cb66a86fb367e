//! VolumeAttachments.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, names, text, with_metadata};
use serde_json::{Value, json};

use crate::core::{persistent_volume, pod};
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "volumeattachments",
    needs_version: true,
    validate,
    validate_update,
    validate_status: Some(validate_status),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// The limit of an attachment's metadata, and of one message, in bytes.
const METADATA_SIZE: usize = 256 * 1024;

const MESSAGE_LENGTH: usize = 1024;

/// Errors of a VolumeAttachment.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    pod::volume_source::csi_driver_name(text(spec, "attacher"), "spec.attacher", &mut errors);
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
            persistent_volume::validate_spec(inline, true, &format!("{path}.inlineVolumeSpec"), &mut errors);
        }
    }
    let node = text(spec, "nodeName");
    errors.faults("spec.nodeName", node, names::dns_subdomain(node));
    status_errors(&object["status"], &mut errors);
    errors.name_if_given(
        "spec.source.persistentVolumeName",
        source.get("persistentVolumeName"),
        names::dns_subdomain,
    );
    errors.list()
}

/// Validates the metadata and the errors that a driver reports about an attachment.
fn status_errors(status: &Value, errors: &mut Errors) {
    let entries = status["attachmentMetadata"].as_object().into_iter().flatten();
    let size: usize = entries.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
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
fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    status_errors(&new["status"], &mut errors);
    errors.list()
}

/// Validates that the spec of a VolumeAttachment does not change. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec", new, old);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Attacher", "string", 0, "Driver that attaches"),
        ("PV", "string", 0, "Volume"),
        ("Node", "string", 0, "Node that it is attached to"),
        ("Attached", "boolean", 0, "Whether it is attached"),
        AGE,
    ],
    cells: |object, now| {
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/attacher", ""),
            cells::text_or(object, "/spec/source/persistentVolumeName", ""),
            cells::text_or(object, "/spec/nodeName", ""),
            json!(object.pointer("/status/attached") == Some(&json!(true))),
            cells::age(object, now),
        ]
    },
};
