use serde_json::{Value, json};

use super::*;
use apiserver_registry::Written;
use apiserver_schema::error::{ApiError, FieldError};

/// Completes an object of a kind as the server does, and gives its errors as `FIELD: MESSAGE`.
pub(super) fn errors(group: &str, plural: &str, object: &Value) -> Vec<String> {
    let (registry, mut object) = (crate::registry(), object.clone());
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    (resource.behaviour.default)(&mut object);
    text_of((resource.behaviour.validate)(&object))
}

/// The errors of a change.
pub(super) fn update_errors(group: &str, plural: &str, new: &Value, old: &Value) -> Vec<String> {
    let registry = crate::registry();
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    let defaulted = |object: &Value| {
        let mut object = object.clone();
        (resource.behaviour.default)(&mut object);
        object
    };
    let (new, old) = (defaulted(new), defaulted(old));
    text_of(match &resource.behaviour.validate_change {
        Some(check) => check(&new, &old, Written::Main),
        None => (resource.behaviour.validate_update)(&new, &old),
    })
}

pub(super) fn text_of(errors: Vec<FieldError>) -> Vec<String> {
    errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

pub(super) fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

pub(super) const NONE: [&str; 0] = [];

#[test]
fn metadata_of_every_kind() {
    let object = json!({"metadata": {
        "name": "Bad_Name", "namespace": "a.b",
        "labels": {"k": "v v", "/x": "y"},
        "annotations": {"UPPER.example.com/x": "fine", "bad key": "x"},
        "finalizers": ["ok.example.com/f", "two/slashes/here"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": true},
            {"apiVersion": "v1", "kind": "Pod", "name": "b", "controller": true}]}});
    let found = errors("", "configmaps", &object);
    let fields: Vec<&str> = found.iter().map(|e| e.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.namespace",
            "metadata.labels",
            "metadata.labels",
            "metadata.annotations",
            "metadata.ownerReferences.uid",
            "metadata.ownerReferences",
            "metadata.finalizers",
        ],
        "{found:#?}"
    );
    assert_eq!(
        errors("", "configmaps", &json!({"metadata": {}})),
        ["metadata.name: Required value: name or generateName is required"]
    );
    assert_eq!(errors("", "configmaps", &json!({"metadata": {"generateName": "a-"}})), NONE);
    let big = json!({"metadata": {"name": "a", "annotations": {"k": "x".repeat(300_000)}}});
    assert_eq!(
        errors("", "configmaps", &big),
        ["metadata.annotations: Too long: may not be more than 262144 bytes"]
    );
}

#[test]
fn an_invalid_object_becomes_the_status_that_clients_know() {
    let object = json!({"metadata": {"name": "a"}, "data": {"bad/key": "x"}});
    let error = ApiError::invalid("", "ConfigMap", "a", &config::config_map(&object));
    assert_eq!((error.code, error.reason), (422, "Invalid"));
    let details = error.details.unwrap();
    assert_eq!(details["causes"][0]["field"], "data[bad/key]");
    assert_eq!(details["causes"][0]["reason"], "FieldValueInvalid");
}

fn deployment() -> Value {
    let mut object = json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    crate::defaulting::workload::deployment(&mut object);
    object
}

