//! Validation of pods.

use serde_json::{Value, json};

use crate::core::pod::{self, update, validation};

fn pod_with(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    change(&mut pod);
    pod::default(&mut pod);
    pod
}

/// Each error as `FIELD: MESSAGE`.
fn errors(pod: &Value) -> Vec<String> {
    validation::validate(pod).iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
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
fn containers_with_wrong_names_and_images_are_refused() {
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
fn ports_out_of_range_or_repeated_are_refused() {
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
fn mounts_of_unknown_volumes_are_refused() {
    assert_eq!(
        errors(&pod_with(|pod| {
            pod["spec"]["volumes"] = json!([
                {"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}, {"name": "v", "configMap": {}}]);
            pod["spec"]["containers"][0]["volumeMounts"] = json!([
                {"name": "v", "mountPath": "/a"}, {"name": "gone", "mountPath": "/a", "subPath": "../x"}]);
        })),
        [
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[1].configMap.name: Required value",
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            "spec.containers[0].volumeMounts[1].name: Not found: \"gone\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
            "spec.containers[0].volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'",
        ]
    );
}

#[test]
fn requests_above_limits_are_refused() {
    assert_eq!(
        container_errors(json!({"resources": {
            "limits": {"cpu": "1", "memory": "-1", "example.com/gpu": "2"},
            "requests": {"cpu": "2", "memory": "-1", "example.com/gpu": "1", "apples": "1"}}})),
        [
            "spec.containers[0].resources.limits[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.containers[0].resources.requests[apples]: Invalid value: \"apples\": must be a standard resource type or fully qualified",
            "spec.containers[0].resources.requests[apples]: Invalid value: \"apples\": must be a standard resource for containers",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.containers[0].resources.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2",
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
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
fn variables_with_wrong_sources_are_refused() {
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
            "spec.containers[0].env[3].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.colour\": error converting fieldPath: field label not supported: spec.colour",
        ]
    );
}

#[test]
fn wrong_policies_tolerations_and_spreading_are_refused() {
    assert_eq!(
        spec_errors(json!({
            "restartPolicy": "Sometimes", "terminationGracePeriodSeconds": -1, "activeDeadlineSeconds": 0,
            "dnsPolicy": "None",
            "tolerations": [{"value": "x"}, {"key": "k", "operator": "Exists", "tolerationSeconds": 5}],
            "topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "Perhaps"}]})),
        [
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
            "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Perhaps\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            "spec.tolerations[1].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
        ]
    );
}

#[test]
fn wrong_affinity_is_refused() {
    assert_eq!(
        spec_errors(json!({"affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []},
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 200, "preference": {"matchExpressions": [{"key": "k", "operator": "In"}]}}]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {}, "topologyKey": "a b"}]}}})),
        [
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 200: must be in the range 1-100",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ]
    );
}

#[test]
fn pods_refuse_changes_of_immutable_fields() {
    let old = pod_with(|pod| {
        pod["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists"}]);
        pod["spec"]["activeDeadlineSeconds"] = json!(100);
    });
    let change = |f: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        f(&mut new);
        update::validate_update(&new, &old).iter().map(|e| e.field.clone()).collect::<Vec<_>>()
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
    assert!(update::validate_update(&old, &bare).is_empty(), "a default that came later is no change");
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

#[test]
fn containers_with_wrong_fields_are_refused() {
    let check =
        |fields: Value, wanted: &[&str]| assert_eq!(container_errors(fields.clone()), wanted, "{fields}");
    check(
        json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}, {"resourceName": "disk", "restartPolicy": "Never"}]}),
        &[
            "spec.containers[0].resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
            "spec.containers[0].resizePolicy: Unsupported value: \"Never\": supported values: \"NotRequired\", \"RestartContainer\"",
        ],
    );
    check(
        json!({"restartPolicyRules": [{"action": "Stop", "exitCodes": {"operator": "In", "values": [1]}}, {"action": "Restart"}]}),
        &[
            "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
            "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \"Restart\", \"RestartAllContainers\"",
            "spec.containers[0].restartPolicyRules[1].exitCodes: Required value: must be specified",
        ],
    );
    check(
        json!({"lifecycle": {"preStop": {"sleep": {"seconds": 40}}, "postStart": {"httpGet": {"port": 80, "httpHeaders": [{"name": "a b"}]}}}}),
        &[
            "spec.containers[0].lifecycle.postStart.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 40: must be non-negative and less than terminationGracePeriodSeconds (30)",
        ],
    );
    check(
        json!({"readinessProbe": {"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 5}}),
        &[
            "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
        ],
    );
    check(
        json!({"envFrom": [{"prefix": "a="}, {"configMapRef": {"name": ""}}]}),
        &[
            "spec.containers[0].envFrom[0].prefix: Invalid value: \"a=\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].envFrom[1].configMapRef.name: Required value",
        ],
    );
    check(
        json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "7"}}},
                        {"name": "B", "valueFrom": {}}]}),
        &[
            "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
            "spec.containers[0].env[1].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ],
    );
    check(
        json!({"resources": {"limits": {"hugepages-2Mi": "3Mi"}, "claims": [{"name": "c"}]}}),
        &[
            "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
            "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
            "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
            "spec.containers[0].resources.claims[0]: Not found: \"c\": must be one of the names in pod.spec.resourceClaims which is empty",
        ],
    );
    check(
        json!({"image": " i"}),
        &["spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace"],
    );
}

