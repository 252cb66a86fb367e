//! Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController.

use serde_json::{Value, json};

use super::{Errors, amount, int_or_percent, label_selector, names, pod, text, with_metadata};
use crate::error::FieldError;
use crate::selector::LabelSelector;

/// Selector, template, their agreement, and the restart policy that these kinds need.
fn selected_template(spec: &Value, kind: &str, errors: &mut Errors) {
    match spec.get("selector") {
        None | Some(Value::Null) => {
            errors.required("spec.selector", "");
            mismatch(spec, errors);
        }
        Some(selector) => {
            label_selector(Some(selector), "spec.selector", errors);
            let empty = selector.as_object().is_none_or(|s| s.values().all(|v| super::same(Some(v), None)));
            if empty {
                errors.invalid("spec.selector", selector, &format!("empty selector is invalid for {kind}"));
            } else if let Ok(parsed) = LabelSelector::from_meta(selector) {
                matches_template(&parsed, spec, errors);
            }
        }
    }
    restarting_template(spec, errors);
}

fn matches_template(selector: &LabelSelector, spec: &Value, errors: &mut Errors) {
    if !selector.matches_object(spec.get("template").unwrap_or(&Value::Null)) {
        mismatch(spec, errors);
    }
}

fn mismatch(spec: &Value, errors: &mut Errors) {
    errors.invalid(
        "spec.template.metadata.labels",
        spec.pointer("/template/metadata/labels").unwrap_or(&Value::Null),
        "`selector` does not match template `labels`",
    );
}

fn restarting_template(spec: &Value, errors: &mut Errors) {
    pod::template(&spec["template"], "spec.template", errors);
    let spec = &spec["template"]["spec"];
    if matches!(text(spec, "restartPolicy"), "OnFailure" | "Never") {
        errors.one_of("spec.template.spec.restartPolicy", spec.get("restartPolicy"), &["Always"]);
    }
    if spec.get("activeDeadlineSeconds").is_some() {
        errors.forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            "activeDeadlineSeconds in this kind is not Supported",
        );
    }
}

fn counts(spec: &Value, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        errors.not_negative(format!("spec.{field}"), spec.get(*field));
    }
}

/// Errors of a Deployment.
pub fn deployment(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(
        spec,
        &["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"],
        &mut errors,
    );
    selected_template(spec, "deployment", &mut errors);
    let strategy = &spec["strategy"];
    errors.one_of("spec.strategy.type", strategy.get("type"), &["Recreate", "RollingUpdate"]);
    let rolling = strategy.get("rollingUpdate").filter(|r| !r.is_null());
    match (text(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => errors.forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        ("RollingUpdate", Some(rolling)) => {
            rolling_update(rolling, "spec.strategy.rollingUpdate", &mut errors)
        }
        _ => {}
    }
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

/// `maxUnavailable` and `maxSurge`, which cannot both forbid any progress.
fn rolling_update(rolling: &Value, path: &str, errors: &mut Errors) {
    let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
    int_or_percent(&format!("{path}.maxUnavailable"), unavailable, errors);
    int_or_percent(&format!("{path}.maxSurge"), surge, errors);
    if amount(unavailable) == 0 && amount(surge) == 0 {
        let shown = unavailable.cloned().unwrap_or(json!(0));
        errors.invalid(format!("{path}.maxUnavailable"), &shown, "may not be 0 when `maxSurge` is 0");
    }
    if unavailable.is_some_and(Value::is_string) && amount(unavailable) > 100 {
        let shown = unavailable.cloned().unwrap_or_default();
        errors.invalid(format!("{path}.maxUnavailable"), &shown, "must not be greater than 100%");
    }
}

/// The selector of a workload stays. Arguments: new, old.
pub fn selector_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec.selector", new, old);
    errors.list()
}

/// Errors of a ReplicaSet.
pub fn replica_set(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(spec, &["replicas", "minReadySeconds"], &mut errors);
    selected_template(spec, "replica set", &mut errors);
    errors.list()
}

/// Errors of a ReplicationController, whose selector is a plain map.
pub fn replication_controller(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(spec, &["replicas", "minReadySeconds"], &mut errors);
    match spec.get("selector").and_then(Value::as_object) {
        Some(selector) if !selector.is_empty() => {
            matches_template(&LabelSelector::from_map(selector), spec, &mut errors);
        }
        _ => errors.required("spec.selector", ""),
    }
    if spec.get("template").is_none_or(Value::is_null) {
        errors.required("spec.template", "");
    } else {
        restarting_template(spec, &mut errors);
    }
    errors.list()
}

/// Errors of a StatefulSet.
pub fn stateful_set(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(spec, &["replicas", "minReadySeconds", "revisionHistoryLimit"], &mut errors);
    let policies = ["OrderedReady", "Parallel"];
    errors.one_of("spec.podManagementPolicy", spec.get("podManagementPolicy"), &policies);
    errors.one_of(
        "spec.updateStrategy.type",
        spec["updateStrategy"].get("type"),
        &["RollingUpdate", "OnDelete"],
    );
    errors.not_negative(
        "spec.updateStrategy.rollingUpdate.partition",
        spec.pointer("/updateStrategy/rollingUpdate/partition"),
    );
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        errors.faults("spec.serviceName", service, names::dns_subdomain(service));
    }
    // Volumes made from claim templates exist for the template's containers.
    let mut seen = spec.clone();
    add_claim_volumes(&mut seen);
    selected_template(&seen, "statefulset", &mut errors);
    errors.list()
}

