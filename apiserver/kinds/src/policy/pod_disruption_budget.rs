//! PodDisruptionBudgets.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, amount, given, int_or_percent, items, label_selector};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::checks::{conditions, status_counts};
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "policy",
    plural: "poddisruptionbudgets",
    short_names: &["pdb"],
    generation: true,
    needs_version: true,
    validate,
    validate_status: Some(validate_status),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a PodDisruptionBudget.
fn validate(object: &Value) -> Vec<FieldError> {
    // The metadata is validated by the rules of all kinds.
    let mut errors = Errors::default();
    let spec = &object["spec"];
    if given(spec, "minAvailable").is_some() && given(spec, "maxUnavailable").is_some() {
        errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let (path, value) = (format!("spec.{field}"), given(spec, field));
        int_or_percent(&path, value, &mut errors);
        if let Some(value) = value.filter(|v| v.is_string() && amount(Some(v)) > 100) {
            errors.invalid(path, value, "must not be greater than 100%");
        }
    }
    label_selector(spec.get("selector"), "spec.selector", &mut errors);
    errors.one_of_if_given(
        "spec.unhealthyPodEvictionPolicy",
        spec.get("unhealthyPodEvictionPolicy"),
        &["AlwaysAllow", "IfHealthyBudget"],
    );
    errors.list()
}

fn validate_status(new: &Value, _: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
    status_counts(&new["status"], &fields, &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Min Available", "string", 0, "Pods that must stay available"),
        ("Max Unavailable", "string", 0, "Pods that may be unavailable"),
        ("Allowed Disruptions", "integer", 0, "Pods that may be evicted now"),
        AGE,
    ],
    cells: |object, now| {
        let amount = |field: &str| match object.pointer(&format!("/spec/{field}")) {
            Some(Value::String(text)) => json!(text),
            Some(Value::Number(number)) => json!(number.to_string()),
            _ => json!("N/A"),
        };
        vec![
            cells::name(object),
            amount("minAvailable"),
            amount("maxUnavailable"),
            cells::number(object, "/status/disruptionsAllowed"),
            cells::age(object, now),
        ]
    },
};
