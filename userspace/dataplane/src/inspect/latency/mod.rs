//! Round-trip times of services' connections. The kernel measures them for each TCP connection anyway, so the
//! data path does nothing for them: a scan asks the kernel for its connections, and finds out which of them
//! are services'.
//!
//! ```text
//!   namespaces (setns) ─▶ sock_diag, one dump each ─▶ stream ─▶ census ─▶ rows by service
//!                       sockets by cookie: CONNECTED, SOCKETS4, SOCKETS6 ─┘ ▲
//!                       packets by both ends: FLOWS4, FLOWS6 ───────────────┘
//! ```
//!
//! A connection counts if it has an end on this node: the client's socket if a hook has connected it, else
//! the client's or the server's socket of a flow. A connection that only passes through has no socket here,
//! and datagrams have no round trips.
//!
//! A scan asks each network namespace once and stores only a few numbers per connection. Each request makes
//! the kernel walk its table of connections, which is one for all namespaces, and return those of the
//! namespace that asks; then the flows are read once.

mod census;
mod stream;

use std::collections::BTreeMap;
use std::io;

use ebpf_common::flow::{Flow, Flow4, Flow6, flow_flag};
use ebpf_common::protocol;
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6, direction};

pub use self::census::LatencyRow;
use self::census::{Census, FlowEnds, Retransmits};
pub(super) use self::stream::Stream;
use super::explain::Ends;
use super::{InspectError, Inspector, name};
use crate::connected::ConnectedTable;
use crate::convert::{self, address4, address6};
use crate::destroy::diag;
use crate::destroy::namespaces::Home;
use crate::flows;
use crate::map::HashTable;

/// The result of one scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    /// By `namespace/name`; only services with connections.
    pub services: BTreeMap<String, LatencyRow>,
    /// Established TCP connections of this node, to services or not.
    pub sockets: usize,
    /// Network namespaces that were asked, without those that could not be entered.
    pub namespaces: usize,
}

/// Repeated scans.
#[derive(Debug, Default)]
pub struct LatencyWatch {
    /// The state after the previous scan.
    before: Option<Retransmits>,
}

impl LatencyWatch {
    /// Asks the kernel for its connections, and blocks meanwhile. It takes some 5 µs of processor time per
    /// connection, and 1 ms per network namespace while there are 20,000 connections on the node: a tenth of
    /// a second for 18,000 in eight namespaces, twice that in a hundred.
    ///
    /// # Errors
    /// Fails if a map cannot be read, or if the kernel lists its connections in no namespace.
    pub fn look(&mut self, inspector: &Inspector) -> Result<Latencies, InspectError> {
        let mut census = Census::new(self.before.as_ref());
        let sockets = Sockets::open(inspector)?;
        let taken = &mut census;
        let namespaces = streams(move |stream| taken.socket(&stream, sockets.service(&stream)))?;
        let listed = census.sockets;
        if !census.is_complete() {
            inspector.stream_flows(|flow| census.flow(&flow))?;
        }
        let (rows, retransmits) = census.rows();
        self.before = Some(retransmits);
        let names = if rows.is_empty() { BTreeMap::new() } else { inspector.names()? };
        let services = rows.into_iter().map(|(id, row)| (name(&names, id), row)).collect();
        Ok(Latencies { services, sockets: listed, namespaces })
    }
}

/// Passes the established connections of every network namespace that can be entered to `take`; returns the
/// number of these namespaces. Works on a separate thread, which changes its namespace as it goes.
fn streams(mut take: impl FnMut(Stream) + Send) -> Result<usize, InspectError> {
    let work = || -> io::Result<usize> {
        let (mut asked, mut first) = (0, None);
        Home::here()?.visit(|_| {
            let mut ask =
                || diag::Socket::open()?.streams(|body| Stream::read(body).into_iter().for_each(&mut take));
            match ask() {
                Ok(()) => asked += 1,
                Err(error) => drop(first.get_or_insert(error)),
            }
            true
        })?;
        match first {
            Some(error) if asked == 0 => Err(error),
            _ => Ok(asked),
        }
    };
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("hawser-latency".to_owned());
        #[expect(clippy::disallowed_methods, reason = "it enters namespaces, and is joined at once")]
        let thread = thread.spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that asks panicked")))
    });
    outcome.map_err(InspectError::Sockets)
}

/// Sockets that hooks have connected to a service.
struct Sockets {
    connected: ConnectedTable,
    /// The tables of the sockets that found no slot; `None` while there is room for all.
    others: Option<(HashTable<SocketKey4, Socket4>, HashTable<SocketKey6, Socket6>)>,
}

