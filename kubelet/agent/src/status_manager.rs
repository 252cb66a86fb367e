//! Tells the API how a pod is: at once, only what changed, and always the newest.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{agent::Agent, limits, pod::resize, tracked::TrackedPod};

/// First pause after a refused patch.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Sends each change until the pod has terminated and the API knows it, or until the API has no such
/// pod any more.
pub(crate) async fn run(agent: Arc<Agent>, tracked: Arc<TrackedPod>) {
    let mut versions = tracked.versions();
    let first = tracked.pod();
    let mut sent = as_json(&first.status.clone().unwrap_or_default());
    // What the API has said, up to here.
    let mut heard = revision(&first);
    let mut pause = MIN_PAUSE;
    let mut started = false;
    let first_seen = Instant::now();
    loop {
        versions.mark_unchanged();
        let terminated = tracked.state().terminated;
        let status = tracked.compute_status(&agent);
        if !started && status.phase.as_deref() == Some("Running") {
            started = true;
            agent.metrics.pod_start.observe(first_seen.elapsed().as_secs_f64());
        }
        let wanted = as_json(&status);
        let theirs = tracked.pod();
        if revision(&theirs) > heard {
            heard = revision(&theirs);
            doubt(&mut sent, &as_json(&theirs.status.clone().unwrap_or_default()));
        }
        if let Some(patch) = patch(&sent, &wanted) {
            match send(&agent, &tracked, patch).await {
                Sent::Done(revision) => {
                    sent = wanted;
                    heard = heard.max(revision);
                    pause = MIN_PAUSE;
                    continue;
                }
                Sent::Gone => return,
                Sent::Failed => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                    continue;
                }
            }
        }
        if terminated || versions.changed().await.is_err() {
            return;
        }
    }
}

enum Sent {
    /// With the pod's revision after it.
    Done(Option<u64>),
    /// There is no such pod any more.
    Gone,
    Failed,
}

async fn send(agent: &Agent, tracked: &TrackedPod, status: Value) -> Sent {
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), &tracked.place.namespace);
    let patch = json!({"metadata": {"uid": tracked.place.uid}, "status": status});
    let began = Instant::now();
    let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let request = api.patch_status(&tracked.place.name, &parameters, &patch);
    match tokio::time::timeout(limits::API_DEADLINE, request).await {
        Ok(Ok(pod)) => {
            agent.metrics.status_pushes.add(1);
            agent.metrics.status_push.observe(began.elapsed().as_secs_f64());
            Sent::Done(revision(&pod))
        }
        Ok(Err(kube::Error::Api(answer))) if answer.code == 404 => Sent::Gone,
        // Another pod has taken the name.
        Ok(Err(kube::Error::Api(answer))) if names_uid(answer.code, &answer.message) => Sent::Gone,
        Ok(Err(error)) => {
            warn!(pod = %tracked.place.name, error = &error as &dyn std::error::Error, "a status was not taken");
            Sent::Failed
        }
        Err(_) => {
            debug!(pod = %tracked.place.name, "the apiserver does not answer");
            Sent::Failed
        }
    }
}

