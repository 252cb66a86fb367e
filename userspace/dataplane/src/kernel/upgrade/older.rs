//! A made-up older layout, for tests: IPv4 only, in hash maps whose keys and values are not ours, without a
//! setting that tells its programs to leave. It shows that a layout needs only a reader to be taken over, and
//! is a starting point for the reader of a released layout.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ebpf_common::flow::flow_flag;
use ebpf_common::frontend::{AffinityKey, Backend4, FrontendKey4};
use ebpf_common::socket::direction;
use ebpf_common::{LAYOUT_VERSION, protocol, scope};

use super::{Connection, Earlier, OldAffinity, OldNode, Socket, unnamed};
use crate::convert::{self, address4};
use crate::map::{HashTable, MappedArray, Name, Plain};
use crate::sys;
use crate::tables::{Frontend, NodeTables, Tables};

/// Number of the layout: the one before ours.
pub const NUMBER: u32 = LAYOUT_VERSION - 1;

/// An address and a port.
type End = (Ipv4Addr, u16);

/// The client of the connection that [`make`] writes to the maps.
pub const CLIENT: End = (Ipv4Addr::new(10, 1, 0, 9), 40_000);
/// The frontend of `a/old` that the connection is to.
pub const VIP: End = (Ipv4Addr::new(10, 96, 0, 1), 80);
/// The backend of the connection, which the service no longer has.
pub const OLD_BACKEND: End = (Ipv4Addr::new(10, 1, 0, 5), 8_080);
/// The cookie of a connected socket of the same ends.
pub const COOKIE: u64 = 77;
/// The node's address, the source of translated packets.
pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The range of source ports of translated packets.
pub const SNAT_PORTS: (u16, u16) = (2_000, 3_000);

/// Value of `SERVICES`, whose keys are our frontends'.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldFrontend {
    /// Index of the first element in `PLACES`, and their number.
    first: u32,
    count: u32,
    service: u32,
    affinity_seconds: u32,
}

/// Key of `CONNECTIONS`, and the ends in its value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldEnds {
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
    protocol: u32,
}

/// Value of `CONNECTIONS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldConnection {
    to: OldEnds,
    service: u32,
    /// 1 for the direction of replies.
    reply: u32,
    seen: u32,
    reserved: u32,
}

/// Value of `SOCKETS`, by the socket's cookie: connected TCP sockets only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldSocket {
    backend: u32,
    frontend: u32,
    backend_port: u16,
    frontend_port: u16,
    service: u32,
}

/// Key of `CLIENTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldClient {
    address: u32,
    service: u32,
}

/// Value of `CLIENTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldChoice {
    backend: u32,
    seen: u32,
}

/// The element of `NODE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldSettings {
    address: u32,
    snat_port_min: u16,
    snat_port_max: u16,
}

// SAFETY: integers, without padding: four of 32 bits.
unsafe impl Plain for OldFrontend {}
// SAFETY: as above, ports two by two.
unsafe impl Plain for OldEnds {}
// SAFETY: as above.
unsafe impl Plain for OldConnection {}
// SAFETY: as above.
unsafe impl Plain for OldSocket {}
// SAFETY: as above.
unsafe impl Plain for OldClient {}
// SAFETY: as above.
unsafe impl Plain for OldChoice {}
// SAFETY: as above.
unsafe impl Plain for OldSettings {}

/// The maps of the layout.
pub struct Reader {
    directory: PathBuf,
}

impl Reader {
    /// Checks that the maps in `directory` are those of the layout.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let this = Self { directory: directory.to_path_buf() };
        this.frontends()?;
        this.flows()?;
        this.settings(false)?;
        Ok(this)
    }

    fn table<K: Plain, V: Plain>(&self, name: &str) -> io::Result<HashTable<K, V>> {
        HashTable::open(&self.directory.join(name))
    }

    fn frontends(&self) -> io::Result<HashTable<FrontendKey4, OldFrontend>> {
        self.table("SERVICES")
    }

    fn flows(&self) -> io::Result<HashTable<OldEnds, OldConnection>> {
        self.table("CONNECTIONS")
    }

    fn open_sockets(&self) -> io::Result<HashTable<u64, OldSocket>> {
        self.table("SOCKETS")
    }

    fn clients(&self) -> io::Result<HashTable<OldClient, OldChoice>> {
        self.table("CLIENTS")
    }

    fn settings(&self, write: bool) -> io::Result<MappedArray<OldSettings>> {
        MappedArray::open(&self.directory.join("NODE"), write)
    }
}

