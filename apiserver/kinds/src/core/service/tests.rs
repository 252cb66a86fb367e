use serde_json::{Value, json};

use crate::core::service;
use crate::testing::{
    NONE, apply_defaults, cells, edited, errors, row, stored, update_errors, warnings, with,
};

#[test]
fn services_get_the_defaults_of_their_type() {
    let service = |spec: Value| apply_defaults(service::default, json!({"spec": spec}))["spec"].clone();
    assert_eq!(
        service(json!({"ports": [{"port": 80}]})),
        json!({"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
               "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]})
    );
    let node_port = service(json!({"type": "NodePort", "ports": [{"port": 80, "targetPort": "http"}]}));
    assert_eq!(node_port["externalTrafficPolicy"], "Cluster");
    assert_eq!(node_port["ports"][0]["targetPort"], "http");
    assert!(node_port.get("allocateLoadBalancerNodePorts").is_none());
    assert_eq!(service(json!({"type": "LoadBalancer"}))["allocateLoadBalancerNodePorts"], true);
    let sticky = service(json!({"sessionAffinity": "ClientIP"}));
    assert_eq!(sticky["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    let external = service(json!({"type": "ExternalName", "externalName": "x.y"}));
    assert!(external.get("internalTrafficPolicy").is_none());
}

#[test]
fn a_service_that_changes_type_drops_the_fields_of_the_old_type() {
    let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "externalTrafficPolicy": "Cluster",
        "ports": [{"port": 80, "nodePort": 30080}]}});
    let mut new = old.clone();
    new["spec"]["type"] = json!("ClusterIP");
    service::prepare_update(&mut new, &old);
    assert_eq!(new["spec"], json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]}));
    let mut same = old.clone();
    service::prepare_update(&mut same, &old);
    assert_eq!(same, old);
    // Addresses that others than the server wrote stay, and those that a load balancer wrote go.
    let mut balanced = old.clone();
    balanced["spec"]["type"] = json!("LoadBalancer");
    balanced["spec"]["internalTrafficPolicy"] = json!("Local");
    balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}, "conditions": []});
    let mut named = balanced.clone();
    service::prepare_update(&mut named, &balanced);
    assert_eq!(named, balanced);
    named["spec"]["type"] = json!("ExternalName");
    service::prepare_update(&mut named, &balanced);
    let spec = json!({"type": "ExternalName", "internalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    assert_eq!(named["spec"], spec);
    assert_eq!(named["status"], json!({"loadBalancer": {}, "conditions": []}));
    // A request for another number is refused with an error.
    let mut other = old.clone();
    other["spec"]["type"] = json!("ClusterIP");
    other["spec"]["ports"][0]["nodePort"] = json!(30081);
    service::prepare_update(&mut other, &old);
    assert_eq!(other["spec"]["ports"][0]["nodePort"], 30081);
}

#[test]
fn a_service_keeps_its_health_check_port_while_its_policy_is_local() {
    let old = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000, "ports": [{"port": 80, "nodePort": 30080}]}});
    let changed = |path: &str, value: Value| {
        let mut new = old.clone();
        new["spec"][path] = value;
        service::prepare_update(&mut new, &old);
        new["spec"].get("healthCheckNodePort").cloned()
    };
    assert_eq!(changed("externalTrafficPolicy", json!("Cluster")), None);
    assert_eq!(changed("type", json!("NodePort")), None);
    assert_eq!(changed("sessionAffinity", json!("ClientIP")), Some(json!(31000)));
}

#[test]
fn addresses_of_load_balancers_get_an_ip_mode() {
    let balancer = json!({"spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "h"}]}}});
    let balancer = apply_defaults(service::default, balancer);
    assert_eq!(
        balancer["status"]["loadBalancer"]["ingress"],
        json!([{"ip": "1.2.3.4", "ipMode": "VIP"}, {"hostname": "h"}])
    );
}

fn service_with() -> Value {
    json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}})
}

#[test]
fn services_refuse_fields_of_other_types() {
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        let found = errors("", "services", &edited(&service_with(), edits));
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
fn services_refuse_changes_of_immutable_fields() {
    let old = stored(
        "",
        "services",
        edited(
            &service_with(),
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

fn service(spec: Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": spec})
}

#[test]
fn services_with_wrong_fields_are_refused() {
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
fn rows_of_services_show_addresses_and_ports() {
    let service = |spec: Value| row("", "services", &json!({"metadata": {"name": "s"}, "spec": spec}));
    assert_eq!(
        service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "selector": {"b": "2", "a": "1"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]})
        ),
        "s | NodePort | 10.0.0.1 | <none> | 80:30080/TCP,53/UDP | <unknown> | a=1,b=2"
    );
    assert_eq!(
        service(json!({"type": "LoadBalancer"})),
        "s | LoadBalancer | <none> | <pending> | <none> | <unknown> | <none>"
    );
    assert_eq!(
        service(json!({"type": "ExternalName", "externalName": "x.y"})),
        "s | ExternalName | <none> | x.y | <none> | <unknown> | <none>"
    );
}

#[test]
fn rows_of_load_balancers_show_all_external_addresses() {
    let balancer = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}, {"hostname": "1.example"}]}}});
    assert_eq!(cells("", "services", &balancer)[3].1, "1.example,5.6.7.8,9.9.9.9");
}

#[test]
fn services_with_ignored_or_ambiguous_fields_raise_warnings() {
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
