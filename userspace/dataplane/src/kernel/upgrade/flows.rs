//! Connections of an earlier layout, converted to elements of our tables.
//!
//! While the old programs still begin connections, nothing is copied that a packet could follow, because a
//! copy would miss later changes. A client that uses its port again would be led by the copy of its last
//! connection, and the reply by whoever has that connection's port by then. Only keys of replies are
//! [reserved](Predecessor::reserve_flows), so that our programs give out none that the old ones would answer.
//! Everything is [copied](Predecessor::carry_flows) once the old programs begin nothing any more.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::flow::{Flow, Flow4, Flow6, FlowKey, flow_flag};
use ebpf_common::{limits, protocol};

use super::{Connection, End, Predecessor};
use crate::convert;
use crate::flows::{FlowTable, FlowWriter, WritableSlot};

/// Protocol, and both ends of a packet.
type Ends = (u8, End, End);

/// Ticks for which the ports of a copied connection that is over are not given to another.
const LINGER: u32 = 60;

impl Predecessor {
    /// Keeps our programs from giving out a key of replies that is in use there; `ports` are the source ports
    /// that they give out. Keys that our programs would evict are removed from the old tables instead.
    pub(super) fn reserve_flows(
        &self,
        maps: &Path,
        seed: u32,
        ports: (u16, u16),
        id: &dyn Fn(u32) -> Option<u32>,
    ) -> io::Result<usize> {
        let ours = Ours::open(maps, seed)?;
        let (connections, now) = self.latest_first()?;
        let forward = connections.iter().filter(|one| !is_reply(one) && !is_past(one, now));
        let in_use: BTreeSet<Ends> = forward.map(|one| ends(&reply_of(one))).collect();
        let mut reserved = 0;
        for reply in connections.iter().filter(|one| is_reply(one)) {
            if is_past(reply, now) && !in_use.contains(&ends(reply)) {
                if may_be_given(reply, ports) {
                    self.reader.forget(reply)?;
                }
                continue;
            }
            let Some(service) = service_of(reply, id) else { continue };
            // It may end before our programs learn of it.
            let open = Connection { seen: now, flags: reply.flags & !flow_flag::CLOSING, ..*reply };
            reserved += usize::from(ours.put(&open, service, false) == Put::New);
        }
        Ok(reserved)
    }

    /// Copies what is not here yet. The old programs begin nothing any more, and still answer for what they
    /// know: even for connections that are over, whose ports ours must not give out before the old ones have
    /// retired.
    pub(super) fn carry_flows(
        &self,
        maps: &Path,
        seed: u32,
        id: &dyn Fn(u32) -> Option<u32>,
    ) -> io::Result<usize> {
        let ours = Ours::open(maps, seed)?;
        let (mut connections, now) = self.latest_first()?;
        connections.retain(|one| !is_past(one, now));
        // Datagrams can begin again.
        let streams = [protocol::TCP, protocol::SCTP];
        let rank = |one: &Connection| (is_over(one.flags), !streams.contains(&one.protocol));
        connections.sort_by_key(rank);
        let mut known: BTreeSet<Ends> = connections.iter().map(ends).collect();
        // A reply's element may have been evicted; programs restore it with the client's next packet, the old
        // ones perhaps a moment after it was looked for.
        let lost: Vec<Connection> = connections
            .iter()
            .filter(|one| !is_reply(one) && !is_direct(one))
            .map(reply_of)
            .filter(|reply| known.insert(ends(reply)))
            .collect();
        let (mut carried, mut halves) = (0, Vec::new());
        for connection in connections.iter().chain(&lost) {
            let Some(service) = service_of(connection, id) else { continue };
            let over = is_over(connection.flags);
            let answered = is_reply(connection) && !over;
            let seen = if over { now.wrapping_sub(limits::idle::TCP - LINGER) } else { connection.seen };
            let open = Connection { seen, flags: connection.flags & !flow_flag::CLOSING, ..*connection };
            match ours.put(&open, service, answered) {
                Put::New => carried += 1,
                Put::There => {}
                Put::Full => halves.push(open),
            }
        }
        // A connection is copied completely or not at all: one that is known in one direction only would go
        // on in that.
        halves.iter().for_each(|half| ours.take_out_other(half));
        Ok(carried)
    }