fn add_claim_volumes(spec: &mut Value) {
    let claims: Vec<Value> = super::items(spec, "volumeClaimTemplates")
        .iter()
        .map(|claim| {
            let name = &claim["metadata"]["name"];
            json!({"name": name, "persistentVolumeClaim": {"claimName": name}})
        })
        .collect();
    if claims.is_empty() {
        return;
    }
    if let Some(Value::Object(pod)) = spec.pointer_mut("/template/spec") {
        let volumes = pod.entry("volumes").or_insert_with(|| json!([]));
        if let Value::Array(volumes) = volumes {
            // A claim takes the place of a volume of its name.
            volumes.retain(|v| !claims.iter().any(|c| c["name"] == v["name"]));
            volumes.extend(claims);
        }
    }
}

const STATEFUL_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
    'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

/// What may change of a StatefulSet. Arguments: new, old.
pub fn stateful_set_update(new: &Value, old: &Value) -> Vec<FieldError> {
    const MUTABLE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let mut errors = Errors::default();
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, value| !MUTABLE.contains(&key.as_str()) && !super::same(Some(value), None));
        }
        spec
    };
    if fixed(new) != fixed(old) {
        errors.forbidden("spec", STATEFUL_SET);
    }
    errors.list()
}

/// Errors of a DaemonSet.
pub fn daemon_set(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(spec, &["minReadySeconds", "revisionHistoryLimit"], &mut errors);
    selected_template(spec, "daemonset", &mut errors);
    let strategy = &spec["updateStrategy"];
    errors.one_of("spec.updateStrategy.type", strategy.get("type"), &["RollingUpdate", "OnDelete"]);
    if let Some(rolling) = strategy.get("rollingUpdate").filter(|r| !r.is_null()) {
        rolling_update(rolling, "spec.updateStrategy.rollingUpdate", &mut errors);
    }
    errors.list()
}

/// Errors of a ControllerRevision.
pub fn revision(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    if object.get("data").is_none_or(Value::is_null) {
        errors.required("data", "data is mandatory");
    }
    errors.not_negative("revision", object.get("revision"));
    errors.list()
}

/// What a ControllerRevision keeps stays. Arguments: new, old.
pub fn revision_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("data", new, old);
    errors.list()
}
