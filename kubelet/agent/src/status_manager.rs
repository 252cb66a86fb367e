//! Reports the status of pods to the API: immediately, only the changes, and always the latest state.

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

/// Initial delay after a refused patch.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Sends status changes until the pod has terminated and the API knows it, or until the API no longer has the
/// pod.
pub(crate) async fn run(agent: Arc<Agent>, tracked: Arc<TrackedPod>) {
    let mut versions = tracked.versions();
    let first = tracked.pod();
    let mut sent = as_json(&first.status.clone().unwrap_or_default());
    // Newest revision of the pod that has been seen.
    let mut newest_seen = revision(&first);
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
        if revision(&theirs) > newest_seen {
            newest_seen = revision(&theirs);
            take_over_conditions(&mut sent, &as_json(&theirs.status.clone().unwrap_or_default()));
        }
        if let Some(patch) = patch(&sent, &wanted) {
            match send(&agent, &tracked, patch).await {
                Sent::Done(revision) => {
                    sent = wanted;
                    newest_seen = newest_seen.max(revision);
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
    /// Succeeded, with the pod's revision after the write.
    Done(Option<u64>),
    /// The pod no longer exists.
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
        // Another pod has the same name now.
        Ok(Err(kube::Error::Api(answer))) if names_uid(answer.code, &answer.message) => Sent::Gone,
        Ok(Err(error)) => {
            warn!(pod = %tracked.place.name, error = &error as &dyn std::error::Error, "cannot write the status of a pod");
            Sent::Failed
        }
        Err(_) => {
            debug!(pod = %tracked.place.name, "the API server does not answer");
            Sent::Failed
        }
    }
}

/// Returns the revision of a pod, which orders its states (KEP-5504); `None` if the API server's revisions
/// are not numbers.
fn revision(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// Replaces the conditions that were last sent by those of the API if others have changed them. The node
/// lifecycle controller sets Ready to False when it misses heartbeats of the node, and only the kubelet sets
/// it back.
fn take_over_conditions(sent: &mut Map<String, Value>, theirs: &Map<String, Value>) {
    let theirs = entries(theirs.get("conditions"));
    let is_changed = |ours: &Value| {
        let their = theirs.iter().find(|their| their["type"] == ours["type"]);
        their.is_none_or(|their| their["status"] != ours["status"])
    };
    if entries(sent.get("conditions")).iter().any(is_changed) {
        sent.insert("conditions".to_owned(), Value::Array(theirs.to_vec()));
    }
}

/// Returns `true` if an error means that the pod's uid has changed: either a conflict that is not about the
/// revision, or an immutable field. Neither goes away on retry.
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

/// Status fields that this kubelet writes and therefore also removes.
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

/// Returns the strategic merge patch between two statuses, if they differ. Conditions of other components are
/// not touched.
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

/// Returns the patch of the conditions. They are merged by type, field by field, so fields that are no longer
/// set must be nulled.
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

/// Returns the patch of the addresses. They are merged by address, so old ones must be deleted explicitly.
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
    fn an_unchanged_status_gives_no_patch() {
        let status = map(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        assert_eq!(patch(&status, &status), None);
        let mut with_stranger = status.clone();
        with_stranger["conditions"].as_array_mut().unwrap().push(json!({"type": "x/y", "status": "True"}));
        assert_eq!(patch(&with_stranger, &status), None, "conditions of others are not ours to remove");
    }

    #[test]
    fn conditions_changed_by_others_are_sent_again() {
        let wanted = map(
            json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "A", "status": "True"}]}),
        );
        let mut sent = wanted.clone();
        take_over_conditions(&mut sent, &wanted);
        assert_eq!(patch(&sent, &wanted), None);
        let stranger = json!({"type": "x/y", "status": "True"});
        take_over_conditions(
            &mut sent,
            &map(json!({"conditions": [
                {"type": "Ready", "status": "False", "reason": "r"}, {"type": "A", "status": "True"}, stranger,
            ]})),
        );
        let again = json!({"conditions": [{"type": "Ready", "status": "True", "reason": null}]});
        assert_eq!(patch(&sent, &wanted), Some(again));
        // Changed times and messages alone are not a reason.
        let mut sent = wanted.clone();
        let other_words = json!({"conditions": [
            {"type": "Ready", "status": "True", "message": "m"}, {"type": "A", "status": "True"},
        ]});
        take_over_conditions(&mut sent, &map(other_words));
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
    fn fields_that_are_no_longer_set_are_removed() {
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
