use serde_json::json;

use crate::testing::errors;

#[test]
fn disruption_budgets_with_wrong_amounts_are_refused() {
    assert_eq!(
        errors(
            "policy",
            "poddisruptionbudgets",
            &json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": "150%", "unhealthyPodEvictionPolicy": "Maybe"}})
        ),
        [
            "spec.maxUnavailable: Invalid value: \"150%\": must not be greater than 100%",
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Maybe\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ]
    );
}

#[test]
fn disruption_budgets_with_both_bounds_are_refused() {
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "maxUnavailable": 1}});
    assert_eq!(errors("policy", "poddisruptionbudgets", &budget).len(), 1);
}
