//! LeaseCandidates.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, metadata, names, text};
use serde_json::{Value, json};

use crate::coordination::lease::{self, OLDEST};
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::checks::semantic_version;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "coordination.k8s.io",
    plural: "leasecandidates",
    selectable: &["spec.leaseName"],
    needs_version: true,
    create_on_update: true,
    validate,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

const VERSION: &str = "must be a valid semantic version";

/// Errors of a LeaseCandidate.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::validate(object, names::config_key));
    let spec = &object["spec"];
    if text(spec, "leaseName").is_empty() {
        errors.required("spec.leaseName", "");
    }
    let (emulated, binary) = (text(spec, "emulationVersion"), text(spec, "binaryVersion"));
    let version = |text: &str| semantic_version(text);
    if !emulated.is_empty() && version(emulated).is_none() {
        errors.invalid("spec.emulationVersion", &json!(emulated), VERSION);
    }
    if binary.is_empty() {
        errors.required("spec.binaryVersion", "");
    } else if version(binary).is_none() {
        errors.invalid("spec.binaryVersion", &json!(binary), VERSION);
    }
    // A text that is not a version counts as the lowest.
    let least = |text: &str| version(text).unwrap_or_default();
    if !binary.is_empty() && !emulated.is_empty() && least(binary) < least(emulated) {
        let detail = "must be greater than or equal to `emulationVersion`";
        errors.invalid("spec.binaryVersion", &spec["binaryVersion"], detail);
    }
    let path = "spec.strategy";
    match text(spec, "strategy") {
        "" => errors.required(path, ""),
        OLDEST => {
            if version(emulated).unwrap_or_default() == [0; 3] {
                let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
                errors.required("spec.emulationVersion", detail);
            }
        }
        other => lease::strategy(other, &mut errors),
    }
    errors.list()
}

/// A candidate stays with its lease. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let name = text(&new["spec"], "leaseName");
    errors.immutable_shown("spec.leaseName", new, old, &json!(name).to_string());
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("LeaseName", "string", 0, "Lease that it stands for"),
        ("BinaryVersion", "string", 0, "Version of its program"),
        ("EmulationVersion", "string", 0, "Version that it behaves like"),
        AGE,
    ],
    cells: |object, now| {
        let text = |field: &str| cells::text_or(object, &format!("/spec/{field}"), "");
        vec![
            cells::name(object),
            text("leaseName"),
            text("binaryVersion"),
            text("emulationVersion"),
            cells::age(object, now),
        ]
    },
};
