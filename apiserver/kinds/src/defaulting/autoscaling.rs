//! HorizontalPodAutoscaler.

use serde_json::{Value, json};

use super::{fill, fill_absent, is_empty, object, with_spec};

/// Defaults of a HorizontalPodAutoscaler: 80 % of the CPU requested, where no metric is named.
pub fn horizontal(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "minReplicas", 1);
        if is_empty(spec, "metrics") {
            spec.insert(
                "metrics".into(),
                json!([{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
            );
        }
        let Some(behavior) = object(spec, "behavior") else { return };
        if let Some(up) = super::made(behavior, "scaleUp") {
            fill(up, "stabilizationWindowSeconds", 0);
            fill_absent(up, "selectPolicy", "Max");
            // A list that was sent empty stays so, and is refused.
            fill_absent(
                up,
                "policies",
                json!([{"type": "Pods", "value": 4, "periodSeconds": 15},
                       {"type": "Percent", "value": 100, "periodSeconds": 15}]),
            );
        }
        if let Some(down) = super::made(behavior, "scaleDown") {
            fill_absent(down, "selectPolicy", "Max");
            fill_absent(down, "policies", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
        }
    });
}
