//! Jobs.

pub(crate) mod policy;
pub(crate) mod status;

use apiserver_meta::time;
use apiserver_registry::{Dependents, LabelSelector, Written};
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{
    Errors, IMMUTABLE, given, items, label_selector, names, same, text, with_metadata,
};
use serde_json::{Value, json};

use crate::core::{pod, pod_template};
use crate::kind::Kind;
use crate::shared::columns::{AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR};
use crate::shared::defaults::{
    Object, each_object, empty_status, fill, fill_absent, is_empty, object, object_or_insert, with_spec,
};
use crate::shared::{cells, gates};

/// The warning about the pods of deleted Jobs.
const DELETED: &str = "child pods are preserved by default when jobs are deleted; set \
                       propagationPolicy=Background to remove them or set propagationPolicy=Orphan to \
                       suppress this warning";

pub(crate) static KIND: Kind = Kind {
    group: "batch",
    plural: "jobs",
    category: Some("all"),
    selectable: &["status.successful"],
    generation: true,
    shared_labels: Some("/spec/template/metadata/labels"),
    default,
    prepare_create,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec/template/spec", pod::GATES)),
    validate,
    validate_change: Some(validate_change),
    validate_status: Some(status::validate),
    warnings: Some(warnings),
    columns: COLUMNS,
    dependents: Dependents::Orphaned,
    delete_warning: Some(DELETED),
    ..Kind::DEFAULT
};

/// Defaults of a Job.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        // A job with neither count runs one pod once.
        if is_empty(spec, "completions") && is_empty(spec, "parallelism") {
            fill(spec, "completions", 1);
        }
        fill(spec, "parallelism", 1);
        let limit = if spec.contains_key("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
        fill(spec, "backoffLimit", limit);
        fill_absent(spec, "completionMode", "NonIndexed");
        fill(spec, "suspend", false);
        fill(spec, "manualSelector", false);
        let replacement =
            if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        fill_absent(spec, "podReplacementPolicy", replacement);
        default_failure_policy(spec);
        pod_template::default_template(spec);
    });
    labels_of_template(value);
}

pub(crate) fn default_failure_policy(spec: &mut Object) {
    if let Some(policy) = object(spec, "podFailurePolicy") {
        each_object(policy, "rules", |rule| {
            each_object(rule, "onPodConditions", |c| fill(c, "status", "True"))
        });
    }
}

/// A Job without labels takes those of its pods.
fn labels_of_template(value: &mut Value) {
    let labels = value.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
    let Some(labels) =
        labels.filter(|l| !l.is_empty() && meta::labels(value).is_none_or(|own| own.is_empty()))
    else {
        return;
    };
    let labels = labels.clone();
    meta::set(value, "labels", labels);
}

/// Labels of the pods of a Job, old and new spelling: what each is and its value.
fn job_labels(value: &Value) -> [(&'static str, String); 4] {
    let (uid, name) = (meta::uid(value).to_owned(), meta::name(value).to_owned());
    [
        ("batch.kubernetes.io/controller-uid", uid.clone()),
        ("controller-uid", uid),
        ("batch.kubernetes.io/job-name", name.clone()),
        ("job-name", name),
    ]
}

/// Selector and template labels of a new Job, from its uid, unless `manualSelector` is set; then
/// the empty status.
pub(crate) fn prepare_create(value: &mut Value) {
    let labels = job_labels(value);
    with_spec(value, |spec| {
        if spec.get("manualSelector") == Some(&Value::Bool(true)) {
            return;
        }
        let (uid_label, uid) = &labels[0];
        if let Some(template) = object_or_insert(spec, "template")
            && let Some(metadata) = object_or_insert(template, "metadata")
            && let Some(present) = object_or_insert(metadata, "labels")
        {
            // Labels with other values are reported by the validation.
            for (key, value) in &labels {
                present.entry(*key).or_insert_with(|| value.as_str().into());
            }
        }
        if let Some(matching) =
            object_or_insert(spec, "selector").and_then(|s| object_or_insert(s, "matchLabels"))
        {
            matching.entry(*uid_label).or_insert_with(|| uid.as_str().into());
        }
    });
    empty_status(value);
}

/// Returns `true` if a Job with this spec numbers its pods.
pub(crate) fn is_indexed(spec: &Value) -> bool {
    text(spec, "completionMode") == "Indexed"
}

/// The current labels of a job's pods: its uid and its name.
const PREFIXED: [&str; 2] = ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];

