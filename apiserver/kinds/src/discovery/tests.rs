use serde_json::{Value, json};

use crate::discovery::endpoint_slice;
use crate::testing::{NONE, apply_defaults, errors, row, with};

#[test]
fn ports_of_slices_get_their_defaults() {
    let slice = apply_defaults(endpoint_slice::default, json!({"ports": [{"port": 1}]}));
    assert_eq!(slice["ports"], json!([{"port": 1, "name": "", "protocol": "TCP"}]));
}

#[test]
fn changed_endpoints_lose_their_topology_and_keep_their_node() {
    let slice = |topology: Value, ready: bool| json!({"endpoints": [{"addresses": ["a"], "conditions": {"ready": ready}, "deprecatedTopology": topology}]});
    let old = slice(json!({"kubernetes.io/hostname": "n"}), true);
    let mut same = old.clone();
    endpoint_slice::prepare_update(&mut same, &old);
    assert_eq!(same, old);
    let mut changed = slice(json!({"kubernetes.io/hostname": "n"}), false);
    endpoint_slice::prepare_update(&mut changed, &old);
    let endpoint = json!({"addresses": ["a"], "conditions": {"ready": false}, "nodeName": "n"});
    assert_eq!(changed["endpoints"], json!([endpoint]));
    let mut another = slice(json!({"kubernetes.io/hostname": "m"}), true);
    endpoint_slice::prepare_update(&mut another, &old);
    assert_eq!(another["endpoints"][0].get("nodeName"), None);
}

#[test]
fn slices_with_repeated_hints_are_refused() {
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [
        {"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "a"}, {"name": "a"}]}, "hostname": "A"}]});
    let found = errors("discovery.k8s.io", "endpointslices", &slice);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[1], "endpoints[0].hints.forZones[1].name: Duplicate value: \"a\"");
}

#[test]
fn slices_with_wrong_endpoints_and_ports_are_refused() {
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
fn rows_of_slices_show_the_first_three_addresses() {
    let slice = json!({"metadata": {"name": "s-1"}, "addressType": "IPv4", "ports": [{"port": 80}, {"name": "x"}],
        "endpoints": [{"addresses": ["1.1.1.1"]}, {"addresses": ["2.2.2.2"]}, {"addresses": ["3.3.3.3"]}, {"addresses": ["4.4.4.4"]}]});
    assert_eq!(
        row("discovery.k8s.io", "endpointslices", &slice),
        "s-1 | IPv4 | 80,x | 1.1.1.1,2.2.2.2,3.3.3.3 + 1 more... | <unknown>"
    );
}
