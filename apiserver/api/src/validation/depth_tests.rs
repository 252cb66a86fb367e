//! Tables: an object or a change, and the errors that Kubernetes gives.

use serde_json::{Value, json};

use super::tests::{NONE, errors, update_errors, with};

/// `object` with several fields set: JSON pointers and values.
fn edited(object: &Value, edits: &[(&str, Value)]) -> Value {
    edits.iter().fold(object.clone(), |object, (pointer, value)| with(object, pointer, value.clone()))
}

/// The object as the server stores it.
fn stored(group: &str, plural: &str, mut object: Value) -> Value {
    let registry = crate::registry::builtin();
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    (resource.behaviour.default)(&mut object);
    object
}

fn service() -> Value {
    json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}})
}

#[test]
fn services_in_depth() {
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        let found = errors("", "services", &edited(&service(), edits));
        assert_eq!(found, wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(&[("/metadata/name", json!("1a"))], &[]);
    check(
        &[("/spec/clusterIPs", json!(["10.0.0.1", "10.0.0.2"]))],
        &[
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family",
        ],
    );
    check(
        &[("/spec/clusterIPs", json!(["10.0.0.2"]))],
        &["spec.clusterIPs: Invalid value: [\"10.0.0.2\"]: first value must match `clusterIP`"],
    );
    check(
        &[("/spec/ipFamilies", json!(["IPv6", "IPv6"]))],
        &[
            "spec.ipFamilies[1]: Duplicate value: \"IPv6\"",
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ],
    );
    check(
        &[("/spec/externalIPs", json!(["127.0.0.1", "x", "01.2.3.4"]))],
        &[
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            "spec.externalIPs[1]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            "spec.externalIPs[2]: Invalid value: \"01.2.3.4\": must not have leading 0s",
        ],
    );
    check(
        &[
            ("/spec/loadBalancerSourceRanges", json!(["10.0.0.0/33"])),
            ("/spec/loadBalancerClass", json!("a b")),
        ],
        &[
            "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.0/33\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            "spec.loadBalancerClass: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ],
    );
    check(
        &[("/spec/healthCheckNodePort", json!(30000))],
        &[
            "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ],
    );
    check(
        &[("/spec/type", json!("ExternalName")), ("/spec/externalName", json!("a.b."))],
        &[
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
        ],
    );
    check(
        &[("/spec/trafficDistribution", json!("Far")), ("/spec/ports/0/appProtocol", json!("a/b/c"))],
        &[
            "spec.ports[0].appProtocol: Invalid value: \"a/b/c\": a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            "spec.trafficDistribution: Unsupported value: \"Far\": supported values: \"PreferClose\", \"PreferSameNode\", \"PreferSameZone\"",
        ],
    );
}

#[test]
fn what_a_service_keeps() {
    let old = stored(
        "",
        "services",
        edited(
            &service(),
            &[
                ("/spec/clusterIPs", json!(["10.0.0.1", "fd00::1"])),
                ("/spec/ipFamilies", json!(["IPv4", "IPv6"])),
                ("/spec/ipFamilyPolicy", json!("PreferDualStack")),
                ("/spec/loadBalancerClass", json!("a/b")),
                ("/spec/externalTrafficPolicy", json!("Local")),
                ("/spec/healthCheckNodePort", json!(30001)),
            ],
        ),
    );
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        let found = update_errors("", "services", &edited(&old, edits), &old);
        assert_eq!(found, wanted, "{edits:?}");
    };
    check(&[], &[]);
    let single = [("/spec/clusterIPs", json!(["10.0.0.1"])), ("/spec/ipFamilies", json!(["IPv4"]))];
    check(
        &single,
        &[
            "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary clusterIP",
            "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary ipFamily",
        ],
    );
    let mut released = single.to_vec();
    released.push(("/spec/ipFamilyPolicy", json!("SingleStack")));
    check(&released, &[]);
    check(
        &[("/spec/loadBalancerClass", json!("c/d")), ("/spec/healthCheckNodePort", json!(30002))],
        &[
            "spec.loadBalancerClass: Invalid value: \"c/d\": may not change once set",
            "spec.healthCheckNodePort: Forbidden: field is immutable",
        ],
    );
    check(
        &[("/spec/ipFamilies", json!(["IPv6", "IPv4"]))],
        &["spec.ipFamilies[0]: Invalid value: [\"IPv6\",\"IPv4\"]: may not change once set"],
    );
}

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[test]
fn daemons_and_stateful_sets() {
    let daemon = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("apps", "daemonsets", &edited(&daemon, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    let rolling =
        |value: Value| [("/spec/updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": value}))];
    check(
        &rolling(json!({"maxUnavailable": 0, "maxSurge": 0})),
        &["spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"],
    );
    check(
        &rolling(json!({"maxUnavailable": 1, "maxSurge": "120%"})),
        &[
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"120%\": must not be greater than 100%",
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"120%\": may not be set when maxUnavailable is non-zero",
        ],
    );
    check(
        &[
            ("/spec/template/spec/restartPolicy", json!("Never")),
            ("/spec/template/spec/activeDeadlineSeconds", json!(5)),
        ],
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported",
        ],
    );
    let set = json!({"metadata": {"name": "s"}, "spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template()}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("apps", "statefulsets", &edited(&set, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[
            ("/spec/podManagementPolicy", json!("Any")),
            ("/spec/updateStrategy", json!({"type": "OnDelete", "rollingUpdate": {}})),
            ("/spec/ordinals", json!({"start": -1})),
        ],
        &[
            "spec.podManagementPolicy: Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'",
            "spec.updateStrategy.rollingUpdate: Invalid value: {}: only allowed for updateStrategy 'RollingUpdate'",
            "spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    check(
        &[
            ("/spec/persistentVolumeClaimRetentionPolicy", json!({"whenScaled": "Keep"})),
            (
                "/spec/updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "0%"}}),
            ),
        ],
        &[
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": cannot be 0",
            "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Keep\": supported values: \"Delete\", \"Retain\"",
        ],
    );
    assert!(
        errors("apps", "statefulsets", &with(set, "/metadata/name", json!("a.b")))[0]
            .contains("RFC 1123 label")
    );
}

fn job() -> Value {
    json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
}

#[test]
fn jobs_in_depth() {
    let check = |spec: Value, wanted: &[&str]| {
        let mut object = job();
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        assert_eq!(errors("batch", "jobs", &object), wanted, "{spec}");
    };
    check(
        json!({"completionMode": "Indexed", "completions": 3, "parallelism": 200_000}),
        &[
            "spec.parallelism: Invalid value: 200000: must be less than or equal to 100000 when completion mode is Indexed",
        ],
    );
    check(
        json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 2}),
        &[
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
            "spec.maxFailedIndexes: Invalid value: 2: requires indexed completion mode",
        ],
    );
    check(
        json!({"managedBy": "me", "completionMode": "Indexed", "completions": 1, "maxFailedIndexes": 2}),
        &[
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            "spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")",
            "spec.maxFailedIndexes: Invalid value: 2: must be less than or equal to completions",
        ],
    );
    check(
        json!({"podFailurePolicy": {"rules": [
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3, 0, 3], "containerName": "x"}},
        {"action": "Ignore"},
        {"action": "Shrug", "onPodConditions": [{"type": "A"}], "onExitCodes": {"operator": "NotIn", "values": [1]}}]},
        "podReplacementPolicy": "TerminatingOrFailed"}),
        &[
            "spec.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 3",
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [3,0,3]: must be ordered",
            "spec.podFailurePolicy.rules[1]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            "spec.podFailurePolicy.rules[2].action: Unsupported value: \"Shrug\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
            "spec.podFailurePolicy.rules[2]: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
            "spec.podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\"",
        ],
    );
    check(
        json!({"completionMode": "Indexed", "completions": 5, "successPolicy": {"rules": [
        {}, {"succeededIndexes": "1,3-4", "succeededCount": 4}, {"succeededIndexes": "4,3"}, {"succeededIndexes": "7"}]}}),
        &[
            "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            "spec.successPolicy.rules[1].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)",
            "spec.successPolicy.rules[2].succeededIndexes: Invalid value: \"4,3\": error parsing succeededIndexes: non-increasing order, previous: 4, current: 3",
            "spec.successPolicy.rules[3].succeededIndexes: Invalid value: \"7\": error parsing succeededIndexes: too large index: \"7\"",
        ],
    );
    let mut long = edited(&job(), &[("/metadata/name", json!("j".repeat(62)))]);
    long["spec"]["completionMode"] = json!("Indexed");
    long["spec"]["completions"] = json!(10);
    assert!(errors("batch", "jobs", &long)[0].contains("will not able to create pod with invalid DNS label"));
}

