//! StatefulSets.

use std::collections::BTreeSet;

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{
    Errors, amount, given, int_or_percent, items, metadata, names, same, text,
};
use serde_json::{Map, Value, json};

use crate::core::{persistent_volume_claim, pod, pod_template, workload};
use crate::kind::Kind;
use crate::shared::checks::status_counts;
use crate::shared::columns::{AGE, CONTAINERS, Columns, IMAGES, NAME};
use crate::shared::defaults::{
    Object, each_object, empty_status, fill, fill_absent, has_text, is_empty, object, object_or_insert,
    with_spec,
};
use crate::shared::gates::Gate;
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "apps",
    plural: "statefulsets",
    short_names: &["sts"],
    category: Some("all"),
    generation: true,
    default,
    prepare_create: empty_status,
    drop_disabled: Some(|new, old| {
        gates::drop_at(new, old, "/spec", GATES);
        gates::drop_at(new, old, "/spec/template/spec", pod::GATES);
    }),
    validate,
    validate_change: Some(validate_change),
    validate_status: Some(validate_status),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a StatefulSet.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "podManagementPolicy", "OrderedReady");
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = object_or_insert(spec, "updateStrategy") {
            // A strategy with only a type gets nothing more.
            if is_empty(strategy, "type") {
                fill(strategy, "type", "RollingUpdate");
                fill(strategy, "rollingUpdate", Map::new());
            }
            if has_text(strategy, "type", "RollingUpdate")
                && let Some(rolling) = object(strategy, "rollingUpdate")
            {
                fill(rolling, "partition", 0);
            }
        }
        if let Some(policy) = object_or_insert(spec, "persistentVolumeClaimRetentionPolicy") {
            fill(policy, "whenDeleted", "Retain");
            fill(policy, "whenScaled", "Retain");
        }
        each_object(spec, "volumeClaimTemplates", claim_template);
        pod_template::default_template(spec);
    });
}

fn claim_template(claim: &mut Object) {
    fill(claim, "apiVersion", "v1");
    fill(claim, "kind", "PersistentVolumeClaim");
    if let Some(spec) = object(claim, "spec") {
        fill_absent(spec, "volumeMode", "Filesystem");
    }
    if let Some(status) = object_or_insert(claim, "status") {
        fill(status, "phase", "Pending");
    }
}

// MaxUnavailableStatefulSet
static GATES: &[Gate] = &[gates::gate(&["updateStrategy.rollingUpdate.maxUnavailable"])];

/// Errors of a new StatefulSet.
fn validate(object: &Value) -> Vec<FieldError> {
    // Names of pods are made of it, and they are labels.
    let mut errors = Errors::of(metadata::of_builtin(object, names::dns_label));
    stateful_spec(&object["spec"], Strictness::New, &mut errors);
    errors.list()
}

/// The strictness with which the spec of a StatefulSet is validated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    New,
    /// Without what cannot change.
    Changed,
    /// Without its template, either, which would have been refused before.
    ButTemplate,
}

fn stateful_spec(spec: &Value, strictness: Strictness, errors: &mut Errors) {
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
    if strictness == Strictness::New {
        for (index, claim) in items(spec, "volumeClaimTemplates").iter().enumerate() {
            let path = format!("spec.volumeClaimTemplates[{index}].spec");
            persistent_volume_claim::validate_spec(&claim["spec"], &path, errors);
        }
    }
    workload::not_negative_counts(spec, &["replicas", "minReadySeconds"], errors);
    errors.not_negative("spec.ordinals.start", spec.pointer("/ordinals/start"));
    if strictness == Strictness::New {
        errors.name_if_set("spec.serviceName", text(spec, "serviceName"), names::dns_label);
    }
    if workload::selector(spec, "statefulset", "", errors) {
        let seen = stateful_template(spec);
        if strictness != Strictness::ButTemplate {
            pod::validation::validate_template(&seen, "spec.template", errors);
        }
        pod::validation::validate_template_metadata(&seen, "spec.template", errors);
    }
    workload::restart_policy(spec, "StatefulSet", errors);
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
            workload::at_most_100_percent(unavailable, &path, errors);
        }
        _ => {
            errors.invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

const STATEFUL_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
    'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

/// Errors of a change of a StatefulSet, most of which stays. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
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
    stateful_spec(&old["spec"], Strictness::Changed, &mut before);
    let strictness = if before.count() == 0 { Strictness::Changed } else { Strictness::ButTemplate };
    let mut errors = Errors::of(metadata::of_builtin(new, names::dns_subdomain));
    stateful_spec(&new["spec"], strictness, &mut errors);
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, value| !MUTABLE.contains(&key.as_str()) && !same(Some(value), None));
        }
        spec
    };
    if !same(Some(&fixed(new)), Some(&fixed(old))) {
        errors.forbidden("spec", STATEFUL_SET);
    }
    errors.list()
}

fn validate_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    status_counts(&new["status"], &fields, &mut errors);
    let pairs = [
        ("readyReplicas", "replicas", "status.replicas"),
        ("currentReplicas", "replicas", "status.replicas"),
        ("updatedReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "status.readyReplicas"),
    ];
    workload::parts_of_whole(&new["status"], &pairs, &mut errors);
    workload::collision_count(new, old, &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Ready", "string", 0, "Ready pods of those wanted"), AGE, CONTAINERS, IMAGES],
    cells: |object, now| {
        let [names, images] = cells::containers(object, "/spec/template/spec");
        vec![
            cells::name(object),
            workload::ready_of(object, "/spec/replicas"),
            cells::age(object, now),
            names,
            images,
        ]
    },
};

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = pod::warnings::template_at(new, old, "/spec/template", "spec.template");
    for (index, claim) in items(&new["spec"], "volumeClaimTemplates").iter().enumerate() {
        warnings.extend(persistent_volume_claim::spec_warnings(
            &claim["spec"],
            &format!("spec.volumeClaimTemplates[{index}].spec"),
        ));
    }
    if new["spec"]["revisionHistoryLimit"].as_i64().is_some_and(|n| n < 0) {
        warnings.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
    warnings
}
