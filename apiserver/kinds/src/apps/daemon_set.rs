//! DaemonSets.

use apiserver_registry::{LabelSelector, Written};
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{
    Errors, amount, given, int_or_percent, label_selector, same, text, with_metadata,
};
use serde_json::Value;

use crate::core::{pod, pod_template, workload};
use crate::kind::Kind;
use crate::shared::checks::status_counts;
use crate::shared::columns::{AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR};
use crate::shared::defaults::{empty_status, fill, has_text, object_or_insert, with_spec};
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "apps",
    plural: "daemonsets",
    short_names: &["ds"],
    category: Some("all"),
    generation: true,
    default,
    prepare_create,
    prepare_update,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec/template/spec", pod::GATES)),
    validate,
    validate_change: Some(validate_change),
    validate_status: Some(validate_status),
    warnings: Some(workload::warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a DaemonSet.
pub(crate) fn default(value: &mut Value) {
    // Kubernetes counts in a field of its own and shows it here, so there always is a number.
    if template_generation(value).is_none() {
        set_template_generation(value, 0);
    }
    with_spec(value, |spec| {
        fill(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = object_or_insert(spec, "updateStrategy") {
            fill(strategy, "type", "RollingUpdate");
            if has_text(strategy, "type", "RollingUpdate")
                && let Some(rolling) = object_or_insert(strategy, "rollingUpdate")
            {
                fill(rolling, "maxUnavailable", 1);
                fill(rolling, "maxSurge", 0);
            }
        }
        pod_template::default_template(spec);
    });
}

/// Counts the templates of a DaemonSet, for kubectl of long ago.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A new DaemonSet has its first template, unless the client counts from elsewhere.
fn prepare_create(value: &mut Value) {
    empty_status(value);
    let given = template_generation(value).filter(|n| *n >= 1);
    set_template_generation(value, given.unwrap_or(1));
}

/// Counts only changes of the template, regardless of the client's value. Arguments: new, old.
fn prepare_update(new: &mut Value, old: &Value) {
    let template = |object: &Value| object.pointer("/spec/template").cloned().unwrap_or_default();
    let before = template_generation(old).unwrap_or(0);
    let changed = !same(Some(&template(new)), Some(&template(old)));
    set_template_generation(new, if changed { before + 1 } else { before });
}

fn template_generation(value: &Value) -> Option<i64> {
    meta::annotation(value, TEMPLATE_GENERATION).and_then(|number| number.parse().ok())
}

fn set_template_generation(value: &mut Value, number: i64) {
    if let Some(annotations) = object_or_insert(meta::metadata_mut(value), "annotations") {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), number.to_string().into());
    }
}

/// Errors of a change of a DaemonSet, whose selector stays. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    workload::immutable_selector(new, old, &mut errors);
    errors.extend(validate(new));
    errors.list()
}

/// Errors of a DaemonSet.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    daemon_selector(spec, &mut errors);
    workload::always_restarting_template(spec, "DaemonSet", &mut errors);
    workload::not_negative_counts(spec, &["minReadySeconds"], &mut errors);
    let (strategy, path) = (&spec["updateStrategy"], "spec.updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => match given(strategy, "rollingUpdate") {
            Some(rolling) => daemon_update(rolling, "spec.updateStrategy.rollingUpdate", &mut errors),
            None => errors.required("spec.updateStrategy.rollingUpdate", ""),
        },
        _ => {
            errors.not_supported(path, strategy, &["RollingUpdate", "OnDelete"]);
        }
    }
    workload::not_negative_counts(spec, &["revisionHistoryLimit"], &mut errors);
    errors.list()
}

/// Validates the selector: without one nothing matches, and Kubernetes reports nothing else about it.
fn daemon_selector(spec: &Value, errors: &mut Errors) {
    let selector = given(spec, "selector");
    label_selector(selector, "spec.selector", errors);
    match selector.map(LabelSelector::from_meta) {
        None => workload::template_mismatch(spec, errors),
        Some(Ok(parsed)) => workload::matches_template(&parsed, spec, errors),
        Some(Err(_)) => {}
    }
    let empty = |s: &Value| s.as_object().is_none_or(|s| s.values().all(|v| same(Some(v), None)));
    if let Some(selector) = selector.filter(|s| empty(s)) {
        errors.invalid("spec.selector", selector, "empty selector is invalid for daemonset");
    }
}

/// Validates the rolling update of a DaemonSet: on each node either the old pod stops first or the new one
/// starts first.
fn daemon_update(rolling: &Value, path: &str, errors: &mut Errors) {
    let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
    for (field, value) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
        let path = format!("{path}.{field}");
        int_or_percent(&path, value, errors);
        if let Some(value) = value {
            workload::at_most_100_percent(value, &path, errors);
        }
    }
    match (amount(unavailable) != 0, amount(surge) != 0) {
        (true, true) => {
            let detail = "may not be set when maxUnavailable is non-zero";
            errors.invalid(format!("{path}.maxSurge"), surge.unwrap_or(&Value::Null), detail);
        }
        (false, false) => {
            errors.required(format!("{path}.maxUnavailable"), "cannot be 0 when maxSurge is 0");
        }
        _ => {}
    }
}

fn validate_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    status_counts(&new["status"], &fields, &mut errors);
    workload::collision_count(new, old, &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Desired", "integer", 0, "Nodes that should run a pod"),
        ("Current", "integer", 0, "Nodes that have one"),
        ("Ready", "integer", 0, "Nodes whose pod is ready"),
        ("Up-to-date", "integer", 0, "Nodes with a pod of the latest template"),
        ("Available", "integer", 0, "Nodes whose pod has been ready long enough"),
        ("Node Selector", "string", 0, "Labels that a node must have"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = cells::containers(object, "/spec/template/spec");
        vec![
            cells::name(object),
            cells::number(object, "/status/desiredNumberScheduled"),
            cells::number(object, "/status/currentNumberScheduled"),
            cells::number(object, "/status/numberReady"),
            cells::number(object, "/status/updatedNumberScheduled"),
            cells::number(object, "/status/numberAvailable"),
            cells::pairs(object, "/spec/template/spec/nodeSelector"),
            cells::age(object, now),
            names,
            images,
            cells::selector(object, "/spec/selector"),
        ]
    },
};
