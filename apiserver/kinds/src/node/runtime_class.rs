//! RuntimeClasses.

use apiserver_schema::error::FieldError;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{Errors, given, items, metadata, names, text};
use serde_json::{Value, json};

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "node.k8s.io",
    plural: "runtimeclasses",
    needs_version: true,
    validate,
    validate_update,
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a RuntimeClass.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::validate(object, names::dns_subdomain));
    let handler = text(object, "handler");
    if handler.is_empty() {
        errors.required("handler", "");
    } else {
        errors.faults("handler", handler, names::dns_label(handler));
    }
    if let Some(fixed) = object.pointer("/overhead/podFixed") {
        pod::requirements::overhead(fixed, "overhead", &mut errors);
    }
    if let Some(scheduling) = given(object, "scheduling") {
        metadata::labels(scheduling.get("nodeSelector"), "scheduling.nodeSelector", &mut errors);
        let tolerations = items(scheduling, "tolerations");
        pod::scheduling::tolerations(tolerations, "scheduling.tolerations", &mut errors);
        let key = |toleration: &Value| {
            ["key", "operator", "value", "effect"].map(|field| text(toleration, field).to_owned())
        };
        for index in repeats(tolerations.iter().map(key)) {
            errors.duplicate(format!("scheduling.tolerations[{index}]"), &tolerations[index]);
        }
    }
    errors.list()
}

/// The handler of a RuntimeClass stays. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable_shown("handler", new, old, &json!(text(new, "handler")).to_string());
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Handler", "string", 0, "Runtime configuration of that name"), AGE],
    cells: |object, now| {
        vec![cells::name(object), cells::text_or(object, "/handler", ""), cells::age(object, now)]
    },
};

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let selector = new.pointer("/scheduling/nodeSelector").and_then(Value::as_object);
    let keys = selector.into_iter().flatten().map(|(key, _)| key);
    keys.filter_map(|key| Some(format!("scheduling.nodeSelector: {}", pod::warnings::node_label(key)?)))
        .collect()
}
