//! Leases.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, names, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::gates::Gate;
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "coordination.k8s.io",
    plural: "leases",
    needs_version: true,
    create_on_update: true,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec", GATES)),
    validate,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

// CoordinatedLeaderElection
static GATES: &[Gate] = &[gates::gate(&["strategy"]), gates::gate(&["preferredHolder"])];

/// Errors of a Lease.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    if let Some(seconds) = spec.get("leaseDurationSeconds").filter(|s| s.as_i64().is_some_and(|s| s <= 0)) {
        errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
    }
    errors.not_negative("spec.leaseTransitions", spec.get("leaseTransitions"));
    let strategy = given(spec, "strategy").and_then(Value::as_str);
    if let Some(strategy) = strategy {
        self::strategy(strategy, &mut errors);
    }
    if !text(spec, "preferredHolder").is_empty() && strategy.is_none_or(str::is_empty) {
        errors.forbidden("spec.preferredHolder", "may only be specified when `strategy` is defined");
    }
    errors.list()
}

pub(crate) const OLDEST: &str = "OldestEmulationVersion";

/// Validates the strategy by which the holder of a lease is chosen: a name of Kubernetes' own or one with a
/// domain.
pub(crate) fn strategy(strategy: &str, errors: &mut Errors) {
    // Kubernetes repeats the last part of this path.
    let path = "spec.strategy.strategy";
    if strategy.contains('/') {
        errors.faults(path, strategy, names::qualified_name(strategy));
    } else if strategy != OLDEST {
        errors.not_supported(path, &json!(strategy), &[OLDEST]);
    }
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Holder", "string", 0, "Who holds it"), AGE],
    cells: |object, now| {
        vec![cells::name(object), cells::text_or(object, "/spec/holderIdentity", ""), cells::age(object, now)]
    },
};
