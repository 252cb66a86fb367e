use std::sync::Arc;

use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::plan::{self, Plan, is_mirrored};
use crate::limits::MIRRORED_ADDRESSES;
use crate::slices::Action;

fn endpoints(subsets: Value) -> Endpoints {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "uid-web", "labels": {"team": "shop"},
            "annotations": {
                "note": "by hand",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z",
            },
        },
        "subsets": subsets,
    }))
    .unwrap()
}

/// Returns the plan with the default number of addresses.
fn mirror(endpoints: &Endpoints, existing: Vec<Arc<EndpointSlice>>) -> Plan {
    plan::plan(endpoints, existing, MIRRORED_ADDRESSES)
}

fn addresses(ips: &[&str]) -> Value {
    ips.iter().map(|ip| json!({"ip": ip})).collect()
}

/// Carries out the actions on the slices, as the API does.
fn after(slices: Vec<Arc<EndpointSlice>>, plan: Plan) -> Vec<Arc<EndpointSlice>> {
    let mut slices = slices;
    for (number, action) in plan.actions.into_iter().enumerate() {
        match action {
            Action::Create(mut slice) => {
                slice.metadata.name = Some(format!("web-{number}"));
                slices.push(Arc::new(*slice));
            }
            Action::Update { old, new } => {
                slices.retain(|slice| slice.metadata.name != old.metadata.name);
                slices.push(Arc::new(*new));
            }
            Action::Delete(old) => slices.retain(|slice| slice.metadata.name != old.metadata.name),
        }
    }
    slices
}

