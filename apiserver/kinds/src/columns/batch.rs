//! Jobs and CronJobs.

use serde_json::{Value, json};

use super::{
    AGE, CONTAINERS, IMAGES, Layout, NAME, NONE, SELECTOR, age, containers, count, is_true, name, number,
    selector, text_or,
};
use apiserver_meta::time;
use apiserver_schema::meta;

pub(super) const JOBS: Layout = Layout {
    head: &[
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
        let [names, images] = containers(object, "/spec/template/spec");
        vec![
            name(object),
            json!(status(object)),
            json!(completions(object)),
            json!(duration(object, now)),
            age(object, now),
            names,
            images,
            selector(object, "/spec/selector"),
        ]
    },
};

fn status(object: &Value) -> &'static str {
    if is_true(object, "Complete") {
        "Complete"
    } else if is_true(object, "Failed") {
        "Failed"
    } else if meta::deletion_timestamp(object).is_some() {
        "Terminating"
    } else if is_true(object, "Suspended") {
        "Suspended"
    } else if is_true(object, "FailureTarget") {
        "FailureTarget"
    } else if is_true(object, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(object: &Value) -> String {
    let done = number(object, "/status/succeeded");
    match object.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{done}/{wanted}"),
        None => match object.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or(0) {
            parallel @ 2.. => format!("{done}/1 of {parallel}"),
            _ => format!("{done}/1"),
        },
    }
}

fn duration(object: &Value, now: jiff::Timestamp) -> String {
    let Some(start) = time::parse(meta::text(object, "/status/startTime")) else { return String::new() };
    let end = time::parse(meta::text(object, "/status/completionTime")).unwrap_or(now);
    time::human(end.as_second() - start.as_second())
}

pub(super) const CRON_JOBS: Layout = Layout {
    head: &[
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
        let [names, images] = containers(object, "/spec/jobTemplate/spec/template/spec");
        let last = meta::text(object, "/status/lastScheduleTime");
        let suspended = object.pointer("/spec/suspend") == Some(&json!(true));
        vec![
            name(object),
            text_or(object, "/spec/schedule", ""),
            text_or(object, "/spec/timeZone", NONE),
            json!(if suspended { "True" } else { "False" }),
            json!(count(object, "/status/active")),
            json!(if last.is_empty() { NONE.to_owned() } else { time::age(Some(last), now) }),
            age(object, now),
            names,
            images,
            selector(object, "/spec/jobTemplate/spec/selector"),
        ]
    },
};