/// Most pods at once, and most failed indexes, of an indexed job.
const PARALLEL: i64 = 100_000;

/// The number of completions above which an indexed job with a limit for each index has tighter limits.
const MANY_COMPLETIONS: i64 = 100_000;

const PARALLEL_OF_MANY: i64 = 10_000;

const MANAGER_LENGTH: usize = 63;

/// Errors of a Job.
fn validate(object: &Value) -> Vec<FieldError> {
    whole_job(object, true)
}

/// Returns the errors of a Job; `prefixed` is true if the current labels of its pods must be there.
fn whole_job(object: &Value, prefixed: bool) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    generated_selector(object, prefixed, &mut errors);
    selecting_spec(object, &mut errors);
    if is_indexed(spec)
        && let Some(completions) = spec["completions"].as_i64().filter(|c| *c > 0)
    {
        let name = meta::name(object);
        let longest = format!("{name}-{}", completions - 1);
        if !names::dns_label(&longest).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {longest}");
            errors.invalid("metadata.name", &json!(name), &detail);
        }
    }
    errors.list()
}

/// The spec of a Job, which selects pods; that of a CronJob does not.
fn selecting_spec(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    validate_spec(spec, "spec", errors);
    let selector = given(spec, "selector");
    match selector {
        // The server makes one together with the uid.
        None if meta::uid(object).is_empty() => return,
        None => errors.required("spec.selector", ""),
        Some(_) => label_selector(selector, "spec.selector", errors),
    }
    // A selector that cannot be read is not compared with anything; without one nothing matches.
    let selector = LabelSelector::from_meta(selector.unwrap_or(&Value::Null));
    if selector.is_ok_and(|s| !s.matches_object(spec.get("template").unwrap_or(&Value::Null))) {
        errors.invalid(
            "spec.template.metadata.labels",
            spec.pointer("/template/metadata/labels").unwrap_or(&Value::Null),
            "`selector` does not match template `labels`",
        );
    }
}

/// Validates selector and labels of a job. The server generates them unless it is told not to; the client's
/// values must not conflict. `prefixed` is true if the current labels must be there too.
fn generated_selector(object: &Value, prefixed: bool, errors: &mut Errors) {
    let (uid, spec) = (meta::uid(object), &object["spec"]);
    let Some(selector) = given(spec, "selector").filter(|_| spec["manualSelector"] != true) else { return };
    if uid.is_empty() {
        return errors.required("metadata.uid", "");
    }
    let name = meta::name(object);
    let mut expected = vec![("controller-uid", uid), ("job-name", name)];
    if prefixed {
        expected.extend([(PREFIXED[0], uid), (PREFIXED[1], name)]);
    }
    let labels = &spec["template"]["metadata"]["labels"];
    for (key, wanted) in &expected {
        let path = format!("spec.template.metadata.labels[{key}]");
        match labels.get(key) {
            None => errors.required(path, &format!("must be '{wanted}'")),
            Some(found) if found != *wanted => {
                errors.invalid(path, labels, &format!("must be '{wanted}'"));
            }
            Some(_) => {}
        }
    }
    let made = json!({"metadata": {"labels": serde_json::Map::from_iter(
        expected.iter().map(|(key, value)| ((*key).to_owned(), json!(value))))}});
    if LabelSelector::from_meta(selector).is_ok_and(|s| !s.matches_object(&made)) {
        errors.invalid("spec.selector", selector, "`selector` not auto-generated");
    }
}

pub(crate) fn validate_spec(spec: &Value, path: &str, errors: &mut Errors) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    for field in counts {
        errors.not_negative(format!("{path}.{field}"), spec.get(field));
    }
    if given(spec, "maxFailedIndexes").is_some() && given(spec, "backoffLimitPerIndex").is_none() {
        errors.required(format!("{path}.backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = given(spec, "managedBy").and_then(Value::as_str) {
        let path = format!("{path}.managedBy");
        errors.domain_path(&path, manager);
        if manager.len() > MANAGER_LENGTH {
            errors.too_long(path, MANAGER_LENGTH);
        }
    }
    let modes = ["NonIndexed", "Indexed"];
    errors.one_of_if_given(&format!("{path}.completionMode"), spec.get("completionMode"), &modes);
    if is_indexed(spec) {
        indexed(spec, path, errors);
    } else if matches!(text(spec, "completionMode"), "" | "NonIndexed") {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(value) = given(spec, field) {
                errors.invalid(format!("{path}.{field}"), value, "requires indexed completion mode");
            }
        }
    }
    policy::failure(spec, path, errors);
    policy::success(spec, path, errors);
    let replacement = format!("{path}.podReplacementPolicy");
    let supported: &[&str] = if given(spec, "podFailurePolicy").is_some() {
        &["Failed"]
    } else {
        &["Failed", "TerminatingOrFailed"]
    };
    errors.one_of_if_given(&replacement, spec.get("podReplacementPolicy"), supported);
    pod::validation::validate_template(&spec["template"], &format!("{path}.template"), errors);
    restart_policy(spec, &format!("{path}.template.spec.restartPolicy"), errors);
}

