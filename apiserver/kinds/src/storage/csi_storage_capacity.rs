//! CSIStorageCapacities.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{
    Errors, IMMUTABLE, given, items, label_selector, names, same, text, with_metadata,
};
use serde_json::Value;

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::cells::{self, UNSET};
use crate::shared::columns::{Columns, NAME};
use crate::shared::quantities::one;

pub(crate) static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "csistoragecapacities",
    needs_version: true,
    validate,
    validate_update,
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a CSIStorageCapacity.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    label_selector(object.get("nodeTopology"), "nodeTopology", &mut errors);
    let class = text(object, "storageClassName");
    errors.faults("storageClassName", class, names::dns_subdomain(class));
    if let Some(amount) = given(object, "capacity") {
        one("", amount, "capacity", &mut errors);
    }
    errors.list()
}

/// Validates that the class and the topology of a CSIStorageCapacity do not change. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    // An empty selector selects all nodes, and none of them is selected without one.
    let (now, was) = (given(new, "nodeTopology"), given(old, "nodeTopology"));
    if now.is_some() != was.is_some() || !same(now, was) {
        errors.invalid("nodeTopology", now.unwrap_or(&Value::Null), IMMUTABLE);
    }
    errors.immutable_text("storageClassName", new, old);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("StorageClassName", "string", 0, "Class of storage"),
        ("Capacity", "string", 0, "How much there is"),
    ],
    cells: |object, _| {
        let amount = cells::text_or(object, "/capacity", UNSET);
        vec![cells::name(object), cells::text_or(object, "/storageClassName", ""), amount]
    },
};

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let topology = &new["nodeTopology"];
    let mut warnings = Vec::new();
    for (index, expression) in items(topology, "matchExpressions").iter().enumerate() {
        let key = text(expression, "key");
        if let Some(message) = pod::warnings::node_label(key) {
            warnings.push(format!("nodeTopology.matchExpressions[{index}].key: {key} is {message}"));
        }
    }
    let labels = topology["matchLabels"].as_object().into_iter().flatten();
    for (label, message) in labels.filter_map(|(label, _)| Some((label, pod::warnings::node_label(label)?))) {
        warnings.push(format!("nodeTopology.matchLabels.{label}: {message}"));
    }
    warnings
}
