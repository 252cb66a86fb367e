//! The endpoints of one Service, gathered from its slices, and which of them a policy gives.

use std::collections::BTreeMap;
use std::net::IpAddr;

use userspace_dataplane::tables::{Backend, Protocol};

use super::NodeView;
use super::address::Family;
use super::choices::Choices;
use super::slice::{Endpoint, Name, Slice};

/// Endpoints by the name and protocol of their port, as a Service's port asks for them.
pub(super) struct Endpoints<'a> {
    by_port: BTreeMap<(&'a str, Protocol), Vec<Candidate>>,
}

/// One address and port, as all slices together see it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    backend: Backend,
    ready: bool,
    /// Still answers while it shuts down.
    draining: bool,
    hints: Hints,
}

/// The own node, as endpoints name it.
struct Here {
    node: Name,
    /// [`Name::NONE`] where the node has none.
    zone: Name,
}

/// For whom an endpoint is meant: whether there are hints at all, and whether they name this node
/// or zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hints {
    node: Option<bool>,
    zone: Option<bool>,
}

/// Which endpoints a frontend may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Cluster,
    Local,
}

/// What a policy gives.
#[derive(Clone, Debug)]
pub(super) struct Picked {
    /// Local ones first, then by address and port.
    pub backends: Vec<Backend>,
    /// There is a usable endpoint somewhere in the cluster, be it out of the policy's reach.
    pub any_in_cluster: bool,
}

impl<'a> Endpoints<'a> {
    /// Everything that the slices say. The same address and port in several slices is one
    /// endpoint, as good as its best mention: slices overlap while a controller moves endpoints.
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

    /// The endpoints of one family for a Service's port. Ready ones; if there are none, those
    /// that still serve while they terminate.
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
        // A mention that is ready knows best for whom the endpoint is meant.
        if other.ready && !self.ready {
            self.hints = other.hints;
        } else if other.ready == self.ready {
            self.hints = self.hints.or(other.hints);
        }
        self.ready |= other.ready;
        self.draining |= other.draining;
        self.backend.local |= other.backend.local;
        // One without a pod's name weighs 1 for want of knowledge.
        if self.backend.weight == 1 {
            self.backend.weight = other.backend.weight;
        }
    }
}

impl Hints {
    /// The same whichever comes first.
    fn or(self, other: Self) -> Self {
        Self { node: self.node.max(other.node), zone: self.zone.max(other.zone) }
    }
}

/// Makes one of those with the same address and port.
fn merge(candidates: &mut Vec<Candidate>) {
    let place = |one: &Candidate| (one.backend.address, one.backend.port);
    // By weight as well, so that the order of slices means nothing.
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

/// Those meant for this node, or else for this zone. Hints count only when every candidate that
/// is ready has one: a half-written set of hints must not starve an endpoint.
fn near(candidates: Vec<&Candidate>) -> Vec<&Candidate> {
    // What only drains is used from everywhere: there is little of it, and not for long.
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

/// Weights divide traffic; they do not turn it away. Where nobody has a share, all have the same.
fn share(backends: &mut [Backend]) {
    if backends.iter().all(|backend| backend.weight == 0) {
        for backend in backends {
            backend.weight = 1;
        }
    }
}

/// The protocol of a port; TCP where none is given, `None` for one that does not exist.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// Addresses of a slice's ready endpoints on this node.
pub(super) fn local_ready(slice: &Slice, node: &NodeView) -> impl Iterator<Item = IpAddr> {
    let (serves, here) = (!slice.ports().is_empty(), Here::of(node));
    let local = slice.endpoints().filter(move |one| serves && one.ready && here.has(one));
    local.map(|one| one.address)
}

/// An endpoint, its port still to be filled in.
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