/// Returns type, ports and addresses of each slice, those that are not ready with an exclamation mark.
fn shown(slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let mut lines: Vec<String> = slices
        .iter()
        .map(|slice| {
            let ports = slice.ports.iter().flatten();
            let ports: Vec<_> = ports.map(|port| port.port.unwrap_or_default().to_string()).collect();
            let mut list: Vec<_> = slice
                .endpoints
                .iter()
                .flatten()
                .map(|one| {
                    let ready = one.conditions.as_ref().and_then(|conditions| conditions.ready);
                    format!("{}{}", one.addresses[0], if ready == Some(true) { "" } else { "!" })
                })
                .collect();
            list.sort();
            format!("{} {} {}", slice.address_type, ports.join(","), list.join(" "))
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn subsets_become_slices_by_ports_and_family_with_labels_annotations_and_an_owner() {
    let object = endpoints(json!([
        {"addresses": addresses(&["10.0.0.1", "fd00::1"]), "notReadyAddresses": addresses(&["10.0.0.2"]),
         "ports": [{"port": 80, "name": "http"}]},
        {"addresses": addresses(&["10.0.0.3"]), "ports": [{"port": 90}]},
    ]));
    let slices = after(Vec::new(), mirror(&object, Vec::new()));
    assert_eq!(shown(&slices), ["IPv4 80 10.0.0.1 10.0.0.2!", "IPv4 90 10.0.0.3", "IPv6 80 fd00::1"]);
    let slice = &slices[0].metadata;
    assert_eq!(slice.generate_name.as_deref(), Some("web-"));
    let labels = serde_json::to_value(&slice.labels).unwrap();
    assert_eq!(
        labels,
        json!({
            "team": "shop",
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
        })
    );
    assert_eq!(serde_json::to_value(&slice.annotations).unwrap(), json!({"note": "by hand"}));
    let owner = &slice.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
        ("Endpoints", "uid-web", Some(true))
    );
}

#[test]
fn an_unchanged_object_needs_no_write_and_a_changed_one_writes_its_slice() {
    let subsets = |ips: &[&str]| json!([{"addresses": addresses(ips), "ports": [{"port": 80}]}]);
    let slices = after(Vec::new(), mirror(&endpoints(subsets(&["10.0.0.2", "10.0.0.1"])), Vec::new()));
    let same = mirror(&endpoints(subsets(&["10.0.0.1", "10.0.0.2"])), slices.clone());
    assert!(same.actions.is_empty(), "{same:?}");
    let changed = mirror(&endpoints(subsets(&["10.0.0.2", "10.0.0.3"])), slices.clone());
    assert!(matches!(changed.actions.as_slice(), [Action::Update { .. }]), "{changed:?}");
    assert_eq!(shown(&after(slices, changed)), ["IPv4 80 10.0.0.2 10.0.0.3"]);
}

#[test]
fn other_ports_write_the_slice_anew_and_no_addresses_delete_it() {
    let with_port =
        |port: i32| endpoints(json!([{"addresses": addresses(&["10.0.0.1"]), "ports": [{"port": port}]}]));
    let slices = after(Vec::new(), mirror(&with_port(80), Vec::new()));
    let moved = mirror(&with_port(81), slices.clone());
    assert!(matches!(moved.actions.as_slice(), [Action::Update { .. }]), "{moved:?}");
    let slices = after(slices, moved);
    assert_eq!(shown(&slices), ["IPv4 81 10.0.0.1"]);
    assert!(after(slices.clone(), mirror(&endpoints(json!([])), slices)).is_empty());
}

#[test]
fn subsets_are_joined_and_not_ready_trumps_ready() {
    let object = endpoints(json!([
        {"addresses": addresses(&["10.0.0.1"]), "ports": [{"port": 80, "name": "a"}]},
        {"addresses": addresses(&["10.0.0.2"]), "ports": [{"port": 80, "name": "a"}]},
        {"notReadyAddresses": addresses(&["10.0.0.1"]), "ports": [{"port": 80, "name": "a"}]},
        {"addresses": addresses(&["10.0.0.2"]), "notReadyAddresses": addresses(&["10.0.0.1"]),
         "ports": [{"port": 90, "name": "b"}]},
    ]));
    assert_eq!(shown(&after(Vec::new(), mirror(&object, Vec::new()))), ["IPv4 80,90 10.0.0.1! 10.0.0.2"]);
}

#[test]
fn names_and_addresses_beyond_the_limit_are_left_out_and_counted() {
    let many: Vec<String> = (0..1002).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let mut ips: Vec<&str> = many.iter().map(String::as_str).collect();
    ips.insert(0, "name.example");
    let object = endpoints(json!([
        {"addresses": addresses(&["10.9.9.9"]), "notReadyAddresses": addresses(&ips), "ports": [{"port": 80}]},
    ]));
    let plan = mirror(&object, Vec::new());
    assert_eq!(plan.skipped, 1004 - 1000);
    let [Action::Create(slice)] = plan.actions.as_slice() else { panic!("{} actions", plan.actions.len()) };
    let list = slice.endpoints.as_deref().unwrap();
    assert_eq!((list.len(), list[0].addresses[0].as_str()), (1000, "10.9.9.9"), "ready ones first");
}

#[test]
fn objects_of_a_tenant_that_would_fill_the_memory_are_not_mirrored() {
    let many: Vec<String> =
        (0..20_000).map(|n| format!("10.{}.{}.{}", n / 65_536, n / 256 % 256, n % 256)).collect();
    let ips: Vec<&str> = many.iter().map(String::as_str).collect();
    let ports: Vec<Value> = (1..=10_000).map(|port| json!({"port": port})).collect();
    let product = endpoints(json!([{"addresses": addresses(&ips), "ports": ports}]));
    let subsets: Vec<Value> = (1..=200)
        .map(|n| json!({"addresses": addresses(&[many[n].as_str()]), "ports": [{"port": n}]}))
        .collect();
    let slices = endpoints(Value::from(subsets));
    for object in [product, slices] {
        let plan = mirror(&object, Vec::new());
        assert!(plan.too_large && plan.actions.is_empty());
    }
}

#[test]
fn labels_and_leader_annotations_exclude_from_mirroring() {
    let mut object = endpoints(json!([]));
    assert!(is_mirrored(&object));
    let labels = object.metadata.labels.get_or_insert_default();
    labels.insert("endpointslice.kubernetes.io/skip-mirror".to_owned(), "true".to_owned());
    assert!(!is_mirrored(&object));
    let mut lock = endpoints(json!([]));
    let annotations = lock.metadata.annotations.get_or_insert_default();
    annotations.insert("control-plane.alpha.kubernetes.io/leader".to_owned(), "{}".to_owned());
    assert!(!is_mirrored(&lock));
}

#[test]
fn two_pods_with_one_address_are_two_endpoints() {
    let target = |uid: &str| json!({"ip": "10.0.0.1", "targetRef": {"kind": "Pod", "name": uid, "uid": uid}});
    let object = endpoints(json!([{"addresses": [target("a"), target("b")], "ports": [{"port": 80}]}]));
    let slices = after(Vec::new(), mirror(&object, Vec::new()));
    assert_eq!(shown(&slices), ["IPv4 80 10.0.0.1 10.0.0.1"]);
    assert!(mirror(&object, slices).actions.is_empty());
}
