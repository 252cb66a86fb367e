//! The endpoints of one Service, collected from its slices, and the selection among them by policy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use userspace_dataplane::tables::{Backend, Protocol};

use super::NodeView;
use super::address::Family;
use super::choices::Choices;
use super::slice::{Endpoint, Name, Slice};

/// Endpoints by the name and protocol of their port, by which a Service's port selects them.
pub(super) struct Endpoints<'a> {
    by_port: BTreeMap<(&'a str, Protocol), Vec<Candidate>>,
}

/// One address and port, as described by all slices together.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    backend: Backend,
    ready: bool,
    /// The endpoint still serves while it terminates.
    draining: bool,
    hints: Hints,
}

/// The own node, in the terms of endpoints.
struct Here {
    node: Name,
    /// The node's zone; [`Name::NONE`] if it has none.
    zone: Name,
}

/// The hints of an endpoint: whether it has any, and whether they name this node or zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hints {
    node: Option<bool>,
    zone: Option<bool>,
}

/// The traffic policy that selects the endpoints of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Cluster,
    Local,
}

/// The endpoints that a policy selects.
#[derive(Clone, Debug)]
pub(super) struct Picked {
    /// Sorted: local ones first, then by address and port.
    pub backends: Vec<Backend>,
    /// There is a usable endpoint somewhere in the cluster, possibly out of the policy's reach.
    pub any_in_cluster: bool,
}

impl<'a> Endpoints<'a> {
    /// Collects the endpoints of all slices. The same address and port in several slices is one endpoint in
    /// the best state that any slice reports: slices overlap while a controller moves endpoints.
    pub(super) fn gather(
        slices: impl IntoIterator<Item = &'a Slice>,
        choices: &Choices,
        node: &NodeView,
    ) -> Self {
        let mut by_port: BTreeMap<(&'a str, Protocol), Vec<Candidate>> = BTreeMap::new();
        let (mut of_slice, here) = (Vec::new(), Here::of(node));
        for slice in slices {
            of_slice.clear();
            of_slice.extend(slice.endpoints().map(|one| candidate(&one, choices, &here)));
            for port in slice.ports() {
                let at_port = of_slice.iter().map(|one| one.at(port.number));
                by_port.entry((&*port.name, port.protocol)).or_default().extend(at_port);
            }
        }
        for candidates in by_port.values_mut() {
            merge(candidates);
        }
        Self { by_port }
    }

    /// Makes ready endpoints on this node draining ones.
    pub(super) fn drain_local(&mut self) {
        for one in self.by_port.values_mut().flatten().filter(|one| one.backend.local && one.ready) {
            (one.ready, one.draining) = (false, true);
        }
    }

    /// Selects the endpoints of one family for a Service's port: ready ones, or if there are none, those that
    /// still serve while they terminate.
    pub(super) fn pick(&self, port: &str, protocol: Protocol, family: Family, policy: Policy) -> Picked {
        let all = self.by_port.get(&(port, protocol)).map(Vec::as_slice).unwrap_or_default();
        let of_family = || all.iter().filter(|one| Family::of(one.backend.address) == family);
        let any_in_cluster = of_family().any(|one| one.ready || one.draining);
        let chosen = match policy {
            Policy::Cluster => near(usable(of_family())),
            Policy::Local => usable(of_family().filter(|one| one.backend.local)),
        };
        let mut backends: Vec<_> = chosen.into_iter().map(|one| one.backend).collect();
        backends.sort_unstable_by_key(|backend| (!backend.local, backend.address, backend.port));
        share(&mut backends);
        Picked { backends, any_in_cluster }
    }
}

impl Candidate {
    fn at(&self, port: u16) -> Self {
        Self { backend: Backend { port, ..self.backend }, ..*self }
    }

    fn absorb(&mut self, other: &Self) {
        // The hints of a ready entry are the current ones.
        if other.ready && !self.ready {
            self.hints = other.hints;
        } else if other.ready == self.ready {
            self.hints = self.hints.or(other.hints);
        }
        self.ready |= other.ready;
        self.draining |= other.draining;
        self.backend.local |= other.backend.local;
        // An entry without a pod's name has weight 1 only because it lacks the information.
        if self.backend.weight == 1 {
            self.backend.weight = other.backend.weight;
        }
    }
}

impl Hints {
    /// Combines two sets of hints; the order does not matter.
    fn or(self, other: Self) -> Self {
        Self { node: self.node.max(other.node), zone: self.zone.max(other.zone) }
    }
}

/// Merges candidates with the same address and port.
fn merge(candidates: &mut Vec<Candidate>) {
    let place = |one: &Candidate| (one.backend.address, one.backend.port);
    // Sorted by weight as well, so that the order of slices has no effect.
    candidates.sort_unstable_by_key(|one| (place(one), one.backend.weight));
    candidates.dedup_by(|later, first| {
        let same = place(later) == place(first);
        if same {
            first.absorb(later);
        }
        same
    });
}

fn usable<'a>(candidates: impl Iterator<Item = &'a Candidate> + Clone) -> Vec<&'a Candidate> {
    let ready: Vec<_> = candidates.clone().filter(|one| one.ready).collect();
    if !ready.is_empty() {
        return ready;
    }
    candidates.filter(|one| one.draining).collect()
}

