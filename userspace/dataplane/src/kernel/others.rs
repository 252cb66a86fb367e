//! Connections that others translate: those that kube-proxy's rules have given a backend, which the kernel's
//! connection tracking remembers for as long as they live, with the rules or without.
//!
//! ```text
//!   connection tracking ─▶ ours to leave alone? ─▶ TRACKED4, TRACKED6 ─▶ programs let them pass
//!                       └▶ datagrams to an endpoint that is gone ─▶ entry and local socket removed
//! ```
//! Such a connection cannot be taken over: connection tracking translates replies by its entry, and another
//! entry with the same replies cannot exist beside it. So these connections stay there until they end; only
//! new ones are ours.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::flow::FlowKey;
use ebpf_common::{Config as Settings, LAYOUT_VERSION, config_flag, protocol, tracked};

use super::conntrack::{End, Entry, Stage, Tracking, has_ipvs};
use super::maps::Maps;
use super::{failed, version_directory};
use crate::convert;
use crate::destroy::diag;
use crate::map::{HashTable, MappedArray};
use crate::tables::{DataPlaneError, Look, Others, Protocol};

/// Returns `true` if the data plane below `bpf_root` lets connections pass that others translate; `false` if
/// there is no data plane.
///
/// # Errors
/// Fails if its settings cannot be read.
pub fn others_pass(bpf_root: &Path) -> io::Result<bool> {
    let path = version_directory(bpf_root, LAYOUT_VERSION).join("maps/CONFIG");
    if !path.exists() {
        return Ok(false);
    }
    let flags = MappedArray::<Settings>::open(&path, false)?.get(0).flags;
    Ok(flags & (config_flag::TRACKED | config_flag::SETTLING) != 0)
}

/// Protocol, source and destination.
type Ends = (u8, End, End);

/// The maps of such connections.
pub struct Tracked {
    v4: HashTable<FlowKey<u32>, u32>,
    v6: HashTable<FlowKey<[u32; 4]>, u32>,
    /// Their content, once it has been read.
    written: Option<BTreeMap<Ends, u32>>,
    /// Number of translations removed so far, by family.
    removed: [u64; 2],
}

impl Tracked {
    /// Opens the maps pinned in this directory.
    pub fn open(maps: &Path) -> io::Result<Self> {
        let (v4, v6) = (HashTable::open(&maps.join("TRACKED4"))?, HashTable::open(&maps.join("TRACKED6"))?);
        Ok(Self { v4, v6, written: None, removed: [0; 2] })
    }

    /// Returns the number of translations of IPv4 and of IPv6 removed so far.
    pub fn removed(&self) -> [u64; 2] {
        self.removed
    }

    /// Finds the connections, see [`crate::DataPlane::let_others_pass`].
    pub fn look(&mut self, store: &mut Maps, look: Look) -> Result<Others, DataPlaneError> {
        let unread = |error| failed("reading the kernel's connection tracking".to_owned(), error);
        let mut tracking = Tracking::open().map_err(|error| unread(error.into()))?;
        let entries = tracking.translated(has_ipvs()).map_err(unread)?;
        // Without tables the addresses of services are unknown: then all may pass.
        let sorted = match look {
            Look::Before => Sorted { pass: entries, ..Sorted::default() },
            _ => sort(entries, &mut |end, protocol| store.service(end, protocol))
                .map_err(|error| failed("reading the frontends of others' connections".to_owned(), error))?,
        };
        let seen = Others {
            removed: sorted.stale.len(),
            ..sorted.count(|end| store.is_local(end.0).unwrap_or(false))
        };
        let idle = look == Look::Settled && seen.connections == 0;
        let wanted = if idle { BTreeMap::new() } else { passing(&sorted.pass) };
        let all = self
            .write(&wanted)
            .map_err(|error| failed("writing the maps of others' connections".to_owned(), error))?;
        store.switch(config_flag::TRACKED, !wanted.is_empty());
        // If there is no room for all, segments can at least be told apart by their flags.
        store.switch(config_flag::SETTLING, matches!(look, Look::Before | Look::Settling) || !all);
        self.forget(&mut tracking, &sorted.stale);
        Ok(seen)
    }

