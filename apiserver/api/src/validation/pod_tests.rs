use serde_json::{Value, json};

use super::pod;
use crate::defaulting;

fn pod_with(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    change(&mut pod);
    defaulting::pod::default(&mut pod);
    pod
}

/// Each error as `FIELD: MESSAGE`.
fn errors(pod: &Value) -> Vec<String> {
    pod::validate(pod).iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

/// The errors of a pod whose spec gets `fields` on top.
fn spec_errors(fields: Value) -> Vec<String> {
    errors(&pod_with(|pod| merge(&mut pod["spec"], fields)))
}

/// The errors of a pod whose only container gets `fields` on top.
fn container_errors(fields: Value) -> Vec<String> {
    errors(&pod_with(|pod| merge(&mut pod["spec"]["containers"][0], fields)))
}

fn merge(target: &mut Value, fields: Value) {
    for (key, value) in fields.as_object().unwrap() {
        target[key] = value.clone();
    }
}

#[test]
fn a_plain_pod_is_valid() {
    assert_eq!(spec_errors(json!({})), Vec::<String>::new());
}

#[test]
fn names_and_images_of_containers() {
    assert_eq!(spec_errors(json!({"containers": []})), ["spec.containers: Required value"]);
    assert_eq!(
        spec_errors(
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}, {"image": ""}]})
        ),
        [
            "spec.containers[1].name: Duplicate value: \"c\"",
            "spec.containers[2].name: Required value",
            "spec.containers[2].image: Required value",
        ]
    );
    let bad = container_errors(json!({"name": "C_1"}));
    assert_eq!(bad.len(), 1);
    assert!(
        bad[0]
            .starts_with("spec.containers[0].name: Invalid value: \"C_1\": a lowercase RFC 1123 label must")
    );
    assert_eq!(
        spec_errors(json!({"initContainers": [{"name": "c", "image": "i"}]})),
        ["spec.initContainers[0].name: Duplicate value: \"c\""]
    );
}