#[test]
fn deployments() {
    let check =
        |pointer: &str, value: Value| errors("apps", "deployments", &with(deployment(), pointer, value));
    assert_eq!(check("/spec/replicas", json!(0)), NONE);
    assert_eq!(
        check("/spec/replicas", json!(-1)),
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
    );
    assert_eq!(
        check("/spec/selector", Value::Null),
        [
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
        ]
    );
    assert_eq!(
        check("/spec/selector", json!({})),
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"]
    );
    assert_eq!(
        check("/spec/template/metadata/labels", json!({"app": "db"})),
        [
            "spec.template.metadata.labels: Invalid value: {\"app\":\"db\"}: `selector` does not match template `labels`"
        ]
    );
    assert_eq!(
        check("/spec/template/spec/restartPolicy", json!("Never")),
        ["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""]
    );
    assert_eq!(
        check("/spec/strategy/rollingUpdate", json!({"maxSurge": 0, "maxUnavailable": "0%"})),
        [
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"
        ]
    );
    assert_eq!(
        check("/spec/strategy/type", json!("Recreate")),
        ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"]
    );
    assert_eq!(
        check("/spec/minReadySeconds", json!(600)),
        ["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"]
    );
    assert_eq!(
        check("/spec/template/spec/containers/0/image", json!("")),
        ["spec.template.spec.containers[0].image: Required value"]
    );
    let moved = with(deployment(), "/spec/selector", json!({"matchLabels": {"app": "db"}}));
    assert_eq!(
        update_errors("apps", "deployments", &moved, &deployment()),
        ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"db\"}}: field is immutable"]
    );
    assert_eq!(update_errors("apps", "deployments", &deployment(), &deployment()), NONE);
}

#[test]
fn stateful_sets_mount_their_claims_and_keep_their_shape() {
    let object = json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}}}});
    assert_eq!(errors("apps", "statefulsets", &object), NONE);
    let scaled = with(object.clone(), "/spec/replicas", json!(5));
    assert_eq!(update_errors("apps", "statefulsets", &scaled, &object), NONE);
    let renamed = with(object.clone(), "/spec/serviceName", json!("other"));
    let found = update_errors("apps", "statefulsets", &renamed, &object);
    assert!(
        found.len() == 1 && found[0].starts_with("spec: Forbidden: updates to statefulset spec"),
        "{found:?}"
    );
}