    /// Releases what was reserved for connections that have not come. The old programs have retired.
    pub(super) fn release_flows(&self, maps: &Path, seed: u32) -> io::Result<()> {
        let ours = Ours::open(maps, seed)?;
        let table = FlowTable::<Flow4>::open(maps, "FLOWS4", "FLOW_TAGS4")?;
        release(&ours.flows4, table.iter(), |key| key.hash(seed));
        let table = FlowTable::<Flow6>::open(maps, "FLOWS6", "FLOW_TAGS6")?;
        release(&ours.flows6, table.iter(), |key| key.hash(seed));
        Ok(())
    }

    /// Returns connections, the most recent first, and the tick of the latest packet. If there is less room
    /// than before, those that have been quiet for longest are left behind.
    fn latest_first(&self) -> io::Result<(Vec<Connection>, u32)> {
        let mut connections = self.reader.connections()?;
        connections.sort_by_key(|one| Reverse(one.seen));
        let now = connections.first().map_or(0, |latest| latest.seen);
        Ok((connections, now))
    }
}

fn ends(connection: &Connection) -> Ends {
    (connection.protocol, connection.from.0, connection.from.1)
}

/// Returns our id of a connection's service: 0 for a connection that only leaves the cluster or enters it, and
/// `None` if the service is gone.
fn service_of(connection: &Connection, id: &dyn Fn(u32) -> Option<u32>) -> Option<u32> {
    if connection.service == 0 { Some(0) } else { id(connection.service) }
}

fn is_reply(connection: &Connection) -> bool {
    connection.flags & flow_flag::REVERSE != 0
}

/// Returns `true` if the backend answers the client itself: there is no element for replies.
fn is_direct(connection: &Connection) -> bool {
    connection.flags & (flow_flag::DSR_OPTION | flow_flag::DSR_IPIP) != 0
}

/// Returns the element that programs make for a connection's replies.
fn reply_of(connection: &Connection) -> Connection {
    let Connection { from, to, flags, .. } = *connection;
    let flags = flags & flow_flag::KEPT_BY_REPLY | flow_flag::REVERSE;
    Connection { from: (to.1, to.0), to: (from.1, from.0), flags, ..*connection }
}

/// Returns `true` if closed by both ends, or by a reset.
fn is_over(flags: u16) -> bool {
    const BOTH: u16 = flow_flag::FIN | flow_flag::FIN_PEER;
    flags & flow_flag::RESET != 0 || flags & BOTH == BOTH
}

/// Returns `true` if programs may give its ports to another connection, and nobody relies on it. A quiet
/// stream may go on at any time.
fn is_past(connection: &Connection, now: u32) -> bool {
    let limit = match connection.protocol {
        protocol::UDP | protocol::ICMP | protocol::ICMP6 => limits::idle::UDP,
        _ if is_over(connection.flags) => limits::idle::TCP_CLOSED,
        _ => return false,
    };
    now.wrapping_sub(connection.seen) > limit
}

/// Returns `true` if programs that give out source ports of this range may give out the key of this reply: if
/// it is not to the client's own address and port, it is to one of those.
fn may_be_given(reply: &Connection, (low, high): (u16, u16)) -> bool {
    let (given, own) = (reply.from.1, reply.to.1);
    given == own || (low..=high).contains(&given.1)
}

/// Our tables of flows.
struct Ours {
    flows4: FlowWriter<Flow4>,
    flows6: FlowWriter<Flow6>,
    seed: u32,
}

impl Ours {
    fn open(maps: &Path, seed: u32) -> io::Result<Self> {
        Ok(Self {
            flows4: FlowWriter::open(maps, ["FLOWS4", "FLOW_TAGS4", "FLOW_HINTS4"])?,
            flows6: FlowWriter::open(maps, ["FLOWS6", "FLOW_TAGS6", "FLOW_HINTS6"])?,
            seed,
        })
    }

    /// Copies a connection, see [`put`].
    fn put(&self, connection: &Connection, service: u32, answered: bool) -> Put {
        match slot(connection, service) {
            Some(Slot::V4(flow)) => put(&self.flows4, &flow, answered, |key| key.hash(self.seed)),
            Some(Slot::V6(flow)) => put(&self.flows6, &flow, answered, |key| key.hash(self.seed)),
            None => Put::There,
        }
    }

    /// Removes the copy of a connection's other direction.
    fn take_out_other(&self, connection: &Connection) {
        match slot(connection, connection.service) {
            Some(Slot::V4(flow)) => take_out_other(&self.flows4, &flow, |key| key.hash(self.seed)),
            Some(Slot::V6(flow)) => take_out_other(&self.flows6, &flow, |key| key.hash(self.seed)),
            None => {}
        }
    }
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

/// The result of copying a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    New,
    /// It existed, or our programs have made another with its key.
    There,
    /// There is no room: nothing is evicted.
    Full,
}