#[test]
fn wrong_security_contexts_are_refused() {
    assert_eq!(
        container_errors(json!({"securityContext": {
            "procMount": "Unmasked", "seccompProfile": {"type": "Localhost"}, "runAsUser": -1,
            "appArmorProfile": {"type": "RuntimeDefault", "localhostProfile": "x"},
            "allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}})),
        [
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            "spec.containers[0].securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"appArmorProfile\":{\"localhostProfile\":\"x\",\"type\":\"RuntimeDefault\"},\"capabilities\":{\"add\":[\"CAP_SYS_ADMIN\"]},\"procMount\":\"Unmasked\",\"runAsUser\":-1,\"seccompProfile\":{\"type\":\"Localhost\"}}: cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: \"x\": can only be set when AppArmor type is Localhost",
        ]
    );
    assert_eq!(
        spec_errors(json!({"hostNetwork": true, "hostUsers": false, "securityContext": {
            "sysctls": [{"name": "net.core.somaxconn"}, {"name": "a b"}, {"name": "kernel.x"}, {"name": "kernel.x"}],
            "fsGroupChangePolicy": "Never", "supplementalGroups": [-5]}})),
        [
            "spec.securityContext.supplementalGroups[0]: Invalid value: -5: must be between 0 and 2147483647, inclusive",
            "spec.securityContext.sysctls[0].name: Invalid value: \"net.core.somaxconn\": may not be specified when 'hostNetwork' is true",
            "spec.securityContext.sysctls[1].name: Invalid value: \"a b\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            "spec.securityContext.sysctls[3].name: Duplicate value: \"kernel.x\"",
            "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"Never\": supported values: \"Always\", \"OnRootMismatch\"",
            "spec.hostNetwork: Forbidden: when `hostUsers` is false",
        ]
    );
    assert_eq!(
        spec_errors(
            json!({"os": {"name": "windows"}, "hostPID": true, "securityContext": {"runAsUser": 1, "windowsOptions": {"runAsUserName": "a\\b\\c"}}})
        ),
        [
            "spec.securityContext.windowsOptions.runAsUserName: Invalid value: \"a\\\\b\\\\c\": runAsUserName cannot contain more than one backslash",
            "spec.hostPID: Forbidden: cannot be set for a windows pod",
            "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
        ]
    );
    assert_eq!(
        spec_errors(
            json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {"hostProcess": true}}})
        ),
        [
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
            "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
        ]
    );
}

#[test]
fn volumes_with_wrong_sources_are_refused() {
    let check = |volume: Value, wanted: &[&str]| {
        let found = spec_errors(json!({"serviceAccountName": "s", "volumes": [volume]}));
        assert_eq!(found, wanted, "{volume}");
    };
    check(
        json!({"name": "v", "hostPath": {"path": "/a/../b", "type": "Pipe"}}),
        &[
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            "spec.volumes[0].hostPath.type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
        ],
    );
    check(
        json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 1000, "items": [{"key": "k", "path": "..x"}]}}),
        &[
            "spec.volumes[0].secret.defaultMode: Invalid value: 1000: must be a number between 0 and 0777 (octal), both inclusive",
            "spec.volumes[0].secret.items[0].path: Invalid value: \"..x\": must not start with '..'",
        ],
    );
    check(
        json!({"name": "v", "projected": {"sources": [
        {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}},
        {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
        {"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}]}}),
        &[
            "spec.volumes[0].projected: Invalid value: \"c\": conflicting duplicate paths",
            "spec.volumes[0].projected.sources[2].serviceAccountToken.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes",
        ],
    );
    check(
        json!({"name": "v", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "status.podIP"}}, {"path": "b", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
        &[
            "spec.volumes[0].downwardAPI.fieldRef.fieldPath: Unsupported value: \"status.podIP\": supported values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \"metadata.uid\"",
            "spec.volumes[0].downwardAPI.resourceFieldRef.containerName: Required value",
        ],
    );
    check(
        json!({"name": "v", "iscsi": {"targetPortal": "p", "iqn": "x", "lun": 256}}),
        &[
            "spec.volumes[0].iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa",
            "spec.volumes[0].iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
        ],
    );
    check(
        json!({"name": "v", "csi": {"driver": "UPPER_x"}}),
        &[
            "spec.volumes[0].csi.driver: Invalid value: \"UPPER_x\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ],
    );
    check(
        json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "0"}}}}}}),
        &[
            "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
            "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
        ],
    );
    check(json!({"name": "v", "image": {}}), &["spec.volumes[0].image.reference: Required value"]);
    check(
        json!({"name": "v", "nfs": {"server": "s", "path": "a"}}),
        &["spec.volumes[0].nfs.path: Invalid value: \"a\": must be an absolute path"],
    );
}