#[test]
fn what_a_job_keeps() {
    let old = stored(
        "batch",
        "jobs",
        edited(
            &job(),
            &[
                ("/spec/completionMode", json!("Indexed")),
                ("/spec/completions", json!(3)),
                ("/spec/parallelism", json!(3)),
            ],
        ),
    );
    let check = |old: &Value, edits: &[(&str, Value)], wanted: &[&str]| {
        let found = update_errors("batch", "jobs", &edited(old, edits), old);
        let fields: Vec<String> = found.iter().map(|e| e.split(": ").next().unwrap().to_owned()).collect();
        assert_eq!(fields, wanted, "{edits:?} {found:?}");
    };
    check(&old, &[("/spec/completions", json!(5)), ("/spec/parallelism", json!(5))], &[]);
    check(&old, &[("/spec/completions", json!(5))], &["spec.completions"]);
    check(
        &old,
        &[("/spec/backoffLimitPerIndex", json!(5)), ("/spec/managedBy", json!("a/b"))],
        &["spec.backoffLimitPerIndex", "spec.managedBy"],
    );
    check(&old, &[("/spec/template/spec/nodeSelector", json!({"a": "b"}))], &["spec.template"]);
    let suspended = with(old.clone(), "/spec/suspend", json!(true));
    for (pointer, value) in [
        ("/spec/template/spec/nodeSelector", json!({"a": "b"})),
        ("/spec/template/spec/affinity", json!({"nodeAffinity": {}})),
        ("/spec/template/metadata", json!({"annotations": {"a": "b"}, "labels": {"c": "d"}})),
        ("/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": "1"}})),
    ] {
        check(&suspended, &[(pointer, value)], &[]);
    }
    check(&suspended, &[("/spec/template/spec/containers/0/image", json!("x"))], &["spec.template"]);
    let running =
        with(suspended.clone(), "/status", json!({"startTime": "2024-01-01T00:00:00Z", "active": 1}));
    check(&running, &[("/spec/template/spec/nodeSelector", json!({"a": "b"}))], &["spec.template"]);
}