fn restart_policy(spec: &Value, path: &str, errors: &mut Errors) {
    let policy = text(&spec["template"]["spec"], "restartPolicy");
    match policy {
        "" | "Always" => errors.required(path, "valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if given(spec, "podFailurePolicy").is_none() => {}
        "OnFailure" => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.invalid(path, &json!(policy), detail);
        }
        _ => errors.not_supported(path, &json!(policy), &["OnFailure", "Never"]),
    }
}

fn indexed(spec: &Value, path: &str, errors: &mut Errors) {
    let number = |field: &str| given(spec, field).and_then(Value::as_i64);
    let (completions, failed) = (number("completions"), number("maxFailedIndexes"));
    let parallel = number("parallelism");
    if completions.is_none() {
        errors.required(format!("{path}.completions"), "when completion mode is Indexed");
    }
    let mut invalid = |field: &str, value: i64, detail: &str| {
        errors.invalid(format!("{path}.{field}"), &json!(value), detail);
    };
    if let Some(parallel) = parallel.filter(|n| *n > PARALLEL) {
        let detail = format!("must be less than or equal to {PARALLEL} when completion mode is Indexed");
        invalid("parallelism", parallel, &detail);
    }
    if let (Some(failed), Some(completions)) = (failed, completions)
        && failed > completions
    {
        invalid("maxFailedIndexes", failed, "must be less than or equal to completions");
    }
    if let Some(failed) = failed.filter(|n| *n > PARALLEL) {
        invalid("maxFailedIndexes", failed, &format!("must be less than or equal to {PARALLEL}"));
    }
    let many = completions.is_some_and(|n| n > MANY_COMPLETIONS);
    if !many || given(spec, "backoffLimitPerIndex").is_none() {
        return;
    }
    let detail = format!(
        "must be less than or equal to {PARALLEL_OF_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
    );
    if failed.is_none() {
        errors.required(
            format!("{path}.maxFailedIndexes"),
            &format!("must be specified when completions is above {MANY_COMPLETIONS}"),
        );
    }
    for (field, number) in [("parallelism", parallel), ("maxFailedIndexes", failed)] {
        if let Some(number) = number.filter(|n| *n > PARALLEL_OF_MANY) {
            errors.invalid(format!("{path}.{field}"), &json!(number), &detail);
        }
    }
}

/// Returns the errors of a change of a Job except in its status. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let had = &old["spec"]["template"]["metadata"]["labels"];
    let mut errors = Errors::of(whole_job(new, PREFIXED.iter().all(|label| had.get(*label).is_some())));
    // The spec is validated twice, once as that of a new Job.
    selecting_spec(new, &mut errors);
    completions(new, old, &mut errors);
    errors.immutable("spec.selector", new, old);
    template(new, old, &mut errors);
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        errors.immutable(&format!("spec.{field}"), new, old);
    }
    errors.list()
}

/// An indexed job is resized by both numbers together.
fn completions(new: &Value, old: &Value, errors: &mut Errors) {
    let spec = &new["spec"];
    if !is_indexed(spec) {
        return errors.immutable("spec.completions", new, old);
    }
    let (now, was) = (given(spec, "completions"), given(&old["spec"], "completions"));
    if let Some(now) = now.filter(|now| Some(*now) != was && **now != spec["parallelism"]) {
        errors.invalid("spec.completions", now, "can only be modified in tandem with spec.parallelism");
    }
}

