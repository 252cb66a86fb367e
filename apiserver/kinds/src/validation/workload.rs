//! Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Errors, amount, given, int_or_percent, is_new, items, label_selector, metadata, names, pod, storage,
    text, with_metadata,
};
use apiserver_registry::LabelSelector;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;

/// Validates the selector, and its agreement with the template. `kind` names the kind in the error of an
/// empty one, `unread` is the error of one that cannot be parsed. Returns true if the template is to be
/// validated.
fn selector(spec: &Value, kind: &str, unread: &str, errors: &mut Errors) -> bool {
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
fn fixed_selector(new: &Value, old: &Value, errors: &mut Errors) {
    let selector = new["spec"].get("selector").unwrap_or(&Value::Null);
    errors.immutable_shown("spec.selector", new, old, &shown_selector(selector));
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

/// A template whose pods start again; `owner` is how the error of a deadline names the kind.
fn restarting_template(spec: &Value, owner: &str, errors: &mut Errors) {
    pod::template(&spec["template"], "spec.template", errors);
    restarting(spec, owner, errors);
}

fn restarting(spec: &Value, owner: &str, errors: &mut Errors) {
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

fn counts(spec: &Value, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        errors.not_negative(format!("spec.{field}"), spec.get(*field));
    }
}

/// Errors of a Deployment.
pub fn deployment(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(spec, &["replicas"], &mut errors);
    if selector(spec, "deployment", UNREAD, &mut errors) {
        restarting_template(spec, "ReplicaSet", &mut errors);
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
    new_shared_disks(object, &mut errors);
    counts(spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], &mut errors);
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
    if let Some(unavailable) = unavailable {
        at_most_all(unavailable, &format!("{path}.maxUnavailable"), errors);
    }
}

const UNREAD: &str = "invalid label selector";

/// The selector of a workload stays. Arguments: new, old.
pub fn selector_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    shared_disks(&new["spec"], Some(&old["spec"]), &mut errors);
    fixed_selector(new, old, &mut errors);
    errors.list()
}

/// Errors of a change of a DaemonSet, whose selector stays. Arguments: new, old.
pub fn daemon_set_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    fixed_selector(new, old, &mut errors);
    errors.extend(daemon_set(new));
    errors.list()
}

/// Several pods cannot write to one disk of GCE; what did before may go on.
fn shared_disks(spec: &Value, before: Option<&Value>, errors: &mut Errors) {
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
fn new_shared_disks(object: &Value, errors: &mut Errors) {
    if is_new(object) {
        shared_disks(&object["spec"], None, errors);
    }
}

/// Errors of a ReplicaSet.
pub fn replica_set(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    counts(spec, &["replicas", "minReadySeconds"], &mut errors);
    // The word is Kubernetes' own.
    if selector(spec, "deployment", UNREAD, &mut errors) {
        restarting_template(spec, "ReplicaSet", &mut errors);
    }
    new_shared_disks(object, &mut errors);
    errors.list()
}

/// Errors of a ReplicationController, whose selector is a plain map.
pub fn replication_controller(object: &Value) -> Vec<FieldError> {
    // The generated name is validated instead of the base that it is generated from.
    let of_base = |error: &FieldError| error.field == "metadata.generateName";
    let mut errors =
        Errors::of(metadata::subdomain_name(object).into_iter().filter(|error| !of_base(error)).collect());
    let spec = &object["spec"];
    counts(spec, &["minReadySeconds"], &mut errors);
    let selector = spec.get("selector").and_then(Value::as_object).filter(|s| !s.is_empty());
    if selector.is_none() {
        errors.required("spec.selector", "");
    }
    counts(spec, &["replicas"], &mut errors);
    if spec.get("template").is_none_or(Value::is_null) {
        errors.required("spec.template", "");
    } else {
        if let Some(selector) = selector {
            matches_template(&LabelSelector::from_map(selector), spec, &mut errors);
        }
        restarting_template(spec, "ReplicationController", &mut errors);
        new_shared_disks(object, &mut errors);
    }
    errors.list()
}

/// Errors of a change of a ReplicationController, all of which may change. Arguments: new, old.
pub fn controller_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    shared_disks(&new["spec"], Some(&old["spec"]), &mut errors);
    errors.list()
}

/// Errors of a new StatefulSet.
pub fn stateful_set(object: &Value) -> Vec<FieldError> {
    // Names of pods are made of it, and they are labels.
    let mut errors = Errors::of(metadata::of_builtin(object, names::dns_label));
    stateful_spec(&object["spec"], Judged::New, &mut errors);
    errors.list()
}

/// The strictness with which the spec of a StatefulSet is validated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    New,
    /// Without what cannot change.
    Changed,
    /// Without its template, either, which would have been refused before.
    ButTemplate,
}

