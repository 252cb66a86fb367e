//! CSINodes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, IMMUTABLE, items, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "csinodes",
    needs_version: true,
    validate,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Longest id that a driver gives a node, in bytes.
const NODE_ID_LENGTH: usize = 256;

/// Errors of a CSINode.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut seen = BTreeSet::new();
    for (index, driver) in items(&object["spec"], "drivers").iter().enumerate() {
        let path = format!("spec.drivers[{index}]");
        let (name, id) = (text(driver, "name"), text(driver, "nodeID"));
        pod::volume_source::csi_driver_name(name, &format!("{path}.name"), &mut errors);
        if id.is_empty() {
            errors.required(format!("{path}.nodeID"), "");
        }
        if id.len() > NODE_ID_LENGTH {
            let detail = format!("must be {NODE_ID_LENGTH} characters or less");
            errors.invalid(format!("{path}.nodeID"), &json!(id), &detail);
        }
        errors.not_negative(format!("{path}.allocatable.count"), driver.pointer("/allocatable/count"));
        if !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        // Faults of keys are reported for the driver, as in Kubernetes.
        let mut keys = BTreeSet::new();
        for key in items(driver, "topologyKeys").iter().filter_map(Value::as_str) {
            if key.is_empty() {
                errors.required(path.as_str(), "");
            }
            if !keys.insert(key) {
                errors.duplicate(path.as_str(), &json!(key));
            }
            errors.faults(&path, key, names::qualified_name(key));
        }
    }
    errors.list()
}

/// Validates that the drivers of a CSINode do not change except in the number of volumes that fit. Arguments:
/// new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let is_fixed = |now: &Value, was: &Value| {
        ["name", "nodeID", "topologyKeys"].iter().all(|field| same(now.get(*field), was.get(*field)))
    };
    let now = items(&new["spec"], "drivers");
    let (same_as, mut named): (HashSet<&Value>, BTreeMap<&str, Vec<&Value>>) =
        (now.iter().collect(), BTreeMap::new());
    for driver in now {
        named.entry(text(driver, "name")).or_default().push(driver);
    }
    for had in items(&old["spec"], "drivers").iter().filter(|had| !same_as.contains(had)) {
        for has in named.get(text(had, "name")).into_iter().flatten() {
            if !is_fixed(has, had) {
                errors.invalid("spec.drivers", has, IMMUTABLE);
            }
        }
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Drivers", "integer", 0, "Number of drivers on the node"), AGE],
    cells: |object, now| {
        vec![cells::name(object), json!(cells::count(object, "/spec/drivers")), cells::age(object, now)]
    },
};