/// Validates a change of the template: while a job is suspended and has no pods, scheduling fields and
/// resources may change.
fn template(new: &Value, old: &Value, errors: &mut Errors) {
    let status = &old["status"];
    let fresh = given(status, "startTime").is_none();
    let stopped =
        items(status, "conditions").iter().any(|c| c["type"] == "Suspended" && c["status"] == "True");
    let idle = status["active"].as_i64().unwrap_or(0) == 0;
    let now = new.pointer("/spec/template").unwrap_or(&Value::Null);
    let before = old.pointer("/spec/template").unwrap_or(&Value::Null);
    if old["spec"]["suspend"] != true || !(fresh || stopped) || !idle {
        if ["metadata", "spec"].iter().any(|part| !same(now.get(*part), before.get(*part))) {
            errors.invalid("spec.template", now, IMMUTABLE);
        }
        return;
    }
    // Anything in the metadata may change then.
    let spec = &now["spec"];
    let mut allowed = before["spec"].clone();
    for pointer in ["/nodeSelector", "/tolerations", "/schedulingGates", "/affinity/nodeAffinity"] {
        set_from(&mut allowed, spec, pointer);
    }
    for list in ["containers", "initContainers"] {
        if items(spec, list).len() != items(&before["spec"], list).len() {
            continue;
        }
        for (index, container) in items(spec, list).iter().enumerate() {
            if text(container, "name") == text(&items(&before["spec"], list)[index], "name") {
                set_from(&mut allowed, spec, &format!("/{list}/{index}/resources"));
            }
        }
    }
    if !same(Some(spec), Some(&allowed)) {
        errors.invalid("spec.template.spec", spec, IMMUTABLE);
    }
}

/// Sets the value at a pointer to that of another object.
fn set_from(object: &mut Value, other: &Value, pointer: &str) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    let wanted = other.pointer(pointer).cloned();
    if wanted.is_some()
        && object.pointer(parent).is_none_or(Value::is_null)
        && let Some((above, name)) = parent.rsplit_once('/')
        && let Some(Value::Object(map)) = object.pointer_mut(above)
    {
        map.insert(name.to_owned(), json!({}));
    }
    if let Some(Value::Object(map)) = object.pointer_mut(parent) {
        match wanted {
            Some(value) => map.insert(key.to_owned(), value),
            None => map.remove(key),
        };
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Status", "string", 0, "Whether it runs or how it ended"),
        ("Completions", "string", 0, "Pods that succeeded of those wanted"),
        ("Duration", "string", 0, "Time from start to end, or until now"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = cells::containers(object, "/spec/template/spec");
        vec![
            cells::name(object),
            json!(status_cell(object)),
            json!(completions_cell(object)),
            json!(duration_cell(object, now)),
            cells::age(object, now),
            names,
            images,
            cells::selector(object, "/spec/selector"),
        ]
    },
};

fn status_cell(object: &Value) -> &'static str {
    if cells::is_true(object, "Complete") {
        "Complete"
    } else if cells::is_true(object, "Failed") {
        "Failed"
    } else if meta::deletion_timestamp(object).is_some() {
        "Terminating"
    } else if cells::is_true(object, "Suspended") {
        "Suspended"
    } else if cells::is_true(object, "FailureTarget") {
        "FailureTarget"
    } else if cells::is_true(object, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions_cell(object: &Value) -> String {
    let done = cells::number(object, "/status/succeeded");
    match object.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{done}/{wanted}"),
        None => match object.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or(0) {
            parallel @ 2.. => format!("{done}/1 of {parallel}"),
            _ => format!("{done}/1"),
        },
    }
}

fn duration_cell(object: &Value, now: jiff::Timestamp) -> String {
    let Some(start) = time::parse(meta::text(object, "/status/startTime")) else { return String::new() };
    let end = time::parse(meta::text(object, "/status/completionTime")).unwrap_or(now);
    time::human(end.as_second() - start.as_second())
}

pub(crate) fn spec_warnings(new: &Value, old: Option<&Value>, pointer: &str, path: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    let spec = new.pointer(pointer).unwrap_or(&Value::Null);
    let number = |field: &str| spec[field].as_i64().unwrap_or(0);
    if text(spec, "completionMode") == "Indexed"
        && number("completions") > 100_000
        && number("parallelism") > 10_000
    {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(pod::warnings::template_at(
        new,
        old,
        &format!("{pointer}/template"),
        &format!("{path}.template"),
    ));
    warnings
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = pod::warnings::named(new, old);
    warnings.extend(spec_warnings(new, old, "/spec", "spec"));
    warnings
}
