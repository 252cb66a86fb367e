//! Compiles policies to tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use userspace_dataplane::policy::{ANY, PolicyEndpoint, PolicyPorts, PolicyRule, PolicySet, PolicyTables};
use userspace_dataplane::tables::Protocol;

use super::classes::{Class, Peers, classify};
use super::number::{Numbers, digest};
use super::object::{Policy, Port, Ports, Rule};
use super::pods::{NamedPort, NamespaceLabels, PolicyPod};

/// Number of policies that an event names.
const NAMED: usize = 3;

/// Everything that the tables of policies follow from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub policies: &'a [Arc<Policy>],
    pub pods: &'a [Arc<PolicyPod>],
    pub namespaces: &'a NamespaceLabels,
    /// Pods of this node.
    pub local: &'a [LocalPod],
    /// Addresses of this node.
    pub node: &'a [IpAddr],
    /// A policy for packets that all pods may send, besides those that their own allow: see [`super::dns`].
    pub always: Option<&'a Policy>,
}

/// The interface of a pod of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPod {
    /// Index of the host's end.
    pub interface: u32,
    /// Name of the host's end.
    pub name: String,
    /// UID of the pod, if the interface tells it: such a pod is closed while it is not known.
    pub uid: Option<String>,
    pub addresses: Vec<IpAddr>,
}

/// Directions of packets, from the view of the pod that is isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    fn rules(self, policy: &Policy) -> Option<&[Rule]> {
        match self {
            Self::Ingress => policy.ingress.as_deref(),
            Self::Egress => policy.egress.as_deref(),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// The policies that isolate a pod in one direction, and what named ports mean in their rules for ingress.
type Isolation<'a> = (Direction, Vec<&'a Policy>, Vec<&'a NamedPort>);

/// Returns the tables for the pods of this node.
pub fn compile(inputs: &Inputs<'_>) -> PolicyTables {
    let found = Found::of(inputs);
    let mut sets: BTreeMap<u32, Isolation<'_>> = BTreeMap::new();
    let (mut tables, mut numbers, mut names) =
        (PolicyTables::default(), Numbers::default(), Names::default());
    let mut digests: BTreeMap<*const Policy, u64> = BTreeMap::new();
    for (local, pod) in &found.local {
        let Some(pod) = pod else {
            let pod = names.of(local.name.clone());
            let endpoint = PolicyEndpoint { closed: true, pod, ..PolicyEndpoint::default() };
            tables.endpoints.insert(local.interface, endpoint);
            continue;
        };
        let mut set = |direction| {
            let mut isolation = isolation(direction, pod, &found.policies)?;
            let name = names.of(title(&isolation.1));
            isolation.1.extend(inputs.always.filter(|_| direction == Direction::Egress));
            let of = |policy: &&Policy| {
                *digests.entry(std::ptr::from_ref(*policy)).or_insert_with(|| digest(policy))
            };
            let content: Vec<u64> = isolation.1.iter().map(of).collect();
            let set = numbers.of(digest(&(direction, content, &isolation.2)));
            sets.entry(set).or_insert(isolation);
            Some(PolicySet { set, name })
        };
        let (ingress, egress) = (set(Direction::Ingress), set(Direction::Egress));
        if ingress.is_some() || egress.is_some() {
            let pod = names.of(format!("{}/{}", pod.namespace, pod.name));
            let endpoint = PolicyEndpoint { ingress, egress, closed: false, pod };
            tables.endpoints.insert(local.interface, endpoint);
        }
    }
    if tables.endpoints.is_empty() {
        return PolicyTables::default();
    }
    let (peers, ports) = peers_and_ports(&sets);
    let classes = classify(&peers, &found.addresses, inputs.namespaces, inputs.node, &ports);
    let by_peer = by_peer(&classes.classes);
    tables.peers = classes.ranges;
    for (set, isolation) in &sets {
        let scope =
            Scope { set: *set, isolation, peers: &peers, by_peer: &by_peer, classes: &classes.classes };
        scope.write(&mut tables.rules, &mut names);
    }
    tables.names = names.names;
    tables
}

/// Policies by namespace, pods of this node, and pods by address.
struct Found<'a> {
    policies: BTreeMap<&'a str, Vec<&'a Policy>>,
    local: Vec<(&'a LocalPod, Option<&'a PolicyPod>)>,
    addresses: BTreeMap<IpAddr, &'a PolicyPod>,
}

