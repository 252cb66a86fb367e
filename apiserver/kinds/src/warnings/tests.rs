use serde_json::{Value, json};

use super::of;

fn warnings(group: &str, plural: &str, object: &Value) -> Vec<String> {
    of(group, plural).unwrap()(object, None)
}

const NONE: [&str; 0] = [];

#[test]
fn pods() {
    let pod = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
    assert_eq!(warnings("", "pods", &pod(json!({"containers": [{"name": "c"}]}))), NONE);
    let found = warnings(
        "",
        "pods",
        &pod(json!({
            "nodeSelector": {"beta.kubernetes.io/os": "linux"},
            "terminationGracePeriodSeconds": -1,
            "topologySpreadConstraints": [{"topologyKey": "zone"}],
            "volumes": [{"name": "g", "gitRepo": {}}],
            "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {"name": ""}],
            "hostAliases": [{"ip": "fd00::0:1"}],
            "containers": [
                {"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}],
                 "resources": {"limits": {"memory": "100m"}},
                 "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP", "hostPort": 8080}]},
                {"name": "d", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]})),
    );
    assert_eq!(
        found,
        [
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            "spec.imagePullSecrets[1].name: duplicate name \"a\"",
            "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
            "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[1]",
            "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
            "spec.hostAliases[0].ip: IPv6 address \"fd00::0:1\" should be in RFC 5952 canonical format (\"fd00::1\")",
        ]
    );
    let dotted = json!({"metadata": {"name": "a.b"}, "spec": {}});
    assert!(
        warnings("", "pods", &dotted)[0].starts_with("metadata.name: this is used in the Pod's hostname")
    );
    assert_eq!(of("", "pods").unwrap()(&dotted, Some(&dotted)), NONE);
}

#[test]
fn templates_that_did_not_change_are_not_warned_about_again() {
    let template = json!({"spec": {"terminationGracePeriodSeconds": -1}});
    let object = json!({"metadata": {"name": "d"}, "spec": {"template": template}});
    let warn = of("apps", "deployments").unwrap();
    assert_eq!(
        warn(&object, None),
        [
            "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ]
    );
    assert_eq!(warn(&object, Some(&object)), NONE);
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "TZ=UTC * * * * *", "jobTemplate": {"spec": {"template": template}}}});
    let found = warnings("batch", "cronjobs", &cron);
    assert!(found[0].starts_with("spec.jobTemplate.spec.template.spec.terminationGracePeriodSeconds"));
    assert!(found[1].starts_with("CRON_TZ or TZ used in spec.schedule"));
}

#[test]
fn services() {
    let service = |spec: Value| warnings("", "services", &json!({"spec": spec}));
    assert_eq!(service(json!({"type": "ClusterIP", "sessionAffinity": "None", "clusterIP": "None"})), NONE);
    assert_eq!(
        service(
            json!({"type": "ClusterIP", "sessionAffinity": "ClientIP", "clusterIP": "None", "externalIPs": ["1.2.3.4"]})
        ),
        [
            "spec.externalIPs is ignored for headless services",
            "spec.SessionAffinity is ignored for headless services",
        ]
    );
    assert_eq!(
        service(json!({"type": "LoadBalancer", "sessionAffinity": "None", "externalName": "a.b",
            "loadBalancerSourceRanges": ["10.0.0.1/8"], "trafficDistribution": "PreferClose"})),
        [
            "spec.loadBalancerSourceRanges[0]: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ]
    );
}

#[test]
fn other_objects() {
    let volume = json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle", "capacity": {"storage": "1500m"}, "rbd": {}}});
    assert_eq!(
        warnings("", "persistentvolumes", &volume),
        [
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
            "spec.capacity[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
        ]
    );
    let secret = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}});
    assert_eq!(warnings("", "secrets", &secret), ["tls: failed to find any PEM data in certificate input"]);
    let ingress = json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}});
    assert_eq!(
        warnings("networking.k8s.io", "ingresses", &ingress),
        [
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
        ]
    );
}
