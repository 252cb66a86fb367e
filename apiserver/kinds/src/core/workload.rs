//! Rules that the workloads of several groups share: selectors, templates whose pods start again, counts.

use apiserver_registry::LabelSelector;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, amount, given, is_new, items, label_selector, same, text};
use serde_json::{Value, json};

use crate::core::pod;
use crate::shared::cells;
use crate::shared::checks::{status_counts, status_number};
use crate::shared::columns::{AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR};

/// Validates the selector, and its agreement with the template. `kind` names the kind in the error of an
/// empty one, `unread` is the error of one that cannot be parsed. Returns true if the template is to be
/// validated.
pub(crate) fn selector(spec: &Value, kind: &str, unread: &str, errors: &mut Errors) -> bool {
    match spec.get("selector") {
        None | Some(Value::Null) => {
            errors.required("spec.selector", "");
            template_mismatch(spec, errors);
        }
        Some(selector) => {
            label_selector(Some(selector), "spec.selector", errors);
            let empty = selector.as_object().is_none_or(|s| s.values().all(|v| same(Some(v), None)));
            if empty {
                errors.invalid("spec.selector", selector, &format!("empty selector is invalid for {kind}"));
            }
            match LabelSelector::from_meta(selector) {
                Ok(parsed) if !empty => matches_template(&parsed, spec, errors),
                Ok(_) => {}
                Err(_) => {
                    errors.invalid_shown("spec.selector", &shown_selector(selector), unread);
                    return false;
                }
            }
        }
    }
    true
}

/// A selector as a refusal shows it: key and operator of an expression are always there.
fn shown_selector(selector: &Value) -> String {
    let mut selector = selector.clone();
    let expressions = selector.get_mut("matchExpressions").and_then(Value::as_array_mut);
    for expression in expressions.into_iter().flatten().filter_map(Value::as_object_mut) {
        for field in ["key", "operator"] {
            expression.entry(field).or_insert_with(|| json!(""));
        }
    }
    apiserver_schema::error::shown(&selector)
}

/// The selector of a workload stays.
pub(crate) fn immutable_selector(new: &Value, old: &Value, errors: &mut Errors) {
    let selector = new["spec"].get("selector").unwrap_or(&Value::Null);
    errors.immutable_shown("spec.selector", new, old, &shown_selector(selector));
}

pub(crate) fn matches_template(selector: &LabelSelector, spec: &Value, errors: &mut Errors) {
    if !selector.matches_object(spec.get("template").unwrap_or(&Value::Null)) {
        template_mismatch(spec, errors);
    }
}

pub(crate) fn template_mismatch(spec: &Value, errors: &mut Errors) {
    errors.invalid(
        "spec.template.metadata.labels",
        spec.pointer("/template/metadata/labels").unwrap_or(&Value::Null),
        "`selector` does not match template `labels`",
    );
}

/// A template whose pods start again; `owner` is how the error of a deadline names the kind.
pub(crate) fn always_restarting_template(spec: &Value, owner: &str, errors: &mut Errors) {
    pod::validation::validate_template(&spec["template"], "spec.template", errors);
    restart_policy(spec, owner, errors);
}

pub(crate) fn restart_policy(spec: &Value, owner: &str, errors: &mut Errors) {
    let spec = &spec["template"]["spec"];
    let policy = text(spec, "restartPolicy");
    if policy != "Always" {
        errors.not_supported("spec.template.spec.restartPolicy", &json!(policy), &["Always"]);
    }
    if given(spec, "activeDeadlineSeconds").is_some() {
        let detail = format!("activeDeadlineSeconds in {owner} is not Supported");
        errors.forbidden("spec.template.spec.activeDeadlineSeconds", &detail);
    }
}

pub(crate) fn not_negative_counts(spec: &Value, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        errors.not_negative(format!("spec.{field}"), spec.get(*field));
    }
}

pub(crate) const UNREAD: &str = "invalid label selector";

/// The selector of a workload stays. Arguments: new, old.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    shared_disks(&new["spec"], Some(&old["spec"]), &mut errors);
    immutable_selector(new, old, &mut errors);
    errors.list()
}

