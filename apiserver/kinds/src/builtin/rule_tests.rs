//! Tables of rules, `rules.txt` of each group: a valid object, and for each rule a change that breaks it and
//! the errors of that change.
//!
//! ```text
//! = apps deployments            a kind; the object that is right follows, as JSON
//! {"metadata": …}
//!
//! update                        `create` if not said; or `update`, `status`
//! old /spec/replicas = 1        what differs in the object as it was (update, status)
//! /spec/replicas = -1           what differs in the object that is written; `-` removes
//! > spec.replicas: Invalid …    each error: field and message; none: the change is fine
//! ```
//!
//! Where Kubernetes shows a structure as its source declares it, the tables have it as it was written, and
//! where it adds a comparison of two such structures, they have the fields that changed.
//!
//! `@NAME` in a value stands for a text too long for a table.

use apiserver_registry::{Resource, Written};
use apiserver_schema::error::{FieldError, FieldReason};
use serde_json::Value;

const TABLES: [(&str, &str); 18] = [
    ("admissionregistration", include_str!("../admissionregistration/rules.txt")),
    ("apps", include_str!("../apps/rules.txt")),
    ("autoscaling", include_str!("../autoscaling/rules.txt")),
    ("batch", include_str!("../batch/rules.txt")),
    ("certificates", include_str!("../certificates/rules.txt")),
    ("coordination", include_str!("../coordination/rules.txt")),
    ("core", include_str!("../core/rules.txt")),
    ("discovery", include_str!("../discovery/rules.txt")),
    ("events", include_str!("../events/rules.txt")),
    ("flowcontrol", include_str!("../flowcontrol/rules.txt")),
    ("internal", include_str!("../internal/rules.txt")),
    ("networking", include_str!("../networking/rules.txt")),
    ("node", include_str!("../node/rules.txt")),
    ("policy", include_str!("../policy/rules.txt")),
    ("rbac", include_str!("../rbac/rules.txt")),
    ("resource", include_str!("../resource/rules.txt")),
    ("scheduling", include_str!("../scheduling/rules.txt")),
    ("storage", include_str!("../storage/rules.txt")),
];

/// Texts that tables name with `@`.
const TEXTS: [(&str, &str); 8] = [
    ("@authority", include_str!("../certificates/testdata/authority.pem")),
    ("@leaf", include_str!("../certificates/testdata/leaf.pem")),
    ("@request", REQUEST),
    ("@forged", FORGED),
    ("@key", "MCowBQYDK2VwAyEAshTotsFo0WiyqV/P48gsDDRbGJOf7qliNsN07mqx5yQ="),
    ("@proof", "aznrwUtp6fzOA6tHRc5EmzJWhArtAEkdXk8IVTyRix2q5vVUNORnUD0FvscyRygkgM3kmlS6FW0lP6lyEs2ZCg=="),
    (
        "@other-proof",
        "jeRW9CvQzTFdE5Z3chzKCfokYG2PsOOptcvHAtKj1hzR9fR2rqXSVxJDajBJdMsoKpKoAKYXpWGcgAezcEMVAw==",
    ),
    ("@long", LONG),
];

/// A request for a certificate, and the same with another subject under the old signature.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISE1IQUNBUUF3RGpFTU1Bb0dBMVVFQXd3RFpUSmxNRmt3RXdZSEtvWkl6ajBDQVFZSUtvWkl6ajBEQVFjRApRZ0FFM0ZWajhPM0x0M1ZCMThFTnlDdWdIZWpUcUxkdExCZFFrL3Fzb1BSUS9reEgwMmpHd0c1QUZoOG9UekV5CmhKeUs3aHFONGlBaWw1YnhMbmRaOHQxQW5hQUFNQW9HQ0NxR1NNNDlCQU1DQTBjQU1FUUNJQ01oajErMHhVWC8KM1pZOU1Xb00xSTREak9JejY4cTE4YkdEcnkrUFNkRThBaUExbFlLN1VtU0srWEltT09BMDZTYlFZWWlYenFWcQpvcDROMkpLcHp6SWYwUT09Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";

const FORGED: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISE1IQUNBUUF3RGpFTU1Bb0dBMVVFQXd3RFpqSmxNRmt3RXdZSEtvWkl6ajBDQVFZSUtvWkl6ajBEQVFjRApRZ0FFM0ZWajhPM0x0M1ZCMThFTnlDdWdIZWpUcUxkdExCZFFrL3Fzb1BSUS9reEgwMmpHd0c1QUZoOG9UekV5CmhKeUs3aHFONGlBaWw1YnhMbmRaOHQxQW5hQUFNQW9HQ0NxR1NNNDlCQU1DQTBjQU1FUUNJQ01oajErMHhVWC8KM1pZOU1Xb00xSTREak9JejY4cTE4YkdEcnkrUFNkRThBaUExbFlLN1VtU0srWEltT09BMDZTYlFZWWlYenFWcQpvcDROMkpLcHp6SWYwUT09Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";

/// 64 letters.
const LONG: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

#[derive(Clone, Copy, PartialEq)]
enum Write {
    Create,
    Update,
    Status,
}

/// A value of a table, with the texts that it names.
fn value(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap_or_else(|why| panic!("{text}: {why}"));
    expand(&mut value);
    value
}

