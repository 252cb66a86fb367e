//! PriorityClasses.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, same, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::fill_absent;

pub(crate) static KIND: Kind = Kind {
    group: "scheduling.k8s.io",
    plural: "priorityclasses",
    short_names: &["pc"],
    default,
    prepare_create,
    validate,
    validate_change: Some(|new, old, _| validate_update(new, old)),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// A new PriorityClass is the first of its name; no change is counted.
fn prepare_create(value: &mut Value) {
    meta::set(value, "generation", 1);
}

/// Defaults of a PriorityClass.
fn default(value: &mut Value) {
    if let Value::Object(map) = value {
        fill_absent(map, "preemptionPolicy", "PreemptLowerPriority");
    }
}

/// Above this only Kubernetes' own priority classes.
const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;

const SYSTEM_PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Errors of a PriorityClass.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let value = object["value"].as_i64().unwrap_or(0);
    let name = meta::name(object);
    if name.starts_with("system-") {
        let system = SYSTEM_PRIORITIES.iter().find(|(known, _)| *known == name);
        let why = match system {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, wanted)) if *wanted != value => {
                Some(format!("value of {name} PriorityClass must be {wanted}"))
            }
            Some(_) if object["globalDefault"] == true => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            );
            errors.forbidden("metadata.name", &detail);
        }
    } else if value > HIGHEST_USER_PRIORITY {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.forbidden("value", &detail);
    }
    let policies = ["PreemptLowerPriority", "Never"];
    errors.one_of("preemptionPolicy", object.get("preemptionPolicy"), &policies);
    errors.list()
}

/// Value and policy of a PriorityClass stay. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !same(new.get("value"), old.get("value")) {
        errors.forbidden("value", "may not be changed in an update.");
    }
    errors.immutable("preemptionPolicy", new, old);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Value", "integer", 0, "Priority of pods of this class"),
        ("Global-Default", "boolean", 0, "Whether it holds for pods that name no class"),
        AGE,
        ("PreemptionPolicy", "string", 0, "Whether such pods push out others"),
    ],
    cells: |object, now| {
        vec![
            cells::name(object),
            cells::number(object, "/value"),
            json!(object["globalDefault"] == true),
            cells::age(object, now),
            cells::text_or(object, "/preemptionPolicy", "PreemptLowerPriority"),
        ]
    },
};
