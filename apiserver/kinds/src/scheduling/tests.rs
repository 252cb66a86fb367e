use serde_json::{Value, json};

use crate::testing::{NONE, assert_refused, errors, errors_at};

#[test]
fn workloads_with_wrong_groups_are_refused() {
    let path = "scheduling.k8s.io/v1alpha2/workloads";
    let base = json!({"spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": {"gang": {"minCount": 2}}}]}});
    assert_refused(
        path,
        &base,
        &[
            (
                json!({"spec": {"podGroupTemplates": []}}),
                &["spec.podGroupTemplates: Required value: must have at least one item"],
            ),
            (
                json!({"spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": {}}]}}),
                &[
                    "spec.podGroupTemplates[0].schedulingPolicy: Invalid value: \"\": must specify one of: `basic`, `gang`",
                ],
            ),
        ],
    );
    let many: Vec<Value> =
        (0..9).map(|i| json!({"name": format!("g{i}"), "schedulingPolicy": {"basic": {}}})).collect();
    assert_eq!(
        errors_at(path, &json!({"spec": {"podGroupTemplates": many}})),
        ["spec.podGroupTemplates: Too many: 9: must have at most 8 items"]
    );
}

#[test]
fn priority_classes_of_the_system_are_reserved() {
    let class = json!({"metadata": {"name": "system-mine"}, "value": 2_000_000_000});
    assert_eq!(errors("scheduling.k8s.io", "priorityclasses", &class).len(), 1);
    let system = json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000});
    assert_eq!(errors("scheduling.k8s.io", "priorityclasses", &system), NONE);
}
