//! Random clusters: each packet between two ends is allowed by the tables exactly if the API says so.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use apiserver_client::Projection;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;
use userspace_dataplane::policy::PolicyTables;
use userspace_dataplane::tables::Protocol;
use userspace_proxy::policy::{Inputs, LocalPod, Policy, PolicyPod, compile};

use super::reference::{Attempt, Cluster, End};

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PORTS: [u16; 5] = [53, 80, 81, 8_080, 32_768];
const PROTOCOLS: [(&str, Protocol); 3] =
    [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)];
/// Addresses of nobody, and of this node.
const OUTSIDE: [&str; 5] = ["192.0.2.9", "10.0.9.9", "203.0.113.4", "2001:db8::9", "fd00::ffff"];
const NODE: &str = "192.0.2.1";

/// Compiles a cluster for the node on which all its pods run; interfaces are numbered as the pods are.
pub fn compiled(cluster: &Cluster) -> PolicyTables {
    let policies: Vec<_> = cluster.policies.iter().map(|one| Arc::new(Policy::of(one))).collect();
    let pods: Vec<_> = cluster.pods.iter().map(|pod| Arc::new(PolicyPod::project(pod.clone()))).collect();
    let local: Vec<_> = cluster
        .pods
        .iter()
        .zip(1..)
        .filter(|(pod, _)| pod.spec.as_ref().is_none_or(|spec| spec.host_network != Some(true)))
        .map(|(pod, interface)| LocalPod {
            interface,
            name: format!("pod{interface}"),
            uid: pod.metadata.uid.clone(),
            addresses: addresses(pod),
        })
        .collect();
    compile(&Inputs {
        policies: &policies,
        pods: &pods,
        namespaces: &cluster.namespaces,
        local: &local,
        node: &[NODE.parse().unwrap()],
        always: None,
    })
}

/// Returns the addresses of a pod.
pub fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let status = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    status.map(|one| one.ip.parse().unwrap()).collect()
}

/// Returns whether the tables let a packet leave its sender, and reach its receiver.
pub fn decided(tables: &PolicyTables, cluster: &Cluster, attempt: &Attempt<'_>) -> (bool, bool) {
    let (_, protocol) = PROTOCOLS.into_iter().find(|(name, _)| *name == attempt.protocol).unwrap();
    let endpoint = |pod: Option<&Pod>| {
        let index = cluster.pods.iter().position(|one| pod.is_some_and(|pod| std::ptr::eq(pod, one)))?;
        tables.endpoints.get(&(u32::try_from(index).unwrap() + 1))
    };
    let port = Some((protocol, attempt.port));
    let leaves = endpoint(attempt.from.pod)
        .and_then(|one| one.egress)
        .is_none_or(|set| tables.allows(set.set, attempt.to.address, port).is_some());
    let arrives = endpoint(attempt.to.pod)
        .and_then(|one| one.ingress)
        .is_none_or(|set| tables.allows(set.set, attempt.from.address, port).is_some());
    (leaves, arrives)
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[ab]", "[12]", 0..3)
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    let operator = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    let expression =
        ("[ab]", operator, prop::collection::vec("[12]", 1..3)).prop_map(|(key, operator, values)| {
            let values = operator.ends_with("In").then_some(values);
            LabelSelectorRequirement { key, operator: operator.to_owned(), values }
        });
    (prop::option::of(labels()), prop::option::of(prop::collection::vec(expression, 0..2)))
        .prop_map(|(match_labels, match_expressions)| LabelSelector { match_labels, match_expressions })
}

fn range() -> impl Strategy<Value = String> {
    let bases = vec!["10.0.0.0", "10.0.0.3", "10.0.9.0", "192.0.2.9", "fd00::", "fd00::3", "2001:db8::9"];
    (prop::sample::select(bases), 0..=8_u8).prop_map(|(base, step)| {
        let most = if base.contains(':') { 128 } else { 32 };
        format!("{base}/{}", most - step * 4)
    })
}

fn peer() -> impl Strategy<Value = NetworkPolicyPeer> {
    let block =
        (range(), prop::option::of(prop::collection::vec(range(), 0..3))).prop_map(|(cidr, except)| {
            NetworkPolicyPeer { ip_block: Some(IPBlock { cidr, except }), ..NetworkPolicyPeer::default() }
        });
    let pods = (prop::option::of(selector()), prop::option::of(selector())).prop_map(|(namespaces, pods)| {
        NetworkPolicyPeer { namespace_selector: namespaces, pod_selector: pods, ip_block: None }
    });
    prop_oneof![block, pods]
}

fn port() -> impl Strategy<Value = NetworkPolicyPort> {
    let number = prop::sample::select(PORTS.to_vec());
    let named = prop::sample::select(vec!["web", "dns"]);
    let given = prop_oneof![
        Just((None, None)),
        number.clone().prop_map(|port| (Some(IntOrString::Int(port.into())), None)),
        (number.clone(), number).prop_map(|(one, other)| {
            let (first, last) = (one.min(other), one.max(other));
            (Some(IntOrString::Int(first.into())), Some(i32::from(last)))
        }),
        named.prop_map(|name| (Some(IntOrString::String(name.to_owned())), None)),
    ];
    let protocol = prop::option::of(prop::sample::select(vec!["TCP", "UDP", "SCTP"]));
    (given, protocol).prop_map(|((port, end_port), protocol)| NetworkPolicyPort {
        port,
        end_port,
        protocol: protocol.map(str::to_owned),
    })
}

