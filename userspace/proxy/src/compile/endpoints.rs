//! The endpoints of one Service, gathered from its slices, and which of them a policy gives.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use userspace_dataplane::tables::{Backend, Protocol};

use super::NodeView;

/// Endpoints by the name and protocol of their port, as a Service's port asks for them.
pub(super) struct Endpoints {
    by_port: BTreeMap<(String, Protocol), Vec<Candidate>>,
}

/// One address and port, as all slices together see it.
#[derive(Clone, Debug)]
struct Candidate {
    backend: Backend,
    ready: bool,
    /// Still answers while it shuts down.
    draining: bool,
    /// For whom the endpoint is meant; `None` where the slice gives no hint.
    hints: Hints,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hints {
    /// Whether there are hints at all, and whether they name this node or zone.
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
pub(super) struct Picked {
    /// Local ones first, then by address and port.
    pub backends: Vec<Backend>,
    /// There is a usable endpoint somewhere in the cluster, be it out of the policy's reach.
    pub any_in_cluster: bool,
}

impl Endpoints {
    /// Everything that the slices say. The same address and port in several slices is one
    /// endpoint, as good as its best mention: slices overlap while a controller moves endpoints.
    pub(super) fn gather<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>, node: &NodeView) -> Self {
        let mut merged: BTreeMap<(String, Protocol), BTreeMap<(IpAddr, u16), Candidate>> = BTreeMap::new();
        for slice in slices {
            for port in slice.ports.iter().flatten() {
                let Some((key, number)) = port_key(port) else { continue };
                let of_port = merged.entry(key).or_default();
                for endpoint in slice.endpoints.iter().flatten() {
                    let Some(candidate) = candidate(endpoint, slice, number, node) else { continue };
                    let place = (candidate.backend.address, number);
                    of_port.entry(place).and_modify(|known| known.merge(&candidate)).or_insert(candidate);
                }
            }
        }
        let by_port = merged.into_iter().map(|(key, all)| (key, all.into_values().collect())).collect();
        Self { by_port }
    }

    /// The endpoints of one family for a Service's port. Ready ones; if there are none, those
    /// that still serve while they terminate.
    pub(super) fn pick(&self, port: &str, protocol: Protocol, ipv4: bool, policy: Policy) -> Picked {
        let all = self.by_port.get(&(port.to_owned(), protocol)).map(Vec::as_slice).unwrap_or_default();
        let family: Vec<_> = all.iter().filter(|one| one.backend.address.is_ipv4() == ipv4).collect();
        let any_in_cluster = family.iter().any(|one| one.ready || one.draining);
        let chosen = match policy {
            Policy::Cluster => near(usable(&family)),
            Policy::Local => {
                let local: Vec<_> = family.into_iter().filter(|one| one.backend.local).collect();
                usable(&local)
            }
        };
        let mut backends: Vec<_> = chosen.into_iter().map(|one| one.backend).collect();
        backends.sort_unstable_by_key(|backend| (!backend.local, backend.address, backend.port));
        Picked { backends, any_in_cluster }
    }
}

impl Candidate {
    fn merge(&mut self, other: &Self) {
        // A mention that is ready knows best for whom the endpoint is meant.
        if other.ready && !self.ready {
            self.hints = other.hints;
        }
        self.ready |= other.ready;
        self.draining |= other.draining;
        self.backend.local |= other.backend.local;
    }
}

fn usable<'a>(family: &[&'a Candidate]) -> Vec<&'a Candidate> {
    let ready: Vec<_> = family.iter().copied().filter(|one| one.ready).collect();
    if !ready.is_empty() {
        return ready;
    }
    family.iter().copied().filter(|one| one.draining).collect()
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

fn port_key(port: &EndpointPort) -> Option<((String, Protocol), u16)> {
    let number = u16::try_from(port.port?).ok().filter(|number| *number != 0)?;
    let protocol = protocol(port.protocol.as_deref())?;
    Some(((port.name.clone().unwrap_or_default(), protocol), number))
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

fn candidate(endpoint: &Endpoint, slice: &EndpointSlice, port: u16, node: &NodeView) -> Option<Candidate> {
    // Only the first address counts; the others are deprecated equals of it.
    let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let family_fits = match slice.address_type.as_str() {
        "IPv4" => address.is_ipv4(),
        "IPv6" => address.is_ipv6(),
        _ => false,
    };
    if !family_fits || address.is_unspecified() {
        return None;
    }
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|is| is.ready).unwrap_or(true);
    let serving = conditions.and_then(|is| is.serving).unwrap_or(ready);
    let terminating = conditions.and_then(|is| is.terminating).unwrap_or(false);
    let local = !node.name.is_empty() && endpoint.node_name.as_deref() == Some(node.name.as_str());
    Some(Candidate {
        backend: Backend { address, port, local },
        ready,
        draining: serving && terminating,
        hints: hints(endpoint, node),
    })
}

fn hints(endpoint: &Endpoint, node: &NodeView) -> Hints {
    let hints = endpoint.hints.as_ref();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref()).filter(|nodes| !nodes.is_empty());
    let zones = hints.and_then(|hints| hints.for_zones.as_ref()).filter(|zones| !zones.is_empty());
    Hints {
        node: nodes.map(|nodes| nodes.iter().any(|hint| hint.name == node.name)),
        zone: zones.map(|zones| zones.iter().any(|hint| Some(&hint.name) == node.zone.as_ref())),
    }
}
