//! PodTemplates, and the template of pods that every workload has.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::with_metadata;
use serde_json::Value;

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::columns::{Columns, NAME};
use crate::shared::defaults::{Object, object, object_or_insert};
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "podtemplates",
    generation: true,
    default,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/template/spec", pod::GATES)),
    validate,
    warnings: Some(|new, old| pod::warnings::template_at(new, old, "/template", "template")),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a pod template under `template`.
pub(crate) fn default_template(parent: &mut Object) {
    let Some(template) = object(parent, "template") else { return };
    pod::drop_old_annotations(template);
    if let Some(spec) = object_or_insert(template, "spec") {
        pod::default_spec(spec);
    }
}

/// Defaults of a `PodTemplate`, the kind.
pub(crate) fn default(value: &mut Value) {
    if let Value::Object(map) = value {
        default_template(map);
    }
}

/// Validates an object of kind PodTemplate.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    pod::validation::validate_template(&object["template"], "template", &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Containers", "string", 0, "Names of the containers"),
        ("Images", "string", 0, "Images of the containers"),
        ("Pod Labels", "string", 0, "Labels of pods made from it"),
    ],
    cells: |object, _| {
        let [names, images] = cells::containers(object, "/template/spec");
        vec![cells::name(object), names, images, cells::pairs(object, "/template/metadata/labels")]
    },
};
