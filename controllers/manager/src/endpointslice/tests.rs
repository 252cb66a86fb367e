//! Scenarios: a Service, its pods and slices, and the resulting writes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{self, ContainerPort, Node, PodIP, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::desired::desired;
use super::place::{CONTROLLER, HEADLESS, place};
use crate::limits::ENDPOINTS_PER_SLICE;
use crate::meta::{controller_reference, name};
use crate::slices::{Action, MANAGED_BY, SERVICE_NAME};
use crate::testing::{labels, meta, node, running, set_ready, slim, time};

fn service(target: IntOrString) -> Service {
    Service {
        metadata: meta("web"),
        spec: Some(ServiceSpec {
            cluster_ip: Some("10.96.0.10".to_owned()),
            cluster_ips: Some(vec!["10.96.0.10".to_owned()]),
            ip_families: Some(vec!["IPv4".to_owned()]),
            selector: Some(labels(&[("app", "test")])),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: 80,
                target_port: Some(target),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn number(port: i32) -> IntOrString {
    IntOrString::Int(port)
}

fn zoned(name: &str) -> Option<Arc<Node>> {
    let mut node = node(name);
    node.metadata.labels = Some(labels(&[("topology.kubernetes.io/zone", "z1")]));
    Some(Arc::new(node))
}

fn plan(service: &Service, pods: &[v1::Pod], slices: &[EndpointSlice]) -> Vec<Action> {
    let pods = slim(pods.iter().cloned());
    let slices = slices.iter().cloned().map(Arc::new).collect();
    place(service, desired(service, &pods, &zoned), slices, None, ENDPOINTS_PER_SLICE)
}

/// Returns the slices after the actions have been carried out.
fn carried_out(mut slices: Vec<EndpointSlice>, actions: Vec<Action>) -> Vec<EndpointSlice> {
    for action in actions {
        match action {
            Action::Create(mut slice) => {
                let number = slices.len();
                slice.metadata.name = Some(format!("web-{number}"));
                slices.push(*slice);
            }
            Action::Update { old, new } => {
                let place = slices.iter_mut().find(|slice| slice.metadata.name == old.metadata.name);
                *place.unwrap() = *new;
            }
            Action::Delete(slice) => slices.retain(|other| other.metadata.name != slice.metadata.name),
        }
    }
    slices
}

/// Carries out a plan and checks that nothing is left to do afterwards.
fn reconciled(service: &Service, pods: &[v1::Pod], slices: Vec<EndpointSlice>) -> Vec<EndpointSlice> {
    let slices = carried_out(slices.clone(), plan(service, pods, &slices));
    assert_eq!(plan(service, pods, &slices), [], "a second plan changes something");
    slices
}

fn endpoints(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

fn many(count: usize) -> Vec<v1::Pod> {
    (0..count)
        .map(|i| running(&format!("p{i:04}"), "n1", &format!("10.0.{}.{}", i / 250, i % 250 + 1)))
        .collect()
}

#[test]
fn an_endpoint_carries_address_node_zone_target_and_conditions() {
    let web = service(number(8080));
    let slices = reconciled(&web, &[running("a", "n1", "10.0.0.1")], vec![]);
    let [slice] = slices.as_slice() else { panic!("{slices:?}") };
    let slice_labels = slice.metadata.labels.as_ref().unwrap();
    assert_eq!((slice_labels[SERVICE_NAME].as_str(), slice_labels[MANAGED_BY].as_str()), ("web", CONTROLLER));
    assert!(!slice_labels.contains_key(HEADLESS));
    assert_eq!(slice.metadata.generate_name.as_deref(), Some("web-"));
    assert_eq!(slice.metadata.owner_references, Some(vec![controller_reference(&web)]));
    assert_eq!(slice.address_type, "IPv4");
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
    let [endpoint] = endpoints(slice) else { panic!() };
    assert_eq!(endpoint.addresses, ["10.0.0.1"]);
    assert_eq!(endpoint.node_name.as_deref(), Some("n1"));
    assert_eq!(endpoint.zone.as_deref(), Some("z1"));
    assert_eq!(endpoint.target_ref.as_ref().unwrap().uid.as_deref(), Some("uid-a"));
    let conditions = endpoint.conditions.as_ref().unwrap();
    assert_eq!(
        (conditions.ready, conditions.serving, conditions.terminating),
        (Some(true), Some(true), Some(false))
    );
}

#[test]
fn endpoint_conditions_distinguish_four_pod_states() {
    let good = running("a", "n", "10.0.0.1");
    let mut unready = running("b", "n", "10.0.0.2");
    set_ready(&mut unready, false, 1);
    let mut draining = running("c", "n", "10.0.0.3");
    draining.metadata.deletion_timestamp = time(1);
    let mut finished = running("d", "n", "10.0.0.4");
    finished.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let pods = [good, unready, draining, finished, crate::testing::pod("without-address")];
    let conditions = |web: &Service| -> Vec<_> {
        let slices = reconciled(web, &pods, vec![]);
        endpoints(&slices[0])
            .iter()
            .map(|endpoint| {
                let c = endpoint.conditions.as_ref().unwrap();
                (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap())
            })
            .collect()
    };
    let mut web = service(number(80));
    assert_eq!(conditions(&web), [(true, true, false), (false, false, false), (false, true, true)]);
    web.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
    assert_eq!(conditions(&web), [(true, true, false), (true, false, false), (true, true, true)]);
}

#[test]
fn dual_stack_makes_slices_of_both_families() {
    let mut web = service(number(80));
    web.spec.as_mut().unwrap().ip_families = Some(vec!["IPv6".to_owned(), "IPv4".to_owned()]);
    let mut pod = running("a", "n", "10.0.0.1");
    let ips = ["10.0.0.1", "fd00::1"].map(|ip| PodIP { ip: ip.to_owned() });
    pod.status.as_mut().unwrap().pod_ips = Some(ips.to_vec());
    let slices = reconciled(&web, &[pod, running("only4", "n", "10.0.0.2")], vec![]);
    let shape: Vec<_> = slices.iter().map(|s| (s.address_type.as_str(), endpoints(s).len())).collect();
    assert_eq!(shape, [("IPv4", 2), ("IPv6", 1)]);
    assert_eq!(endpoints(&slices[1])[0].addresses, ["fd00::1"]);
}

#[test]
fn a_named_port_is_resolved_per_pod_and_splits_the_slices() {
    let web = service(IntOrString::String("http".to_owned()));
    let with_port = |name: &str, ip: &str, port: Option<i32>| {
        let mut pod = running(name, "n", ip);
        pod.spec.as_mut().unwrap().containers[0].ports = port.map(|container_port| {
            vec![ContainerPort { name: Some("http".to_owned()), container_port, ..ContainerPort::default() }]
        });
        pod
    };
    let pods = [
        with_port("a", "10.0.0.1", Some(8080)),
        with_port("b", "10.0.0.2", Some(9090)),
        with_port("c", "10.0.0.3", Some(8080)),
        with_port("d", "10.0.0.4", None),
    ];
    let slices = reconciled(&web, &pods, vec![]);
    let shape: Vec<_> = slices
        .iter()
        .map(|s| (s.ports.iter().flatten().filter_map(|p| p.port).collect::<Vec<_>>(), endpoints(s).len()))
        .collect();
    assert_eq!(shape, [(vec![], 1), (vec![8080], 2), (vec![9090], 1)]);
}

#[test]
fn a_service_without_endpoints_has_one_empty_slice_that_is_used_again() {
    let web = service(number(80));
    let slices = reconciled(&web, &[], vec![]);
    assert_eq!((slices.len(), endpoints(&slices[0]).len()), (1, 0));
    let slices = reconciled(&web, &[running("a", "n", "10.0.0.1")], slices);
    assert_eq!((slices.len(), endpoints(&slices[0]).len()), (1, 1));
    let slices = reconciled(&web, &[], slices);
    assert_eq!((slices.len(), endpoints(&slices[0]).len()), (1, 0));
}

#[test]
fn slices_hold_a_hundred_and_one_change_writes_one_slice() {
    let web = service(number(80));
    let mut pods = many(250);
    let slices = reconciled(&web, &pods, vec![]);
    assert_eq!(slices.iter().map(|s| endpoints(s).len()).collect::<Vec<_>>(), [100, 100, 50]);
    set_ready(&mut pods[120], false, 9);
    let actions = plan(&web, &pods, &slices);
    let [Action::Update { old, .. }] = actions.as_slice() else { panic!("{} actions", actions.len()) };
    assert_eq!(name(&old.metadata), "web-1");
    // A new pod goes to a slice with room.
    let slices = carried_out(slices, actions);
    pods.push(running("new", "n", "10.9.9.9"));
    let actions = plan(&web, &pods, &slices);
    let [Action::Update { old, new }] = actions.as_slice() else { panic!("{} actions", actions.len()) };
    assert_eq!((name(&old.metadata), endpoints(new).len()), ("web-2", 51));
}

#[test]
fn a_pod_that_is_replaced_writes_only_the_slice_that_lost_it() {
    let web = service(number(80));
    let mut pods = many(150);
    let slices = reconciled(&web, &pods, vec![]);
    pods[3] = running("other", "n", "10.9.9.9");
    let actions = plan(&web, &pods, &slices);
    let [Action::Update { old, new }] = actions.as_slice() else { panic!("{} actions", actions.len()) };
    assert_eq!((name(&old.metadata), endpoints(new).len()), ("web-0", 100));
}

#[test]
fn a_headless_service_is_marked_and_names_its_pods() {
    let mut web = service(number(80));
    let spec = web.spec.as_mut().unwrap();
    spec.cluster_ip = Some("None".to_owned());
    spec.ports = None;
    let mut named = running("a", "n", "10.0.0.1");
    named.spec.as_mut().unwrap().hostname = Some("db-0".to_owned());
    named.spec.as_mut().unwrap().subdomain = Some("web".to_owned());
    let mut other = running("b", "n", "10.0.0.2");
    other.spec.as_mut().unwrap().hostname = Some("db-1".to_owned());
    other.spec.as_mut().unwrap().subdomain = Some("elsewhere".to_owned());
    let slices = reconciled(&web, &[named, other], vec![]);
    assert!(slices[0].metadata.labels.as_ref().unwrap().contains_key(HEADLESS));
    let hostnames: Vec<_> = endpoints(&slices[0]).iter().map(|e| e.hostname.as_deref()).collect();
    assert_eq!(hostnames, [Some("db-0"), None]);
}

#[test]
fn slices_of_a_removed_family_are_deleted() {
    let web = service(number(80));
    let mut stray = carried_out(vec![], plan(&web, &[], &[])).remove(0);
    stray.address_type = "IPv6".to_owned();
    stray.metadata.name = Some("stray".to_owned());
    let slices = reconciled(&web, &[running("a", "n", "10.0.0.1")], vec![stray]);
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].address_type, "IPv4");
}

#[test]
fn a_service_that_prefers_close_endpoints_gets_hints_for_ready_ones() {
    let mut web = service(number(80));
    let mut unready = running("b", "n2", "10.0.0.2");
    set_ready(&mut unready, false, 1);
    let pods = [running("a", "n1", "10.0.0.1"), unready];
    let hints = |web: &Service| {
        let slices = reconciled(web, &pods, vec![]);
        endpoints(&slices[0])
            .iter()
            .map(|endpoint| {
                let hints = endpoint.hints.clone().unwrap_or_default();
                (hints.for_zones.map(|z| z[0].name.clone()), hints.for_nodes.map(|n| n[0].name.clone()))
            })
            .collect::<Vec<_>>()
    };
    let (zone, node) = (Some("z1".to_owned()), Some("n1".to_owned()));
    assert_eq!(hints(&web), [(None, None), (None, None)]);
    web.spec.as_mut().unwrap().traffic_distribution = Some("PreferSameZone".to_owned());
    assert_eq!(hints(&web), [(zone.clone(), None), (None, None)]);
    web.spec.as_mut().unwrap().traffic_distribution = Some("PreferSameNode".to_owned());
    assert_eq!(hints(&web), [(zone, node), (None, None)]);
}

/// The API refuses a whole slice for one such address, so a node that reported one would block all endpoints
/// of the Service.
#[test]
fn invalid_endpoint_addresses_are_left_out() {
    let special =
        ["127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "::ffff:10.244.0.1", "fe80::1", "x", ""];
    let mut pods: Vec<v1::Pod> =
        special.iter().enumerate().map(|(i, address)| running(&format!("bad-{i}"), "n1", address)).collect();
    pods.push(running("good", "n1", "10.244.0.7"));
    let mut service = service(number(80));
    service.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".to_owned(), "IPv6".to_owned()]);
    let slices = reconciled(&service, &pods, Vec::new());
    let addresses: Vec<_> = slices.iter().flat_map(endpoints).flat_map(|e| e.addresses.clone()).collect();
    assert_eq!(addresses, ["10.244.0.7"]);
}
