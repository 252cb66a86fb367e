//! Connections that are translated: for packets, and for sockets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ebpf_common::flow::{Flow, Flow4, Flow6, flow_flag};
use ebpf_common::protocol;
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6, direction};
use serde::Serialize;

use super::{InspectError, Inspector, Open, name, wire};
use crate::connected::ConnectedTable;
use crate::convert::{self, address4, address6};
use crate::flows;
use crate::tables::{Forwarding, Protocol};

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Neither end has closed it. Always for a datagram protocol.
    Open,
    /// One end has sent its FIN.
    Closing,
    /// Both ends have, or one has reset it.
    Closed,
}

/// One translated connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionRow {
    pub service: String,
    pub protocol: Option<Protocol>,
    /// The client; `None` for a local socket, which has `socket` instead.
    #[serde(serialize_with = "wire::optional_place")]
    pub client: Option<(IpAddr, u16)>,
    /// Cookie of the local socket.
    pub socket: Option<u64>,
    #[serde(with = "wire::place")]
    pub frontend: (IpAddr, u16),
    #[serde(with = "wire::place")]
    pub backend: (IpAddr, u16),
    /// The source that the backend sees, if it is not the client.
    #[serde(serialize_with = "wire::optional_place")]
    pub source: Option<(IpAddr, u16)>,
    pub state: State,
    /// It came in on an uplink; `None` for a local socket.
    pub external: Option<bool>,
    /// It leaves the cluster, and takes the node's address. Without a service it goes where the client says,
    /// and `service` is empty.
    pub masqueraded: bool,
    /// The way in which its packets reach the backend.
    pub forwarding: Forwarding,
    /// Seconds since the last packet from the client, within one; `None` for a local socket.
    pub idle_seconds: Option<u64>,
}

impl ConnectionRow {
    /// Compares by service, client and socket.
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        let by = |row: &Self| (row.client, row.socket);
        self.service.cmp(&other.service).then_with(|| by(self).cmp(&by(other)))
    }

    /// Returns `true` if one of its ends is at this address.
    pub fn touches(&self, address: IpAddr) -> bool {
        let ends = [Some(self.frontend), Some(self.backend), self.client, self.source];
        ends.iter().flatten().any(|(end, _)| *end == address)
    }
}

