//! Writes of a status, for kinds whose status has rules. Kubernetes judges such a write by the
//! status and the metadata alone: a spec of long ago that would be refused today does not stop a
//! controller from reporting.

use serde_json::{Value, json};

use super::{
    Errors, csi, flowcontrol, items, job_status, metadata, network, node, pod_status, quota, service, shared,
    text,
};
use apiserver_schema::error::FieldError;

/// Errors of a status: new, old.
pub type CheckStatus = fn(&Value, &Value) -> Vec<FieldError>;

/// Returns the validation of a kind's status, if it has one.
pub fn of(group: &str, plural: &str) -> Option<CheckStatus> {
    Some(match (group, plural) {
        ("", "pods") => pod_status::validate,
        ("", "nodes") => node::validate_status,
        ("", "services") => service::validate_status,
        ("", "resourcequotas") => quota::resource_quota_status,
        ("", "namespaces") => namespace,
        ("", "persistentvolumes") => nothing,
        ("storage.k8s.io", "volumeattachments") => csi::attachment_status,
        ("", "replicationcontrollers") | ("apps", "replicasets") => replicas,
        ("apps", "deployments") => deployment,
        ("apps", "statefulsets") => stateful_set,
        ("apps", "daemonsets") => daemon_set,
        ("batch", "jobs") => job_status::validate,
        ("policy", "poddisruptionbudgets") => budget,
        ("networking.k8s.io", "ingresses") => network::ingress_status,
        ("networking.k8s.io", "servicecidrs") => nothing,
        ("flowcontrol.apiserver.k8s.io", _) => flowcontrol::status,
        _ => return None,
    })
}

/// [`of`] with what holds for the metadata of every write.
pub fn check(group: &str, plural: &str) -> Option<impl Fn(&Value, &Value) -> Vec<FieldError> + use<>> {
    let status = of(group, plural)?;
    Some(move |new: &Value, old: &Value| {
        let mut errors = Errors::default();
        metadata::common(new, &mut errors);
        errors.extend(status(new, old));
        errors.list()
    })
}

fn nothing(_: &Value, _: &Value) -> Vec<FieldError> {
    Vec::new()
}

fn namespace(new: &Value, _: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let phase = text(&new["status"], "phase");
    let going = apiserver_schema::meta::deletion_timestamp(new).is_some();
    let (wanted, when) = if going {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    if phase != wanted {
        errors.invalid("status.Phase", &json!(phase), when);
    }
    errors.list()
}

fn number(status: &Value, field: &str) -> i64 {
    status[field].as_i64().unwrap_or(0)
}

fn counts(status: &Value, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        errors.not_negative(format!("status.{field}"), status.get(*field));
    }
}

/// No count is greater than the one it is part of.
fn parts(status: &Value, pairs: &[(&str, &str, &str)], errors: &mut Errors) {
    for (part, whole, shown) in pairs {
        let count = number(status, part);
        if count > number(status, whole) {
            let detail = format!("cannot be greater than {shown}");
            errors.invalid(format!("status.{part}"), &json!(count), &detail);
        }
    }
}

fn replicas(new: &Value, _: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    counts(&new["status"], &fields, &mut errors);
    let pairs = [
        ("fullyLabeledReplicas", "replicas", "status.replicas"),
        ("readyReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ];
    parts(&new["status"], &pairs, &mut errors);
    errors.list()
}

fn deployment(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    counts(&new["status"], &fields, &mut errors);
    let pairs = [
        ("updatedReplicas", "replicas", "status.replicas"),
        ("readyReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ];
    parts(&new["status"], &pairs, &mut errors);
    collisions(new, old, &mut errors);
    errors.list()
}

/// Clashes of names are counted and never forgotten.
fn collisions(new: &Value, old: &Value, errors: &mut Errors) {
    let count = |object: &Value| object["status"]["collisionCount"].as_i64();
    if let Some(was) = count(old)
        && count(new).is_none_or(|now| now < was)
    {
        let shown = json!(count(new).unwrap_or(0));
        errors.invalid("status.collisionCount", &shown, "cannot be decremented");
    }
}

fn stateful_set(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    counts(&new["status"], &fields, &mut errors);
    let pairs = [
        ("readyReplicas", "replicas", "status.replicas"),
        ("currentReplicas", "replicas", "status.replicas"),
        ("updatedReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "status.readyReplicas"),
    ];
    parts(&new["status"], &pairs, &mut errors);
    collisions(new, old, &mut errors);
    errors.list()
}

fn daemon_set(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    counts(&new["status"], &fields, &mut errors);
    collisions(new, old, &mut errors);
    errors.list()
}

fn budget(new: &Value, _: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let fields = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    shared::conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
    counts(&new["status"], &fields, &mut errors);
    errors.list()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(group: &str, plural: &str, new: Value, old: Value) -> Vec<String> {
        let errors = of(group, plural).unwrap()(&new, &old);
        errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
    }

    #[test]
    fn counts_of_workloads() {
        let status = |fields: Value| json!({"status": fields});
        assert_eq!(
            faults(
                "apps",
                "deployments",
                status(
                    json!({"replicas": 1, "readyReplicas": 2, "unavailableReplicas": -1, "collisionCount": 1})
                ),
                status(json!({"collisionCount": 2}))
            ),
            [
                "status.unavailableReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.collisionCount: Invalid value: 1: cannot be decremented",
            ]
        );
        assert_eq!(
            faults(
                "apps",
                "replicasets",
                status(json!({"replicas": 3, "availableReplicas": 1})),
                status(json!({}))
            ),
            ["status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas"]
        );
        let daemons = status(json!({"numberReady": 2}));
        assert!(faults("apps", "daemonsets", daemons.clone(), daemons).is_empty());
    }

    #[test]
    fn phases_of_namespaces() {
        let active = json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}});
        assert_eq!(
            faults("", "namespaces", active.clone(), active),
            [
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
            ]
        );
    }

    #[test]
    fn pods_do_not_come_back_to_life() {
        let pod = |policy: &str, state: Value| {
            json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c"}]},
                   "status": {"containerStatuses": [{"name": "c", "state": state}]}})
        };
        let (ended, running) = (json!({"terminated": {"exitCode": 0}}), json!({"running": {}}));
        for (policy, count) in [("Always", 0), ("OnFailure", 1), ("Never", 1)] {
            let found = faults("", "pods", pod(policy, running.clone()), pod(policy, ended.clone()));
            assert_eq!(found.len(), count, "{policy}: {found:?}");
        }
        let mut two = pod("Always", running.clone());
        two["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]);
        two["status"]["hostIPs"] = json!([{"ip": "10.0.0.9"}]);
        assert_eq!(
            faults("", "pods", two, pod("Always", running)),
            [
                "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
                "status.hostIPs[0].ip: Invalid value: \"10.0.0.9\": must be equal to `hostIP`",
            ]
        );
    }
}
