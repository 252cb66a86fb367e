//! Validation of statuses.

use serde_json::{Value, json};

use crate::testing::status_errors;

#[test]
fn workload_statuses_with_impossible_counts_are_refused() {
    let status = |fields: Value| json!({"status": fields});
    assert_eq!(
        status_errors(
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
        status_errors(
            "apps",
            "replicasets",
            status(json!({"replicas": 3, "availableReplicas": 1})),
            status(json!({}))
        ),
        ["status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas"]
    );
    let daemons = status(json!({"numberReady": 2}));
    assert!(status_errors("apps", "daemonsets", daemons.clone(), daemons).is_empty());
}

#[test]
fn namespaces_are_active_until_they_are_deleted() {
    let active = json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}});
    assert_eq!(
        status_errors("", "namespaces", active.clone(), active),
        [
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
        ]
    );
}