impl Earlier for Reader {
    fn names(&self) -> io::Result<BTreeMap<u32, String>> {
        let names = self.table::<u32, Name>("NAMES")?.read_all()?;
        Ok(names.iter().map(|(id, name)| (*id, name.text())).collect())
    }

    fn tables(&self) -> io::Result<Tables> {
        let names = self.names()?;
        let places = MappedArray::<Backend4>::open(&self.directory.join("PLACES"), false)?;
        let mut tables = Tables::new();
        for (key, value) in self.frontends()?.read_all()? {
            let name = names.get(&value.service).cloned().unwrap_or_else(|| unnamed(value.service));
            let Some(key) = convert::key4(&key) else { continue };
            let (first, last) = (value.first as usize, (value.first + value.count) as usize);
            let backends = (first..last).map(|place| convert::backend4(&places.get(place))).collect();
            let frontend =
                Frontend { affinity_seconds: value.affinity_seconds, ..Frontend::new(key, backends) };
            tables.entry(name).or_default().frontends.push(frontend);
        }
        Ok(tables)
    }

    fn node(&self) -> io::Result<OldNode> {
        let settings = self.settings(false)?.get(0);
        let address = IpAddr::from(address4(settings.address));
        Ok(OldNode {
            tables: NodeTables {
                addresses: vec![address],
                snat_addresses: vec![address],
                ..NodeTables::default()
            },
            snat_ports: (settings.snat_port_min, settings.snat_port_max),
            devices: Vec::new(),
        })
    }

    fn connections(&self) -> io::Result<Vec<Connection>> {
        let connection = |(from, flow): &(OldEnds, OldConnection)| Connection {
            service: flow.service,
            protocol: from.protocol as u8,
            from: from.ends(),
            to: flow.to.ends(),
            flags: if flow.reply == 1 { flow_flag::REVERSE } else { 0 },
            seen: flow.seen,
        };
        Ok(self.flows()?.read_all()?.iter().map(connection).collect())
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        let socket = |(cookie, socket): &(u64, OldSocket)| Socket {
            cookie: *cookie,
            protocol: protocol::TCP,
            direction: direction::REVERSE,
            key: (address4(socket.backend).into(), u16::from_be(socket.backend_port)),
            value: (address4(socket.frontend).into(), u16::from_be(socket.frontend_port)),
            service: socket.service,
            connected: Some(0),
        };
        Ok(self.open_sockets()?.read_all()?.iter().map(socket).collect())
    }

    fn holds(&self, socket: &Socket) -> io::Result<bool> {
        Ok(self.open_sockets()?.get(&socket.cookie)?.is_some())
    }

    fn affinities(&self) -> io::Result<Vec<OldAffinity>> {
        let affinity = |(client, choice): &(OldClient, OldChoice)| OldAffinity {
            key: AffinityKey {
                client: u64::from(client.address),
                service: client.service,
                family: 4,
                scope: u16::from(scope::INTERNAL),
            },
            backend: [choice.backend, 0, 0, 0],
            seen: choice.seen,
        };
        Ok(self.clients()?.read_all()?.iter().map(affinity).collect())
    }

    fn forget(&self, connection: &Connection) -> io::Result<()> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (connection.from.0.0, connection.from.1.0) else {
            return Ok(());
        };
        let (source, destination) = ((source, connection.from.0.1), (destination, connection.from.1.1));
        let key = OldEnds::new(source, destination, connection.protocol);
        let flows = self.flows()?;
        match flows.get(&key)? {
            Some(found) if found.seen == connection.seen => flows.remove(&key).map(drop),
            _ => Ok(()),
        }
    }

    fn set_snat_ports(&self, low: u16, high: u16) -> io::Result<()> {
        // Both ports are one word, the lower one first.
        const WORD: usize = offset_of!(OldSettings, snat_port_min) / 4;
        let both = u32::from(low) | u32::from(high) << 16;
        self.settings(true)?.word(0, WORD).store(both, Ordering::SeqCst);
        Ok(())
    }

    /// Removes the frontends: its programs begin no connection without one.
    fn leave(&self) -> io::Result<()> {
        let frontends = self.frontends()?;
        for key in frontends.keys()? {
            frontends.remove(&key)?;
        }
        Ok(())
    }

    /// Removes one direction after the other: until both are gone, the remaining one is translated as it is
    /// here.
    fn retire(&self) -> io::Result<()> {
        let flows = self.flows()?;
        for key in flows.keys()? {
            flows.remove(&key)?;
        }
        Ok(())
    }
}