impl Inspector {
    /// Returns all connections, by service and client. For small numbers: [`Inspector::visit_connections`]
    /// does not store them.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn connections(&self) -> Result<Vec<ConnectionRow>, InspectError> {
        let mut rows = Vec::new();
        self.visit_connections(|row| {
            rows.push(row);
            true
        })?;
        rows.sort_by(ConnectionRow::order);
        Ok(rows)
    }

    /// Passes connections to `visit` as they are read: those of packets, then those of local sockets,
    /// otherwise in no order. Ends early when `visit` returns `false`. The entries of a socket without a
    /// connection outlive it: closed sockets are left out, as far as every network namespace can be asked for
    /// its open ones.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn visit_connections(&self, visit: impl FnMut(ConnectionRow) -> bool) -> Result<(), InspectError> {
        let mut reader = Reader { names: self.names()?, visit };
        if self.flow_rows(&mut reader)? {
            self.socket_rows(&mut reader)?;
        }
        Ok(())
    }

    /// Reads the flows; returns `false` at an early end.
    fn flow_rows(&self, to: &mut Reader<impl FnMut(ConnectionRow) -> bool>) -> Result<bool, InspectError> {
        let now = super::tick_now();
        let forward = |flags: u16| flags & flow_flag::REVERSE == 0;
        let table = self.flows::<Flow4>("FLOWS4", "FLOW_TAGS4")?;
        for flow in table.iter().filter(|flow| forward(flow.flags)) {
            if !to.give(flow_row(&to.names, now, &flow, |address| address4(address).into())) {
                return Ok(false);
            }
        }
        let table = self.flows::<Flow6>("FLOWS6", "FLOW_TAGS6")?;
        for flow in table.iter().map(|slot| slot.flow).filter(|flow| forward(flow.flags)) {
            if !to.give(flow_row(&to.names, now, &flow, |address| address6(address).into())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn socket_rows(&self, to: &mut Reader<impl FnMut(ConnectionRow) -> bool>) -> Result<(), InspectError> {
        let connected = ConnectedTable::open(&self.directory.join("maps"))
            .map_err(|cause| InspectError::Map { map: "CONNECTED", cause })?;
        for one in connected.iter() {
            let row = socket_row(&to.names, one.service, one.protocol, one.cookie, one.frontend, one.backend);
            if !to.give(row) {
                return Ok(());
            }
        }
        let sockets4 = self.read::<SocketKey4, Socket4>("SOCKETS4")?;
        let sockets6 = self.read::<SocketKey6, Socket6>("SOCKETS6")?;
        // Read after the rows: a socket that is opened in between has no row to lose.
        let open = Open::now();
        let at4 = |address, port| (IpAddr::V4(address4(address)), u16::from_be(port));
        for (key, value) in sockets4 {
            let (frontend, backend) = (at4(value.address, value.port), at4(key.address, key.port));
            let row = || socket_row(&to.names, value.service, key.protocol, key.cookie, frontend, backend);
            let wanted = key.direction == direction::REVERSE && open.has(key.protocol, key.cookie);
            if wanted && !to.give(row()) {
                return Ok(());
            }
        }
        let at6 = |address, port| (IpAddr::V6(address6(address)), u16::from_be(port));
        for (key, value) in sockets6 {
            let (frontend, backend) = (at6(value.address, value.port), at6(key.address, key.port));
            let row = || socket_row(&to.names, value.service, key.protocol, key.cookie, frontend, backend);
            let wanted = key.direction == direction::REVERSE && open.has(key.protocol, key.cookie);
            if wanted && !to.give(row()) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The receiver of the rows, and the names for them.
struct Reader<F> {
    names: BTreeMap<u32, String>,
    visit: F,
}

impl<F: FnMut(ConnectionRow) -> bool> Reader<F> {
    fn give(&mut self, row: ConnectionRow) -> bool {
        (self.visit)(row)
    }
}

fn state<A>(flow: &Flow<A>) -> State {
    if flows::closed(flow) {
        State::Closed
    } else if flow.flags & (flow_flag::FIN | flow_flag::FIN_PEER) != 0 {
        State::Closing
    } else {
        State::Open
    }
}

/// Returns the forwarding mode in the flags of a flow.
pub(super) fn forwarding(flags: u16) -> Forwarding {
    if flags & flow_flag::DSR_IPIP != 0 {
        Forwarding::DsrIpip
    } else if flags & flow_flag::DSR_OPTION != 0 {
        Forwarding::DsrOption
    } else {
        Forwarding::Nat
    }
}

fn flow_row<A: Copy>(
    names: &BTreeMap<u32, String>,
    now: u32,
    flow: &Flow<A>,
    address: impl Fn(A) -> IpAddr,
) -> ConnectionRow {
    let key = &flow.key;
    let at = |word: A, port: u16| (address(word), u16::from_be(port));
    let client = at(key.source, key.source_port);
    let source = at(flow.source, flow.source_port);
    let masqueraded = flow.flags & flow_flag::MASQUERADE != 0;
    let service = if flow.service == 0 { String::new() } else { name(names, flow.service) };
    ConnectionRow {
        service,
        protocol: convert::flow_protocol(key.protocol),
        client: Some(client),
        socket: None,
        frontend: at(key.destination, key.destination_port),
        backend: at(flow.destination, flow.destination_port),
        source: (source != client).then_some(source),
        state: if key.protocol == u32::from(protocol::TCP) { state(flow) } else { State::Open },
        external: Some(flow.flags & flow_flag::EXTERNAL != 0),
        masqueraded,
        forwarding: forwarding(flow.flags),
        idle_seconds: Some(convert::seconds(now.wrapping_sub(flow.seen))),
    }
}

fn socket_row(
    names: &BTreeMap<u32, String>,
    service: u32,
    protocol: u8,
    cookie: u64,
    frontend: (IpAddr, u16),
    backend: (IpAddr, u16),
) -> ConnectionRow {
    ConnectionRow {
        service: name(names, service),
        protocol: convert::protocol(protocol),
        client: None,
        socket: Some(cookie),
        frontend,
        backend,
        source: None,
        state: State::Open,
        external: None,
        masqueraded: false,
        forwarding: Forwarding::Nat,
        idle_seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::flow::FlowKey;

    #[test]
    fn a_flow_tells_its_ends_and_how_far_it_is() {
        let word = |text: &str| convert::word(text.parse().unwrap());
        let mut flow = Flow4 {
            key: FlowKey {
                source: word("192.0.2.9"),
                destination: word("10.96.0.1"),
                source_port: 40_000_u16.to_be(),
                destination_port: 80_u16.to_be(),
                protocol: 6,
            },
            source: word("192.0.2.1"),
            source_port: 1_024_u16.to_be(),
            destination: word("10.244.1.5"),
            destination_port: 8_080_u16.to_be(),
            service: 3,
            seen: 100,
            flags: flow_flag::EXTERNAL | flow_flag::FIN_PEER,
            ..Flow4::default()
        };
        let names = BTreeMap::from([(3, "default/web".to_owned())]);
        let row = |flow: &Flow4| flow_row(&names, 110, flow, |word| address4(word).into());
        let first = row(&flow);
        assert_eq!((first.service.as_str(), first.state), ("default/web", State::Closing));
        assert_eq!(first.source, Some(("192.0.2.1".parse().unwrap(), 1_024)));
        assert_eq!((first.external, first.idle_seconds), (Some(true), Some(10)));
        assert!(first.touches("10.244.1.5".parse().unwrap()));
        assert!(!first.touches("10.244.1.6".parse().unwrap()));
        assert!(!first.masqueraded);
        flow.flags |= flow_flag::RESET;
        assert_eq!(row(&flow).state, State::Closed);
        // Datagrams have no end.
        flow.key.protocol = 17;
        assert_eq!(row(&flow).state, State::Open);
        // An echo request that leaves the cluster has no service.
        (flow.key.protocol, flow.service, flow.flags) = (1, 0, flow_flag::MASQUERADE);
        let echo = row(&flow);
        assert_eq!(
            (echo.service.as_str(), echo.protocol, echo.masqueraded),
            ("", Some(Protocol::Icmp), true)
        );
    }
}