    /// Makes the maps equal to `wanted`; returns `false` if there is no room for all.
    fn write(&mut self, wanted: &BTreeMap<Ends, u32>) -> io::Result<bool> {
        let mut written = match self.written.take() {
            Some(written) => written,
            None => self.read()?,
        };
        // After a failure the maps are read again.
        written.retain(|ends, _| wanted.contains_key(ends) || self.remove(ends).is_err());
        let mut all = true;
        for (ends, value) in wanted {
            if written.get(ends) == Some(value) {
                continue;
            }
            match self.insert(ends, *value) {
                Ok(()) => drop(written.insert(*ends, *value)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::E2BIG | libc::ENOMEM | libc::ENOSPC) => all = false,
                    _ => return Err(error),
                },
            }
        }
        self.written = Some(written);
        Ok(all)
    }

    fn read(&self) -> io::Result<BTreeMap<Ends, u32>> {
        let four = self.v4.read_all()?.into_iter().map(|(key, value)| {
            let at = |address, port| (IpAddr::V4(convert::address4(address)), u16::from_be(port));
            let ends = (at(key.source, key.source_port), at(key.destination, key.destination_port));
            ((key.protocol as u8, ends.0, ends.1), value)
        });
        let six = self.v6.read_all()?.into_iter().map(|(key, value)| {
            let at = |address, port| (IpAddr::V6(convert::address6(address)), u16::from_be(port));
            let ends = (at(key.source, key.source_port), at(key.destination, key.destination_port));
            ((key.protocol as u8, ends.0, ends.1), value)
        });
        Ok(four.chain(six).collect())
    }

    fn insert(&self, ends: &Ends, value: u32) -> io::Result<()> {
        match raw(ends) {
            Some(Raw::V4(key)) => self.v4.insert(&key, &value),
            Some(Raw::V6(key)) => self.v6.insert(&key, &value),
            None => Ok(()),
        }
    }

    fn remove(&self, ends: &Ends) -> io::Result<bool> {
        match raw(ends) {
            Some(Raw::V4(key)) => self.v4.remove(&key),
            Some(Raw::V6(key)) => self.v6.remove(&key),
            None => Ok(false),
        }
    }

    /// Removes translations. Packets of those clients begin a flow of ours from now on; a socket of this
    /// namespace, whose packets pass no program before they leave, is destroyed: its application connects
    /// again, and that connection is translated.
    fn forget(&mut self, tracking: &mut Tracking, stale: &[Entry]) {
        if stale.is_empty() {
            return;
        }
        for entry in stale {
            match tracking.remove(entry) {
                Ok(true) => self.removed[usize::from(entry.original.0.0.is_ipv6())] += 1,
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%error, ?entry, "cannot remove a translation to an endpoint that is gone")
                }
            }
        }
        if let Err(error) = destroy_sockets(stale) {
            tracing::debug!(%error, "cannot destroy sockets of an endpoint that is gone");
        }
    }
}

/// Destroys the connected datagram sockets of this network namespace that made these.
fn destroy_sockets(stale: &[Entry]) -> io::Result<()> {
    let ends: BTreeSet<[End; 2]> = stale
        .iter()
        .filter(|entry| entry.protocol == protocol::UDP)
        .map(|entry| [entry.original.0, entry.original.1])
        .collect();
    let mut socket = diag::Socket::open()?;
    for found in socket.connected_datagrams()? {
        if ends.contains(&found.ends()) {
            socket.destroy(&found)?;
        }
    }
    Ok(())
}

impl Maps {
    /// Returns the backends of an address and port of a service; `None` if they are not a service's.
    fn service(&self, end: End, number: u8) -> io::Result<Option<Vec<End>>> {
        let Some(protocol) = convert::protocol(number) else { return Ok(None) };
        if protocol == Protocol::Any {
            return Ok(None);
        }
        let found = self.candidates(end, protocol)?;
        Ok(found.or_else(|| convert::is_in_ranges(&self.config(), end.0).then(Vec::new)))
    }
}

/// The connections that others translate, by what to do with them.
#[derive(Debug, Default)]
struct Sorted {
    /// Those to let pass.
    pass: Vec<Entry>,
    /// Datagrams to an endpoint that the service has lost.
    stale: Vec<Entry>,
}

impl Sorted {
    fn count(&self, is_local: impl Fn(&End) -> bool) -> Others {
        let alive = || self.pass.iter().filter(|entry| entry.stage != Stage::Over);
        Others {
            connections: alive().count(),
            to_services: alive().filter(|entry| !is_local(&entry.original.1)).count(),
            removed: 0,
        }
    }
}

/// Returns the backends of an address, port and protocol: see [`Maps::service`].
type Service<'a> = &'a mut dyn FnMut(End, u8) -> io::Result<Option<Vec<End>>>;