#[test]
fn ports() {
    assert_eq!(
        container_errors(json!({"ports": [
            {"containerPort": 70000}, {"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2},
            {"containerPort": 3, "hostPort": 99, "protocol": "ICMP"}, {"containerPort": 3, "hostPort": 99, "protocol": "ICMP"}]})),
        [
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[2].name: Duplicate value: \"a\"",
            "spec.containers[0].ports[3].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            "spec.containers[0].ports[4].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            "spec.containers[0].ports[4].hostPort: Duplicate value: \"ICMP//99\"",
        ]
    );
}

#[test]
fn volumes_and_mounts() {
    assert_eq!(
        errors(&pod_with(|pod| {
            pod["spec"]["volumes"] = json!([
                {"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}, {"name": "v", "configMap": {}}]);
            pod["spec"]["containers"][0]["volumeMounts"] = json!([
                {"name": "v", "mountPath": "/a"}, {"name": "gone", "mountPath": "/a", "subPath": "../x"}]);
        })),
        [
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[1].name: Duplicate value: \"v\"",
            "spec.volumes[1].configMap.name: Required value",
            "spec.containers[0].volumeMounts[1].name: Not found: \"gone\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
            "spec.containers[0].volumeMounts[1].subPath: Invalid value: \"../x\": must not contain '..'",
        ]
    );
}

#[test]
fn requests_fit_limits() {
    assert_eq!(
        container_errors(json!({"resources": {
            "limits": {"cpu": "1", "memory": "-1", "example.com/gpu": "2"},
            "requests": {"cpu": "2", "memory": "-1", "example.com/gpu": "1", "apples": "1"}}})),
        [
            "spec.containers[0].resources.limits[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.containers[0].resources.requests: Invalid value: \"apples\": must be a standard resource for containers",
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.containers[0].resources.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2",
        ]
    );
}

#[test]
fn probes_have_one_handler() {
    assert_eq!(
        container_errors(json!({
            "livenessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}, "successThreshold": 2},
            "readinessProbe": {"successThreshold": 2},
            "startupProbe": {"httpGet": {"port": "not a port"}, "periodSeconds": -1}})),
        [
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            "spec.containers[0].readinessProbe: Required value: must specify a handler type",
            "spec.containers[0].startupProbe.httpGet.port: Invalid value: \"not a port\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            "spec.containers[0].startupProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ]
    );
    assert_eq!(
        spec_errors(
            json!({"initContainers": [{"name": "i", "image": "i", "readinessProbe": {"exec": {"command": ["x"]}}}]})
        ),
        [
            "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"
        ]
    );
}

#[test]
fn environment() {
    assert_eq!(
        container_errors(json!({"env": [
            {"name": "A=B"}, {"name": ""},
            {"name": "C", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "spec.colour"}}},
            {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]})),
        [
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            "spec.containers[0].env[1].name: Required value",
            "spec.containers[0].env[2].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].env[3].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.colour\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
        ]
    );
}

#[test]
fn policies_tolerations_spreading() {
    assert_eq!(
        spec_errors(json!({
            "restartPolicy": "Sometimes", "terminationGracePeriodSeconds": -1, "activeDeadlineSeconds": 0,
            "dnsPolicy": "None",
            "tolerations": [{"value": "x"}, {"key": "k", "operator": "Exists", "tolerationSeconds": 5}],
            "topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "Perhaps"}]})),
        [
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            "spec.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
            "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            "spec.tolerations[1].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
            "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Perhaps\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
        ]
    );
}

#[test]
fn affinity() {
    assert_eq!(
        spec_errors(json!({"affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []},
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 200, "preference": {"matchExpressions": [{"key": "k", "operator": "In"}]}}]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}})),
        [
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 200: must be in the range 1-100",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty",
        ]
    );
}

#[test]
fn little_of_a_pod_can_change() {
    let old = pod_with(|pod| {
        pod["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists"}]);
        pod["spec"]["activeDeadlineSeconds"] = json!(100);
    });
    let change = |f: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        f(&mut new);
        pod::validate_update(&new, &old).iter().map(|e| e.field.clone()).collect::<Vec<_>>()
    };
    assert!(change(&|_| {}).is_empty());
    assert!(change(&|p| p["spec"]["containers"][0]["image"] = json!("i:2")).is_empty());
    assert!(change(&|p| p["spec"]["activeDeadlineSeconds"] = json!(50)).is_empty());
    let more = json!([{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]);
    assert!(change(&|p| p["spec"]["tolerations"] = more.clone()).is_empty());
    assert!(change(&|p| p["metadata"]["labels"] = json!({"a": "b"})).is_empty());
    assert!(change(&|p| p["status"] = json!({"phase": "Running"})).is_empty());
    let mut bare = old.clone();
    bare["spec"].as_object_mut().unwrap().remove("enableServiceLinks");
    assert!(pod::validate_update(&old, &bare).is_empty(), "a default that came later is no change");
    assert_eq!(change(&|p| p["spec"]["activeDeadlineSeconds"] = json!(200)), ["spec.activeDeadlineSeconds"]);
    assert_eq!(change(&|p| p["spec"]["tolerations"] = json!([])), ["spec.tolerations"]);
    assert_eq!(change(&|p| p["spec"]["nodeName"] = json!("n")), ["spec"]);
    assert_eq!(change(&|p| p["spec"]["containers"][0]["command"] = json!(["x"])), ["spec"]);
    assert_eq!(change(&|p| p["spec"]["containers"] = json!([])), ["spec.containers"]);
    assert_eq!(change(&|p| p["spec"]["nodeSelector"] = json!({"a": "b"})), ["spec"]);
    assert_eq!(
        change(&|p| p["spec"]["schedulingGates"] = json!([{"name": "g"}])),
        ["spec.schedulingGates[0].name"]
    );
}
