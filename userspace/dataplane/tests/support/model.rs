//! What may become of a packet, said plainly: no flows, no blocks, no hashes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use userspace_dataplane::tables::{Protocol, Scope, Tables};

use super::packet::{End, Packet, UDP};

/// What the semantics of services allow for the first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// It goes on as it is.
    Unchanged,
    /// It vanishes.
    Dropped,
    /// Its sender hears that nobody is there.
    Refused,
    /// It goes to one of these.
    To(BTreeSet<End>),
}

/// Decides by reading the tables from top to bottom.
pub fn allowed(tables: &Tables, node_addresses: &[Ipv4Addr], packet: &Packet, scope: Scope) -> Allowed {
    let protocol = if packet.protocol == UDP { Protocol::Udp } else { Protocol::Tcp };
    let (address, port) = packet.destination;
    let frontends = || tables.values().flat_map(|tables| &tables.frontends);
    let listens = |at: Ipv4Addr| {
        frontends().find(|frontend| {
            let key = frontend.key;
            key.address == IpAddr::V4(at) && (key.port, key.protocol, key.scope) == (port, protocol, scope)
        })
    };
    let wildcard = || listens(Ipv4Addr::UNSPECIFIED).filter(|_| node_addresses.contains(&address));
    let Some(frontend) = listens(address).or_else(wildcard) else {
        return Allowed::Unchanged;
    };
    let ends: BTreeSet<End> = frontend
        .backends
        .iter()
        .filter_map(|backend| match backend.address {
            IpAddr::V4(address) => Some((address, backend.port)),
            IpAddr::V6(_) => None,
        })
        .collect();
    match (ends.is_empty(), frontend.drop_when_empty) {
        (false, _) => Allowed::To(ends),
        (true, false) => Allowed::Refused,
        (true, true) => Allowed::Dropped,
    }
}
