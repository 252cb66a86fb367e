//! Connections of an earlier layout become elements of our tables.

use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::flow::{Flow, Flow4, Flow6, FlowKey, flow_flag};
use ebpf_common::{limits, protocol};

use super::{Connection, Predecessor};
use crate::convert;
use crate::flows::{FlowWriter, WritableSlot};

impl Predecessor {
    /// Copies what is not here yet; `ports` are the source ports that our programs give.
    pub(super) fn carry_flows(
        &self,
        maps: &Path,
        seed: u32,
        ports: (u16, u16),
        id: &dyn Fn(u32) -> Option<u32>,
    ) -> io::Result<usize> {
        let flows4 = FlowWriter::<Flow4>::open(maps, ["FLOWS4", "FLOW_TAGS4", "FLOW_HINTS4"])?;
        let flows6 = FlowWriter::<Flow6>::open(maps, ["FLOWS6", "FLOW_TAGS6", "FLOW_HINTS6"])?;
        let mut carried = 0;
        let mut connections = self.reader.connections()?;
        // Where there is less room than there was, those stay behind that have been quiet for longest.
        connections.sort_by_key(|one| Reverse(one.seen));
        let now = connections.first().map_or(0, |latest| latest.seen);
        for connection in connections {
            if is_left(&connection, ports) {
                // Ours take such a port for a new connection, whose replies theirs would take.
                self.reader.forget(&connection)?;
                continue;
            }
            let Some(service) = id(connection.service) else { continue };
            if is_past(&connection, now) {
                continue;
            }
            carried += usize::from(match slot(&connection, service) {
                Some(Slot::V4(flow)) => put(&flows4, &flow, |key| key.hash(seed)),
                Some(Slot::V6(flow)) => put(&flows6, &flow, |key| key.hash(seed)),
                None => false,
            });
        }
        Ok(carried)
    }
}

/// Closed by both ends, or by a reset.
fn is_over(connection: &Connection) -> bool {
    const BOTH: u16 = flow_flag::FIN | flow_flag::FIN_PEER;
    connection.flags & flow_flag::RESET != 0 || connection.flags & BOTH == BOTH
}

/// Programs would give its place to another by now.
fn is_past(connection: &Connection, now: u32) -> bool {
    let limit = match connection.protocol {
        protocol::UDP => limits::idle::UDP,
        _ if is_over(connection) => limits::idle::TCP_CLOSED,
        _ => limits::idle::TCP,
    };
    now.wrapping_sub(connection.seen) > limit
}

/// Replies to a source port of this range that has been given to a connection which is over.
fn is_left(connection: &Connection, (low, high): (u16, u16)) -> bool {
    let (given, own) = (connection.from.1, connection.to.1);
    connection.flags & flow_flag::REVERSE != 0
        && given != own
        && (low..=high).contains(&given.1)
        && is_over(connection)
}

/// An element of either family's table.
trait Element: WritableSlot {
    type Address: Copy + PartialEq;
    fn flow(&self) -> &Flow<Self::Address>;
    fn with_key(key: FlowKey<Self::Address>) -> Self;
}

impl Element for Flow4 {
    type Address = u32;

    fn flow(&self) -> &Flow<u32> {
        self
    }

    fn with_key(key: FlowKey<u32>) -> Self {
        Self { key, ..Self::default() }
    }
}

impl Element for Flow6 {
    type Address = [u32; 4];

    fn flow(&self) -> &Flow<[u32; 4]> {
        &self.flow
    }

    fn with_key(key: FlowKey<[u32; 4]>) -> Self {
        Self { flow: Flow { key, ..Flow::default() }, ..Self::default() }
    }
}

/// Puts a copied flow in; false if it is there, if our programs have made another with its key, or if
/// there is no room. An earlier copy is replaced if its ends have been used anew since: it would
/// lead the packets of the new connection to the backend of the old one.
fn put<T: Element>(table: &FlowWriter<T>, flow: &T, hash: impl Fn(&FlowKey<T::Address>) -> u64) -> bool {
    let own = hash(&flow.flow().key);
    if table.insert(flow, own) {
        return true;
    }
    let Some(found) = table.get(flow, own) else {
        // No room: as in programs, the flow gives way that has been quiet for longest.
        let quietest = table.around(own).min_by_key(|other| other.flow().seen);
        let Some(victim) = quietest.filter(|other| other.flow().seen < flow.flow().seen) else {
            return false;
        };
        table.remove(&victim, hash(&victim.flow().key));
        return table.insert(flow, own);
    };
    let (old, new) = (found.flow(), flow.flow());
    let same = old.source == new.source
        && old.destination == new.destination
        && old.source_port == new.source_port
        && old.destination_port == new.destination_port;
    // Our programs know the epoch of what they have made, or looked after.
    if same || old.epoch != 0 {
        return false;
    }
    let sibling = old.sibling();
    let other = hash(&sibling);
    if let Some(found) = table.get(&T::with_key(sibling), other)
        && found.flow().epoch == 0
        && hash(&found.flow().sibling()) == own
    {
        table.remove(&found, other);
    }
    table.remove(&found, own);
    table.insert(flow, own)
}

/// A connection as an element of its family's table.
pub(super) enum Slot {
    V4(Flow4),
    V6(Flow6),
}

/// None if its ends are not of one family.
pub(super) fn slot(connection: &Connection, service: u32) -> Option<Slot> {
    let Connection { from, to, .. } = *connection;
    fn flow<A: Copy>(ends: [A; 4], connection: &Connection, service: u32) -> Flow<A> {
        let [source, destination, to_source, to_destination] = ends;
        let Connection { from, to, .. } = *connection;
        Flow {
            key: FlowKey {
                source,
                destination,
                source_port: from.0.1.to_be(),
                destination_port: from.1.1.to_be(),
                protocol: u32::from(connection.protocol),
            },
            version: 0,
            source: to_source,
            destination: to_destination,
            source_port: to.0.1.to_be(),
            destination_port: to.1.1.to_be(),
            service,
            // Older than any loss: the first packet that can move looks whether it has to.
            epoch: 0,
            seen: connection.seen,
            flags: connection.flags,
            reserved: 0,
            hop_ifindex: 0,
            hop_destination: [0; 6],
            hop_source: [0; 6],
        }
    }
    let ends = [from.0.0, from.1.0, to.0.0, to.1.0];
    let v4 = ends.map(|end| match end {
        IpAddr::V4(address) => Some(convert::word(address)),
        IpAddr::V6(_) => None,
    });
    if let [Some(a), Some(b), Some(c), Some(d)] = v4 {
        return Some(Slot::V4(flow([a, b, c, d], connection, service)));
    }
    let v6 = ends.map(|end| match end {
        IpAddr::V6(address) => Some(convert::words(address)),
        IpAddr::V4(_) => None,
    });
    match v6 {
        [Some(a), Some(b), Some(c), Some(d)] => {
            let flow = flow([a, b, c, d], connection, service);
            Some(Slot::V6(Flow6 { flow, reserved: [0; 4] }))
        }
        _ => None,
    }
}
