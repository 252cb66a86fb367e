//! LeaseCandidate.

use serde_json::{Value, json};

use super::shared::semantic_version;
use super::{Errors, metadata, names, text};
use apiserver_schema::error::FieldError;

const VERSION: &str = "must be a valid semantic version";
const OLDEST: &str = "OldestEmulationVersion";

/// Errors of a LeaseCandidate.
pub fn lease_candidate(object: &Value) -> Vec<FieldError> {
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
        other => strategy(other, &mut errors),
    }
    errors.list()
}

/// Validates the strategy by which the holder of a lease is chosen: a name of Kubernetes' own or one with a
/// domain.
pub(super) fn strategy(strategy: &str, errors: &mut Errors) {
    // Kubernetes repeats the last part of this path.
    let path = "spec.strategy.strategy";
    if strategy.contains('/') {
        errors.faults(path, strategy, names::qualified_name(strategy));
    } else if strategy != OLDEST {
        errors.not_supported(path, &json!(strategy), &[OLDEST]);
    }
}

/// A candidate stays with its lease. Arguments: new, old.
pub fn lease_candidate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let name = text(&new["spec"], "leaseName");
    errors.immutable_shown("spec.leaseName", new, old, &json!(name).to_string());
    errors.list()
}
