use serde_json::{Value, json};

use crate::autoscaling::horizontal_pod_autoscaler;
use crate::testing::{apply_defaults, errors, row};

#[test]
fn autoscalers_get_a_cpu_target_and_policies() {
    let scaler =
        apply_defaults(horizontal_pod_autoscaler::default, json!({"spec": {"behavior": {"scaleUp": {}}}}));
    assert_eq!(scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
    assert_eq!(scaler["spec"]["behavior"]["scaleUp"]["policies"].as_array().unwrap().len(), 2);
}

#[test]
fn autoscalers_with_wrong_fields_are_refused() {
    let check = |spec: Value, wanted: &[&str]| {
        let mut object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        assert_eq!(errors("autoscaling", "horizontalpodautoscalers", &object), wanted, "{spec}");
    };
    check(json!({}), &[]);
    check(
        json!({"minReplicas": 5, "scaleTargetRef": {"apiVersion": "a/v1", "name": "a/b"}}),
        &[
            "spec.maxReplicas: Invalid value: 3: must be greater than or equal to `minReplicas`",
            "spec.scaleTargetRef.kind: Required value",
            "spec.scaleTargetRef.name: Invalid value: \"a/b\": may not contain '/'",
        ],
    );
    check(
        json!({"metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 0}}},
        {"type": "Pods", "pods": {"metric": {"name": "x"}, "target": {"type": "AverageValue", "averageValue": "0"}}},
        {"type": "Object"},
        {"type": "External", "external": {"metric": {"name": ""}, "target": {"type": "Value", "value": "1", "averageValue": "1"}}, "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 1}}}]}),
        &[
            "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
            "spec.metrics[1].pods.target.averageValue: Invalid value: \"0\": must be positive",
            "spec.metrics[1].pods.target.averageValue: Required value: must specify a positive target averageValue",
            "spec.metrics[2].object: Required value: must populate information for the given metric source",
            "spec.metrics[3].external.metric.name: Required value: must specify a metric name",
            "spec.metrics[3].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
            "spec.metrics[3].resource: Forbidden: must populate the given metric source only",
        ],
    );
    check(
        json!({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 4000, "selectPolicy": "Most", "policies": [{"type": "Nodes", "value": 0, "periodSeconds": 2000}]}}}),
        &[
            "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600",
            "spec.behavior.scaleUp.selectPolicy: Unsupported value: \"Most\": supported values: \"Disabled\", \"Max\", \"Min\"",
            "spec.behavior.scaleUp.policies[0].type: Unsupported value: \"Nodes\": supported values: \"Percent\", \"Pods\"",
            "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
            "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 2000: must be less than or equal to 1800",
        ],
    );
}

#[test]
fn rows_of_autoscalers_show_utilization_and_target() {
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"},
        "minReplicas": 1, "maxReplicas": 5, "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 80}}}]},
        "status": {"currentReplicas": 2, "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": 10}}}]}});
    assert_eq!(
        row("autoscaling", "horizontalpodautoscalers", &scaler),
        "h | Deployment/d | cpu: 10%/80% | 1 | 5 | 2 | <unknown>"
    );
}

#[test]
fn rows_of_autoscalers_show_the_first_two_metrics() {
    let autoscaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "D", "name": "d"}, "metrics": [
        {"type": "External", "external": {"metric": {"name": "q"}, "target": {"averageValue": "3"}}},
        {"type": "Pods", "pods": {"metric": {"name": "p"}, "target": {"averageValue": "7"}}},
        {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 50}}}]},
        "status": {"currentReplicas": 2, "currentMetrics": [{"type": "External", "external": {"current": {"averageValue": "1"}}}]}});
    assert_eq!(
        row("autoscaling", "horizontalpodautoscalers", &autoscaler),
        "h | D/d | 1/3 (avg), <unknown>/7 + 1 more... | <unset> | 5 | 2 | <unknown>"
    );
}
