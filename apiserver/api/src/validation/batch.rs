//! Job and CronJob.

use serde_json::{Value, json};

use super::{Errors, label_selector, pod, text, with_metadata};
use crate::error::FieldError;
use crate::meta;

/// Job names get a suffix of eleven characters from a CronJob and must still fit a label.
const CRON_JOB_NAME_LIMIT: usize = 52;

/// Errors of a Job.
pub fn job(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    job_spec(&object["spec"], "spec", &mut errors);
    let selector = object.pointer("/spec/selector");
    if selector.is_none() && !meta::uid(object).is_empty() {
        errors.required("spec.selector", "");
    }
    label_selector(selector, "spec.selector", &mut errors);
    errors.list()
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
    let mode = format!("{path}.completionMode");
    errors.one_of_if_set(&mode, spec.get("completionMode"), &["NonIndexed", "Indexed"]);
    if text(spec, "completionMode") == "Indexed" && spec.get("completions").is_none_or(Value::is_null) {
        errors.required(format!("{path}.completions"), "when completion mode is Indexed");
    }
    let template = format!("{path}.template");
    pod::template(&spec["template"], &template, errors);
    let policy = &spec["template"]["spec"]["restartPolicy"];
    if policy == "Always" {
        errors.extend([FieldError::not_supported(
            format!("{template}.spec.restartPolicy"),
            policy,
            &["OnFailure", "Never"],
        )]);
    }
}

/// What may not change of a Job. Arguments: new, old.
pub fn job_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec.selector", new, old);
    errors.immutable("spec.completionMode", new, old);
    let elastic = text(&old["spec"], "completionMode") == "Indexed"
        && new["spec"]["completions"] == new["spec"]["parallelism"];
    if !elastic {
        errors.immutable("spec.completions", new, old);
    }
    // While suspended and not yet started, where its pods may run can be changed.
    let suspended =
        old["spec"]["suspend"] == true && old.pointer("/status/startTime").is_none_or(Value::is_null);
    if suspended {
        let mut allowed = new.clone();
        for field in ["nodeSelector", "tolerations", "affinity", "schedulingGates"] {
            let before = old.pointer(&format!("/spec/template/spec/{field}")).cloned();
            if let Some(Value::Object(spec)) = allowed.pointer_mut("/spec/template/spec") {
                match before {
                    Some(value) => spec.insert(field.to_owned(), value),
                    None => spec.remove(field),
                };
            }
        }
        errors.immutable("spec.template.spec", &allowed, old);
    } else {
        errors.immutable("spec.template", new, old);
    }
    errors.list()
}

/// Errors of a CronJob.
pub fn cron_job(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let name = meta::name(object);
    if name.len() > CRON_JOB_NAME_LIMIT {
        let detail = format!("must be no more than {CRON_JOB_NAME_LIMIT} characters");
        errors.invalid("metadata.name", &json!(name), &detail);
    }
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        errors.required("spec.schedule", "");
    } else if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.invalid("spec.schedule", &json!(schedule), detail);
    } else if let Err(why) = cron(schedule) {
        errors.invalid("spec.schedule", &json!(schedule), &why);
    }
    errors.one_of("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        errors.not_negative(format!("spec.{field}"), spec.get(field));
    }
    job_spec(&spec["jobTemplate"]["spec"], "spec.jobTemplate.spec", &mut errors);
    errors.list()
}

/// Whether a text is a schedule: five fields or a descriptor such as `@daily`.
fn cron(schedule: &str) -> Result<(), String> {
    if let Some(descriptor) = schedule.strip_prefix('@') {
        let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"];
        if known.contains(&descriptor) || descriptor.strip_prefix("every ").is_some_and(|d| !d.is_empty()) {
            return Ok(());
        }
        return Err(format!("unrecognized descriptor: {schedule}"));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: {fields:?}", fields.len()));
    }
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let bounds: [(i64, i64, &[&str], i64); 5] =
        [(0, 59, &[], 0), (0, 23, &[], 0), (1, 31, &[], 0), (1, 12, &MONTHS, 1), (0, 6, &DAYS, 0)];
    for (field, (low, high, words, first)) in fields.iter().zip(bounds) {
        for range in field.split(',') {
            cron_range(range, low, high, words, first)?;
        }
    }
    Ok(())
}

fn cron_range(range: &str, low: i64, high: i64, words: &[&str], first: i64) -> Result<(), String> {
    let (span, step) = range.split_once('/').map_or((range, None), |(span, step)| (span, Some(step)));
    let number = |text: &str| -> Result<i64, String> {
        let word = words.iter().zip(first..).find(|(w, _)| w.eq_ignore_ascii_case(text)).map(|(_, n)| n);
        word.or_else(|| text.parse().ok()).ok_or_else(|| format!("failed to parse int from {text}"))
    };
    if span != "*" && span != "?" {
        let (start, end) = span.split_once('-').unwrap_or((span, span));
        let (start, end) = (number(start)?, number(end)?);
        if start < low {
            return Err(format!("beginning of range ({start}) below minimum ({low}): {range}"));
        }
        if end > high {
            return Err(format!("end of range ({end}) above maximum ({high}): {range}"));
        }
        if start > end {
            return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
        }
    }
    match step.map(str::parse::<u32>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => Err(format!("step of range should be a positive number: {range}")),
    }
}