impl OldEnds {
    fn new(source: End, destination: End, protocol: u8) -> Self {
        Self {
            source: convert::word(source.0),
            destination: convert::word(destination.0),
            source_port: source.1.to_be(),
            destination_port: destination.1.to_be(),
            protocol: u32::from(protocol),
        }
    }

    fn ends(&self) -> (super::End, super::End) {
        let end = |address, port| (IpAddr::from(address4(address)), u16::from_be(port));
        (end(self.source, self.source_port), end(self.destination, self.destination_port))
    }
}

/// Creates the maps of the layout, with one service, one connection, one socket and one client that stays
/// with its backend, all of them last used at the tick `now`.
pub fn make(directory: &Path, now: u32) {
    const HASH: u32 = 1;
    const ARRAY: u32 = 2;
    const LRU: u32 = 9;
    const MAPPABLE: u32 = 1 << 10;
    fs::create_dir_all(directory).unwrap();
    for (name, kind, key, value, flags) in [
        ("SERVICES", HASH, size_of::<FrontendKey4>(), size_of::<OldFrontend>(), 0),
        ("PLACES", ARRAY, 4, size_of::<Backend4>(), MAPPABLE),
        ("NAMES", HASH, 4, size_of::<Name>(), 0),
        ("CONNECTIONS", LRU, size_of::<OldEnds>(), size_of::<OldConnection>(), 0),
        ("SOCKETS", LRU, 8, size_of::<OldSocket>(), 0),
        ("CLIENTS", LRU, size_of::<OldClient>(), size_of::<OldChoice>(), 0),
        ("NODE", ARRAY, 4, size_of::<OldSettings>(), MAPPABLE),
    ] {
        let fd = sys::map_create(kind, key as u32, value as u32, 64, flags).unwrap();
        sys::object_pin(fd.as_fd(), &directory.join(name)).unwrap();
    }
    fill(&Reader::open(directory).unwrap(), now).unwrap();
}

fn fill(maps: &Reader, now: u32) -> io::Result<()> {
    const SERVICE: u32 = 3;
    let (vip, old) = (convert::word(VIP.0), convert::word(OLD_BACKEND.0));
    let key =
        FrontendKey4 { address: vip, port: VIP.1.to_be(), protocol: protocol::TCP, scope: scope::INTERNAL };
    let frontend = OldFrontend { first: 4, count: 2, service: SERVICE, affinity_seconds: 10_800 };
    maps.frontends()?.insert(&key, &frontend)?;
    let mut places = MappedArray::<Backend4>::open(&maps.directory.join("PLACES"), true)?;
    for (place, last) in [(4, 6), (5, 7)] {
        let address = convert::word(Ipv4Addr::new(10, 1, 0, last));
        places.set(place, Backend4 { address, port: OLD_BACKEND.1.to_be(), flags: 1 });
    }
    maps.table::<u32, Name>("NAMES")?.insert(&SERVICE, &Name::new("a/old"))?;
    let ends = |source, destination| OldEnds::new(source, destination, protocol::TCP);
    for (from, to, reply) in
        [(ends(CLIENT, VIP), ends(CLIENT, OLD_BACKEND), 0), (ends(OLD_BACKEND, CLIENT), ends(VIP, CLIENT), 1)]
    {
        maps.flows()?
            .insert(&from, &OldConnection { to, service: SERVICE, reply, seen: now, reserved: 0 })?;
    }
    let socket = OldSocket {
        backend: old,
        frontend: vip,
        backend_port: OLD_BACKEND.1.to_be(),
        frontend_port: VIP.1.to_be(),
        service: SERVICE,
    };
    maps.open_sockets()?.insert(&COOKIE, &socket)?;
    let client = OldClient { address: convert::word(CLIENT.0), service: SERVICE };
    maps.clients()?.insert(&client, &OldChoice { backend: old, seen: now })?;
    let (snat_port_min, snat_port_max) = SNAT_PORTS;
    maps.settings(true)?.set(0, OldSettings { address: convert::word(NODE), snat_port_min, snat_port_max });
    Ok(())
}
