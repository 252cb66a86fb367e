//! Job and CronJob.

use serde_json::{Value, json};

use super::{Object, each, fill, fill_absent, is_empty, made, object, pod, with_spec};
use apiserver_schema::meta;

/// Defaults of a Job.
pub fn job(value: &mut Value) {
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
        failure_policy(spec);
        pod::template(spec);
    });
    labels_of_template(value);
}

fn failure_policy(spec: &mut Object) {
    if let Some(policy) = object(spec, "podFailurePolicy") {
        each(policy, "rules", |rule| each(rule, "onPodConditions", |c| fill(c, "status", "True")));
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

/// Defaults of a CronJob.
pub fn cron_job(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "concurrencyPolicy", "Allow");
        fill(spec, "suspend", false);
        fill(spec, "successfulJobsHistoryLimit", 3);
        fill(spec, "failedJobsHistoryLimit", 1);
        if let Some(job) = object(spec, "jobTemplate").and_then(|t| object(t, "spec")) {
            failure_policy(job);
            pod::template(job);
        }
    });
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
pub fn prepare_create_job(value: &mut Value) {
    let labels = job_labels(value);
    with_spec(value, |spec| {
        if spec.get("manualSelector") == Some(&Value::Bool(true)) {
            return;
        }
        let (uid_label, uid) = &labels[0];
        if let Some(template) = made(spec, "template")
            && let Some(metadata) = made(template, "metadata")
            && let Some(present) = made(metadata, "labels")
        {
            // Labels with other values are reported by the validation.
            for (key, value) in &labels {
                present.entry(*key).or_insert_with(|| value.as_str().into());
            }
        }
        if let Some(matching) = made(spec, "selector").and_then(|s| made(s, "matchLabels")) {
            matching.entry(*uid_label).or_insert_with(|| uid.as_str().into());
        }
    });
    empty_status(value);
}

/// The empty status of a new CronJob.
pub fn prepare_create_cron_job(value: &mut Value) {
    empty_status(value);
}

fn empty_status(value: &mut Value) {
    if let Value::Object(map) = value {
        let map: &mut Object = map;
        fill(map, "status", json!({}));
    }
}
