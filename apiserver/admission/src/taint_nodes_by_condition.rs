//! TaintNodesByCondition: a new Node begins as not ready, so that no pod is scheduled to it before its
//! kubelet has reported and the node lifecycle controller has removed the taint.

use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{AdmissionRequest, Operation, Phase, Plugin};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const NO_SCHEDULE: &str = "NoSchedule";

/// Taints new Nodes as not ready.
pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Admit && request.is(Operation::Create, "Node")
    }

    async fn admit(&self, _: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        mutate(object);
        Ok(())
    }
}

/// Adds the taint to a Node that is created without it.
fn mutate(node: &mut Value) {
    let Some(node) = node.as_object_mut() else { return };
    let Some(spec) = node.entry("spec").or_insert_with(|| json!({})).as_object_mut() else { return };
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    if taints.is_null() {
        *taints = json!([]);
    }
    let Some(taints) = taints.as_array_mut() else { return };
    if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == NO_SCHEDULE) {
        taints.push(json!({"key": NOT_READY, "effect": NO_SCHEDULE}));
    }
}
