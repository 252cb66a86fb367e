//! Events.

use apiserver_meta::time;
use apiserver_registry::Dependents;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, names, text};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::Columns;

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "events",
    short_names: &["ev"],
    selectable: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    create_on_update: true,
    validate,
    columns: COLUMNS,
    dependents: Dependents::Absent,
    expires: true,
    ..Kind::DEFAULT
};

/// Longest reporting instance, action and reason, bytes.
const WORD: usize = 128;

/// Longest message, bytes.
const NOTE: usize = 1024;

/// Errors of an Event of `v1`, whose metadata is left to the rules of all kinds.
fn validate(object: &Value) -> Vec<FieldError> {
    common_errors(object, "reportingComponent")
}

/// Errors of an Event whose controller has that name in its version.
pub(crate) fn common_errors(object: &Value, controller: &str) -> Vec<FieldError> {
    let mut errors = Errors::default();
    object_namespace(object, &mut errors);
    if !text(object, "eventTime").is_empty() {
        controller_name(object, controller, &mut errors);
    }
    errors.list()
}

/// Events about objects without a namespace are stored in `default`, new ones in `kube-system` too.
fn object_namespace(object: &Value, errors: &mut Errors) {
    let involved = text(&object["involvedObject"], "namespace");
    let namespace = meta::namespace(object);
    let new = !text(object, "eventTime").is_empty();
    let fits = match involved {
        "" => namespace.is_empty() || namespace == "default" || (new && namespace == "kube-system"),
        involved => new || involved == namespace,
    };
    if !fits {
        errors.invalid("involvedObject.namespace", &json!(involved), "does not match event.namespace");
    }
}

fn controller_name(object: &Value, field: &str, errors: &mut Errors) {
    let controller = text(object, "reportingComponent");
    if controller.is_empty() {
        errors.required(field, "");
    }
    errors.faults(field, controller, names::qualified_name(controller));
    for (field, limit, required) in [
        ("reportingInstance", WORD, true),
        ("action", WORD, true),
        ("reason", WORD, true),
        ("message", NOTE, false),
    ] {
        let value = text(object, field);
        if required && value.is_empty() {
            errors.required(field, "");
        }
        if value.len() > limit {
            errors.invalid(field, &json!(""), &format!("can have at most {limit} characters"));
        }
    }
}

pub(crate) const COLUMNS: Columns = Columns {
    headers: &[
        ("Last Seen", "string", 0, "Time since it last happened"),
        ("Type", "string", 0, "Normal or Warning"),
        ("Reason", "string", 0, "What happened, in one word"),
        ("Object", "string", 0, "What it happened to"),
        ("Subobject", "string", 1, "Which part of the object"),
        ("Source", "string", 1, "Who reported it"),
        ("Message", "string", 0, "What happened"),
        ("First Seen", "string", 1, "Time since it first happened"),
        ("Count", "string", 1, "How often it happened"),
        ("Name", "string", 1, "Name of the event"),
    ],
    cells: event_cells,
};

fn event_cells(object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let moment = |pointers: [&str; 3]| {
        let found = pointers.into_iter().map(|p| meta::text(object, p)).find(|t| !t.is_empty());
        json!(time::age(found, now))
    };
    let first = moment(["/firstTimestamp", "/eventTime", "/eventTime"]);
    let last = if object.get("series").is_some_and(|s| !s.is_null()) {
        moment(["/series/lastObservedTime", "/lastTimestamp", "/eventTime"])
    } else if meta::text(object, "/lastTimestamp").is_empty() {
        first.clone()
    } else {
        moment(["/lastTimestamp", "/eventTime", "/eventTime"])
    };
    let times = object.pointer("/series/count").or_else(|| object.get("count"));
    let times = times.and_then(Value::as_i64).unwrap_or(1).max(1);
    let first_of = |pointers: [&str; 2]| {
        pointers.into_iter().map(|pointer| meta::text(object, pointer)).find(|text| !text.is_empty())
    };
    let component = first_of(["/source/component", "/reportingComponent"]).unwrap_or_default();
    let source = match first_of(["/source/host", "/reportingInstance"]) {
        Some(instance) => format!("{component}, {instance}"),
        None => component.to_owned(),
    };
    let involved = &object["involvedObject"];
    let mut target = meta::text(involved, "/kind").to_lowercase();
    if !meta::text(involved, "/name").is_empty() {
        target = format!("{target}/{}", meta::text(involved, "/name"));
    }
    vec![
        last,
        cells::text_or(object, "/type", ""),
        cells::text_or(object, "/reason", ""),
        json!(target),
        cells::text_or(involved, "/fieldPath", ""),
        json!(source),
        json!(meta::text(object, "/message").trim()),
        first,
        json!(times),
        cells::name(object),
    ]
}
