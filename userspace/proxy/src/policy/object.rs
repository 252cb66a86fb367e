//! NetworkPolicies as plain data: defaults filled in, selectors and ranges read.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use apiserver_client::Projection;
use ipnetwork::IpNetwork;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use userspace_dataplane::tables::Protocol;

use super::selector::Selector;

/// A NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    pub namespace: String,
    pub name: String,
    /// Pods of the namespace to which it applies.
    pub pods: Selector,
    /// Rules for packets to these pods; `None` if the policy does not isolate them.
    pub ingress: Option<Vec<Rule>>,
    /// Rules for packets of these pods; `None` if the policy does not isolate them.
    pub egress: Option<Vec<Rule>>,
}

/// One rule: a packet is allowed if its peer and its port match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// `None` for all.
    pub peers: Option<Vec<Peer>>,
    /// `None` for all.
    pub ports: Option<Vec<Port>>,
}

/// The other end of packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    Pods {
        namespaces: Namespaces,
        pods: Selector,
    },
    Block {
        range: IpNetwork,
        except: Vec<IpNetwork>,
    },
    /// Addresses that the proxy found itself.
    Addresses(BTreeSet<IpAddr>),
}

/// Namespaces of peers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespaces {
    /// The policy's own.
    Own(String),
    Selected(Selector),
}

/// Ports of a rule, always those of the packet's destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    pub protocol: Protocol,
    pub ports: Ports,
}

/// The port numbers of a [`Port`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ports {
    All,
    /// First and last.
    Range(u16, u16),
    /// A port of the destination's containers, by name.
    Named(String),
}

/// A NetworkPolicy in a cache.
#[derive(Clone, Debug)]
pub struct PolicyProjection {
    version: Option<NonZeroU64>,
    pub policy: Arc<Policy>,
}

impl Projection for PolicyProjection {
    type Object = NetworkPolicy;

    fn project(object: NetworkPolicy) -> Self {
        let version = object.metadata.resource_version.as_ref().and_then(|version| version.parse().ok());
        Self { version, policy: Arc::new(Policy::of(&object)) }
    }

    fn names(&self) -> (&str, &str) {
        (&self.policy.namespace, &self.policy.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

impl Policy {
    /// Reads a policy. A peer or port that cannot be read allows nothing: the API server refuses such.
    pub fn of(object: &NetworkPolicy) -> Self {
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let default = NetworkPolicySpec::default();
        let spec = object.spec.as_ref().unwrap_or(&default);
        let (ingress, egress) = types(spec);
        let peers = |from: &Option<Vec<NetworkPolicyPeer>>| peers(from.as_deref(), &namespace);
        let ingress = ingress.then(|| {
            let rules = spec.ingress.iter().flatten();
            rules.map(|rule| Rule { peers: peers(&rule.from), ports: ports(rule.ports.as_deref()) }).collect()
        });
        let egress = egress.then(|| {
            let rules = spec.egress.iter().flatten();
            rules.map(|rule| Rule { peers: peers(&rule.to), ports: ports(rule.ports.as_deref()) }).collect()
        });
        let pods = spec.pod_selector.as_ref().map(Selector::of).unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        Self { namespace, name, pods, ingress, egress }
    }
}

/// Returns the directions that a policy isolates.
fn types(spec: &NetworkPolicySpec) -> (bool, bool) {
    match spec.policy_types.as_deref() {
        Some(types) if !types.is_empty() => {
            let has = |name: &str| types.iter().any(|one| one == name);
            (has("Ingress"), has("Egress"))
        }
        _ => (true, spec.egress.as_ref().is_some_and(|rules| !rules.is_empty())),
    }
}

fn peers(given: Option<&[NetworkPolicyPeer]>, namespace: &str) -> Option<Vec<Peer>> {
    let given = given.filter(|peers| !peers.is_empty())?;
    Some(given.iter().filter_map(|one| peer(one, namespace)).collect())
}

fn peer(given: &NetworkPolicyPeer, namespace: &str) -> Option<Peer> {
    if let Some(block) = &given.ip_block {
        let range = network(&block.cidr)?;
        let mut except: Vec<_> =
            block.except.iter().flatten().map(|one| network(one)).collect::<Option<_>>()?;
        except.sort_unstable();
        except.dedup();
        return Some(Peer::Block { range, except });
    }
    let namespaces = match (&given.namespace_selector, &given.pod_selector) {
        (Some(selector), _) => Namespaces::Selected(Selector::of(selector)),
        (None, Some(_)) => Namespaces::Own(namespace.to_owned()),
        (None, None) => return None,
    };
    let pods = given.pod_selector.as_ref().map(Selector::of).unwrap_or_default();
    Some(Peer::Pods { namespaces, pods })
}

/// Reads a range; bits beyond its prefix do not matter.
fn network(text: &str) -> Option<IpNetwork> {
    let range: IpNetwork = text.parse().ok()?;
    IpNetwork::new(range.network(), range.prefix()).ok()
}

fn ports(given: Option<&[NetworkPolicyPort]>) -> Option<Vec<Port>> {
    let given = given.filter(|ports| !ports.is_empty())?;
    Some(given.iter().filter_map(port).collect())
}

fn port(given: &NetworkPolicyPort) -> Option<Port> {
    let protocol = protocol(given.protocol.as_deref())?;
    let number = |value: i32| u16::try_from(value).ok();
    let ports = match (&given.port, given.end_port) {
        (None, _) => Ports::All,
        (Some(IntOrString::Int(first)), Some(last)) => Ports::Range(number(*first)?, number(last)?),
        (Some(IntOrString::Int(one)), None) => Ports::Range(number(*one)?, number(*one)?),
        (Some(IntOrString::String(name)), _) => Ports::Named(name.clone()),
    };
    Some(Port { protocol, ports })
}

/// Reads the name of a protocol; TCP is the default.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}