impl Sockets {
    fn open(inspector: &Inspector) -> Result<Self, InspectError> {
        let connected = ConnectedTable::open(&inspector.directory.join("maps"))
            .map_err(|cause| InspectError::Map { map: "CONNECTED", cause })?;
        let others = match connected.is_overflowing() {
            true => Some((inspector.table("SOCKETS4")?, inspector.table("SOCKETS6")?)),
            false => None,
        };
        Ok(Self { connected, others })
    }

    fn service(&self, stream: &Stream) -> Option<u32> {
        let connection = self.connected.get(stream.cookie);
        connection.map(|connection| connection.service).or_else(|| self.without_slot(stream))
    }

    fn without_slot(&self, stream: &Stream) -> Option<u32> {
        let (v4, v6) = self.others.as_ref()?;
        let (cookie, (address, port)) = (stream.cookie, stream.ends.destination);
        let (port, protocol, direction) = (port.to_be(), protocol::TCP, direction::REVERSE);
        // A socket that cannot be read here counts as one of no service: the next scan finds it.
        match address {
            std::net::IpAddr::V4(address) => {
                let address = convert::word(address);
                let found = v4.get(&SocketKey4 { cookie, address, port, protocol, direction });
                found.ok()?.map(|found| found.service)
            }
            std::net::IpAddr::V6(address) => {
                let address = convert::words(address);
                let found = v6.get(&SocketKey6 { cookie, address, port, protocol, direction, reserved: 0 });
                found.ok()?.map(|found| found.service)
            }
        }
    }
}

impl Inspector {
    /// Passes the TCP connections of packets that have not ended to `take`.
    fn stream_flows(&self, mut take: impl FnMut(FlowEnds)) -> Result<(), InspectError> {
        for flow in self.flows::<Flow4>("FLOWS4", "FLOW_TAGS4")?.iter() {
            stream_flow(&flow, |word| address4(word).into()).into_iter().for_each(&mut take);
        }
        for slot in self.flows::<Flow6>("FLOWS6", "FLOW_TAGS6")?.iter() {
            stream_flow(&slot.flow, |words| address6(words).into()).into_iter().for_each(&mut take);
        }
        Ok(())
    }
}

/// Returns the ends of a connection, from the flow of its client's packets; `None` for other flows.
fn stream_flow<A: Copy>(flow: &Flow<A>, address: impl Fn(A) -> std::net::IpAddr) -> Option<FlowEnds> {
    let of_client = flow.flags & flow_flag::REVERSE == 0;
    if !of_client || flow.key.protocol != u32::from(protocol::TCP) || flows::closed(flow) {
        return None;
    }
    let at = |word: A, port: u16| (address(word), u16::from_be(port));
    let key = &flow.key;
    Some(FlowEnds {
        service: flow.service,
        client: Ends {
            source: at(key.source, key.source_port),
            destination: at(key.destination, key.destination_port),
        },
        server: Ends {
            source: at(flow.destination, flow.destination_port),
            destination: at(flow.source, flow.source_port),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::flow::FlowKey;

    #[test]
    fn both_ends_of_a_connection_follow_from_its_flow() {
        let word = |text: &str| convert::word(text.parse().unwrap());
        let flow = Flow4 {
            key: FlowKey {
                source: word("203.0.113.9"),
                destination: word("192.0.2.1"),
                source_port: 40_000_u16.to_be(),
                destination_port: 30_080_u16.to_be(),
                protocol: 6,
            },
            source: word("192.0.2.1"),
            source_port: 1_024_u16.to_be(),
            destination: word("10.244.1.5"),
            destination_port: 8_080_u16.to_be(),
            service: 3,
            flags: flow_flag::EXTERNAL,
            ..Flow4::default()
        };
        let read = |flow: &Flow4| stream_flow(flow, |word| address4(word).into());
        let found = read(&flow).unwrap();
        let at = |text: &str| {
            let place: std::net::SocketAddr = text.parse().unwrap();
            (place.ip(), place.port())
        };
        assert_eq!(found.service, 3);
        let client = Ends { source: at("203.0.113.9:40000"), destination: at("192.0.2.1:30080") };
        assert_eq!(found.client, client);
        assert_eq!(found.server, Ends { source: at("10.244.1.5:8080"), destination: at("192.0.2.1:1024") });
        // Replies, connections that have ended, and datagrams have none.
        assert_eq!(read(&Flow4 { flags: flow_flag::REVERSE, ..flow }), None);
        assert_eq!(read(&Flow4 { flags: flow_flag::RESET, ..flow }), None);
        assert_eq!(read(&Flow4 { key: FlowKey { protocol: 17, ..flow.key }, ..flow }), None);
    }
}
