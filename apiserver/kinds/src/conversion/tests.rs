use serde_json::json;

use super::*;

fn of(version: &str, plural: &str) -> &'static Conversion {
    let (group, version) = version.split_once('/').unwrap();
    Conversion::of(group, version, plural).unwrap()
}

#[track_caller]
fn round_trip(conversion: &Conversion, stored: &Value) -> Value {
    let mut object = stored.clone();
    conversion.from_stored(&mut object);
    let served = object.clone();
    assert_eq!(Conversion::of_object(&served).map(|c| c.path()), Some(conversion.path()));
    conversion.to_stored(&mut object);
    assert_eq!(object, *stored);
    served
}

#[test]
fn stored_versions_need_no_conversion() {
    assert!(Conversion::of("", "v1", "events").is_none());
    assert!(Conversion::of("autoscaling", "v2", "horizontalpodautoscalers").is_none());
    assert!(Conversion::of("resource.k8s.io", "v1alpha3", "devicetaintrules").is_none());
    assert!(Conversion::concerns("events.k8s.io/v1") && Conversion::concerns("resource.k8s.io/v1beta2"));
    assert!(!Conversion::concerns("v1") && !Conversion::concerns("apps/v1"));
    assert!(!of("networking.k8s.io/v1beta1", "ipaddresses").reshapes());
}

#[test]
fn events_survive_a_conversion_and_its_reverse() {
    let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod"}, "message": "m", "reason": "r", "count": 2,
        "source": {"component": "c"}, "reportingComponent": "kubelet"});
    let event = round_trip(of("events.k8s.io/v1", "events"), &core);
    assert_eq!(event["regarding"]["kind"], "Pod");
    assert_eq!((&event["note"], &event["deprecatedSource"]["component"]), (&json!("m"), &json!("c")));
    assert_eq!(event["reportingController"], "kubelet");
}

#[test]
fn autoscalers_carry_fields_unknown_to_v1_in_annotations() {
    let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}});
    let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {
            "maxReplicas": 3,
            "metrics": [
                {"type": "Pods", "pods": {"metric": {"name": "x", "selector": {"matchLabels": {"a": "b"}}},
                    "target": {"type": "AverageValue", "averageValue": "5"}}},
                {"type": "Object", "object": {"metric": {"name": "y"}, "describedObject": {"kind": "K", "name": "n"},
                    "target": {"type": "Value", "value": "7"}}},
                {"type": "External", "external": {"metric": {"name": "z"},
                    "target": {"type": "AverageValue", "averageValue": "1"}}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                    "target": {"type": "Utilization", "averageUtilization": 5}}},
                {"type": "Resource", "resource": cpu}],
            "behavior": {"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}},
        "status": {"currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                "current": {"averageUtilization": 60, "averageValue": "9m"}}}],
            "conditions": [{"type": "AbleToScale", "status": "True"}]}});
    let v1 = round_trip(of("autoscaling/v1", "horizontalpodautoscalers"), &v2);
    assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 80);
    assert_eq!(v1["status"], json!({"currentCPUUtilizationPercentage": 60}));
    let annotation = |name: &str| -> Value {
        let text = &v1["metadata"]["annotations"][format!("autoscaling.alpha.kubernetes.io/{name}")];
        serde_json::from_str(text.as_str().unwrap()).unwrap()
    };
    assert_eq!(annotation("metrics")[0]["pods"]["targetAverageValue"], "5");
    assert_eq!(annotation("metrics")[1]["object"]["targetValue"], "7");
    assert_eq!(annotation("metrics")[1]["object"]["target"]["kind"], "K");
    assert_eq!(annotation("behavior")["ScaleUp"]["Policies"][0]["PeriodSeconds"], 15);
    assert_eq!(annotation("conditions")[0]["type"], "AbleToScale");
}

#[test]
fn claims_nest_requests_and_slices_nest_devices_in_v1beta1() {
    let request =
        json!({"name": "r", "exactly": {"deviceClassName": "c", "count": 1, "allocationMode": "ExactCount"}});
    let other = json!({"name": "s", "firstAvailable": [{"name": "t", "deviceClassName": "d"}]});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [request, other]}}});
    let old = round_trip(of("resource.k8s.io/v1beta1", "resourceclaims"), &claim);
    assert_eq!(old["spec"]["devices"]["requests"][0]["deviceClassName"], "c");
    assert_eq!(old["spec"]["devices"]["requests"][1], other);
    round_trip(of("resource.k8s.io/v1beta2", "resourceclaims"), &claim);
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "c"}, "spec": {"spec": {"devices": {"requests": [request]}}}});
    let old = round_trip(of("resource.k8s.io/v1beta1", "resourceclaimtemplates"), &template);
    assert_eq!(old["spec"]["spec"]["devices"]["requests"][0]["count"], 1);
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "c"},
        "spec": {"devices": [{"name": "d", "attributes": {"a": {"int": 1}}}, {"name": "e"}]}});
    let old = round_trip(of("resource.k8s.io/v1beta1", "resourceslices"), &slice);
    assert_eq!(old["spec"]["devices"][0]["basic"]["attributes"]["a"]["int"], 1);
    assert_eq!(old["spec"]["devices"][1], json!({"name": "e", "basic": {}}));
}