#[test]
fn cron_jobs_in_depth() {
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job()["spec"]}}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("batch", "cronjobs", &edited(&cron, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[("/spec/timeZone", json!("")), ("/spec/schedule", json!("CRON_TZ=UTC * * * * *"))],
        &[
            "spec.schedule: Invalid value: \"CRON_TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            "spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string",
        ],
    );
    check(
        &[("/spec/timeZone", json!("local"))],
        &[
            "spec.timeZone: Invalid value: \"local\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        ],
    );
    check(
        &[("/spec/jobTemplate/spec/manualSelector", json!(true)), ("/metadata/name", json!("c".repeat(53)))],
        &[
            "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
            &format!(
                "metadata.name: Invalid value: \"{}\": must be no more than 52 characters",
                "c".repeat(53)
            ),
        ],
    );
}

#[test]
fn autoscalers() {
    let check = |spec: Value, wanted: &[&str]| {
        let mut object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        assert_eq!(errors("autoscaling", "horizontalpodautoscalers", &object), wanted, "{spec}");
    };
    check(json!({}), &[]);
    check(
        json!({"minReplicas": 5, "scaleTargetRef": {"name": "a/b"}}),
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
fn networks() {
    let ingress = |spec: Value| {
        errors("networking.k8s.io", "ingresses", &json!({"metadata": {"name": "i"}, "spec": spec}))
    };
    assert_eq!(
        ingress(json!({})),
        ["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"]
    );
    assert_eq!(
        ingress(
            json!({"defaultBackend": {}, "tls": [{"hosts": ["a.*"], "secretName": "A"}], "rules": [{"host": "1.2.3.4", "http": {"paths": [
            {"path": "/a//b/..", "pathType": "Exact", "backend": {"service": {"name": "s", "port": {}}}}, {"backend": {}}]}}]})
        ),
        [
            "spec.defaultBackend: Invalid value: \"\": resource or service backend is required",
            "spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
            "spec.rules[0].http.paths[0].path: Invalid value: \"/a//b/..\": must not contain '//'",
            "spec.rules[0].http.paths[0].path: Invalid value: \"/a//b/..\": cannot end with '/..'",
            "spec.rules[0].http.paths[0].backend: Required value: port name or number is required",
            "spec.rules[0].http.paths[1].pathType: Required value: pathType must be specified",
            "spec.tls[0].hosts[0]: Invalid value: \"a.*\": a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.tls[0].secretName: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ]
    );
    let class = |spec: Value| {
        errors("networking.k8s.io", "ingressclasses", &json!({"metadata": {"name": "i"}, "spec": spec}))
    };
    assert_eq!(class(json!({"controller": "a.b/c"})), NONE);
    assert_eq!(
        class(json!({"controller": "", "parameters": {"kind": "K", "name": "n", "scope": "Namespace"}})),
        [
            "spec.controller: Required value",
            "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'",
        ]
    );
    let policy = |spec: Value| {
        errors("networking.k8s.io", "networkpolicies", &json!({"metadata": {"name": "p"}, "spec": spec}))
    };
    assert_eq!(
        policy(json!({"podSelector": {}, "policyTypes": ["Sideways"], "egress": [{
            "ports": [{"port": 80, "endPort": 79}, {"port": "web", "endPort": 80}, {"endPort": 80}],
            "to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16", "10.0.0.0/8"]}}, {}]}]})),
        [
            "spec.egress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`",
            "spec.egress[0].ports[1].endPort: Invalid value: 80: may not be specified when `port` is non-numeric",
            "spec.egress[0].ports[2].endPort: Invalid value: 80: must be empty when `port` is not specified",
            "spec.egress[0].to[0].ipBlock.except[1]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
            "spec.egress[0].to[0].ipBlock.except[2]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`",
            "spec.egress[0].to[1]: Required value: must specify a peer",
            "spec.policyTypes[0]: Unsupported value: \"Sideways\": supported values: \"Egress\", \"Ingress\"",
        ]
    );
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [
        {"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "a"}, {"name": "a"}]}, "hostname": "A"}]});
    let found = errors("discovery.k8s.io", "endpointslices", &slice);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[1], "endpoints[0].hints.forZones[1].name: Duplicate value: \"a\"");
    assert_eq!(
        errors("", "endpoints", &json!({"metadata": {"name": "e"}, "subsets": [{}]})),
        ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"]
    );
}

#[test]
fn storage_in_depth() {
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"}}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("", "persistentvolumes", &edited(&volume, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[
            ("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce", "Never"])),
            ("/spec/capacity", json!({"cpu": "1"})),
        ],
        &[
            "spec.accessModes: Unsupported value: \"Never\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            "spec.capacity: Unsupported value: {\"cpu\":\"1\"}: supported values: \"storage\"",
        ],
    );
    let local = with(
        volume.clone(),
        "/spec",
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "0"}, "local": {"path": "/a/.."}}),
    );
    assert_eq!(
        errors("", "persistentvolumes", &local),
        [
            "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            "spec.local.path: Invalid value: \"/a/..\": must not contain '..'",
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ]
    );
    let old = stored("", "persistentvolumes", volume);
    let update = |edits: &[(&str, Value)]| update_errors("", "persistentvolumes", &edited(&old, edits), &old);
    assert_eq!(
        update(&[("/spec/csi/controllerExpandSecretRef", json!({"name": "a", "namespace": "b"}))]),
        NONE
    );
    assert_eq!(
        update(&[("/spec/csi/volumeHandle", json!("x")), ("/spec/volumeMode", json!("Block"))]),
        [
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation",
            "volumeMode: Invalid value: \"Block\": field is immutable",
        ]
    );
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
    assert_eq!(
        errors(
            "",
            "persistentvolumeclaims",
            &edited(
                &claim,
                &[
                    ("/spec/dataSource", json!({"kind": "Pod", "name": "p"})),
                    ("/spec/dataSourceRef", json!({"kind": "PersistentVolumeClaim", "name": "q"}))
                ]
            )
        ),
        [
            "spec.dataSource: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            "spec: Invalid value: \"spec.dataSource\": must match dataSourceRef",
        ]
    );
    let old = stored("", "persistentvolumeclaims", claim);
    let bound = edited(
        &old,
        &[
            ("/spec/volumeName", json!("v")),
            ("/status", json!({"phase": "Bound", "capacity": {"storage": "1Gi"}})),
        ],
    );
    let size = |old: &Value, size: &str| {
        update_errors(
            "",
            "persistentvolumeclaims",
            &with(old.clone(), "/spec/resources/requests/storage", json!(size)),
            old,
        )
    };
    assert_eq!(size(&bound, "3Gi"), NONE);
    assert_eq!(size(&bound, "1500Mi"), NONE, "what was not reached may be taken back");
    assert_eq!(
        size(&bound, "1Gi"),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
    );
    assert_eq!(size(&old, "3Gi").len(), 1, "only bound claims grow");
    assert_eq!(
        errors(
            "storage.k8s.io",
            "csinodes",
            &json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": ""}, {"name": "d", "nodeID": "x"}]}})
        ),
        ["spec.drivers[0].nodeID: Required value", "spec.drivers[1].name: Duplicate value: \"d\""]
    );
    assert_eq!(
        errors(
            "storage.k8s.io",
            "volumeattachments",
            &json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}})
        ),
        [
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        ]
    );
}

