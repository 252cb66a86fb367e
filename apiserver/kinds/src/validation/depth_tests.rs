//! Tables: an object or a change, and the errors that Kubernetes gives.

use serde_json::{Value, json};

use super::tests::{NONE, errors, update_errors, with};

/// `object` with several fields set: JSON pointers and values.
pub(super) fn edited(object: &Value, edits: &[(&str, Value)]) -> Value {
    edits.iter().fold(object.clone(), |object, (pointer, value)| with(object, pointer, value.clone()))
}

/// The object as the server stores it.
pub(super) fn stored(group: &str, plural: &str, mut object: Value) -> Value {
    let registry = crate::builtin::registry();
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
            "spec.ports[0].appProtocol: Invalid value: \"a/b/c\": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
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
            "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Keep\": supported values: \"Retain\", \"Delete\"",
        ],
    );
    assert!(
        errors("apps", "statefulsets", &with(set, "/metadata/name", json!("a.b")))[0]
            .contains("must not contain dots")
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
fn selectors_of_jobs_are_made_by_the_server() {
    let made = |edits: &[(&str, Value)]| {
        let mut object = edited(&with(job(), "/metadata/uid", json!("u-1")), edits);
        crate::defaulting::batch::prepare_create_job(&mut object);
        errors("batch", "jobs", &object)
    };
    assert_eq!(made(&[]), NONE);
    assert_eq!(
        made(&[("/spec/template/metadata", json!({"labels": {"job-name": "other"}}))]).len(),
        1,
        "a label that says something else"
    );
    let foreign = made(&[("/spec/selector", json!({"matchLabels": {"a": "b"}}))]);
    assert!(foreign[0].ends_with("`selector` not auto-generated"), "{foreign:?}");
    let manual = [
        ("/spec/selector", json!({"matchLabels": {"a": "b"}})),
        ("/spec/manualSelector", json!(true)),
        ("/spec/template/metadata", json!({"labels": {"a": "b"}})),
    ];
    assert_eq!(made(&manual), NONE);
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
    check(&suspended, &[("/spec/template/spec/containers/0/image", json!("x"))], &["spec.template.spec"]);
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
            "spec.timeZone: Invalid value: \"local\": unknown time zone local",
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
            "spec.egress[0].ports[2].endPort: Invalid value: 80: may not be specified when `port` is not specified",
            "spec.egress[0].to[0].ipBlock.except[1]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
            "spec.egress[0].to[0].ipBlock.except[2]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`",
            "spec.egress[0].to[1]: Required value: must specify a peer",
            "spec.policyTypes[0]: Unsupported value: \"Sideways\": supported values: \"Ingress\", \"Egress\"",
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
