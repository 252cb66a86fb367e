//! NetworkPolicy as the API documents it, sentence by sentence: no sets, classes or prefixes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

type Labels = BTreeMap<String, String>;

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub policies: Vec<NetworkPolicy>,
    pub pods: Vec<Pod>,
    pub namespaces: BTreeMap<String, Labels>,
}

/// One end of a packet.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub address: IpAddr,
    /// The pod with this address.
    pub pod: Option<&'a Pod>,
}

/// A packet that begins a connection. The port is the destination's.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    pub from: End<'a>,
    pub to: End<'a>,
    pub protocol: &'a str,
    pub port: u16,
}

impl Cluster {
    /// Returns `true` if the sender may send it: no policy isolates its egress, or one that does allows it.
    pub fn may_leave(&self, attempt: &Attempt<'_>) -> bool {
        let Some(pod) = attempt.from.pod else { return true };
        let selecting = self.selecting(pod, "Egress");
        selecting.is_empty()
            || selecting.iter().any(|policy| {
                let rules = policy.spec.iter().flat_map(|spec| spec.egress.iter().flatten());
                rules.into_iter().any(|rule| {
                    self.matches(policy, rule.to.as_deref(), attempt.to)
                        && port_matches(rule.ports.as_deref(), attempt)
                })
            })
    }

    /// Returns `true` if the receiver admits it: no policy isolates its ingress, or one that does allows it.
    pub fn may_arrive(&self, attempt: &Attempt<'_>) -> bool {
        let Some(pod) = attempt.to.pod else { return true };
        let selecting = self.selecting(pod, "Ingress");
        selecting.is_empty()
            || selecting.iter().any(|policy| {
                let rules = policy.spec.iter().flat_map(|spec| spec.ingress.iter().flatten());
                rules.into_iter().any(|rule| {
                    self.matches(policy, rule.from.as_deref(), attempt.from)
                        && port_matches(rule.ports.as_deref(), attempt)
                })
            })
    }

    /// Returns the policies that isolate a pod in one direction.
    fn selecting(&self, pod: &Pod, direction: &str) -> Vec<&NetworkPolicy> {
        let isolates = |policy: &&NetworkPolicy| {
            let Some(spec) = &policy.spec else { return false };
            let types = spec.policy_types.clone().unwrap_or_default();
            // "If this field is not specified, it will default based on the existence of ingress or egress
            // rules; policies that contain an egress section are assumed to affect egress, and all policies
            // (whether or not they contain an ingress section) are assumed to affect ingress."
            let has_egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
            let default = direction == "Ingress" || has_egress;
            let affects = if types.is_empty() { default } else { types.iter().any(|one| one == direction) };
            let selector = spec.pod_selector.clone().unwrap_or_default();
            affects && policy.metadata.namespace == pod.metadata.namespace && selects(&selector, &labels(pod))
        };
        self.policies.iter().filter(isolates).collect()
    }

    /// "If this field is empty or missing, this rule matches all sources."
    fn matches(&self, policy: &NetworkPolicy, peers: Option<&[NetworkPolicyPeer]>, end: End<'_>) -> bool {
        let peers = peers.unwrap_or_default();
        peers.is_empty() || peers.iter().any(|peer| self.peer_matches(policy, peer, end))
    }

    fn peer_matches(&self, policy: &NetworkPolicy, peer: &NetworkPolicyPeer, end: End<'_>) -> bool {
        if let Some(block) = &peer.ip_block {
            let within = |text: &String| text.parse::<IpNetwork>().unwrap().contains(end.address);
            return within(&block.cidr) && !block.except.iter().flatten().any(within);
        }
        let Some(pod) = end.pod else { return false };
        let namespace = pod.metadata.namespace.clone().unwrap();
        let in_namespace = match &peer.namespace_selector {
            Some(selector) => selects(selector, self.namespaces.get(&namespace).unwrap_or(&Labels::new())),
            None => policy.metadata.namespace.as_ref() == Some(&namespace),
        };
        let chosen = peer.pod_selector.as_ref().is_none_or(|selector| selects(selector, &labels(pod)));
        let hosted = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        in_namespace
            && chosen
            && !hosted
            && (peer.pod_selector.is_some() || peer.namespace_selector.is_some())
    }
}

fn labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|one| {
            let values = one.values.clone().unwrap_or_default();
            match (one.operator.as_str(), labels.get(&one.key)) {
                ("In", Some(value)) => values.contains(value),
                ("NotIn", Some(value)) => !values.contains(value),
                ("Exists", value) => value.is_some(),
                ("DoesNotExist" | "NotIn", value) => value.is_none(),
                _ => false,
            }
        })
}

/// "If this field is empty or missing, this rule matches all ports."
fn port_matches(ports: Option<&[NetworkPolicyPort]>, attempt: &Attempt<'_>) -> bool {
    let ports = ports.unwrap_or_default();
    ports.is_empty() || ports.iter().any(|one| one_port_matches(one, attempt))
}

fn one_port_matches(given: &NetworkPolicyPort, attempt: &Attempt<'_>) -> bool {
    if given.protocol.as_deref().unwrap_or("TCP") != attempt.protocol {
        return false;
    }
    let port = i32::from(attempt.port);
    match &given.port {
        None => true,
        Some(IntOrString::Int(first)) => (*first..=given.end_port.unwrap_or(*first)).contains(&port),
        Some(IntOrString::String(name)) => {
            let containers = attempt.to.pod.iter().flat_map(|pod| pod.spec.iter());
            containers.flat_map(|spec| &spec.containers).flat_map(|one| one.ports.iter().flatten()).any(
                |one| {
                    one.name.as_ref() == Some(name)
                        && one.protocol.as_deref().unwrap_or("TCP") == attempt.protocol
                        && one.container_port == port
                },
            )
        }
    }
}
