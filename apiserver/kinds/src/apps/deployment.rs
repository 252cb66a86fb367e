//! Deployments.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, amount, int_or_percent, text, with_metadata};
use serde_json::{Value, json};

use crate::core::{pod, pod_template, workload};
use crate::kind::Kind;
use crate::shared::checks::status_counts;
use crate::shared::columns::{AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR};
use crate::shared::defaults::{empty_status, fill, has_text, object_or_insert, with_spec};
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "apps",
    plural: "deployments",
    short_names: &["deploy"],
    category: Some("all"),
    generation: true,
    counted: Some("annotations"),
    default,
    prepare_create: empty_status,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec/template/spec", pod::GATES)),
    validate,
    validate_update: workload::validate_update,
    validate_status: Some(validate_status),
    warnings: Some(workload::warnings),
    columns: COLUMNS,
    unowned: &[("status", &[&["metadata", "labels"]])],
    ..Kind::DEFAULT
};

/// Defaults of a Deployment.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        fill(spec, "progressDeadlineSeconds", 600);
        if let Some(strategy) = object_or_insert(spec, "strategy") {
            fill(strategy, "type", "RollingUpdate");
            if has_text(strategy, "type", "RollingUpdate")
                && let Some(rolling) = object_or_insert(strategy, "rollingUpdate")
            {
                fill(rolling, "maxUnavailable", "25%");
                fill(rolling, "maxSurge", "25%");
            }
        }
        pod_template::default_template(spec);
    });
}

/// Errors of a Deployment.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    workload::not_negative_counts(spec, &["replicas"], &mut errors);
    if workload::selector(spec, "deployment", workload::UNREAD, &mut errors) {
        workload::always_restarting_template(spec, "ReplicaSet", &mut errors);
    }
    let strategy = &spec["strategy"];
    let rolling = strategy.get("rollingUpdate").filter(|r| !r.is_null());
    match (text(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => errors.forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        ("RollingUpdate", Some(rolling)) => {
            rolling_update(rolling, "spec.strategy.rollingUpdate", &mut errors)
        }
        ("Recreate", None) => {}
        ("RollingUpdate", None) => {
            errors.required("spec.strategy.rollingUpdate", "this should be defaulted and never be nil");
        }
        _ => {
            errors.not_supported("spec.strategy", strategy, &["Recreate", "RollingUpdate"]);
        }
    }
    workload::new_shared_disks(object, &mut errors);
    workload::not_negative_counts(
        spec,
        &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"],
        &mut errors,
    );
    if let (Some(deadline), Some(ready)) =
        (spec["progressDeadlineSeconds"].as_i64(), spec["minReadySeconds"].as_i64().or(Some(0)))
        && deadline <= ready
    {
        errors.invalid(
            "spec.progressDeadlineSeconds",
            &json!(deadline),
            "must be greater than minReadySeconds",
        );
    }
    errors.list()
}

/// Validates `maxUnavailable`, at most 100 %, and `maxSurge`, which has no upper bound, as in Kubernetes. The
/// controller limits the number of pods by both (`grown_size` and `shrink_old` in
/// `controllers/manager/src/deployment/plan.rs`). Both may not be 0, because no pod could then be replaced.
fn rolling_update(rolling: &Value, path: &str, errors: &mut Errors) {
    let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
    int_or_percent(&format!("{path}.maxUnavailable"), unavailable, errors);
    int_or_percent(&format!("{path}.maxSurge"), surge, errors);
    if amount(unavailable) == 0 && amount(surge) == 0 {
        let shown = unavailable.cloned().unwrap_or(json!(0));
        errors.invalid(format!("{path}.maxUnavailable"), &shown, "may not be 0 when `maxSurge` is 0");
    }
    if let Some(unavailable) = unavailable {
        workload::at_most_100_percent(unavailable, &format!("{path}.maxUnavailable"), errors);
    }
}

fn validate_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    status_counts(&new["status"], &fields, &mut errors);
    let pairs = [
        ("updatedReplicas", "replicas", "status.replicas"),
        ("readyReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ];
    workload::parts_of_whole(&new["status"], &pairs, &mut errors);
    workload::collision_count(new, old, &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Ready", "string", 0, "Ready pods of those wanted"),
        ("Up-to-date", "string", 0, "Pods of the latest template"),
        ("Available", "string", 0, "Pods that have been ready long enough"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = cells::containers(object, "/spec/template/spec");
        vec![
            cells::name(object),
            workload::ready_of(object, "/spec/replicas"),
            cells::number(object, "/status/updatedReplicas"),
            cells::number(object, "/status/availableReplicas"),
            cells::age(object, now),
            names,
            images,
            cells::selector(object, "/spec/selector"),
        ]
    },
};