impl<'a> Found<'a> {
    fn of(inputs: &Inputs<'a>) -> Self {
        let mut policies: BTreeMap<&str, Vec<&Policy>> = BTreeMap::new();
        for policy in inputs.policies {
            policies.entry(policy.namespace.as_str()).or_default().push(policy);
        }
        for all in policies.values_mut() {
            all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        }
        let mut addresses = BTreeMap::new();
        let mirrored = |pod: &'a Arc<PolicyPod>| Some((pod.mirrored.as_deref()?, &**pod));
        let mut by_uid: BTreeMap<&str, &PolicyPod> = inputs.pods.iter().filter_map(mirrored).collect();
        for pod in inputs.pods {
            by_uid.insert(&*pod.uid, &**pod);
            addresses.extend(pod.addresses.iter().map(|address| (*address, &**pod)));
        }
        let pod = |local: &LocalPod| {
            let by_uid = local.uid.as_ref().and_then(|uid| by_uid.get(uid.as_str()).copied());
            by_uid.or_else(|| local.addresses.iter().find_map(|address| addresses.get(address).copied()))
        };
        let local: Vec<_> = inputs
            .local
            .iter()
            .map(|local| (local, pod(local)))
            .filter(|(local, pod)| pod.is_some() || local.uid.is_some())
            .collect();
        // A pod has its addresses before its status does.
        for (local, pod) in &local {
            if let Some(pod) = pod.filter(|pod| !pod.ended) {
                addresses.extend(local.addresses.iter().map(|address| (*address, pod)));
            }
        }
        Self { policies, local, addresses }
    }
}

/// Returns the policies that isolate a pod; `None` if none does.
fn isolation<'a>(
    direction: Direction,
    pod: &'a PolicyPod,
    policies: &BTreeMap<&str, Vec<&'a Policy>>,
) -> Option<Isolation<'a>> {
    let all = policies.get(&*pod.namespace)?;
    let selecting: Vec<&Policy> = all
        .iter()
        .filter(|policy| direction.rules(policy).is_some() && policy.pods.selects(&pod.labels))
        .copied()
        .collect();
    if selecting.is_empty() {
        return None;
    }
    let mut ports = Vec::new();
    if direction == Direction::Ingress {
        let names: BTreeSet<&str> = selecting.iter().flat_map(|one| names_in(direction, one)).collect();
        ports = pod.ports.iter().filter(|port| names.contains(port.name.as_str())).collect();
    }
    Some((direction, selecting, ports))
}