#[test]
fn jobs_and_schedules() {
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(errors("batch", "jobs", &job), NONE);
    let always = with(job.clone(), "/spec/template/spec/restartPolicy", json!("Always"));
    assert_eq!(
        errors("batch", "jobs", &always),
        ["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""]
    );
    let more = with(job.clone(), "/spec/completions", json!(7));
    assert_eq!(
        update_errors("batch", "jobs", &more, &job),
        ["spec.completions: Invalid value: 7: field is immutable"]
    );
    let image = with(job.clone(), "/spec/template/spec/containers/0/image", json!("j"));
    assert_eq!(update_errors("batch", "jobs", &image, &job).len(), 1);
    let suspended = with(job.clone(), "/spec/suspend", json!(true));
    let placed = with(suspended.clone(), "/spec/template/spec/nodeSelector", json!({"a": "b"}));
    assert_eq!(update_errors("batch", "jobs", &placed, &suspended), NONE);

    let cron = |schedule: &str| {
        errors(
            "batch",
            "cronjobs",
            &json!({"metadata": {"name": "c"}, "spec": {
            "schedule": schedule, "jobTemplate": {"spec": job["spec"]}}}),
        )
    };
    for good in ["*/5 * * * *", "0 0 1,15 jan-mar SUN", "@daily", "@every 1h", "0-30/10 2 ? * 1-5"] {
        assert_eq!(cron(good), NONE, "{good}");
    }
    for bad in [
        "",
        "* * * *",
        "60 * * * *",
        "*/0 * * * *",
        "@sometimes",
        "5-1 * * * *",
        "TZ=UTC * * * * *",
        "x * * * *",
    ] {
        assert_eq!(cron(bad).len(), 1, "{bad}");
    }
}

fn service(spec: Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": spec})
}

#[test]
fn services() {
    let check = |spec: Value| errors("", "services", &service(spec));
    assert_eq!(check(json!({"ports": [{"port": 80}]})), NONE);
    assert_eq!(check(json!({})), ["spec.ports: Required value"]);
    assert_eq!(check(json!({"clusterIP": "None"})), NONE);
    assert_eq!(check(json!({"type": "ExternalName"})), ["spec.externalName: Required value"]);
    assert_eq!(
        check(json!({"ports": [{"port": 0}]})),
        [
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
        ]
    );
    assert_eq!(
        check(
            json!({"ports": [{"name": "a", "port": 80}, {"port": 80, "protocol": "UDP"}, {"name": "a", "port": 80}]})
        ),
        [
            "spec.ports[1].name: Required value",
            "spec.ports[2].name: Duplicate value: \"a\"",
            "spec.ports[2]: Duplicate value: {\"port\":80,\"protocol\":\"TCP\"}",
        ]
    );
    assert_eq!(
        check(json!({"ports": [{"port": 80, "nodePort": 30000}]})),
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"]
    );
    assert_eq!(
        check(json!({"type": "Magic", "ports": [{"port": 80}], "internalTrafficPolicy": "Cluster"})),
        [
            "spec.type: Unsupported value: \"Magic\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\""
        ]
    );
    assert_eq!(
        check(json!({"type": "NodePort", "clusterIP": "None", "ports": [{"port": 80}]})),
        ["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"]
    );
    assert_eq!(
        check(json!({"ports": [{"port": 80}], "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 100_000}}})),
        [
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 100000: must be greater than 0 and less than 86400"
        ]
    );
    let bad_name = errors(
        "",
        "services",
        &with(service(json!({"ports": [{"port": 1}]})), "/metadata/name", json!("a.b")),
    );
    assert!(bad_name[0].contains("must not contain dots"), "{bad_name:?}");
}

#[test]
fn a_service_keeps_its_address() {
    let old = service(json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]}));
    let moved = with(old.clone(), "/spec/clusterIP", json!("10.0.0.2"));
    assert_eq!(
        update_errors("", "services", &moved, &old),
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
    );
    let external = service(json!({"type": "ExternalName", "externalName": "a.b"}));
    assert_eq!(update_errors("", "services", &external, &old), NONE);
}

#[test]
fn slices_and_endpoints() {
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]});
    assert_eq!(errors("discovery.k8s.io", "endpointslices", &slice), NONE);
    let wrong = with(
        slice.clone(),
        "/endpoints",
        json!([
        {"addresses": []}, {"addresses": ["fd00::1"]}, {"addresses": ["127.0.0.1"]}]),
    );
    assert_eq!(
        errors("discovery.k8s.io", "endpointslices", &wrong),
        [
            "endpoints[0].addresses: Required value: must contain at least 1 address",
            "endpoints[1].addresses[0]: Invalid value: \"fd00::1\": must be a valid IPv4 address",
            "endpoints[2].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ]
    );
    let twice = with(slice.clone(), "/ports", json!([{"port": 80}, {"port": 81}]));
    assert_eq!(
        errors("discovery.k8s.io", "endpointslices", &twice),
        ["ports[1].name: Duplicate value: \"\""]
    );
}

#[test]
fn configuration() {
    let old = json!({"metadata": {"name": "c"}, "immutable": true, "data": {"a": "b"}});
    let new = json!({"metadata": {"name": "c"}, "data": {"a": "c"}});
    assert_eq!(
        update_errors("", "configmaps", &new, &old),
        [
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ]
    );
    assert_eq!(update_errors("", "configmaps", &old, &old), NONE);
    let entry = with(old.clone(), "/data/none", json!(""));
    let frozen = ["data: Forbidden: field is immutable when `immutable` is set"];
    assert_eq!(update_errors("", "configmaps", &entry, &old), frozen);
    assert_eq!(update_errors("", "configmaps", &old, &entry), frozen);
    assert_eq!(
        errors("", "secrets", &json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls"})),
        ["data[tls.crt]: Required value", "data[tls.key]: Required value"]
    );
    let secret = json!({"metadata": {"name": "s"}, "type": "Opaque"});
    assert_eq!(
        update_errors("", "secrets", &with(secret.clone(), "/type", json!("other")), &secret),
        ["type: Invalid value: \"other\": field is immutable"]
    );
    let large = json!({"metadata": {"name": "c"}, "data": {"a": "x".repeat(1024 * 1024 + 1)}});
    assert_eq!(errors("", "configmaps", &large), [": Too long: may not be more than 1048576 bytes"]);
}

#[test]
fn roles_and_bindings() {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "system:x"}, "rules": [
        {"verbs": [], "apiGroups": [""], "resources": ["pods"]}, {"verbs": ["get"]}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
    assert_eq!(
        errors(GROUP, "roles", &role),
        [
            "rules[0].verbs: Required value: verbs must contain at least one value",
            "rules[1].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[1].resources: Required value: resource rules must supply at least one resource",
            "rules[2].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
        ]
    );
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "s"}, {"kind": "Robot", "name": "x"}]});
    assert_eq!(
        errors(GROUP, "clusterrolebindings", &binding),
        [
            "subjects[0].namespace: Required value",
            "subjects[1].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ]
    );
    let other = with(binding.clone(), "/roleRef/name", json!("other"));
    let found = update_errors(GROUP, "clusterrolebindings", &other, &binding);
    assert!(found.len() == 1 && found[0].ends_with("cannot change roleRef"), "{found:?}");
}