/// Returns the candidates hinted for this node, or else for this zone. Hints count only if every ready
/// candidate has one: a half-written set of hints must not starve an endpoint.
fn near(candidates: Vec<&Candidate>) -> Vec<&Candidate> {
    // Draining endpoints are used from everywhere: there are few of them, and not for long.
    if !candidates.iter().all(|one| one.ready) {
        return candidates;
    }
    for hint in [|hints: Hints| hints.node, |hints: Hints| hints.zone] {
        let complete = candidates.iter().all(|one| hint(one.hints).is_some());
        let here = |one: &&&Candidate| hint(one.hints) == Some(true);
        if complete && candidates.iter().any(|one| here(&one)) {
            return candidates.iter().filter(here).copied().collect();
        }
    }
    candidates
}

/// Gives all backends the same weight if every weight is 0. Weights divide traffic; they do not turn it away.
fn share(backends: &mut [Backend]) {
    if backends.iter().all(|backend| backend.weight == 0) {
        for backend in backends {
            backend.weight = 1;
        }
    }
}

/// Returns the protocol of a port: TCP if none is given, `None` for an unknown one.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// Returns the addresses of a slice's ready endpoints on this node.
pub(super) fn local_ready(slice: &Slice, node: &NodeView) -> impl Iterator<Item = IpAddr> {
    let (serves, here) = (!slice.ports().is_empty(), Here::of(node));
    let local = slice.endpoints().filter(move |one| serves && one.ready && here.has(one));
    local.map(|one| one.address)
}

/// The names of nodes, found by their hashes.
pub(crate) struct NodeNames(BTreeMap<Name, Arc<str>>);

impl NodeNames {
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a Arc<str>>) -> Self {
        Self(names.into_iter().map(|name| (Name::of(name), Arc::clone(name))).collect())
    }

    /// Returns the nodes with ready endpoints of one family in these slices, or if there are none, those with
    /// endpoints that still serve while they terminate.
    pub(crate) fn with_endpoints<'a>(
        &self,
        slices: impl IntoIterator<Item = &'a Slice>,
        ipv4: bool,
    ) -> BTreeSet<Arc<str>> {
        let (mut ready, mut draining) = (BTreeSet::new(), BTreeSet::new());
        let served = |slice: &&Slice| slice.is_ipv4() == ipv4 && !slice.ports().is_empty();
        for endpoint in slices.into_iter().filter(served).flat_map(Slice::endpoints) {
            let Some(node) = self.0.get(&endpoint.node) else { continue };
            if endpoint.ready {
                ready.insert(Arc::clone(node));
            } else if endpoint.draining {
                draining.insert(Arc::clone(node));
            }
        }
        if ready.is_empty() { draining } else { ready }
    }
}

/// Returns the candidate of an endpoint; its port is still to be filled in.
fn candidate(endpoint: &Endpoint<'_>, choices: &Choices, here: &Here) -> Candidate {
    let weight = choices.weight(endpoint);
    Candidate {
        backend: Backend { address: endpoint.address, port: 0, local: here.has(endpoint), weight },
        ready: endpoint.ready,
        draining: endpoint.draining,
        hints: here.hints(endpoint),
    }
}

impl Here {
    fn of(node: &NodeView) -> Self {
        Self { node: Name::of(&node.name), zone: Name::of(node.zone.as_deref().unwrap_or_default()) }
    }

    fn has(&self, endpoint: &Endpoint<'_>) -> bool {
        self.node != Name::NONE && endpoint.node == self.node
    }

    fn hints(&self, endpoint: &Endpoint<'_>) -> Hints {
        let nodes = endpoint.hints.map(|hints| &*hints.nodes).filter(|nodes| !nodes.is_empty());
        let zones = endpoint.hints.map(|hints| &*hints.zones).filter(|zones| !zones.is_empty());
        Hints {
            node: nodes.map(|nodes| self.node != Name::NONE && nodes.contains(&self.node)),
            zone: zones.map(|zones| self.zone != Name::NONE && zones.contains(&self.zone)),
        }
    }
}