fn sort(entries: Vec<Entry>, service: Service<'_>) -> io::Result<Sorted> {
    let mut known: BTreeMap<(End, u8), Option<Vec<End>>> = BTreeMap::new();
    let mut sorted = Sorted::default();
    for entry in entries {
        let at = (entry.original.1, entry.protocol);
        let backends = match known.entry(at) {
            MapEntry::Occupied(found) => found.into_mut(),
            MapEntry::Vacant(place) => place.insert(service(at.0, at.1)?),
        };
        let Some(backends) = backends else { continue };
        // Streams notice that their endpoint is gone, and may end properly until then.
        let datagrams = entry.protocol == protocol::UDP || entry.protocol == protocol::SCTP;
        if datagrams && !backends.contains(&entry.reply.0) {
            sorted.stale.push(entry);
        } else {
            sorted.pass.push(entry);
        }
    }
    Ok(sorted)
}

/// Returns keys and values of the connections to let pass: the client's packets and, if others replace its
/// address, the backend's packets to that.
fn passing(entries: &[Entry]) -> BTreeMap<Ends, u32> {
    let mut all = BTreeMap::new();
    for entry in entries {
        let opening = if entry.stage == Stage::Opening { tracked::OPENING } else { 0 };
        let mut add = |(source, destination): (End, End)| {
            all.insert((entry.protocol, source, destination), tracked::UNDER_WAY | opening);
        };
        add(entry.original);
        if entry.reply.1 != entry.original.0 {
            add(entry.reply);
        }
    }
    all
}

enum Raw {
    V4(FlowKey<u32>),
    V6(FlowKey<[u32; 4]>),
}

/// Converts the ends; `None` if they are not of one family.
fn raw((number, source, destination): &Ends) -> Option<Raw> {
    let (source_port, destination_port) = (source.1.to_be(), destination.1.to_be());
    let protocol = u32::from(*number);
    match (source.0, destination.0) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (source, destination) = (convert::word(source), convert::word(destination));
            Some(Raw::V4(FlowKey { source, destination, source_port, destination_port, protocol }))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (source, destination) = (convert::words(source), convert::words(destination));
            Some(Raw::V6(FlowKey { source, destination, source_port, destination_port, protocol }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> End {
        let address: std::net::SocketAddr = text.parse().unwrap();
        (address.ip(), address.port())
    }

    fn entry(protocol: u8, to: &str, backend: &str, back_to: &str, stage: Stage) -> Entry {
        Entry::made(protocol, (end("10.1.0.9:4000"), end(to)), (end(backend), end(back_to)), stage)
    }

    #[test]
    fn datagrams_leave_lost_endpoints_and_streams_stay() {
        let (own, node) = ("10.1.0.9:4000", "192.0.2.1:1025");
        let entries = vec![
            entry(protocol::UDP, "10.96.0.10:53", "10.1.0.5:53", own, Stage::UnderWay),
            entry(protocol::UDP, "10.96.0.10:53", "10.1.0.6:53", own, Stage::UnderWay),
            entry(protocol::TCP, "10.96.0.10:53", "10.1.0.6:53", node, Stage::Opening),
            entry(protocol::TCP, "192.0.2.1:30080", "10.1.0.6:53", own, Stage::Over),
            entry(protocol::TCP, "192.0.2.1:8080", "172.17.0.2:80", own, Stage::UnderWay),
        ];
        let mut asked = 0;
        let mut service = |at: End, _| {
            asked += 1;
            Ok((at != end("192.0.2.1:8080")).then(|| vec![end("10.1.0.5:53")]))
        };
        let sorted = sort(entries.clone(), &mut service).unwrap();
        assert_eq!(asked, 4, "the same is not asked twice");
        assert_eq!(sorted.stale, entries[1..2]);
        assert_eq!(sorted.pass, [&entries[..1], &entries[2..4]].concat());
        let local = |at: &End| at.0 == end(node).0;
        assert_eq!(sorted.count(local), Others { connections: 2, to_services: 2, removed: 0 });
        let under_way = tracked::UNDER_WAY;
        let expected = BTreeMap::from([
            ((protocol::UDP, end(own), end("10.96.0.10:53")), under_way),
            ((protocol::TCP, end(own), end("10.96.0.10:53")), under_way | tracked::OPENING),
            ((protocol::TCP, end("10.1.0.6:53"), end(node)), under_way | tracked::OPENING),
            ((protocol::TCP, end(own), end("192.0.2.1:30080")), under_way),
        ]);
        assert_eq!(passing(&sorted.pass), expected);
    }
}