fn expand(value: &mut Value) {
    match value {
        Value::String(text) => {
            for (name, long) in TEXTS {
                if text.contains(name) {
                    *text = text.replace(name, long);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(expand),
        Value::Object(map) => map.values_mut().for_each(expand),
        _ => {}
    }
}

/// Sets or removes the value at a pointer, creating missing parents.
fn edit(object: &mut Value, pointer: &str, new: Option<Value>) {
    let mut at = object;
    let steps: Vec<String> =
        pointer[1..].split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
    let (last, path) = steps.split_last().unwrap();
    for step in path {
        at = match at {
            Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
            other => &mut other[step.as_str()],
        };
    }
    match (at, new) {
        (Value::Array(items), Some(new)) => match last.parse::<usize>().unwrap() {
            index if index == items.len() => items.push(new),
            index => items[index] = new,
        },
        (Value::Array(items), None) => drop(items.remove(last.parse().unwrap())),
        (Value::Object(map), None) => drop(map.remove(last)),
        (other, Some(new)) => other[last.as_str()] = new,
        (_, None) => {}
    }
}

fn errors(resource: &Resource, write: Write, new: &Value, old: &Value) -> Vec<FieldError> {
    let behaviour = &resource.behaviour;
    if write == Write::Create {
        return (behaviour.validate)(new);
    }
    if write == Write::Status
        && let Some(check) = &behaviour.validate_status
    {
        return check(new, old);
    }
    if let Some(check) = &behaviour.validate_change {
        let written = if write == Write::Status { Written::Status } else { Written::Main };
        return check(new, old, written);
    }
    if write == Write::Status {
        return (behaviour.validate)(new);
    }
    let mut errors = (behaviour.validate)(new);
    errors.extend((behaviour.validate_update)(new, old));
    errors
}

/// Returns the reason of an error from its message.
fn reason(message: &str) -> FieldReason {
    let reasons = [
        ("Required value", FieldReason::Required),
        ("Invalid value", FieldReason::Invalid),
        ("Forbidden", FieldReason::Forbidden),
        ("Unsupported value", FieldReason::NotSupported),
        ("Duplicate value", FieldReason::Duplicate),
        ("Too long", FieldReason::TooLong),
        ("Too many", FieldReason::TooMany),
        ("Not found", FieldReason::NotFound),
        ("Internal error", FieldReason::Internal),
    ];
    let found = reasons.iter().find(|(words, _)| message.starts_with(words));
    found.unwrap_or_else(|| panic!("{message}")).1
}

/// Runs one row; returns its failure, if any.
fn run(resource: &Resource, good: &Value, row: &str) -> Option<String> {
    let (mut write, mut wanted) = (Write::Create, Vec::new());
    let (mut old, mut edits) = (good.clone(), Vec::new());
    let change = |object: &mut Value, line: &str| {
        let (pointer, text) = line.split_once(" = ").unwrap_or_else(|| panic!("{line}"));
        edit(object, pointer, (text != "-").then(|| value(text)));
    };
    for line in row.lines() {
        match line {
            "create" => write = Write::Create,
            "update" => write = Write::Update,
            "status" => write = Write::Status,
            _ if line.starts_with("> ") => wanted.push(line[2..].to_owned()),
            _ if line.starts_with("old ") => change(&mut old, &line[4..]),
            _ => edits.push(line),
        }
    }
    if write != Write::Create {
        (resource.behaviour.default)(&mut old);
        old["metadata"]["resourceVersion"] = "1".into();
    }
    let mut new = old.clone();
    edits.into_iter().for_each(|line| change(&mut new, line));
    (resource.behaviour.default)(&mut new);
    let found = errors(resource, write, &new, &old);
    for error in &found {
        assert_eq!(error.reason, reason(&error.message), "{row}");
    }
    let found: Vec<String> = found.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
    let written = |long: &str| Value::from(long).to_string().trim_matches('"').to_owned();
    let long = |text: &String| {
        TEXTS.iter().fold(text.clone(), |text, (name, long)| text.replace(name, &written(long)))
    };
    let wanted: Vec<String> = wanted.iter().map(long).collect();
    (found != wanted).then(|| format!("{row}\n  found {found:#?}"))
}

#[test]
fn each_rule_gives_the_errors_of_kubernetes() {
    let registry = crate::registry();
    let mut faults = Vec::new();
    for (table, text) in TABLES {
        let mut kind: Option<(&Resource, Value)> = None;
        let text: String = text.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
        for row in text.split("\n\n").map(str::trim_end).map(|r| r.trim_start_matches('\n')) {
            if row.is_empty() {
                continue;
            }
            if let Some(head) = row.strip_prefix("= ") {
                let (head, object) = head.split_once('\n').unwrap();
                let (group, plural) = head.split_once(' ').unwrap();
                let group = if group == "core" { "" } else { group };
                let resource = registry.iter().find(|r| r.group == group && r.plural == plural);
                let resource = resource.unwrap_or_else(|| panic!("{head}"));
                let good = value(object);
                let fault = run(resource, &good, "create");
                faults.extend(fault.map(|fault| format!("{table}: {head}: {fault}")));
                kind = Some((resource, good));
            } else {
                let (resource, good) = kind.as_ref().unwrap();
                let fault = run(resource, good, row);
                faults.extend(fault.map(|fault| format!("{table}: {}: {fault}", resource.plural)));
            }
        }
    }
    assert!(faults.is_empty(), "{} rows\n\n{}", faults.len(), faults.join("\n\n"));
}
