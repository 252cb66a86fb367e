//! Job and CronJob.

use serde_json::{Value, json};

use super::{
    Errors, cron, given, is_indexed_job as is_indexed, items, job_policy, label_selector, metadata, names,
    pod, text, with_metadata,
};
use apiserver_registry::LabelSelector;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;

/// Job names get a suffix of eleven characters from a CronJob and must still fit a label.
const CRON_JOB_NAME_LIMIT: usize = 52;
/// The current labels of a job's pods: its uid and its name.
const PREFIXED: [&str; 2] = ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];
/// Most pods at once, and most failed indexes, of an indexed job.
const PARALLEL: i64 = 100_000;
/// The number of completions above which an indexed job with a limit for each index has tighter limits.
const MANY_COMPLETIONS: i64 = 100_000;
const PARALLEL_OF_MANY: i64 = 10_000;
const MANAGER_LENGTH: usize = 63;

/// Errors of a Job.
pub fn job(object: &Value) -> Vec<FieldError> {
    whole_job(object, true)
}

/// [`job`], and whether the labels of today must be there.
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
    job_spec(spec, "spec", errors);
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

fn job_spec(spec: &Value, path: &str, errors: &mut Errors) {
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
    job_policy::failure(spec, path, errors);
    job_policy::success(spec, path, errors);
    let replacement = format!("{path}.podReplacementPolicy");
    let supported: &[&str] = if given(spec, "podFailurePolicy").is_some() {
        &["Failed"]
    } else {
        &["Failed", "TerminatingOrFailed"]
    };
    errors.one_of_if_given(&replacement, spec.get("podReplacementPolicy"), supported);
    pod::template(&spec["template"], &format!("{path}.template"), errors);
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
pub fn job_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let had = &old["spec"]["template"]["metadata"]["labels"];
    let mut errors = Errors::of(whole_job(new, PREFIXED.iter().all(|label| had.get(*label).is_some())));
    // The spec is judged twice, once as that of a new Job.
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
        if ["metadata", "spec"].iter().any(|part| !super::same(now.get(*part), before.get(*part))) {
            errors.invalid("spec.template", now, super::IMMUTABLE);
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
    if !super::same(Some(spec), Some(&allowed)) {
        errors.invalid("spec.template.spec", spec, super::IMMUTABLE);
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

/// Errors of a new CronJob.
pub fn cron_job(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    cron_spec(&object["spec"], None, &mut errors);
    let name = meta::name(object);
    if name.len() > CRON_JOB_NAME_LIMIT {
        let detail = format!("must be no more than {CRON_JOB_NAME_LIMIT} characters");
        errors.invalid("metadata.name", &json!(name), &detail);
    }
    errors.list()
}

/// Returns the errors of a change of a CronJob: a time zone inside the schedule, or one that is no longer
/// known, may stay. Arguments: new, old, the part that is written.
pub fn cron_job_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::common(new, &mut errors);
    if written == Written::Main {
        cron_spec(&new["spec"], Some(&old["spec"]), &mut errors);
    }
    errors.list()
}

fn cron_spec(spec: &Value, before: Option<&Value>, errors: &mut Errors) {
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        errors.required("spec.schedule", "");
    } else {
        if let Err(why) = cron::parse(schedule) {
            errors.invalid("spec.schedule", &json!(schedule), &why);
        }
        let zoned = |schedule: &str| schedule.contains("TZ");
        let may = before.is_some_and(|before| zoned(text(before, "schedule")));
        if zoned(schedule) && !may {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.invalid("spec.schedule", &json!(schedule), detail);
        } else if zoned(schedule) && given(spec, "timeZone").is_some() {
            let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
            errors.invalid("spec.schedule", &json!(schedule), detail);
        }
    }
    errors.not_negative("spec.startingDeadlineSeconds", spec.get("startingDeadlineSeconds"));
    let zone = given(spec, "timeZone").and_then(Value::as_str);
    if let Some(zone) = zone.filter(|zone| before.is_none_or(|before| before["timeZone"] != *zone)) {
        for fault in cron::time_zone_faults(zone) {
            errors.invalid("spec.timeZone", &json!(zone), &fault);
        }
    }
    errors.one_of("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    let job = &spec["jobTemplate"]["spec"];
    job_spec(job, "spec.jobTemplate.spec", errors);
    if let Some(selector) = given(job, "selector") {
        errors.invalid("spec.jobTemplate.spec.selector", selector, "`selector` will be auto-generated");
    }
    if job["manualSelector"] == true {
        let path = "spec.jobTemplate.spec.manualSelector";
        errors.not_supported(path, &json!(true), &["nil", "false"]);
    }
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errors.not_negative(format!("spec.{field}"), spec.get(field));
    }
}