/// Several pods cannot write to one disk of GCE; what did before may go on.
pub(crate) fn shared_disks(spec: &Value, before: Option<&Value>, errors: &mut Errors) {
    let volumes = |spec: &Value| items(&spec["template"]["spec"], "volumes").to_vec();
    let written =
        |volume: &Value| given(volume, "gcePersistentDisk").is_some_and(|disk| disk["readOnly"] != true);
    let several = spec["replicas"].as_i64().unwrap_or(0) > 1;
    if !several || before.is_some_and(|before| volumes(before).iter().any(written)) {
        return;
    }
    for (index, _) in volumes(spec).iter().enumerate().filter(|(_, volume)| written(volume)) {
        let path = format!("spec.template.spec.volumes[{index}].gcePersistentDisk.readOnly");
        let detail = "must be true for replicated pods > 1; GCE PD can only be mounted on multiple machines if it \
                      is read-only";
        errors.invalid(path, &json!(false), detail);
    }
}

/// [`shared_disks`] of a new object.
pub(crate) fn new_shared_disks(object: &Value, errors: &mut Errors) {
    if is_new(object) {
        shared_disks(&object["spec"], None, errors);
    }
}

/// A percentage is at most all of it.
pub(crate) fn at_most_100_percent(value: &Value, path: &str, errors: &mut Errors) {
    if value.is_string() && amount(Some(value)) > 100 {
        errors.invalid(path, value, "must not be greater than 100%");
    }
}

/// No count is greater than the one it is part of.
pub(crate) fn parts_of_whole(status: &Value, pairs: &[(&str, &str, &str)], errors: &mut Errors) {
    for (part, whole, shown) in pairs {
        let count = status_number(status, part);
        if count > status_number(status, whole) {
            let detail = format!("cannot be greater than {shown}");
            errors.invalid(format!("status.{part}"), &json!(count), &detail);
        }
    }
}

pub(crate) fn replicas_status(new: &Value, _: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    status_counts(&new["status"], &fields, &mut errors);
    let pairs = [
        ("fullyLabeledReplicas", "replicas", "status.replicas"),
        ("readyReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ];
    parts_of_whole(&new["status"], &pairs, &mut errors);
    errors.list()
}

/// Clashes of names are counted and never forgotten.
pub(crate) fn collision_count(new: &Value, old: &Value, errors: &mut Errors) {
    let count = |object: &Value| object["status"]["collisionCount"].as_i64();
    if let Some(was) = count(old)
        && count(new).is_none_or(|now| now < was)
    {
        let shown = json!(count(new).unwrap_or(0));
        errors.invalid("status.collisionCount", &shown, "cannot be decremented");
    }
}

pub(crate) fn ready_of(object: &Value, wanted: &str) -> Value {
    json!(format!("{}/{}", cells::number(object, "/status/readyReplicas"), cells::number(object, wanted)))
}

/// ReplicaSets, and ReplicationControllers, whose selector is a plain map.
pub(crate) const REPLICA_COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Desired", "integer", 0, "Pods wanted"),
        ("Current", "integer", 0, "Pods that exist"),
        ("Ready", "integer", 0, "Pods that are ready"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = cells::containers(object, "/spec/template/spec");
        let structured =
            ["matchLabels", "matchExpressions"].iter().any(|f| object["spec"]["selector"].get(f).is_some());
        vec![
            cells::name(object),
            cells::number(object, "/spec/replicas"),
            cells::number(object, "/status/replicas"),
            cells::number(object, "/status/readyReplicas"),
            cells::age(object, now),
            names,
            images,
            if structured {
                cells::selector(object, "/spec/selector")
            } else {
                cells::pairs(object, "/spec/selector")
            },
        ]
    },
};

/// Returns the warnings about kinds with a template in their spec.
pub(crate) fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = pod::warnings::named(new, old);
    warnings.extend(pod::warnings::template_at(new, old, "/spec/template", "spec.template"));
    warnings
}