fn stateful_spec(spec: &Value, judged: Judged, errors: &mut Errors) {
    match text(spec, "podManagementPolicy") {
        "OrderedReady" | "Parallel" => {}
        "" => errors.required("spec.podManagementPolicy", ""),
        other => {
            let detail = "must be 'OrderedReady' or 'Parallel'";
            errors.invalid("spec.podManagementPolicy", &json!(other), detail);
        }
    }
    stateful_strategy(&spec["updateStrategy"], errors);
    for field in ["whenDeleted", "whenScaled"] {
        let policy = spec.pointer(&format!("/persistentVolumeClaimRetentionPolicy/{field}"));
        let path = format!("spec.persistentVolumeClaimRetentionPolicy.{field}");
        errors.one_of_if_set(&path, policy, &["Retain", "Delete"]);
    }
    if judged == Judged::New {
        for (index, claim) in items(spec, "volumeClaimTemplates").iter().enumerate() {
            let path = format!("spec.volumeClaimTemplates[{index}].spec");
            storage::claim_spec(&claim["spec"], &path, errors);
        }
    }
    counts(spec, &["replicas", "minReadySeconds"], errors);
    errors.not_negative("spec.ordinals.start", spec.pointer("/ordinals/start"));
    if judged == Judged::New {
        errors.name_if_set("spec.serviceName", text(spec, "serviceName"), names::dns_label);
    }
    if selector(spec, "statefulset", "", errors) {
        let seen = stateful_template(spec);
        if judged != Judged::ButTemplate {
            pod::template(&seen, "spec.template", errors);
        }
        pod::template_metadata(&seen, "spec.template", errors);
    }
    restarting(spec, "StatefulSet", errors);
}

/// The template as that of the pods that are made of it: with the volumes of the claims, and without names that
/// each pod gets for itself.
fn stateful_template(spec: &Value) -> Value {
    let mut template = spec["template"].clone();
    let Some(Value::Object(pod)) = template.get_mut("spec") else { return template };
    pod.remove("subdomain");
    pod.remove("hostname");
    let names: BTreeSet<&str> =
        items(spec, "volumeClaimTemplates").iter().map(|claim| text(&claim["metadata"], "name")).collect();
    let claim = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let mut volumes: Vec<Value> = names.iter().map(claim).collect();
    if !volumes.is_empty() {
        // A claim takes the place of a volume of its name.
        let own = items(&spec["template"]["spec"], "volumes").iter();
        volumes.extend(own.filter(|volume| !names.contains(text(volume, "name"))).cloned());
        pod.insert("volumes".to_owned(), Value::Array(volumes));
    }
    template
}

fn stateful_strategy(strategy: &Value, errors: &mut Errors) {
    let path = "spec.updateStrategy";
    let rolling = given(strategy, "rollingUpdate");
    match (text(strategy, "type"), rolling) {
        ("", _) => errors.required(path, ""),
        ("OnDelete", Some(rolling)) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.invalid(format!("{path}.rollingUpdate"), rolling, detail);
        }
        ("OnDelete", None) => {}
        ("RollingUpdate", rolling) => {
            let Some(rolling) = rolling else { return };
            errors.not_negative(format!("{path}.rollingUpdate.partition"), rolling.get("partition"));
            let path = format!("{path}.rollingUpdate.maxUnavailable");
            let Some(unavailable) = given(rolling, "maxUnavailable") else { return };
            int_or_percent(&path, Some(unavailable), errors);
            if amount(Some(unavailable)) == 0 {
                errors.invalid(path.as_str(), unavailable, "cannot be 0");
            }
            at_most_all(unavailable, &path, errors);
        }
        _ => {
            errors.invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

/// A percentage is at most all of it.
fn at_most_all(value: &Value, path: &str, errors: &mut Errors) {
    if value.is_string() && amount(Some(value)) > 100 {
        errors.invalid(path, value, "must not be greater than 100%");
    }
}

const STATEFUL_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
    'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

/// Errors of a change of a StatefulSet, most of which stays. Arguments: new, old.
pub fn stateful_set_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    const MUTABLE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let mut before = Errors::default();
    stateful_spec(&old["spec"], Judged::Changed, &mut before);
    let judged = if before.count() == 0 { Judged::Changed } else { Judged::ButTemplate };
    let mut errors = Errors::of(metadata::of_builtin(new, names::dns_subdomain));
    stateful_spec(&new["spec"], judged, &mut errors);
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, value| !MUTABLE.contains(&key.as_str()) && !super::same(Some(value), None));
        }
        spec
    };
    if !super::same(Some(&fixed(new)), Some(&fixed(old))) {
        errors.forbidden("spec", STATEFUL_SET);
    }
    errors.list()
}

/// Errors of a DaemonSet.
pub fn daemon_set(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    daemon_selector(spec, &mut errors);
    restarting_template(spec, "DaemonSet", &mut errors);
    counts(spec, &["minReadySeconds"], &mut errors);
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
    counts(spec, &["revisionHistoryLimit"], &mut errors);
    errors.list()
}

/// Validates the selector: without one nothing matches, and Kubernetes reports nothing else about it.
fn daemon_selector(spec: &Value, errors: &mut Errors) {
    let selector = given(spec, "selector");
    label_selector(selector, "spec.selector", errors);
    match selector.map(LabelSelector::from_meta) {
        None => mismatch(spec, errors),
        Some(Ok(parsed)) => matches_template(&parsed, spec, errors),
        Some(Err(_)) => {}
    }
    let empty = |s: &Value| s.as_object().is_none_or(|s| s.values().all(|v| super::same(Some(v), None)));
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
            at_most_all(value, &path, errors);
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

/// Errors of a ControllerRevision.
pub fn revision(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    if object.get("data").is_none_or(Value::is_null) {
        errors.required("data", "data is mandatory");
    }
    errors.not_negative("revision", object.get("revision"));
    errors.list()
}

/// Validates that the data of a ControllerRevision does not change. Arguments: new, old.
pub fn revision_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("data", new, old);
    errors.list()
}