/// Copies a flow. An earlier copy or reservation is replaced.
///
/// Our programs set the epoch of flows that they have made or checked, and those are newer. But replies that
/// the old programs know are `answered` by them, whoever got the key here meanwhile: that connection has not
/// begun yet, and will do with another port.
fn put<T: Element>(
    table: &FlowWriter<T>,
    flow: &T,
    answered: bool,
    hash: impl Fn(&FlowKey<T::Address>) -> u64,
) -> Put {
    let own = hash(&flow.flow().key);
    if table.insert(flow, own) {
        return Put::New;
    }
    let Some(found) = table.get(flow, own) else {
        return Put::Full;
    };
    let (old, new) = (found.flow(), flow.flow());
    let alike = old.sibling() == new.sibling();
    if alike && (old.flags, old.seen) == (new.flags, new.seen) || old.epoch != 0 && (alike || !answered) {
        return Put::There;
    }
    if !alike {
        let sibling = old.sibling();
        let other = table.get(&T::with_key(sibling), hash(&sibling));
        if let Some(other) = other.filter(|other| other.flow().sibling() == old.key) {
            table.remove(&other, hash(&sibling));
        }
    }
    table.remove(&found, own);
    if table.insert(flow, own) { Put::New } else { Put::Full }
}

/// Removes the other direction of a flow, if that is a copy.
fn take_out_other<T: Element>(table: &FlowWriter<T>, flow: &T, hash: impl Fn(&FlowKey<T::Address>) -> u64) {
    let sibling = flow.flow().sibling();
    if let Some(other) = table.get(&T::with_key(sibling), hash(&sibling))
        && other.flow().sibling() == flow.flow().key
        && other.flow().epoch == 0
    {
        table.remove(&other, hash(&sibling));
    }
}

/// Removes those of these flows that are copies of replies to no flow here.
fn release<T: Element>(
    table: &FlowWriter<T>,
    flows: impl Iterator<Item = T>,
    hash: impl Fn(&FlowKey<T::Address>) -> u64,
) {
    for flow in flows.filter(|flow| flow.flow().epoch == 0 && flow.flow().flags & flow_flag::REVERSE != 0) {
        let (key, sibling) = (flow.flow().key, flow.flow().sibling());
        let forward = table.get(&T::with_key(sibling), hash(&sibling));
        if forward.is_none_or(|forward| forward.flow().sibling() != key) {
            table.remove(&flow, hash(&key));
        }
    }
}

/// A connection as an element of its family's table.
pub(super) enum Slot {
    V4(Flow4),
    V6(Flow6),
}

