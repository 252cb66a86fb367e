//! StorageClass, VolumeAttributesClass, CSIStorageCapacity: what storage there is to ask for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Errors, IMMUTABLE, given, items, label_selector, names, resources, same, text, with_metadata};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::repeats::repeats;

/// Parameters of a class: how many, and how many bytes together.
const PARAMETERS: usize = 512;
const PARAMETERS_SIZE: usize = 256 * 1024;

/// Errors of a StorageClass.
pub fn class(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    provisioner(object, "provisioner", &mut errors);
    parameters(object, &mut errors);
    errors.one_of_if_set("reclaimPolicy", object.get("reclaimPolicy"), &["Delete", "Retain"]);
    let modes = ["Immediate", "WaitForFirstConsumer"];
    errors.one_of_given("volumeBindingMode", object.get("volumeBindingMode"), &modes);
    // Kubernetes begins with as many empty terms as there are terms, and counts each equal one.
    let terms = items(object, "allowedTopologies").len();
    let mut seen: BTreeMap<BTreeMap<&str, BTreeSet<String>>, usize> =
        BTreeMap::from([(BTreeMap::new(), terms)]);
    for (index, term) in items(object, "allowedTopologies").iter().enumerate() {
        let path = format!("allowedTopologies[{index}].matchLabelExpressions");
        let mut wanted = BTreeMap::new();
        let mut keys = BTreeSet::new();
        for (index, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let path = format!("{path}[{index}]");
            let (key, values) = (text(expression, "key"), items(expression, "values"));
            if values.is_empty() {
                errors.required(format!("{path}.values"), "");
            }
            for index in repeats(values) {
                errors.duplicate(format!("{path}.values[{index}]"), &values[index]);
            }
            errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
            if !keys.insert(key) {
                errors.duplicate(format!("{path}.key"), &json!(key));
            }
            wanted.insert(key, values.iter().map(ToString::to_string).collect());
        }
        let equal = seen.entry(wanted).or_default();
        (0..*equal).for_each(|_| errors.duplicate(path.as_str(), &json!("")));
        *equal += 1;
    }
    errors.list()
}

/// The driver behind a class, which may be written in capitals.
fn provisioner(object: &Value, field: &str, errors: &mut Errors) {
    let name = text(object, field).to_lowercase();
    errors.name(field, &name, names::qualified_name);
}

fn parameters(object: &Value, errors: &mut Errors) {
    let Some(parameters) = object.get("parameters").and_then(Value::as_object) else { return };
    if parameters.len() > PARAMETERS {
        errors.too_long("parameters", PARAMETERS);
        return;
    }
    let mut size = 0;
    for (key, value) in parameters {
        if key.is_empty() {
            errors.invalid("parameters", &json!(key), "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > PARAMETERS_SIZE {
        errors.too_long("parameters", PARAMETERS_SIZE);
    }
}

/// Validates that the way in which a StorageClass provisions volumes does not change. Arguments: new, old.
pub fn class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("parameters", new, old);
    errors.immutable_text("provisioner", new, old);
    errors.immutable("reclaimPolicy", new, old);
    errors.immutable("volumeBindingMode", new, old);
    errors.list()
}

/// Errors of a VolumeAttributesClass.
pub fn attributes(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    provisioner(object, "driverName", &mut errors);
    parameters(object, &mut errors);
    if same(object.get("parameters"), None) {
        errors.required("parameters", "must contain at least one key/value pair");
    }
    errors.list()
}

/// A VolumeAttributesClass stays as it is. Arguments: new, old.
pub fn attributes_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for field in ["driverName", "parameters"] {
        if !same(new.get(field), old.get(field)) {
            errors.forbidden(field, &format!("updates to {field} are forbidden."));
        }
    }
    errors.extend(attributes(new));
    errors.list()
}

/// Errors of a CSIStorageCapacity.
pub fn capacity(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    label_selector(object.get("nodeTopology"), "nodeTopology", &mut errors);
    let class = text(object, "storageClassName");
    errors.faults("storageClassName", class, names::dns_subdomain(class));
    if let Some(amount) = given(object, "capacity") {
        resources::one("", amount, "capacity", &mut errors);
    }
    errors.list()
}

/// Validates that the class and the topology of a CSIStorageCapacity do not change. Arguments: new, old.
pub fn capacity_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    // An empty selector selects all nodes, and none of them is selected without one.
    let (now, was) = (given(new, "nodeTopology"), given(old, "nodeTopology"));
    if now.is_some() != was.is_some() || !same(now, was) {
        errors.invalid("nodeTopology", now.unwrap_or(&Value::Null), IMMUTABLE);
    }
    errors.immutable_text("storageClassName", new, old);
    errors.list()
}