#[test]
fn quotas_and_limits() {
    let quota = |spec: Value| errors("", "resourcequotas", &json!({"metadata": {"name": "q"}, "spec": spec}));
    assert_eq!(
        quota(json!({"hard": {"pods": "3", "requests.nvidia.com/gpu": "1", "count/jobs.batch": "2"}})),
        NONE
    );
    assert_eq!(
        quota(
            json!({"hard": {"pods": "1500m", "storage": "1", "apples": "1"}, "scopes": ["BestEffort", "NotBestEffort", "Odd"]})
        ),
        [
            "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource type or fully qualified",
            "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource for quota",
            "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
            "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Odd\"]: unsupported scope",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Odd\"]: conflicting scopes",
        ]
    );
    assert_eq!(
        quota(json!({"hard": {"services": "1"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "Terminating", "operator": "In"}]}})),
        [
            "spec.scopeSelector.matchExpressions: Invalid value: {\"matchExpressions\":[{\"operator\":\"In\",\"scopeName\":\"Terminating\"}]}: unsupported scope applied to resource",
            "spec.scopeSelector.matchExpressions.operator: Invalid value: \"In\": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ]
    );
    let limits = |limits: Value| {
        errors("", "limitranges", &json!({"metadata": {"name": "l"}, "spec": {"limits": limits}}))
    };
    assert_eq!(
        limits(
            json!([{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "default": {"cpu": "3"}, "defaultRequest": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "500m"}}])
        ),
        [
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"4\": default request value 4 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"4\": default request value 4 is greater than default limit value 3",
            "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 3 is greater than max value 1",
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
        ]
    );
    assert_eq!(
        limits(
            json!([{"type": "Pod", "default": {"cpu": "1"}}, {"type": "PersistentVolumeClaim"}, {"type": "Pod"}, {"type": "Thing"}])
        ),
        [
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            "spec.limits[1].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            "spec.limits[2].type: Duplicate value: \"Pod\"",
            "spec.limits[3].type: Invalid value: \"Thing\": must be a standard limit type or fully qualified",
        ]
    );
}

