//! Facts about pods that several components need.

use k8s_openapi::api::core::v1::{Pod, PodCondition, Taint, Toleration};

/// The annotation of a mirror pod, which shows in the API what a kubelet runs from a file.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns `status.phase`; `Pending` if it is not set.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Returns `true` if `phase` is one that a pod never leaves.
pub fn is_final(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Returns `true` if the pod has ended for good and no longer uses resources.
pub fn is_finished(pod: &Pod) -> bool {
    is_final(phase(pod))
}

/// Returns the condition of a type.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Returns `true` if the condition `Ready` is `True`.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Returns `true` if a toleration matches a taint (`Toleration.ToleratesTaint` of `k8s.io/api`, without the
/// operators `Lt` and `Gt` of the feature gate TaintTolerationComparisonOperators).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let agrees = |field: &Option<String>, wanted: &str| {
        field.as_deref().is_none_or(|field| field.is_empty() || field == wanted)
    };
    agrees(&toleration.effect, &taint.effect)
        && agrees(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            "Exists" => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn covers(toleration: Value) -> bool {
        let taint = json!({"key": "gpu", "value": "a", "effect": "NoExecute"});
        tolerates(&from_value(toleration).unwrap(), &from_value(taint).unwrap())
    }

    #[test]
    fn a_toleration_covers_taints_by_key_value_and_effect() {
        assert!(covers(json!({"operator": "Exists"})));
        assert!(covers(json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"})));
        assert!(covers(json!({"key": "gpu", "value": "a"})));
        assert!(covers(json!({"key": "gpu", "operator": "Equal", "value": "a", "effect": ""})));
        assert!(!covers(json!({"key": "gpu"})), "the value differs");
        assert!(!covers(json!({"key": "other", "operator": "Exists"})));
        assert!(!covers(json!({"operator": "Exists", "effect": "NoSchedule"})));
        assert!(!covers(json!({"key": "gpu", "operator": "Gt", "value": "1"})));
    }

    #[test]
    fn a_pod_without_a_status_is_pending_and_not_ready() {
        let pod = |status: Value| from_value::<Pod>(json!({"status": status})).unwrap();
        assert_eq!(phase(&Pod::default()), "Pending");
        assert!(!is_ready(&Pod::default()) && !is_finished(&Pod::default()));
        assert!(is_ready(&pod(json!({"conditions": [{"type": "Ready", "status": "True"}]}))));
        assert!(is_finished(&pod(json!({"phase": "Failed"}))));
    }
}