/// Returns the named ports in a policy's rules.
fn names_in(direction: Direction, policy: &Policy) -> impl Iterator<Item = &str> {
    let rules = direction.rules(policy).unwrap_or_default();
    rules.iter().flat_map(|rule| rule.ports.iter().flatten()).filter_map(|port| match &port.ports {
        Ports::Named(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Returns the peers of all rules, and the named ports of those for egress.
fn peers_and_ports<'a>(sets: &BTreeMap<u32, Isolation<'a>>) -> (Peers<'a>, BTreeSet<&'a str>) {
    let (mut peers, mut ports) = (Peers::default(), BTreeSet::new());
    for (direction, policies, _) in sets.values() {
        for policy in policies {
            let rules = direction.rules(policy).unwrap_or_default();
            for peer in rules.iter().flat_map(|rule| rule.peers.iter().flatten()) {
                peers.add(peer);
            }
            if *direction == Direction::Egress {
                ports.extend(names_in(*direction, policy));
            }
        }
    }
    (peers, ports)
}

/// Returns the classes that each peer matches.
fn by_peer(classes: &BTreeMap<u32, Class>) -> BTreeMap<usize, Vec<u32>> {
    let mut found: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (number, class) in classes {
        for peer in &class.peers {
            found.entry(*peer).or_default().push(*number);
        }
    }
    found
}

/// Names of policies, for events.
fn title(policies: &[&Policy]) -> String {
    let named: Vec<_> =
        policies.iter().take(NAMED).map(|one| format!("{}/{}", one.namespace, one.name)).collect();
    let more = policies.len().saturating_sub(NAMED);
    let text = named.join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

/// Names with their numbers.
#[derive(Default)]
struct Names {
    numbers: Numbers,
    names: BTreeMap<u32, String>,
}

impl Names {
    fn of(&mut self, name: String) -> u32 {
        let number = self.numbers.of(digest(&name));
        self.names.entry(number).or_insert(name);
        number
    }
}

/// One set, whose rules are written.
struct Scope<'a> {
    set: u32,
    isolation: &'a Isolation<'a>,
    peers: &'a Peers<'a>,
    by_peer: &'a BTreeMap<usize, Vec<u32>>,
    classes: &'a BTreeMap<u32, Class>,
}

impl Scope<'_> {
    fn write(&self, rules: &mut BTreeMap<PolicyRule, u32>, names: &mut Names) {
        let (direction, policies, _) = self.isolation;
        for policy in policies {
            for (n, rule) in direction.rules(policy).unwrap_or_default().iter().enumerate() {
                let name =
                    names.of(format!("{}/{} {} rule {n}", policy.namespace, policy.name, direction.label()));
                for (class, ports) in self.allowed(rule) {
                    rules.entry(PolicyRule { set: self.set, class, ports }).or_insert(name);
                }
            }
        }
    }

    /// Returns what a rule allows.
    fn allowed(&self, rule: &Rule) -> BTreeSet<(u32, Option<PolicyPorts>)> {
        let classes: BTreeSet<u32> = match &rule.peers {
            None => BTreeSet::from([ANY]),
            Some(peers) => {
                let indexes = peers.iter().filter_map(|peer| self.peers.index(peer));
                indexes.filter_map(|index| self.by_peer.get(&index)).flatten().copied().collect()
            }
        };
        let Some(ports) = &rule.ports else {
            return classes.into_iter().map(|class| (class, None)).collect();
        };
        let mut found = BTreeSet::new();
        for port in ports {
            if let (Direction::Egress, Ports::Named(name)) = (self.isolation.0, &port.ports) {
                // All classes with such a port, if the rule is for all peers.
                let all = rule.peers.is_none();
                let concerned = self.classes.iter().filter(|(number, _)| all || classes.contains(number));
                for (number, class) in concerned {
                    found.extend(resolve(&class.ports, name, port.protocol).map(|one| (*number, Some(one))));
                }
                continue;
            }
            for range in self.ranges(port) {
                found.extend(classes.iter().map(|class| (*class, Some(range))));
            }
        }
        found
    }

    /// Returns the port numbers of a rule, but not those of named ports at the other end.
    fn ranges(&self, port: &Port) -> Vec<PolicyPorts> {
        match &port.ports {
            Ports::All => vec![PolicyPorts::new(port.protocol, 0, 0)],
            Ports::Range(first, last) => aligned(port.protocol, *first, *last),
            Ports::Named(name) => resolve(self.isolation.2.iter().copied(), name, port.protocol).collect(),
        }
    }
}

/// Returns the numbers of a named port.
fn resolve<'a>(
    ports: impl IntoIterator<Item = &'a NamedPort>,
    name: &str,
    protocol: Protocol,
) -> impl Iterator<Item = PolicyPorts> {
    ports
        .into_iter()
        .filter(move |port| port.name == name && port.protocol == protocol)
        .map(|port| PolicyPorts::new(port.protocol, port.number, 16))
}

/// Splits a range of ports into aligned ones, at most thirty.
fn aligned(protocol: Protocol, first: u16, last: u16) -> Vec<PolicyPorts> {
    let (mut found, mut next, end) = (Vec::new(), u32::from(first), u32::from(last) + 1);
    while next < end {
        let most = if next == 0 { 16 } else { next.trailing_zeros().min(16) };
        let size = most.min((end - next).ilog2());
        let port = u16::try_from(next).expect("it is less than the end, which is at most 65,536");
        found.push(PolicyPorts::new(protocol, port, 16 - u8::try_from(size).expect("it is at most 16")));
        next += 1 << size;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_that_claims_the_uid_of_another_changes_nothing_for_it() {
        use apiserver_client::Projection;
        use serde_json::json;

        let policy = json!({
            "metadata": {"namespace": "victim", "name": "closed"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
        });
        let policies = [Arc::new(Policy::of(&serde_json::from_value(policy).unwrap()))];
        let pod = |namespace: &str, uid: &str, claimed: Option<&str>| {
            let annotations = claimed.map(|uid| json!({"kubernetes.io/config.hash": uid}));
            let metadata =
                json!({"namespace": namespace, "name": "p", "uid": uid, "annotations": annotations});
            Arc::new(PolicyPod::project(serde_json::from_value(json!({ "metadata": metadata })).unwrap()))
        };
        let local = |uid: &str| LocalPod { interface: 7, uid: Some(uid.to_owned()), ..LocalPod::default() };
        let endpoint = |pods: &[Arc<PolicyPod>], uid: &str| {
            let namespaces = NamespaceLabels::default();
            let local = [local(uid)];
            let inputs = Inputs {
                policies: &policies,
                pods,
                namespaces: &namespaces,
                local: &local,
                node: &[],
                always: None,
            };
            compile(&inputs).endpoints.get(&7).copied()
        };
        let (victim, tenant) = (pod("victim", "a", None), pod("tenant", "b", Some("a")));
        let isolated = endpoint(std::slice::from_ref(&victim), "a");
        assert!(isolated.is_some_and(|endpoint| endpoint.ingress.is_some()));
        for pods in [[Arc::clone(&victim), Arc::clone(&tenant)], [tenant, victim]] {
            assert_eq!(endpoint(&pods, "a"), isolated);
        }
        // A mirror pod has another UID than its sandbox.
        let mirror = pod("victim", "c", Some("d"));
        assert!(endpoint(&[mirror], "d").is_some_and(|endpoint| endpoint.ingress.is_some()));
    }

    #[test]
    fn ranges_of_ports_become_few_aligned_ones() {
        let covered = |first, last| {
            let found = aligned(Protocol::Tcp, first, last);
            let ports = found.iter().flat_map(|one| {
                let start = u32::from(one.port);
                start..start + (1 << (16 - one.bits))
            });
            let expected: Vec<u32> = (u32::from(first)..=u32::from(last)).collect();
            assert_eq!(ports.collect::<Vec<_>>(), expected);
            found.len()
        };
        assert_eq!((covered(80, 80), covered(0, 65_535), covered(1, 65_535)), (1, 1, 16));
        assert_eq!((covered(1, 65_534), covered(32_000, 32_768), covered(65_535, 65_535)), (30, 3, 1));
        assert!(aligned(Protocol::Tcp, 90, 80).is_empty());
    }
}
