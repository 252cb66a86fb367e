//! DefaultTolerationSeconds: a pod stays five minutes on a node that fails.

use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{AdmissionRequest, Operation, Phase, Plugin};

const SECONDS: i64 = 300;
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Bounds the time for which a pod stays on a node that fails.
pub struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        // A client that replaces a pod does not repeat what was added to it.
        phase == Phase::Admit
            && (request.is(Operation::Create, "Pod") || request.is(Operation::Update, "Pod"))
    }

    async fn admit(&self, _: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        mutate(object);
        Ok(())
    }
}

/// Adds tolerations that the pod does not have itself.
fn mutate(pod: &mut Value) {
    let present = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let tolerates = |taint: &str| {
        present.iter().any(|t| {
            let key = t["key"].as_str().unwrap_or_default();
            let effect = t["effect"].as_str().unwrap_or_default();
            (key == taint || key.is_empty()) && matches!(effect, "NoExecute" | "")
        })
    };
    let missing: Vec<Value> = TAINTS
        .iter()
        .filter(|taint| !tolerates(taint))
        .map(|taint| {
            json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS})
        })
        .collect();
    if !missing.is_empty() {
        let mut all = present;
        all.extend(missing);
        pod["spec"]["tolerations"] = Value::Array(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_added() {
        let mut pod = json!({"spec": {"tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]}});
        mutate(&mut pod);
        let list = pod["spec"]["tolerations"].as_array().unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[1]["key"], "node.kubernetes.io/unreachable");
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        mutate(&mut all);
        assert_eq!(all["spec"]["tolerations"].as_array().unwrap().len(), 1);
    }
}
