//! A truth table: three namespaces with three pods each, which serve TCP, UDP and SCTP on two ports. Each
//! scenario has policies, and says which packets pass.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerPort, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use super::properties::{addresses, compiled, decided, pod};
use super::reference::{Attempt, Cluster, End};

const NAMES: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 3] = ["x", "y", "z"];

/// A packet of the table: `x/a` to `y/b`, TCP port 80.
struct Packet<'a> {
    from: &'a str,
    to: &'a str,
    protocol: &'a str,
    port: u16,
}

impl Packet<'_> {
    fn is_from_namespace(&self, name: &str) -> bool {
        self.from.starts_with(&format!("{name}/"))
    }
}

type Expected = fn(&Packet<'_>) -> bool;

fn cluster(policies: &[Value]) -> Cluster {
    let port = |name: &str, number: i32, protocol: &str| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some(protocol.to_owned()),
        ..ContainerPort::default()
    };
    let mut pods = Vec::new();
    for namespace in NAMESPACES {
        for name in NAMES {
            let labels = BTreeMap::from([("pod".to_owned(), name.to_owned())]);
            let ports = ["tcp", "udp", "sctp"].iter().flat_map(|protocol| {
                [80, 81].map(|number| {
                    port(&format!("serve-{number}-{protocol}"), number, &protocol.to_uppercase())
                })
            });
            pods.push(pod(pods.len() + 1, namespace, labels, ports.collect()));
        }
    }
    let namespaces = NAMESPACES.map(|name| {
        let labels = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), name.to_owned())]);
        (name.to_owned(), labels)
    });
    let policies = policies.iter().zip(0..).map(|(spec, n)| {
        let mut spec = spec.clone();
        let namespace = spec.as_object_mut().unwrap().remove("namespace").unwrap_or_else(|| json!("x"));
        let metadata = json!({ "namespace": namespace, "name": format!("policy{n}") });
        serde_json::from_value::<NetworkPolicy>(json!({ "metadata": metadata, "spec": spec })).unwrap()
    });
    Cluster { policies: policies.collect(), pods, namespaces: namespaces.into() }
}

/// Checks each packet of the table, in both families, in the tables and in the reference.
#[track_caller]
fn check(policies: &[Value], expected: Expected) {
    let cluster = cluster(policies);
    let tables = compiled(&cluster);
    let names: Vec<String> =
        NAMESPACES.iter().flat_map(|namespace| NAMES.map(|name| format!("{namespace}/{name}"))).collect();
    let end = |pod: &'_ Pod, family: usize| addresses(pod)[family];
    for (from, source) in names.iter().zip(&cluster.pods) {
        for (to, destination) in names.iter().zip(&cluster.pods).filter(|(to, _)| *to != from) {
            for protocol in ["TCP", "UDP", "SCTP"] {
                for (port, family) in [(80, 0), (81, 0), (80, 1), (81, 1)] {
                    let attempt = Attempt {
                        from: End { address: end(source, family), pod: Some(source) },
                        to: End { address: end(destination, family), pod: Some(destination) },
                        protocol,
                        port,
                    };
                    let wanted = expected(&Packet { from, to, protocol, port });
                    let (leaves, arrives) = decided(&tables, &cluster, &attempt);
                    assert_eq!(leaves && arrives, wanted, "{from} to {to} {protocol} {port}");
                    let plain = cluster.may_leave(&attempt) && cluster.may_arrive(&attempt);
                    assert_eq!(plain, wanted, "by the reference: {from} to {to} {protocol} {port}");
                }
            }
        }
    }
}

fn namespace(name: &str) -> Value {
    json!({ "matchLabels": { "kubernetes.io/metadata.name": name } })
}

fn named(names: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": "pod", "operator": "In", "values": names }] })
}

#[test]
fn nothing_is_isolated_without_policies() {
    check(&[], |_| true);
    assert!(compiled(&cluster(&[])).endpoints.is_empty());
}

#[test]
fn an_empty_selector_isolates_the_whole_namespace() {
    check(&[json!({ "podSelector": {} })], |packet| !packet.to.starts_with("x/"));
    check(&[json!({ "podSelector": {}, "policyTypes": ["Egress"] })], |packet| {
        !packet.is_from_namespace("x")
    });
    check(&[json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] })], |packet| {
        !packet.to.starts_with("x/") && !packet.is_from_namespace("x")
    });
}

