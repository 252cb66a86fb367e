//! CertificateSigningRequest: its status has two writers. Who approves writes the conditions and
//! nothing else, through `approval`; who signs writes everything but `Approved` and `Denied`, through
//! `status`. What was said is not taken back.

use serde_json::{Map, Value, json};

use crate::error::FieldError;
use crate::meta;

/// The group and kind that this is about.
pub const GROUP: &str = "certificates.k8s.io";
pub const KIND: &str = "CertificateSigningRequest";

const CONDITIONS: &str = "status.conditions";
const CERTIFICATE: &str = "status.certificate";
/// Conditions that stay once they are there, and hold whenever they are there.
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Puts the status of `new` in order, which takes the place of `old`: `approval` says through which
/// subresource, `now` is the time of conditions that bring none. Answers with what is wrong.
pub fn settle(new: &mut Value, old: &Value, approval: bool, now: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let conditions = timed(meta::list(new, "/status/conditions"), meta::list(old, "/status/conditions"), now);
    check(&conditions, &mut errors);
    let has = |list: &[Value], kind: &str| list.iter().any(|condition| condition["type"] == kind);
    let before = meta::list(old, "/status/conditions");
    for kind in FINAL {
        let (had, has) = (has(before, kind), has(&conditions, kind));
        if had && !has {
            let detail = format!("updates may not remove a condition of type \"{kind}\"");
            errors.push(FieldError::forbidden(CONDITIONS, &detail));
        } else if has && !had && !approval && kind != "Failed" {
            let detail = format!("updates may not add a condition of type \"{kind}\"");
            errors.push(FieldError::forbidden(CONDITIONS, &detail));
        }
    }
    let (certificate, signed) =
        (meta::text(new, "/status/certificate"), meta::text(old, "/status/certificate"));
    if !approval && !signed.is_empty() && certificate != signed {
        errors.push(FieldError::forbidden(CERTIFICATE, "updates may not modify certificate content"));
    }
    let status = if approval { old.get("status") } else { new.get("status") };
    let mut status = status.and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    if conditions.is_empty() {
        status.remove("conditions");
    } else {
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
    if let Some(map) = new.as_object_mut() {
        map.insert("status".to_owned(), Value::Object(status));
    }
    errors
}

/// The conditions, each with its times: those of before where it says the same.
fn timed(list: &[Value], before: &[Value], now: &str) -> Vec<Value> {
    let mut list = list.to_vec();
    for condition in &mut list {
        let old = before.iter().find(|old| old["type"] == condition["type"]);
        let same = old.filter(|old| old["status"] == condition["status"]);
        let since = same.map(|old| meta::text(old, "/lastTransitionTime")).filter(|time| !time.is_empty());
        let Some(map) = condition.as_object_mut() else { continue };
        for (field, time) in [("lastUpdateTime", now), ("lastTransitionTime", since.unwrap_or(now))] {
            let told = map.get(field).and_then(Value::as_str).is_some_and(|time| !time.is_empty());
            if !told {
                map.insert(field.to_owned(), time.into());
            }
        }
    }
    list
}

fn check(conditions: &[Value], errors: &mut Vec<FieldError>) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = format!("{CONDITIONS}[{index}]");
        let (kind, status) = (meta::text(condition, "/type"), meta::text(condition, "/status"));
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        } else if seen.contains(&kind) {
            errors.push(FieldError::duplicate(format!("{path}.type"), &json!(kind)));
        }
        seen.push(kind);
        let supported: &[&str] =
            if FINAL.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        if status.is_empty() {
            errors.push(FieldError::required(format!("{path}.status"), ""));
        } else if !supported.contains(&status) {
            errors.push(FieldError::not_supported(format!("{path}.status"), &json!(status), supported));
        }
    }
    if seen.contains(&"Approved") && seen.contains(&"Denied") {
        let detail = "Approved and Denied conditions are mutually exclusive";
        errors.push(FieldError::invalid(CONDITIONS, &Value::Null, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn request(status: Value) -> Value {
        json!({"kind": KIND, "metadata": {"name": "r"}, "spec": {"request": "x"}, "status": status})
    }

    fn condition(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "Because"})
    }

    fn messages(new: Value, old: &Value, approval: bool) -> (Value, Vec<String>) {
        let mut new = new;
        let errors = settle(&mut new, old, approval, NOW);
        (new, errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect())
    }

    #[test]
    fn approval_writes_conditions_and_nothing_else() {
        let old = request(json!({"certificate": "Yw=="}));
        let new = request(json!({"certificate": "eA==", "conditions": [condition("Approved")]}));
        let (new, errors) = messages(new, &old, true);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(new["status"]["certificate"], "Yw==");
        let conditions = &new["status"]["conditions"][0];
        assert_eq!(
            (&conditions["lastUpdateTime"], &conditions["lastTransitionTime"]),
            (&json!(NOW), &json!(NOW))
        );
        let (_, errors) = messages(request(json!({"conditions": [condition("Denied")]})), &new, true);
        assert_eq!(
            errors,
            ["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""]
        );
    }

    #[test]
    fn who_signs_does_not_approve() {
        let old = request(json!({}));
        let new = request(json!({"conditions": [condition("Approved"), condition("Failed")]}));
        let (_, errors) = messages(new, &old, false);
        assert_eq!(
            errors,
            ["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""]
        );
        let signed = request(json!({"certificate": "Yw=="}));
        let (new, errors) = messages(signed.clone(), &old, false);
        assert!(errors.is_empty() && new["status"]["certificate"] == "Yw==");
        let (_, errors) = messages(request(json!({"certificate": "eA=="})), &signed, false);
        assert_eq!(errors, ["status.certificate: Forbidden: updates may not modify certificate content"]);
    }

    #[test]
    fn conditions_hold_once_and_do_not_contradict_each_other() {
        let mut denied = condition("Denied");
        denied["status"] = "False".into();
        let new = request(json!({"conditions": [condition("Approved"), denied, condition("Approved"), {}]}));
        let (_, errors) = messages(new, &request(json!({})), true);
        let wanted = [
            "status.conditions[1].status: Unsupported value: \"False\": supported values: \"True\"",
            "status.conditions[2].type: Duplicate value: \"Approved\"",
            "status.conditions[3].type: Required value",
            "status.conditions[3].status: Required value",
            "status.conditions: Invalid value: null: Approved and Denied conditions are mutually exclusive",
        ];
        assert_eq!(errors, wanted);
    }
}