#[test]
fn the_cluster_in_depth() {
    assert_eq!(
        errors(
            "",
            "nodes",
            &json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"]}, "status": {"capacity": {"pods": "1500m"}}})
        ),
        [
            "status.capacity.pods: Invalid value: \"1500m\": must be an integer",
            "status.allocatable.pods: Invalid value: \"1500m\": must be an integer",
            "spec.podCIDRs: Invalid value: [\"10.1.0.0/24\",\"10.2.0.0/24\"]: may specify no more than one CIDR for each IP family",
        ]
    );
    assert_eq!(
        errors(
            "",
            "namespaces",
            &json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["mine", "a/b"]}})
        ),
        [
            "spec.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
        ]
    );
    assert_eq!(
        errors(
            "",
            "events",
            &json!({"metadata": {"name": "E_1", "namespace": "default"}, "eventTime": "2024-01-01T00:00:00.000000Z", "reason": "r".repeat(129)})
        ),
        [
            "reportingComponent: Required value",
            "reportingInstance: Required value",
            "action: Required value",
            "reason: Invalid value: \"\": can have at most 128 characters",
        ]
    );
    assert_eq!(
        errors(
            "policy",
            "poddisruptionbudgets",
            &json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": "150%", "unhealthyPodEvictionPolicy": "Maybe"}})
        ),
        [
            "spec.maxUnavailable: Invalid value: \"150%\": must not be greater than 100%",
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Maybe\": supported values: \"IfHealthyBudget\", \"AlwaysAllow\"",
        ]
    );
    assert_eq!(
        errors(
            "",
            "secrets",
            &json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "W10="}})
        ),
        [
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": json: cannot unmarshal into Go value of type map[string]interface {}"
        ]
    );
    let owned = json!({"metadata": {"name": "c", "finalizers": ["orphan", "foregroundDeletion", "bare"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"}]}});
    let found = errors("", "configmaps", &owned);
    assert!(found[0].ends_with("/v1, Kind=Event is disallowed from being an owner"), "{found:?}");
    assert!(found[1].ends_with("finalizer orphan and foregroundDeletion cannot be both set"), "{found:?}");
    assert_eq!(
        found[2],
        "metadata.finalizers[2]: Invalid value: \"bare\": name is neither a standard finalizer name nor is it fully qualified"
    );
}