#[test]
fn block_devices_of_unfit_volumes_are_refused() {
    let devices = errors(&pod_with(|pod| {
        pod["spec"]["volumes"] = json!([{"name": "e", "emptyDir": {}}, {"name": "p", "persistentVolumeClaim": {"claimName": "c"}}]);
        pod["spec"]["containers"][0]["volumeDevices"] =
            json!([{"name": "e", "devicePath": "/dev/a"}, {"name": "p", "devicePath": "/dev/../b"}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "p", "mountPath": "/p", "mountPropagation": "Bidirectional", "recursiveReadOnly": "Enabled"}]);
    }));
    assert_eq!(
        devices,
        [
            "spec.containers[0].volumeMounts[0].name: Invalid value: \"p\": must not already exist in volumeDevices",
            "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
            "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
            "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified",
            "spec.containers[0].volumeDevices[0].name: Invalid value: \"e\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            "spec.containers[0].volumeDevices[1].devicePath: Invalid value: \"/dev/../b\": can not contain backsteps ('..')",
            "spec.containers[0].volumeDevices[1].name: Invalid value: \"p\": must not already exist in volumeMounts",
        ]
    );
}

#[test]
fn pods_with_wrong_fields_are_refused() {
    let check = |fields: Value, wanted: &[&str]| assert_eq!(spec_errors(fields.clone()), wanted, "{fields}");
    check(
        json!({"ephemeralContainers": [{"name": "e", "image": "i", "targetContainerName": "gone", "ports": [{"containerPort": 1}]}]}),
        &[
            "spec.ephemeralContainers[0].targetContainerName: Not found: \"gone\"",
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ],
    );
    check(
        json!({"nodeName": "n", "schedulingGates": [{"name": "g"}, {"name": "g"}]}),
        &[
            "spec.schedulingGates[1]: Duplicate value: \"g\"",
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ],
    );
    check(
        json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.2.3"], "searches": ["a_b.c", "A"], "options": [{}]}}),
        &[
            "spec.dnsConfig.nameservers[0]: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            "spec.dnsConfig.searches[1]: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')",
            "spec.dnsConfig.options[0]: Required value: must not be empty",
        ],
    );
    check(
        json!({"hostAliases": [{"ip": "010.0.0.1"}]}),
        &["spec.hostAliases[0].ip: Invalid value: \"010.0.0.1\": must not have leading 0s"],
    );
    check(
        json!({"resourceClaims": [{"name": "c"}]}),
        &[
            "spec.resourceClaims[0]: Invalid value: {\"name\":\"c\"}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
        ],
    );
    check(
        json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1"}}}),
        &[
            "spec.resources.requests[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
        ],
    );
    check(
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["a"]}]}),
        &[
            "spec.topologySpreadConstraints[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
        ],
    );
    check(
        json!({"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
        &[
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
        ],
    );
    // A stored pod is validated less strictly.
    let mut stored = pod_with(|pod| pod["spec"]["hostAliases"] = json!([{"ip": "010.0.0.1"}]));
    stored["metadata"]["resourceVersion"] = json!("7");
    assert_eq!(errors(&stored), Vec::<String>::new());
}

#[test]
fn annotations_agree_with_fields() {
    let pod = pod_with(|pod| {
        pod["metadata"]["annotations"] = json!({
            "container.apparmor.security.beta.kubernetes.io/c": "unconfined",
            "container.apparmor.security.beta.kubernetes.io/d": "weird",
            "controller.kubernetes.io/pod-deletion-cost": "+1"});
        pod["spec"]["securityContext"] = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    });
    assert_eq!(
        errors(&pod),
        [
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: \"d\": container not found",
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: \"weird\": invalid AppArmor profile name: \"weird\"",
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit integer",
            "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and field must match",
        ]
    );
}

#[test]
fn volumes_that_are_refused_cannot_be_mounted() {
    let volumes = json!([{"name": "v", "hostPath": {"path": ""}}, {"name": "w", "emptyDir": {}},
        {"name": "w", "emptyDir": {}}, {"name": "V_", "emptyDir": {}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/w"},
        {"name": "V_", "mountPath": "/x"}]);
    let container = json!({"name": "c", "image": "i", "volumeMounts": mounts});
    let found = spec_errors(json!({"volumes": volumes, "containers": [container]}));
    let mounts: Vec<&String> = found.iter().filter(|error| error.contains("volumeMounts")).collect();
    assert_eq!(
        mounts,
        [
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            "spec.containers[0].volumeMounts[2].name: Not found: \"V_\"",
        ]
    );
}

#[test]
fn tolerations_do_not_compare_numbers() {
    let found = spec_errors(json!({"tolerations": [{"key": "a", "operator": "Lt", "value": "1"},
        {"key": "a", "operator": "X"}]}));
    assert_eq!(
        found,
        [
            "spec.tolerations[0].operator: Unsupported value: \"Lt\": supported values: \"Equal\", \"Exists\", \"Lt\", \"Gt\"",
            "spec.tolerations[1].operator: Unsupported value: \"X\": supported values: \"Equal\", \"Exists\"",
        ]
    );
}

#[test]
fn pods_with_users_of_their_own_use_no_devices() {
    let devices = json!([{"name": "v", "devicePath": "/d"}]);
    let container = json!({"name": "c", "image": "i", "volumeDevices": devices});
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    assert_eq!(
        spec_errors(json!({"hostUsers": false, "containers": [container], "volumes": volumes})),
        ["spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false"]
    );
}
