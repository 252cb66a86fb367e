//! The allowed outcomes of a packet, defined plainly: no flows, no blocks, no hashes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use userspace_dataplane::tables::{NodeTables, Protocol, Scope, ServiceTables, Tables};

use super::packet::{Address, ICMP, ICMP6, Packet, SCTP, UDP};

/// The outcome that the semantics of services allow for the first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// It passes unchanged.
    Unchanged,
    /// It is dropped.
    Dropped,
    /// Its sender gets an error.
    Refused,
    /// An echo request is answered.
    Answered,
    /// It goes to one of these backends.
    To {
        ends: BTreeSet<(IpAddr, u16)>,
        /// The node is the client wherever that is possible.
        masquerade: bool,
    },
}

/// Decides by reading the tables from top to bottom.
pub fn allowed<A: Address>(tables: &Tables, node: &NodeTables, packet: &Packet<A>, scope: Scope) -> Allowed {
    let (address, port): (IpAddr, u16) = (packet.destination.0.into(), packet.destination.1);
    let unspecified = if A::VERSION == 4 { "0.0.0.0" } else { "::" };
    let in_range = node.service_ranges.iter().any(|range| range.contains(address));
    let marked = tables
        .values()
        .flat_map(|tables| &tables.frontends)
        .any(|frontend| frontend.key.protocol == Protocol::Any && frontend.key.address == address);
    let protocol = match packet.protocol {
        UDP => Protocol::Udp,
        SCTP => Protocol::Sctp,
        ICMP | ICMP6 => {
            return match (marked, in_range) {
                (true, _) => Allowed::Answered,
                (false, true) => Allowed::Dropped,
                (false, false) => Allowed::Unchanged,
            };
        }
        _ => Protocol::Tcp,
    };
    let listens = |at: IpAddr| {
        tables.values().find_map(|tables| {
            let found = tables.frontends.iter().find(|frontend| {
                let key = frontend.key;
                key.address == at && (key.port, key.protocol, key.scope) == (port, protocol, scope)
            });
            found.map(|frontend| (tables, frontend))
        })
    };
    let wildcard = || listens(unspecified.parse().unwrap()).filter(|_| node.addresses.contains(&address));
    let Some((service, frontend)) = listens(address).or_else(wildcard) else {
        return match (in_range, marked) {
            (false, _) => Allowed::Unchanged,
            (true, true) => Allowed::Refused,
            (true, false) => Allowed::Dropped,
        };
    };
    if frontend.limited && !may_come_in(service, packet.source.0.into()) {
        return Allowed::Dropped;
    }
    let ends: BTreeSet<(IpAddr, u16)> = frontend
        .backends
        .iter()
        .filter(|backend| backend.weight > 0)
        .map(|backend| (backend.address, backend.port))
        .collect();
    match (ends.is_empty(), frontend.drop_when_empty) {
        (false, _) => Allowed::To { ends, masquerade: frontend.masquerade },
        (true, false) => Allowed::Refused,
        (true, true) => Allowed::Dropped,
    }
}

/// Returns `true` if one of the service's ranges contains the source.
fn may_come_in(service: &ServiceTables, source: IpAddr) -> bool {
    service.source_ranges.iter().any(|range| range.contains(source))
}
