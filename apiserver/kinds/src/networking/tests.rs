use serde_json::{Value, json};

use crate::networking::network_policy;
use crate::testing::{NONE, apply_defaults, cells, errors, warnings};

#[test]
fn network_policies_get_their_types_and_protocols() {
    let policy = apply_defaults(
        network_policy::default,
        json!({"spec": {"podSelector": {}, "egress": [{"ports": [{"port": 1}]}]}}),
    );
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
}

#[test]
fn egress_rules_decide_the_types_of_a_policy() {
    for (egress, types) in [(json!([]), json!(["Ingress"])), (json!([{}]), json!(["Ingress", "Egress"]))] {
        let policy = apply_defaults(network_policy::default, json!({"spec": {"egress": egress}}));
        assert_eq!(policy["spec"]["policyTypes"], types);
    }
}

#[test]
fn ingresses_and_network_policies_with_wrong_fields_are_refused() {
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
}

#[test]
fn ingresses_policies_and_addresses_with_wrong_names_are_refused() {
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
fn rows_of_addresses_show_their_parent() {
    let parent = |parent: Value| {
        let object = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": parent}});
        cells("networking.k8s.io", "ipaddresses", &object)[1].1.clone()
    };
    let service = json!({"resource": "services", "namespace": "default", "name": "kubernetes"});
    assert_eq!(parent(service), "services/default/kubernetes");
    assert_eq!(
        parent(json!({"group": "gateway.example.com", "resource": "gateways", "name": "g"})),
        "gateways.gateway.example.com/g"
    );
}

#[test]
fn rows_of_ingresses_show_the_first_three_hosts() {
    let hosts = |hosts: &[&str]| {
        let rules: Vec<Value> = hosts.iter().map(|host| json!({"host": host})).collect();
        let object = json!({"metadata": {"name": "i"}, "spec": {"rules": rules}});
        cells("networking.k8s.io", "ingresses", &object)[2].1.clone()
    };
    assert_eq!(hosts(&[]), "*");
    assert_eq!(hosts(&["", "a", "b", "c"]), "a,b,c");
    assert_eq!(hosts(&["a", "b", "c", "", "e"]), "a,b,c + 2 more...");
}

#[test]
fn ingresses_with_the_old_class_annotation_raise_warnings() {
    let ingress = json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}});
    assert_eq!(
        warnings("networking.k8s.io", "ingresses", &ingress),
        [
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
        ]
    );
}
