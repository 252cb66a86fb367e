//! CronJobs.

pub(crate) mod schedule;

use apiserver_meta::time;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, metadata, text, with_metadata};
use serde_json::{Value, json};

use crate::batch::job;
use crate::core::{pod, pod_template};
use crate::kind::Kind;
use crate::shared::cells::NONE;
use crate::shared::columns::{AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR};
use crate::shared::defaults::{empty_status, fill, object, with_spec};
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "batch",
    plural: "cronjobs",
    short_names: &["cj"],
    category: Some("all"),
    generation: true,
    default,
    prepare_create,
    drop_disabled: Some(|new, old| {
        gates::drop_at(new, old, "/spec/jobTemplate/spec/template/spec", pod::GATES)
    }),
    validate,
    validate_change: Some(validate_change),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a CronJob.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "concurrencyPolicy", "Allow");
        fill(spec, "suspend", false);
        fill(spec, "successfulJobsHistoryLimit", 3);
        fill(spec, "failedJobsHistoryLimit", 1);
        if let Some(job) = object(spec, "jobTemplate").and_then(|t| object(t, "spec")) {
            job::default_failure_policy(job);
            pod_template::default_template(job);
        }
    });
}

/// The empty status of a new CronJob.
fn prepare_create(value: &mut Value) {
    empty_status(value);
}

/// Job names get a suffix of eleven characters from a CronJob and must still fit a label.
const CRON_JOB_NAME_LIMIT: usize = 52;

/// Errors of a new CronJob.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    validate_spec(&object["spec"], None, &mut errors);
    let name = meta::name(object);
    if name.len() > CRON_JOB_NAME_LIMIT {
        let detail = format!("must be no more than {CRON_JOB_NAME_LIMIT} characters");
        errors.invalid("metadata.name", &json!(name), &detail);
    }
    errors.list()
}

/// Returns the errors of a change of a CronJob: a time zone inside the schedule, or one that is no longer
/// known, may stay. Arguments: new, old, the part that is written.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::common(new, &mut errors);
    if written == Written::Main {
        validate_spec(&new["spec"], Some(&old["spec"]), &mut errors);
    }
    errors.list()
}

fn validate_spec(spec: &Value, before: Option<&Value>, errors: &mut Errors) {
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        errors.required("spec.schedule", "");
    } else {
        if let Err(why) = schedule::parse(schedule) {
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
        for fault in schedule::time_zone_faults(zone) {
            errors.invalid("spec.timeZone", &json!(zone), &fault);
        }
    }
    errors.one_of("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    let job = &spec["jobTemplate"]["spec"];
    job::validate_spec(job, "spec.jobTemplate.spec", errors);
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

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Schedule", "string", 0, "When it runs"),
        ("Timezone", "string", 0, "Time zone of the schedule"),
        ("Suspend", "boolean", 0, "Whether it is suspended"),
        ("Active", "integer", 0, "Jobs that run now"),
        ("Last Schedule", "string", 0, "Time since it last started a job"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = cells::containers(object, "/spec/jobTemplate/spec/template/spec");
        let last = meta::text(object, "/status/lastScheduleTime");
        let suspended = object.pointer("/spec/suspend") == Some(&json!(true));
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/schedule", ""),
            cells::text_or(object, "/spec/timeZone", NONE),
            json!(if suspended { "True" } else { "False" }),
            json!(cells::count(object, "/status/active")),
            json!(if last.is_empty() { NONE.to_owned() } else { time::age(Some(last), now) }),
            cells::age(object, now),
            names,
            images,
            cells::selector(object, "/spec/jobTemplate/spec/selector"),
        ]
    },
};

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = pod::warnings::named(new, old);
    warnings.extend(job::spec_warnings(new, old, "/spec/jobTemplate/spec", "spec.jobTemplate.spec"));
    if text(&new["spec"], "schedule").contains("TZ") {
        warnings.push(
            "CRON_TZ or TZ used in spec.schedule is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                .to_owned(),
        );
    }
    warnings
}