/// Which of two states of a pod is the newer one (KEP-5504); none where the API does not count.
fn revision(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// Takes conditions as they are, where others have changed what was sent of them: a pod is not ready for
/// those who had not heard of its node for a while, and nobody but the kubelet takes that back.
fn doubt(sent: &mut Map<String, Value>, theirs: &Map<String, Value>) {
    let theirs = entries(theirs.get("conditions"));
    let is_changed = |ours: &Value| {
        let their = theirs.iter().find(|their| their["type"] == ours["type"]);
        their.is_none_or(|their| their["status"] != ours["status"])
    };
    if entries(sent.get("conditions")).iter().any(is_changed) {
        sent.insert("conditions".to_owned(), Value::Array(theirs.to_vec()));
    }
}

/// Whether an answer says that the uid is another one: as a conflict that is not about a revision, or as a field
/// that cannot be changed. Neither passes.
fn names_uid(code: u16, message: &str) -> bool {
    match code {
        409 => message.to_ascii_lowercase().contains("uid"),
        422 => message.contains("metadata.uid"),
        _ => false,
    }
}

fn as_json(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Fields of the status that this kubelet writes, so that it also takes them back.
const OWNED: [&str; 15] = [
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "hostIPs",
    "initContainerStatuses",
    "message",
    "observedGeneration",
    "phase",
    "podIP",
    "podIPs",
    "qosClass",
    "reason",
    "startTime",
    "conditions",
    "resize",
];

/// The strategic merge patch between two statuses, or nothing. Conditions of others stay.
fn patch(before: &Map<String, Value>, after: &Map<String, Value>) -> Option<Value> {
    let mut patch = Map::new();
    for field in OWNED {
        let (old, new) = (before.get(field), after.get(field));
        match field {
            _ if old == new => {}
            "conditions" => {
                let changed = changed_conditions(old, new);
                if !changed.is_empty() {
                    patch.insert(field.to_owned(), Value::Array(changed));
                }
            }
            "podIPs" | "hostIPs" => {
                patch.insert(field.to_owned(), Value::Array(changed_addresses(old, new)));
            }
            _ => {
                patch.insert(field.to_owned(), new.cloned().unwrap_or(Value::Null));
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn entries(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Conditions that this kubelet adds and removes.
const TEMPORARY: [&str; 2] = [resize::PENDING, resize::IN_PROGRESS];

/// Conditions are merged by type, field by field: what is no longer said must be taken back.
fn changed_conditions(old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let mut changed = Vec::new();
    for condition in entries(new) {
        let before = entries(old).iter().find(|other| other["type"] == condition["type"]);
        if before == Some(condition) {
            continue;
        }
        let mut condition = condition.clone();
        if let Some(map) = condition.as_object_mut() {
            let stale = before.and_then(Value::as_object).into_iter().flat_map(Map::keys);
            let stale: Vec<String> = stale.filter(|key| !map.contains_key(*key)).cloned().collect();
            map.extend(stale.into_iter().map(|key| (key, Value::Null)));
        }
        changed.push(condition);
    }
    for kind in TEMPORARY {
        let has = |list| entries(list).iter().any(|condition| condition["type"] == kind);
        if has(old) && !has(new) {
            changed.push(json!({"$patch": "delete", "type": kind}));
        }
    }
    changed
}

/// Addresses are merged by themselves: old ones must be deleted by name.
fn changed_addresses(old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let mut list = entries(new).to_vec();
    for entry in entries(old).iter().filter(|entry| !entries(new).contains(entry)) {
        list.push(json!({"$patch": "delete", "ip": entry["ip"]}));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn nothing_changed_is_no_patch() {
        let status = map(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        assert_eq!(patch(&status, &status), None);
        let mut with_stranger = status.clone();
        with_stranger["conditions"].as_array_mut().unwrap().push(json!({"type": "x/y", "status": "True"}));
        assert_eq!(patch(&with_stranger, &status), None, "conditions of others are not ours to remove");
    }

    #[test]
    fn what_others_have_changed_is_said_again() {
        let wanted = map(
            json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "A", "status": "True"}]}),
        );
        let mut sent = wanted.clone();
        doubt(&mut sent, &wanted);
        assert_eq!(patch(&sent, &wanted), None);
        let stranger = json!({"type": "x/y", "status": "True"});
        doubt(
            &mut sent,
            &map(json!({"conditions": [
                {"type": "Ready", "status": "False", "reason": "r"}, {"type": "A", "status": "True"}, stranger,
            ]})),
        );
        let again = json!({"conditions": [{"type": "Ready", "status": "True", "reason": null}]});
        assert_eq!(patch(&sent, &wanted), Some(again));
        // Times and words alone are no reason.
        let mut sent = wanted.clone();
        let other_words = json!({"conditions": [
            {"type": "Ready", "status": "True", "message": "m"}, {"type": "A", "status": "True"},
        ]});
        doubt(&mut sent, &map(other_words));
        assert_eq!(patch(&sent, &wanted), None);
    }

    #[test]
    fn conditions_of_a_resize_are_removed_when_it_is_done() {
        let ready = json!({"type": "Ready", "status": "True"});
        let resizing = json!({"type": "PodResizeInProgress", "status": "True"});
        let stranger = json!({"type": "x/y", "status": "True"});
        let before = map(json!({"conditions": [ready, resizing, stranger]}));
        let after = map(json!({"conditions": [ready]}));
        let gone = json!({"conditions": [{"$patch": "delete", "type": "PodResizeInProgress"}]});
        assert_eq!(patch(&before, &after), Some(gone));
    }

    #[test]
    fn what_is_no_longer_said_is_taken_back() {
        let before = map(json!({
            "phase": "Pending", "reason": "x", "podIPs": [{"ip": "1"}],
            "conditions": [{"type": "Ready", "status": "False", "reason": "r"}, {"type": "A", "status": "True"}],
        }));
        let after = map(json!({
            "phase": "Running", "podIPs": [{"ip": "2"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "A", "status": "True"}],
        }));
        assert_eq!(
            patch(&before, &after),
            Some(json!({
                "phase": "Running", "reason": null, "podIPs": [{"ip": "2"}, {"$patch": "delete", "ip": "1"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": null}],
            }))
        );
    }
}
