//! The kinds whose objects keep a given number of pods of one template. ReplicationControllers are the older one; their
//! status is that of a ReplicaSet without the number of terminating pods.

use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::index::Selects;

/// A kind whose objects keep a given number of pods of one template.
pub(super) trait Replicated:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Selects
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
    /// Name of the queue.
    const QUEUE: &'static str;
    /// Source of the events.
    const COMPONENT: &'static str;

    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn status(&self) -> ReplicaSetStatus;
    /// Returns the object with another status.
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

impl Replicated for ReplicaSet {
    const QUEUE: &'static str = "replicaset";
    const COMPONENT: &'static str = "replicaset-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        Self { status: Some(status), ..self.clone() }
    }
}

impl Replicated for ReplicationController {
    const QUEUE: &'static str = "replicationmanager";
    const COMPONENT: &'static str = "replication-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        let status = self.status.clone().unwrap_or_default();
        let condition = |one: ReplicationControllerCondition| ReplicaSetCondition {
            type_: one.type_,
            status: one.status,
            reason: one.reason,
            message: one.message,
            last_transition_time: one.last_transition_time,
        };
        ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            terminating_replicas: None,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
        }
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        let condition = |one: ReplicaSetCondition| ReplicationControllerCondition {
            type_: one.type_,
            status: one.status,
            reason: one.reason,
            message: one.message,
            last_transition_time: one.last_transition_time,
        };
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
        };
        Self { status: Some(status), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{meta, selector, template};
    use serde_json::json;

    #[test]
    fn a_replication_controller_is_read_and_written_as_a_replica_set() {
        let status = json!({"replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 2, "availableReplicas": 1,
            "observedGeneration": 5, "conditions": [{"type": "ReplicaFailure", "status": "True",
                "reason": "FailedCreate", "message": "quota"}]});
        let spec = json!({"replicas": 4, "minReadySeconds": 7, "selector": {"app": "test"},
            "template": template("image:1")});
        let controller = ReplicationController {
            metadata: meta("rc"),
            spec: serde_json::from_value(spec).unwrap(),
            status: serde_json::from_value(status.clone()).unwrap(),
        };
        assert_eq!((controller.replicas(), controller.min_ready_seconds()), (4, 7));
        assert_eq!(Selects::selector(&controller).unwrap().full().into_owned(), selector());
        assert_eq!(controller.template(), Some(&template("image:1")));
        let common = Replicated::status(&controller);
        assert_eq!(serde_json::to_value(&common).unwrap(), status);
        assert_eq!(controller.with_status(common), controller);
        let leaving = ReplicaSetStatus { terminating_replicas: Some(1), ..ReplicaSetStatus::default() };
        let written = serde_json::to_value(controller.with_status(leaving)).unwrap();
        assert_eq!(written["status"], json!({"replicas": 0}));
    }
}
