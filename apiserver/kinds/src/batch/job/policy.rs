//! Policies of a Job: which failures count, and when it has succeeded early.

use std::collections::BTreeSet;

use apiserver_schema::validation::{Errors, given, items, names, text};
use serde_json::{Value, json};

use crate::batch::job;

const RULES: usize = 20;

const CONDITIONS: usize = 20;

const EXIT_CODES: usize = 255;

/// Longest list of indexes of a success policy, in bytes.
const INDEXES: usize = 64 * 1024;

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

/// `podFailurePolicy` of a job spec (KEP-3329).
pub(crate) fn failure(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(policy) = given(spec, "podFailurePolicy") else { return };
    let path = format!("{path}.podFailurePolicy.rules");
    let rules = items(policy, "rules");
    if rules.len() > RULES {
        errors.too_many(path.as_str(), rules.len(), RULES);
    }
    let pod = &spec["template"]["spec"];
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| items(pod, list))
        .map(|container| text(container, "name"))
        .collect();
    for (index, rule) in rules.iter().enumerate() {
        failure_rule(rule, spec, &containers, &format!("{path}[{index}]"), errors);
    }
}

fn failure_rule(rule: &Value, spec: &Value, containers: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let action = text(rule, "action");
    let at = format!("{path}.action");
    if action.is_empty() {
        errors.required(at, "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]");
    } else if action == "FailIndex" {
        if given(spec, "backoffLimitPerIndex").is_none() {
            errors.invalid(at, &json!(action), "requires the backoffLimitPerIndex to be set");
        }
    } else if !ACTIONS.contains(&action) {
        errors.not_supported(at, &json!(action), &ACTIONS);
    }
    let (codes, conditions) = (given(rule, "onExitCodes"), items(rule, "onPodConditions"));
    if let Some(codes) = codes {
        exit_codes(codes, containers, &format!("{path}.onExitCodes"), errors);
    }
    if conditions.len() > CONDITIONS {
        errors.too_many(format!("{path}.onPodConditions"), conditions.len(), CONDITIONS);
    }
    for (index, condition) in conditions.iter().enumerate() {
        let path = format!("{path}.onPodConditions[{index}]");
        let kind = text(condition, "type");
        errors.faults(&format!("{path}.type"), kind, names::qualified_name(kind));
        let status = text(condition, "status");
        let at = format!("{path}.status");
        if status.is_empty() {
            errors.required(at, "valid values: [\"False\" \"True\" \"Unknown\"]");
        } else if !matches!(status, "True" | "False" | "Unknown") {
            errors.not_supported(at, &json!(status), &["False", "True", "Unknown"]);
        }
    }
    match (codes.is_some(), conditions.is_empty()) {
        (true, false) => {
            errors.invalid_bare(path, "specifying both OnExitCodes and OnPodConditions is not supported");
        }
        (false, true) => {
            errors.invalid_bare(path, "specifying one of OnExitCodes and OnPodConditions is required");
        }
        _ => {}
    }
}

fn exit_codes(codes: &Value, containers: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let operator = text(codes, "operator");
    let at = format!("{path}.operator");
    if operator.is_empty() {
        errors.required(at, "valid values: [\"In\" \"NotIn\"]");
    } else if !matches!(operator, "In" | "NotIn") {
        errors.not_supported(at, &json!(operator), &["In", "NotIn"]);
    }
    if let Some(name) = given(codes, "containerName").and_then(Value::as_str)
        && !containers.contains(name)
    {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.invalid(format!("{path}.containerName"), &json!(name), detail);
    }
    let path = format!("{path}.values");
    let values = items(codes, "values");
    if values.is_empty() {
        errors.invalid(path.as_str(), &json!(values), "at least one value is required");
    } else if values.len() > EXIT_CODES {
        errors.too_many(path.as_str(), values.len(), EXIT_CODES);
    }
    let numbers: Vec<i64> = values.iter().map(|v| v.as_i64().unwrap_or(0)).collect();
    let mut seen = BTreeSet::new();
    for (index, number) in numbers.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if operator == "In" && *number == 0 {
            errors.invalid(path.as_str(), &json!(0), "must not be 0 for the In operator");
        }
        if !seen.insert(number) {
            errors.duplicate(path, &json!(number));
        }
    }
    if !numbers.is_sorted() {
        errors.invalid(path, &json!(values), "must be ordered");
    }
}

/// `successPolicy` of a job spec (KEP-3998).
pub(crate) fn success(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(policy) = given(spec, "successPolicy") else { return };
    let path = format!("{path}.successPolicy");
    if !job::is_indexed(spec) {
        return errors.invalid(path, policy, "requires indexed completion mode");
    }
    let path = format!("{path}.rules");
    let rules = items(policy, "rules");
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.required(path.as_str(), detail);
    }
    if rules.len() > RULES {
        errors.too_many(path.as_str(), rules.len(), RULES);
    }
    let completions = spec["completions"].as_i64().unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        success_rule(rule, completions, &format!("{path}[{index}]"), errors);
    }
}

fn success_rule(rule: &Value, completions: i64, path: &str, errors: &mut Errors) {
    let indexes = given(rule, "succeededIndexes").and_then(Value::as_str);
    let count = given(rule, "succeededCount").and_then(Value::as_i64);
    if indexes.is_none() && count.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.required(path, detail);
    }
    let mut total = None;
    if let Some(list) = indexes {
        let path = format!("{path}.succeededIndexes");
        if list.len() > INDEXES {
            errors.too_long(path.as_str(), INDEXES);
        }
        match count_indexes(list, completions) {
            Ok(number) => total = Some(number),
            Err(why) => {
                total = Some(0);
                errors.invalid(path, &json!(list), &format!("error parsing succeededIndexes: {why}"));
            }
        }
    }
    let Some(count) = count else { return };
    let path = format!("{path}.succeededCount");
    errors.not_negative(path.as_str(), Some(&json!(count)));
    if count > completions {
        let detail =
            format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.invalid(path.as_str(), &json!(count), &detail);
    }
    if let Some(total) = total.filter(|total| count > *total) {
        let detail = format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.invalid(path, &json!(count), &detail);
    }
}

/// Counts the indexes that a list such as `1,3-5,7` names; each must be below `completions`, and they must be
/// in order.
pub(crate) fn count_indexes(list: &str, completions: i64) -> Result<i64, String> {
    if list.is_empty() {
        return Ok(0);
    }
    let (mut total, mut previous) = (0, None);
    for part in list.split(',') {
        let (first, last) = interval(part, completions)?;
        if let Some(previous) = previous.filter(|previous| *previous >= first) {
            return Err(format!("non-increasing order, previous: {previous}, current: {first}"));
        }
        total += last - first + 1;
        previous = Some(last);
    }
    Ok(total)
}

/// First and last of `3` or `3-5`, both below `completions`.
pub(crate) fn interval(part: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = part.split('-').collect();
    let number = |limit: &str| {
        let number: i64 =
            limit.parse().map_err(|_| format!("cannot convert string to integer for index: {limit:?}"))?;
        if number >= completions { Err(format!("too large index: {limit:?}")) } else { Ok(number) }
    };
    match limits.as_slice() {
        [one] => number(one).map(|number| (number, number)),
        [first, last] => {
            let (first, last) = (number(first)?, number(last)?);
            if first >= last {
                return Err(format!("non-increasing order, previous: {first}, current: {last}"));
            }
            Ok((first, last))
        }
        _ => Err(format!(
            "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        )),
    }
}