#[test]
fn cluster_objects() {
    assert!(
        errors("", "namespaces", &json!({"metadata": {"name": "a.b"}}))[0].contains("must not contain dots")
    );
    let node = json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.1.0.0/24"], "taints": [
        {"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "Shrug"}]}});
    let found = errors("", "nodes", &node);
    assert_eq!(found.len(), 2, "{found:?}");
    let moved = with(node.clone(), "/spec/podCIDRs", json!(["10.2.0.0/24"]));
    // The two faults of the taints are found once more.
    assert_eq!(update_errors("", "nodes", &moved, &node).len(), 3);
    assert_eq!(
        errors(
            "coordination.k8s.io",
            "leases",
            &json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}})
        ),
        ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"]
    );
    let event = json!({"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "b"}});
    assert_eq!(
        errors("", "events", &event),
        ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]
    );
    let class = json!({"metadata": {"name": "system-mine"}, "value": 2_000_000_000});
    assert_eq!(errors("scheduling.k8s.io", "priorityclasses", &class).len(), 1);
    let system = json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000});
    assert_eq!(errors("scheduling.k8s.io", "priorityclasses", &system), NONE);
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "maxUnavailable": 1}});
    assert_eq!(errors("policy", "poddisruptionbudgets", &budget).len(), 1);
}

/// A request for a certificate.
const PKCS10: &str = include_str!("../../../../tests/clients/tests/kubectl/joe.csr.base64");

#[test]
fn revisions_and_signing_requests() {
    let revision = json!({"metadata": {"name": "r"}, "revision": 1, "data": {"a": 1}});
    assert_eq!(errors("apps", "controllerrevisions", &revision), NONE);
    let other = with(revision.clone(), "/data", json!({"a": 2}));
    assert_eq!(update_errors("apps", "controllerrevisions", &other, &revision).len(), 1);
    let request = json!({"metadata": {"name": "system:x"}, "spec": {
        "request": PKCS10.trim(), "usages": ["client auth"], "signerName": "kubernetes.io/kube-apiserver-client"}});
    assert_eq!(errors("certificates.k8s.io", "certificatesigningrequests", &request), NONE);
    let bad = with(request.clone(), "/spec", json!({"signerName": "nobody"}));
    assert_eq!(errors("certificates.k8s.io", "certificatesigningrequests", &bad).len(), 3);
    let bad = with(request, "/spec/usages", json!(["q", "any", "any"]));
    assert_eq!(errors("certificates.k8s.io", "certificatesigningrequests", &bad).len(), 2);
    let class = json!({"metadata": {"name": "c"}, "handler": "runc"});
    assert_eq!(errors("node.k8s.io", "runtimeclasses", &class), NONE);
    assert_eq!(
        update_errors("node.k8s.io", "runtimeclasses", &with(class.clone(), "/handler", json!("x")), &class)
            .len(),
        1
    );
}