#[test]
fn a_policy_isolates_only_the_pods_that_it_selects() {
    check(&[json!({ "podSelector": named(&["a"]) })], |packet| packet.to != "x/a");
}

#[test]
fn allow_all_wins_over_deny_all() {
    let deny = json!({ "podSelector": {} });
    let allow = json!({ "podSelector": {}, "ingress": [{}] });
    check(&[deny.clone(), allow], |_| true);
    let egress = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] });
    check(&[deny, egress], |packet| !packet.to.starts_with("x/"));
}

#[test]
fn peers_are_selected_by_namespace_by_pod_and_by_both() {
    let rule = |peers: Value| json!({ "podSelector": named(&["a"]), "ingress": [{ "from": peers }] });
    check(&[rule(json!([{ "namespaceSelector": namespace("y") }]))], |packet| {
        packet.to != "x/a" || packet.is_from_namespace("y")
    });
    check(&[rule(json!([{ "podSelector": named(&["b"]) }]))], |packet| {
        packet.to != "x/a" || packet.from == "x/b"
    });
    let both = json!({ "namespaceSelector": namespace("y"), "podSelector": named(&["b"]) });
    check(&[rule(json!([both]))], |packet| packet.to != "x/a" || packet.from == "y/b");
    let either = json!([{ "namespaceSelector": namespace("y") }, { "podSelector": named(&["b"]) }]);
    check(&[rule(either)], |packet| {
        packet.to != "x/a" || packet.is_from_namespace("y") || packet.from == "x/b"
    });
    let others = json!({ "matchExpressions":
        [{ "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["x"] }] });
    check(&[rule(json!([{ "namespaceSelector": others, "podSelector": named(&["c"]) }]))], |packet| {
        packet.to != "x/a" || packet.from == "y/c" || packet.from == "z/c"
    });
}

#[test]
fn a_rule_without_matching_peers_allows_nothing() {
    let rule = json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": named(&["none"]) }] }] });
    check(&[rule], |packet| !packet.to.starts_with("x/"));
}

#[test]
fn ports_and_peers_of_one_rule_must_both_match() {
    let rule = |ports: Value| {
        json!({ "podSelector": named(&["a"]),
            "ingress": [{ "from": [{ "namespaceSelector": namespace("y") }], "ports": ports }] })
    };
    check(&[rule(json!([{ "port": 81 }]))], |packet| {
        packet.to != "x/a" || packet.is_from_namespace("y") && packet.port == 81 && packet.protocol == "TCP"
    });
    check(&[rule(json!([{ "protocol": "SCTP" }]))], |packet| {
        packet.to != "x/a" || packet.is_from_namespace("y") && packet.protocol == "SCTP"
    });
    check(&[rule(json!([{ "protocol": "UDP", "port": 80, "endPort": 90 }]))], |packet| {
        packet.to != "x/a" || packet.is_from_namespace("y") && packet.protocol == "UDP"
    });
    check(&[rule(json!([{ "protocol": "UDP", "port": 81, "endPort": 81 }, { "port": 80 }]))], |packet| {
        let port = (packet.protocol, packet.port);
        packet.to != "x/a" || packet.is_from_namespace("y") && (port == ("UDP", 81) || port == ("TCP", 80))
    });
}

#[test]
fn rules_of_several_policies_add_up() {
    let policy = |port: u16| json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] });
    let tcp = |packet: &Packet<'_>| !packet.to.starts_with("x/") || packet.protocol == "TCP";
    check(&[policy(80), policy(81)], tcp);
    // The second rule is of another policy: its peers do not limit the first one's ports.
    let other = json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": named(&["a"]) }] }] });
    check(&[policy(80), other], |packet| {
        !packet.to.starts_with("x/") || packet.protocol == "TCP" && packet.port == 80 || packet.from == "x/a"
    });
}

#[test]
fn named_ports_are_those_of_the_destination() {
    let ports = json!([{ "port": "serve-81-udp", "protocol": "UDP" }]);
    let ingress = json!({ "podSelector": named(&["a"]), "ingress": [{ "ports": ports }] });
    check(&[ingress], |packet| packet.to != "x/a" || (packet.protocol, packet.port) == ("UDP", 81));
    let to = json!([{ "namespaceSelector": namespace("y") }]);
    let egress = json!({ "podSelector": named(&["a"]), "policyTypes": ["Egress"],
        "egress": [{ "to": to, "ports": ports }] });
    check(&[egress], |packet| {
        packet.from != "x/a" || packet.to.starts_with("y/") && (packet.protocol, packet.port) == ("UDP", 81)
    });
    // For all peers: pods with that port, and nobody else.
    let all =
        json!({ "podSelector": named(&["a"]), "policyTypes": ["Egress"], "egress": [{ "ports": ports }] });
    check(&[all], |packet| packet.from != "x/a" || (packet.protocol, packet.port) == ("UDP", 81));
    // The name is that of a port of another protocol.
    let other = json!([{ "port": "serve-81-udp" }]);
    let ingress = json!({ "podSelector": named(&["a"]), "ingress": [{ "ports": other }] });
    check(&[ingress], |packet| packet.to != "x/a");
}

#[test]
fn both_directions_must_allow_a_packet() {
    let egress = json!({ "podSelector": named(&["a"]), "policyTypes": ["Egress"],
        "egress": [{ "to": [{ "namespaceSelector": namespace("y") }] }] });
    let ingress = json!({ "namespace": "y", "podSelector": named(&["a"]),
        "ingress": [{ "from": [{ "namespaceSelector": namespace("z") }] }] });
    check(&[egress, ingress], |packet| {
        let leaves = packet.from != "x/a" || packet.to.starts_with("y/");
        let arrives = packet.to != "y/a" || packet.is_from_namespace("z");
        leaves && arrives
    });
}

#[test]
fn blocks_contain_pods_and_have_exceptions() {
    // Pods have the addresses 1 to 9: those of x are 1 to 3.
    let block = |range: &str, except: Value| {
        json!({ "podSelector": named(&["a"]), "policyTypes": ["Egress"], "egress": [
            { "to": [{ "ipBlock": { "cidr": range, "except": except } }] },
            { "to": [{ "ipBlock": { "cidr": "fd00::/64" } }] },
        ] })
    };
    let reached = |spec: Value, to: &str| {
        let cluster = cluster(&[spec]);
        let tables = compiled(&cluster);
        let set = tables.endpoints[&1].egress.unwrap().set;
        tables.allows(set, to.parse().unwrap(), None).is_some()
    };
    let spec = || block("10.0.0.0/28", json!(["10.0.0.4/30"]));
    assert!(reached(spec(), "10.0.0.3") && reached(spec(), "10.0.0.8") && reached(spec(), "10.0.0.15"));
    assert!(!reached(spec(), "10.0.0.4") && !reached(spec(), "10.0.0.7") && !reached(spec(), "10.0.0.16"));
    assert!(reached(spec(), "fd00::1") && !reached(spec(), "fd01::1"));
    // An exception of one block does not concern another.
    let mut both = spec();
    both["egress"][1]["to"] = json!([{ "ipBlock": { "cidr": "10.0.0.6/32" } }]);
    assert!(reached(both.clone(), "10.0.0.6") && !reached(both, "10.0.0.5"));
}

#[test]
fn names_in_the_tables_tell_which_rule_allows_a_packet() {
    let spec = json!({ "podSelector": named(&["a"]), "ingress": [
        { "from": [{ "namespaceSelector": namespace("y") }] },
        { "from": [{ "namespaceSelector": namespace("z") }] },
    ] });
    let cluster = cluster(&[spec]);
    let tables = compiled(&cluster);
    let set = tables.endpoints[&1].ingress.unwrap();
    let rule = tables.allows(set.set, addresses(&cluster.pods[6])[0], None).unwrap();
    assert_eq!(tables.names[&rule], "x/policy0 ingress rule 1");
    assert_eq!(tables.names[&set.name], "x/policy0");
    assert_eq!(tables.names[&tables.endpoints[&1].pod], "x/p1");
}
