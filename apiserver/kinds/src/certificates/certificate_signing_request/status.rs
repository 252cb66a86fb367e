//! CertificateSigningRequest: its status has two writers. The approver writes the conditions and nothing
//! else, through `approval`; the signer writes everything but `Approved` and `Denied`, through `status`.
//! Neither can take back what is written.

use apiserver_meta::identity::Identity;
use apiserver_meta::time;
use apiserver_registry::Unowned;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use jiff::Timestamp;
use serde_json::{Map, Value};

const CONDITIONS: &str = "status.conditions";

/// The conditions that only the approver may write.
const VERDICTS: [&str; 2] = ["Approved", "Denied"];

/// The fields that writers of each subresource leave alone: the request is immutable, and the server sets its
/// author; the approver does not sign, and the signer does not approve.
pub(super) const UNOWNED: &[Unowned] = &[
    ("", &[&["spec"]]),
    ("approval", &[&["status", "certificate"]]),
    ("status", &[&["status", "conditions"]]),
];

/// Sets the author of a certificate request to the sender of the request, overwriting the client's values.
pub(super) fn set_requester(request: &mut Value, identity: &Identity) {
    let Some(Value::Object(spec)) = request.get_mut("spec") else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    spec.insert("username".to_owned(), identity.user.clone().into());
    if !identity.uid.is_empty() {
        spec.insert("uid".to_owned(), identity.uid.clone().into());
    }
    if !identity.groups.is_empty() {
        spec.insert("groups".to_owned(), identity.groups.clone().into());
    }
    let extra: Map<String, Value> =
        identity.extra.iter().map(|(key, values)| (key.clone(), values.clone().into())).collect();
    if !extra.is_empty() {
        spec.insert("extra".to_owned(), Value::Object(extra));
    }
}

/// Completes the status of `new`, which replaces `old`; `now` is the time of conditions that have none. Returns the
/// errors of fields that the writer of this subresource may not write; validation checks the rest.
pub(super) fn retain_status(
    new: &mut Value,
    old: &Value,
    subresource: &str,
    now: Timestamp,
) -> Vec<FieldError> {
    let approval = subresource == "approval";
    let mut errors = Vec::new();
    let before = meta::list(old, "/status/conditions");
    let mut conditions = with_times(meta::list(new, "/status/conditions"), before, &time::rfc3339(now));
    if !approval {
        // The signer repeats the approval, but cannot change it.
        for condition in conditions.iter_mut().filter(|c| c["type"] == "Approved" || c["type"] == "Denied") {
            if let Some(old) = before.iter().find(|old| old["type"] == condition["type"]) {
                condition.clone_from(old);
            }
        }
    }
    let has = |list: &[Value], kind: &str| list.iter().any(|condition| condition["type"] == kind);
    for kind in VERDICTS {
        if has(&conditions, kind) && !has(before, kind) && !approval {
            let detail = format!("updates may not add a condition of type \"{kind}\"");
            errors.push(FieldError::forbidden(CONDITIONS, &detail));
        }
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

/// Returns the conditions with their times: those of before if they are the same.
fn with_times(list: &[Value], before: &[Value], now: &str) -> Vec<Value> {
    let mut list = list.to_vec();
    for condition in &mut list {
        let old = before.iter().find(|old| old["type"] == condition["type"]);
        let same = old.filter(|old| old["status"] == condition["status"]);
        let since = same.map(|old| meta::text(old, "/lastTransitionTime")).filter(|time| !time.is_empty());
        let Some(map) = condition.as_object_mut() else { continue };
        for (field, time) in [("lastUpdateTime", now), ("lastTransitionTime", since.unwrap_or(now))] {
            let given = map.get(field).and_then(Value::as_str).is_some_and(|time| !time.is_empty());
            if !given {
                map.insert(field.to_owned(), time.into());
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn request(status: Value) -> Value {
        json!({"metadata": {"name": "r"}, "spec": {"request": "x"}, "status": status})
    }

    fn condition(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "Because"})
    }

    fn messages(new: Value, old: &Value, approval: bool) -> (Value, Vec<String>) {
        let mut new = new;
        let subresource = if approval { "approval" } else { "status" };
        let errors = retain_status(&mut new, old, subresource, NOW.parse().unwrap());
        (new, errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect())
    }

    #[test]
    fn an_approver_writes_conditions_alone() {
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
    }

    #[test]
    fn a_signer_cannot_approve() {
        let old = request(json!({}));
        let new = request(json!({"conditions": [condition("Approved"), condition("Failed")]}));
        let (_, errors) = messages(new, &old, false);
        assert_eq!(
            errors,
            ["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""]
        );
        let signed = request(json!({"certificate": "Yw=="}));
        let (new, errors) = messages(signed, &old, false);
        assert!(errors.is_empty() && new["status"]["certificate"] == "Yw==");
    }
}