#[test]
fn storage_and_network() {
    let claim = json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    assert_eq!(errors("", "persistentvolumeclaims", &claim), NONE);
    let bound = with(claim.clone(), "/spec/volumeName", json!("v"));
    assert_eq!(update_errors("", "persistentvolumeclaims", &bound, &claim), NONE);
    let rebound = with(claim.clone(), "/spec/volumeName", json!("w"));
    assert_eq!(update_errors("", "persistentvolumeclaims", &rebound, &bound).len(), 1);
    let smaller = with(claim.clone(), "/spec/resources/requests/storage", json!("1Mi"));
    assert_eq!(update_errors("", "persistentvolumeclaims", &smaller, &claim).len(), 1);
    let volume = json!({"metadata": {"name": "v"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    assert_eq!(
        errors("", "persistentvolumes", &volume),
        ["spec: Required value: must specify a volume type"]
    );
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"rules": [{"host": "*.a.b", "http": {"paths": [
        {"path": "x", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}});
    assert_eq!(
        errors("networking.k8s.io", "ingresses", &ingress),
        ["spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path"]
    );
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [
        {"from": [{}, {"ipBlock": {"cidr": "10.0.0.0"}}]}]}});
    assert_eq!(errors("networking.k8s.io", "networkpolicies", &policy).len(), 2);
    assert_eq!(
        errors(
            "networking.k8s.io",
            "ipaddresses",
            &json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services", "name": "s"}}})
        ),
        NONE
    );
    assert_eq!(
        errors(
            "networking.k8s.io",
            "ipaddresses",
            &json!({"metadata": {"name": "fd00::0001"}, "spec": {"parentRef": {"resource": "services", "name": "s"}}})
        )
        .len(),
        1
    );
}

#[test]
fn metadata_that_never_changes() {
    let old = json!({"metadata": {"name": "a", "uid": "1", "generation": 3, "deletionTimestamp": "2024-01-01T00:00:00Z",
        "finalizers": ["a/b"]}});
    let new = json!({"metadata": {"name": "a", "uid": "2", "generation": 2, "deletionTimestamp": "2024-01-01T00:00:00Z",
        "finalizers": ["a/b", "c/d"]}});
    let fields: Vec<String> = metadata::validate_update(&new, &old).into_iter().map(|e| e.field).collect();
    assert_eq!(fields, ["metadata.uid", "metadata.finalizers", "metadata.generation"]);
    assert!(metadata::validate_update(&old, &old).is_empty());
}

#[test]
fn errors_beyond_those_that_an_answer_names_are_only_counted() {
    let many = |count: usize| {
        let mut errors = super::Errors::default();
        (0..count).for_each(|n| errors.required(format!("spec.f{n}"), ""));
        assert_eq!(errors.count(), count);
        errors.list()
    };
    let list = many(900_000);
    assert_eq!(list.len(), 1_001);
    let error = apiserver_schema::error::ApiError::invalid("", "Pod", "p", &list);
    assert!(error.message.ends_with(", and 899000 more]"));
    // Lists that are put together keep their counts, in whichever way that is done.
    let mut errors = super::Errors::of(many(5_000));
    errors.extend(many(3_000));
    assert_eq!(errors.count(), 8_000);
    for list in [errors.list(), [many(5_000), many(3_000)].concat()] {
        let error = apiserver_schema::error::ApiError::invalid("", "Pod", "p", &list);
        assert!(error.message.ends_with(", and 7000 more]"));
        assert_eq!(error.details.unwrap()["causes"].as_array().unwrap().len(), 1_000);
    }
}

#[test]
fn messages_are_cut_once_much_has_been_said() {
    let mut errors = super::Errors::default();
    (0..900).for_each(|n| errors.required(format!("spec.f{n}"), &"é".repeat(50_000)));
    let list = errors.list();
    assert_eq!(list.len(), 900);
    assert!(list[0].message.len() > 100_000, "the first are whole");
    let bytes: usize = list.iter().map(|error| error.message.len()).sum();
    assert!(bytes < 3 << 20, "{bytes}");
}
