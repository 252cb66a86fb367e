//! Writes of a Job's status (KEP-4368). What was wrong before and is not touched is let pass, so that
//! a controller can go on after the spec has changed under it.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, items, same, text};
use serde_json::{Value, json};

use crate::batch::job::{self, policy};
use crate::shared::checks::status_number;

const PATH: &str = "status.conditions";

/// Both states of the Job, and the errors found.
struct StatusChange<'a> {
    spec: &'a Value,
    now: &'a Value,
    was: &'a Value,
    errors: Errors,
}

impl StatusChange<'_> {
    /// Returns `true` if any of these fields changes.
    fn touched(&self, fields: &[&str]) -> bool {
        fields.iter().any(|field| !same(self.now.get(*field), self.was.get(*field)))
    }

    /// Returns `true` if any of these conditions changes.
    fn turned(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| has_condition(self.now, kind) != has_condition(self.was, kind))
    }

    fn refuse(&mut self, wrong: bool, detail: &str) {
        if wrong {
            self.errors.invalid_bare(PATH, detail);
        }
    }

    fn counts(&mut self) {
        for field in ["active", "succeeded", "failed", "ready", "terminating"] {
            self.errors.not_negative(format!("status.{field}"), self.now.get(field));
        }
    }

    fn uncounted(&mut self) {
        let Some(pods) = given(self.now, "uncountedTerminatedPods") else { return };
        let mut seen = BTreeSet::new();
        for list in ["succeeded", "failed"] {
            for (index, uid) in items(pods, list).iter().enumerate() {
                let path = format!("status.uncountedTerminatedPods.{list}[{index}]");
                let id = uid.as_str().unwrap_or_default();
                if id.is_empty() {
                    self.errors.invalid(path, uid, "must not be empty");
                } else if !seen.insert(id) {
                    self.errors.duplicate(path, uid);
                }
            }
        }
    }

    fn completion(&mut self) {
        let (now, complete) = (self.now, has_condition(self.now, "Complete"));
        let both = self.turned(&["Complete", "Failed"]) && complete && has_condition(now, "Failed");
        self.refuse(both, "cannot set Complete=True and Failed=true conditions");
        let target =
            self.turned(&["Complete", "FailureTarget"]) && complete && has_condition(now, "FailureTarget");
        self.refuse(target, "cannot set Complete=True and FailureTarget=true conditions");
        let path = "status.completionTime";
        let time = given(now, "completionTime");
        if self.turned(&["Complete"]) || self.touched(&["completionTime"]) {
            if let Some(time) = time.filter(|_| !complete) {
                let detail = "cannot set completionTime when there is no Complete=True condition";
                self.errors.invalid(path, time, detail);
            }
            if time.is_none() && complete {
                self.errors.required(path, "completionTime is required for Complete jobs");
            }
        }
        let moment = |field: &str| text(now, field).parse::<jiff::Timestamp>().ok();
        if self.touched(&["startTime", "completionTime"])
            && let (Some(start), Some(end), Some(time)) =
                (moment("startTime"), moment("completionTime"), time)
            && end < start
        {
            self.errors.invalid(path, time, "completionTime cannot be set before startTime");
        }
    }

    fn ended(&mut self) {
        let now = self.now;
        let lacks = |kind: &str, needed: &str| has_condition(now, kind) && !has_condition(now, needed);
        let failed = self.turned(&["Failed", "FailureTarget"]) && lacks("Failed", "FailureTarget");
        self.refuse(failed, "cannot set Failed=True condition without the FailureTarget=true condition");
        let complete =
            self.turned(&["Complete", "SuccessCriteriaMet"]) && lacks("Complete", "SuccessCriteriaMet");
        let detail = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        self.refuse(complete, detail);
        if !self::finished(now) {
            return;
        }
        let ends = self::finished(now) != self::finished(self.was);
        if (ends || self.touched(&["active"])) && status_number(now, "active") > 0 {
            let detail = "active>0 is invalid for finished job";
            self.errors.invalid("status.active", &now["active"], detail);
        }
        if (ends || self.touched(&["startTime"])) && given(now, "startTime").is_none() {
            self.errors.required("status.startTime", "startTime is required for finished job");
        }
        let pods = &now["uncountedTerminatedPods"];
        let left = ["succeeded", "failed"].iter().any(|list| !items(pods, list).is_empty());
        if (ends || self.touched(&["uncountedTerminatedPods"])) && left {
            let detail = "uncountedTerminatedPods needs to be empty for finished job";
            self.errors.invalid("status.uncountedTerminatedPods", pods, detail);
        }
    }

    fn indexes(&mut self) {
        let completions = self.spec["completions"].as_i64();
        let limited = given(self.spec, "backoffLimitPerIndex").is_some();
        let completed = text(self.now, "completedIndexes");
        let failed = given(self.now, "failedIndexes").and_then(Value::as_str);
        let (done_changed, failed_changed) =
            (self.touched(&["completedIndexes"]), self.touched(&["failedIndexes"]));
        let mut format = |field: &str, list: &str, completions: i64| {
            if let Err(why) = policy::count_indexes(list, completions) {
                let detail = format!("error parsing {field}: {why}");
                self.errors.invalid(format!("status.{field}"), &json!(list), &detail);
            }
        };
        if let Some(completions) = completions {
            if done_changed {
                format("completedIndexes", completed, completions);
            }
            if let Some(failed) = failed.filter(|_| failed_changed && limited) {
                format("failedIndexes", failed, completions);
            }
        }
        if done_changed && !completed.is_empty() && !job::is_indexed(self.spec) {
            let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
            self.errors.invalid("status.completedIndexes", &json!(completed), detail);
        }
        let Some(failed) = failed else { return };
        let path = "status.failedIndexes";
        if failed_changed && !limited {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            self.errors.invalid(path, &json!(failed), detail);
        }
        if (failed_changed || done_changed)
            && let Some(common) = completions.and_then(|limit| self::overlap(completed, failed, limit))
        {
            let detail = format!("failedIndexes and completedIndexes overlap at index: {common}");
            self.errors.invalid(path, &json!(failed), &detail);
        }
    }

    fn pods(&mut self) {
        let now = self.now;
        let ends = self::finished(now) != self::finished(self.was);
        if self::finished(now)
            && (ends || self.touched(&["terminating"]))
            && status_number(now, "terminating") > 0
        {
            let detail = "terminating>0 is invalid for finished job";
            self.errors.invalid("status.terminating", &now["terminating"], detail);
        }
        let ready = given(now, "ready").and_then(Value::as_i64);
        if self.touched(&["ready", "active"])
            && ready.is_some_and(|ready| ready > status_number(now, "active"))
        {
            let detail = "cannot set more ready pods than active";
            self.errors.invalid("status.ready", &now["ready"], detail);
        }
    }

    fn success(&mut self) {
        let (now, met) = (self.now, has_condition(self.now, "SuccessCriteriaMet"));
        self.refuse(
            met && has_condition(now, "Failed"),
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        );
        self.refuse(
            met && has_condition(now, "FailureTarget"),
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        );
        let policy = given(self.spec, "successPolicy").is_some();
        self.refuse(
            policy && !met && has_condition(now, "Complete"),
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        );
    }

    /// Refuses changes of what is final: terminal conditions, counters that only grow, and the like.
    fn changes(&mut self) {
        let (now, was) = (self.now, self.was);
        for kind in ["Failed", "Complete", "FailureTarget"] {
            let detail = format!("cannot disable the terminal {kind}=True condition");
            self.refuse(has_condition(was, kind) && !has_condition(now, kind), &detail);
        }
        let resized = job::is_indexed(self.spec) && self.spec["completions"] == self.spec["parallelism"];
        for (field, free) in [("failed", false), ("succeeded", resized)] {
            if !free && status_number(now, field) < status_number(was, field) {
                let detail = format!("cannot decrease the {field} counter");
                self.errors.invalid(format!("status.{field}"), &json!(status_number(now, field)), &detail);
            }
        }
        let time = |status: &Value, field: &str| given(status, field).cloned();
        if let (Some(now), Some(was)) = (time(now, "completionTime"), time(was, "completionTime"))
            && now != was
        {
            self.errors.invalid("status.completionTime", &now, "completionTime cannot be mutated");
        }
        let started = time(was, "startTime");
        if started.is_some() && started != time(now, "startTime") && self.spec["suspend"] != true {
            self.errors.required("status.startTime", "startTime cannot be removed for unsuspended job");
        }
        let met = |status: &Value| has_condition(status, "SuccessCriteriaMet");
        self.refuse(met(was) && !met(now), "cannot disable the SuccessCriteriaMet=True condition");
        self.refuse(
            has_condition(was, "Complete") && !met(was) && met(now),
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        );
    }
}

/// Errors of a write of a Job's status. Arguments: new, old.
pub(crate) fn validate(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut check = StatusChange {
        spec: &new["spec"],
        now: &new["status"],
        was: &old["status"],
        errors: Errors::default(),
    };
    check.counts();
    check.uncounted();
    check.completion();
    check.ended();
    check.indexes();
    check.pods();
    check.success();
    check.changes();
    check.errors.list()
}

fn has_condition(status: &Value, kind: &str) -> bool {
    items(status, "conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
}

fn finished(status: &Value) -> bool {
    has_condition(status, "Complete") || has_condition(status, "Failed")
}

/// The first index that both lists name. Parts that cannot be read are passed over.
fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let read = |list: &str| -> Vec<(i64, i64)> {
        list.split(',').filter_map(|part| policy::interval(part, completions).ok()).collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut left, mut right) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some((a, b)), Some((c, d))) = (left.peek(), right.peek()) {
        if a <= d && c <= b {
            return Some(*a.max(c));
        }
        if a <= c {
            left.next();
        } else {
            right.next();
        }
    }
    None
}