fn policy() -> impl Strategy<Value = NetworkPolicy> {
    let types = prop::option::of(prop::sample::subsequence(vec!["Ingress", "Egress"], 0..=2));
    let peers = || prop::option::of(prop::collection::vec(peer(), 0..3));
    let ports = || prop::option::of(prop::collection::vec(port(), 0..3));
    let ingress = (peers(), ports()).prop_map(|(from, ports)| NetworkPolicyIngressRule { from, ports });
    let egress = (peers(), ports()).prop_map(|(to, ports)| NetworkPolicyEgressRule { to, ports });
    (
        prop::sample::select(NAMESPACES.to_vec()),
        prop::option::of(selector()),
        types,
        prop::option::of(prop::collection::vec(ingress, 0..3)),
        prop::option::of(prop::collection::vec(egress, 0..3)),
    )
        .prop_map(|(namespace, pod_selector, types, ingress, egress)| NetworkPolicy {
            metadata: ObjectMeta { namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
            spec: Some(NetworkPolicySpec {
                pod_selector,
                policy_types: types.map(|types| types.into_iter().map(str::to_owned).collect()),
                ingress,
                egress,
            }),
        })
}

/// Returns a pod with addresses of both families.
pub fn pod(n: usize, namespace: &str, labels: BTreeMap<String, String>, ports: Vec<ContainerPort>) -> Pod {
    let ip = |text: String| PodIP { ip: text };
    let container = Container { name: "c".to_owned(), ports: Some(ports), ..Container::default() };
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(format!("p{n}")),
            uid: Some(format!("uid-{n}")),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
        status: Some(PodStatus {
            pod_ips: Some(vec![ip(format!("10.0.0.{n}")), ip(format!("fd00::{n:x}"))]),
            ..PodStatus::default()
        }),
    }
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let port = (
        prop::sample::select(vec!["web", "dns"]),
        prop::sample::select(PORTS.to_vec()),
        prop::sample::select(vec!["TCP", "UDP", "SCTP"]),
    );
    let ports = prop::collection::vec(port, 0..3);
    let one = (prop::sample::select(NAMESPACES.to_vec()), labels(), ports, prop::bool::weighted(0.1));
    let pods = prop::collection::vec(one, 1..7);
    let namespaces = prop::collection::vec(labels(), NAMESPACES.len());
    (prop::collection::vec(policy(), 0..6), pods, namespaces).prop_map(|(mut policies, pods, namespaces)| {
        for (n, policy) in policies.iter_mut().enumerate() {
            policy.metadata.name = Some(format!("policy{n}"));
        }
        let pods = pods.into_iter().zip(1..).map(|((namespace, labels, ports, host_network), n)| {
            let port = |(name, number, protocol): (&str, u16, &str)| ContainerPort {
                name: Some(name.to_owned()),
                container_port: number.into(),
                protocol: Some(protocol.to_owned()),
                ..ContainerPort::default()
            };
            let mut pod = pod(n, namespace, labels, ports.into_iter().map(port).collect());
            if host_network {
                pod.spec.as_mut().unwrap().host_network = Some(true);
            }
            pod
        });
        let namespaces = NAMESPACES.iter().map(|name| (*name).to_owned()).zip(namespaces).collect();
        Cluster { policies, pods: pods.collect(), namespaces }
    })
}

/// Returns all ends: each address of each pod that has one of its own, and some of nobody's.
fn ends(cluster: &Cluster) -> Vec<End<'_>> {
    let own = |pod: &&Pod| pod.spec.as_ref().is_none_or(|spec| spec.host_network != Some(true));
    let pods = cluster.pods.iter().filter(own);
    let pods =
        pods.flat_map(|pod| addresses(pod).into_iter().map(move |address| End { address, pod: Some(pod) }));
    let outside = OUTSIDE.iter().map(|text| End { address: text.parse().unwrap(), pod: None });
    pods.chain(outside).collect()
}

proptest! {
    #![proptest_config(crate::seeded::config(300))]

    #[test]
    fn tables_allow_exactly_the_packets_that_the_policies_do(cluster in cluster()) {
        let tables = compiled(&cluster);
        let ends = ends(&cluster);
        for from in &ends {
            for to in ends.iter().filter(|to| to.address.is_ipv4() == from.address.is_ipv4()) {
                for (protocol, port) in PROTOCOLS.iter().flat_map(|(name, _)| PORTS.map(|port| (*name, port))) {
                    let attempt = Attempt { from: *from, to: *to, protocol, port };
                    let expected = (cluster.may_leave(&attempt), cluster.may_arrive(&attempt));
                    prop_assert_eq!(decided(&tables, &cluster, &attempt), expected, "{:?}", attempt);
                }
            }
        }
    }

    #[test]
    fn the_order_of_objects_does_not_matter(cluster in cluster()) {
        let mut other = cluster.clone();
        other.policies.reverse();
        prop_assert_eq!(compiled(&cluster), compiled(&other));
    }
}