/// Returns the element; `None` if its ends are not of one family.
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
            // Older than any loss: the first packet that can move checks whether it has to.
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

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: u16 = flow_flag::THROUGH | flow_flag::EXTERNAL;

    fn ours(slots: usize) -> Ours {
        Ours { flows4: FlowWriter::anonymous(slots), flows6: FlowWriter::anonymous(slots), seed: 5 }
    }

    /// Returns a connection with the client's port, the source port, and other properties.
    fn connection(client: u16, source: u16, flags: u16, seen: u32) -> Connection {
        let end = |text: &str, port| (text.parse::<IpAddr>().unwrap(), port);
        Connection {
            service: 3,
            protocol: protocol::TCP,
            from: (end("192.0.2.100", client), end("192.0.2.1", 30_080)),
            to: (end("192.0.2.1", source), end("10.2.0.7", 9_000)),
            flags,
            seen,
        }
    }

    fn get(ours: &Ours, connection: &Connection) -> Option<Flow4> {
        let Some(Slot::V4(flow)) = slot(connection, 0) else { panic!("of v4") };
        ours.flows4.get(&flow, flow.key.hash(ours.seed))
    }

    /// Makes a connection as our programs would.
    fn make(ours: &Ours, connection: &Connection) {
        let Some(Slot::V4(flow)) = slot(connection, 0) else { panic!("of v4") };
        let flow = Flow4 { epoch: 1, ..flow };
        assert!(ours.flows4.insert(&flow, flow.key.hash(ours.seed)));
    }

    #[test]
    fn a_reply_leads_back() {
        let one = connection(40_000, 5_000, OPEN, 7);
        let reply = reply_of(&one);
        assert_eq!(ends(&reply_of(&reply)), ends(&one));
        assert_eq!((reply.from, reply.to), ((one.to.1, one.to.0), (one.from.1, one.from.0)));
        assert!(is_reply(&reply) && reply.flags & flow_flag::THROUGH != 0 && !is_reply(&one));
    }

    #[test]
    fn ports_are_past_when_programs_give_them_away_but_streams_may_be_quiet() {
        let closed = connection(1, 2, OPEN | flow_flag::RESET, 100);
        assert!(!is_past(&closed, 101) && is_past(&closed, 102));
        assert!(!is_past(&connection(1, 2, OPEN, 100), 100_000));
        let datagram = Connection { protocol: protocol::UDP, ..connection(1, 2, OPEN, 100) };
        assert!(!is_past(&datagram, 220) && is_past(&datagram, 221));
        let reply = reply_of(&connection(40_000, 5_000, OPEN, 0));
        assert!(may_be_given(&reply, (5_000, 5_009)) && !may_be_given(&reply, (5_001, 5_009)));
        // To the client's own address and port.
        let own = Connection { to: (reply.to.0, reply.from.1), ..reply };
        assert!(may_be_given(&own, (1, 2)));
    }

    #[test]
    fn copied_flows_replace_reservations_only() {
        let ours = ours(1_024);
        let reply = reply_of(&connection(40_000, 5_000, OPEN, 7));
        assert_eq!(ours.put(&reply, 3, false), Put::New);
        assert_eq!(ours.put(&reply, 3, true), Put::There, "nothing has changed");
        let later = Connection { seen: 9, ..reply };
        assert_eq!(ours.put(&later, 3, true), Put::New);
        assert_eq!(get(&ours, &reply).unwrap().seen, 9);
        // Another client has the source port by now.
        let second = reply_of(&connection(40_001, 5_000, OPEN, 9));
        assert_eq!(ours.put(&second, 3, true), Put::New);
        assert_eq!(u16::from_be(get(&ours, &reply).unwrap().destination_port), 40_001);
        // A connection that our programs have made stays.
        let own = connection(40_002, 5_002, OPEN, 9);
        make(&ours, &own);
        assert_eq!(ours.put(&Connection { seen: 10, ..own }, 3, false), Put::There);
        assert_eq!(get(&ours, &own).unwrap().seen, 9);
    }

    #[test]
    fn replies_that_theirs_answer_are_theirs_and_the_other_flow_begins_anew() {
        let ours = ours(1_024);
        let own = connection(40_000, 5_000, OPEN, 9);
        make(&ours, &own);
        make(&ours, &reply_of(&own));
        let theirs = connection(40_001, 5_000, OPEN, 9);
        assert_eq!(ours.put(&reply_of(&theirs), 3, false), Put::There, "theirs is over");
        assert!(get(&ours, &own).is_some());
        assert_eq!(ours.put(&reply_of(&theirs), 3, true), Put::New);
        assert!(get(&ours, &own).is_none());
        assert_eq!(u16::from_be(get(&ours, &reply_of(&own)).unwrap().destination_port), 40_001);
    }

    #[test]
    fn a_connection_comes_along_whole_or_not_at_all() {
        // Two adjacent sets, and one direction too many.
        let ours = ours(2 * ebpf_common::flow::WAYS as usize);
        let last = connection(40_000, 5_000, OPEN, 9);
        assert_eq!(ours.put(&last, 3, false), Put::New);
        for client in 1..2 * ebpf_common::flow::WAYS as u16 {
            make(&ours, &connection(client, client, OPEN, 9));
        }
        let reply = reply_of(&last);
        assert_eq!(ours.put(&reply, 3, true), Put::Full);
        ours.take_out_other(&reply);
        assert!(get(&ours, &last).is_none() && get(&ours, &connection(1, 1, OPEN, 9)).is_some());
        // Another's element is left alone.
        ours.take_out_other(&reply_of(&connection(1, 1, OPEN, 9)));
        assert!(get(&ours, &connection(1, 1, OPEN, 9)).is_some(), "our programs have made it");
    }

    #[test]
    fn unused_reservations_are_released() {
        let ours = ours(1_024);
        let (whole, half) = (connection(40_000, 5_000, OPEN, 9), connection(40_001, 5_001, OPEN, 9));
        for one in [&whole, &reply_of(&whole), &reply_of(&half)] {
            assert_eq!(ours.put(one, 3, false), Put::New);
        }
        // A set, and the next one.
        let all: Vec<Flow4> = (0..64).step_by(2).flat_map(|set| ours.flows4.around(set)).collect();
        release(&ours.flows4, all.into_iter(), |key| key.hash(ours.seed));
        assert!(get(&ours, &whole).is_some() && get(&ours, &reply_of(&whole)).is_some());
        assert!(get(&ours, &reply_of(&half)).is_none());
    }
}
