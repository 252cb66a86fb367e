//! StorageClasses.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_schema::error::FieldError;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{Errors, items, names, text, with_metadata};
use serde_json::{Value, json};

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::fill_absent;

pub(crate) static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "storageclasses",
    short_names: &["sc"],
    default,
    validate,
    validate_update,
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a StorageClass.
pub(crate) fn default(value: &mut Value) {
    if let Value::Object(map) = value {
        fill_absent(map, "reclaimPolicy", "Delete");
        fill_absent(map, "volumeBindingMode", "Immediate");
    }
}

/// Parameters of a class: how many, and how many bytes together.
const PARAMETERS: usize = 512;

const PARAMETERS_SIZE: usize = 256 * 1024;

/// Errors of a StorageClass.
fn validate(object: &Value) -> Vec<FieldError> {
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
pub(crate) fn provisioner(object: &Value, field: &str, errors: &mut Errors) {
    let name = text(object, field).to_lowercase();
    errors.name(field, &name, names::qualified_name);
}

pub(crate) fn parameters(object: &Value, errors: &mut Errors) {
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
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("parameters", new, old);
    errors.immutable_text("provisioner", new, old);
    errors.immutable("reclaimPolicy", new, old);
    errors.immutable("volumeBindingMode", new, old);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Provisioner", "string", 0, "Who makes volumes of the class"),
        ("ReclaimPolicy", "string", 0, "What becomes of a volume after its claim"),
        ("VolumeBindingMode", "string", 0, "When claims are bound"),
        ("AllowVolumeExpansion", "string", 0, "Whether claims may grow"),
        AGE,
    ],
    cells: |object, now| {
        let keys = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        vec![
            cells::marked(object, &keys),
            cells::text_or(object, "/provisioner", ""),
            cells::text_or(object, "/reclaimPolicy", "Delete"),
            cells::text_or(object, "/volumeBindingMode", "Immediate"),
            json!(object["allowVolumeExpansion"] == true),
            cells::age(object, now),
        ]
    },
};

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, term) in items(new, "allowedTopologies").iter().enumerate() {
        for (number, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let key = text(expression, "key");
            if let Some(message) = pod::warnings::node_label(key) {
                warnings.push(format!(
                    "allowedTopologies[{index}].matchLabelExpressions[{number}].key: {key} is {message}"
                ));
            }
        }
    }
    warnings
}
