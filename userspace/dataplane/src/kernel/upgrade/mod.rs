//! From the maps of an earlier layout to ours, while traffic goes on.
//!
//! ```text
//!   read old tables ─▶ write ours ─▶ copy connections ─▶ take over old links (their programs are
//!   replaced, each without a gap) ─▶ copy connections that began meanwhile ─▶ remove old maps
//! ```
//!
//! Each earlier layout has a reader that gives plain data, see [`Earlier`]; all else is the same
//! for all of them. A process that dies on the way leaves old links in their place, and the next
//! one begins again: every step can be done twice.

mod v1;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ebpf_common::flow::{Flow, Flow4, Flow6, FlowKey};
use ebpf_common::frontend::{Affinity, AffinityKey};
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6};
use ebpf_common::{LAYOUT_VERSION, config_flag};

use super::maps::Maps;
use super::object::Program;
use super::{attach, failed};
use crate::convert;
use crate::flows::FlowWriter;
use crate::map::HashTable;
use crate::sync::Synchronizer;
use crate::tables::{DataPlaneError, NodeTables, Tables};

/// An address and a port.
type End = (IpAddr, u16);

/// What an earlier layout holds, as plain data. Services are known by the ids they had there.
pub trait Earlier {
    fn names(&self) -> io::Result<BTreeMap<u32, String>>;
    /// By name; services without one under a name that no object has.
    fn tables(&self) -> io::Result<Tables>;
    fn node(&self) -> io::Result<OldNode>;
    fn connections(&self) -> io::Result<Vec<Connection>>;
    fn sockets(&self) -> io::Result<Vec<Socket>>;
    fn affinities(&self) -> io::Result<Vec<OldAffinity>>;
}

/// Settings of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldNode {
    pub tables: NodeTables,
    /// Lowest and highest source port of translated packets.
    pub snat_ports: (u16, u16),
    /// Interfaces that XDP may send to.
    pub devices: Vec<u32>,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub service: u32,
    pub protocol: u8,
    /// Source and destination of its packets,
    pub from: (End, End),
    /// and what they become.
    pub to: (End, End),
    /// Bits of [`ebpf_common::flow::flow_flag`].
    pub flags: u16,
    /// Tick of the last packet.
    pub seen: u32,
}

/// What a local socket remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub cookie: u64,
    pub protocol: u8,
    /// One of [`ebpf_common::socket::direction`].
    pub direction: u8,
    pub key: End,
    pub value: End,
    pub service: u32,
}

/// Where a client stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldAffinity {
    pub key: AffinityKey,
    pub backend: [u32; 4],
    /// Tick of the last use.
    pub seen: u32,
}

/// An earlier layout whose programs are at work.
pub struct Predecessor {
    directory: PathBuf,
    reader: Box<dyn Earlier>,
}

/// How many of what came along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub flows: usize,
    pub sockets: usize,
    pub affinities: usize,
}

/// Finds the layout whose links are in use, if we know how to read it. `versions` are the
/// directories of all layouts.
pub fn predecessor(versions: &[PathBuf]) -> Option<Predecessor> {
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix('v')?.parse::<u32>().ok();
    let mut others: Vec<(u32, &PathBuf)> = versions
        .iter()
        .filter_map(|path| Some((number(path)?, path)))
        .filter(|(number, path)| *number != LAYOUT_VERSION && is_live(path))
        .collect();
    others.sort_unstable();
    let (number, path) = others.pop()?;
    let maps = path.join("maps");
    let reader: io::Result<Box<dyn Earlier>> = match number {
        1 => v1::Reader::open(&maps).map(|reader| Box::new(reader) as Box<dyn Earlier>),
        _ => return None,
    };
    match reader {
        Ok(reader) => Some(Predecessor { directory: path.clone(), reader }),
        Err(error) => {
            tracing::warn!(maps = %maps.display(), %error, "tables of an earlier layout cannot be read");
            None
        }
    }
}

/// Something is attached by links of this layout.
pub fn is_live(version: &Path) -> bool {
    fs::read_dir(version.join("links")).is_ok_and(|mut links| links.next().is_some())
}

impl Predecessor {
    /// Makes our tables equal to the old ones.
    pub fn carry_tables(&self, ours: &mut Synchronizer<Maps>) -> Result<(), DataPlaneError> {
        let tables = self.reader.tables().map_err(|error| self.unreadable(error))?;
        let old = self.reader.node().map_err(|error| self.unreadable(error))?;
        ours.store.set_node(&old.tables)?;
        let mut settings = ours.store.config();
        (settings.snat_port_min, settings.snat_port_max) = old.snat_ports;
        ours.store.set_config(settings);
        let applied = ours.apply_full(&tables)?;
        tracing::info!(services = tables.len(), ?applied, "took over tables of an earlier layout");
        Ok(())
    }

    /// Lets XDP send to where it did.
    pub fn carry_devices(&self, devices: &HashTable<u32, [u32; 2]>, settings: u32) -> io::Result<()> {
        if settings & config_flag::XDP_REDIRECT != 0 {
            for index in self.reader.node()?.devices {
                devices.insert(&index, &[index, 0])?;
            }
        }
        Ok(())
    }

    /// Copies connections, sockets and affinities that are not here yet. What is here is younger.
    pub fn carry_connections(
        &self,
        ours: &Synchronizer<Maps>,
        maps: &Path,
    ) -> Result<Carried, DataPlaneError> {
        let names = self.reader.names().map_err(|error| self.unreadable(error))?;
        let ids: BTreeMap<&str, u32> = ours.service_ids().collect();
        // The same service may have another id by now; one that is gone has none.
        let id = |old: u32| {
            let name = names.get(&old).cloned().unwrap_or_else(|| unnamed(old));
            ids.get(name.as_str()).copied()
        };
        let to = |error| failed("copying connections of an earlier layout".to_owned(), error);
        Ok(Carried {
            flows: self.carry_flows(maps, ours.store.config().seed, &id).map_err(to)?,
            sockets: self.carry_sockets(maps, &id).map_err(to)?,
            affinities: self.carry_affinities(maps, &id).map_err(to)?,
        })
    }

    /// Moves the pins of old links to ours. They go on running the old programs until each is
    /// given its new one.
    pub fn hand_over_links(&self, ours: &Path) -> Result<(), DataPlaneError> {
        let old = self.directory.join("links");
        let attempted = |error| failed(format!("taking over links of {}", old.display()), error);
        for entry in fs::read_dir(&old).map_err(attempted)? {
            let entry = entry.map_err(attempted)?;
            let (name, place) = (entry.file_name(), ours.join(entry.file_name()));
            let known = name.to_str().and_then(|name| name.split_once('-'));
            let known = known.and_then(|(_, program)| Program::named(program)).is_some();
            if !known || place.exists() {
                // Nothing of ours would ever replace its program.
                attach::unpin_link(&entry.path()).map_err(attempted)?;
            } else {
                fs::rename(entry.path(), place).map_err(attempted)?;
            }
        }
        Ok(())
    }

    fn carry_flows(&self, maps: &Path, seed: u32, id: &dyn Fn(u32) -> Option<u32>) -> io::Result<usize> {
        let flows4 = FlowWriter::<Flow4>::open(maps, "FLOWS4", "FLOW_TAGS4")?;
        let flows6 = FlowWriter::<Flow6>::open(maps, "FLOWS6", "FLOW_TAGS6")?;
        let mut carried = 0;
        for connection in self.reader.connections()? {
            let Some(service) = id(connection.service) else { continue };
            carried += usize::from(match slot(&connection, service) {
                Some(Slot::V4(flow)) => flows4.insert(&flow, flow.key.hash(seed)),
                Some(Slot::V6(flow)) => flows6.insert(&flow, flow.flow.key.hash(seed)),
                None => false,
            });
        }
        Ok(carried)
    }

    fn carry_sockets(&self, maps: &Path, id: &dyn Fn(u32) -> Option<u32>) -> io::Result<usize> {
        let sockets4: HashTable<SocketKey4, Socket4> = HashTable::open(&maps.join("SOCKETS4"))?;
        let sockets6: HashTable<SocketKey6, Socket6> = HashTable::open(&maps.join("SOCKETS6"))?;
        let mut carried = 0;
        for socket in self.reader.sockets()? {
            let Some(service) = id(socket.service) else { continue };
            let Socket { cookie, protocol, direction, .. } = socket;
            let (port, to_port) = (socket.key.1.to_be(), socket.value.1.to_be());
            carried += usize::from(match (socket.key.0, socket.value.0) {
                (IpAddr::V4(address), IpAddr::V4(to)) => {
                    let key =
                        SocketKey4 { cookie, address: convert::word(address), port, protocol, direction };
                    let address = convert::word(to);
                    let value = Socket4 { address, port: to_port, service, ..Socket4::default() };
                    sockets4.insert_new(&key, &value)?
                }
                (IpAddr::V6(address), IpAddr::V6(to)) => {
                    let address = convert::words(address);
                    let key = SocketKey6 { cookie, address, port, protocol, direction, reserved: 0 };
                    let address = convert::words(to);
                    let value = Socket6 { address, port: to_port, service, ..Socket6::default() };
                    sockets6.insert_new(&key, &value)?
                }
                _ => false,
            });
        }
        Ok(carried)
    }

    fn carry_affinities(&self, maps: &Path, id: &dyn Fn(u32) -> Option<u32>) -> io::Result<usize> {
        let affinity: HashTable<AffinityKey, Affinity> = HashTable::open(&maps.join("AFFINITY"))?;
        let mut carried = 0;
        for OldAffinity { mut key, backend, seen } in self.reader.affinities()? {
            let Some(service) = id(key.service) else { continue };
            key.service = service;
            let value = Affinity { address: backend, seen, ..Affinity::default() };
            carried += usize::from(affinity.insert_new(&key, &value)?);
        }
        Ok(carried)
    }

    fn unreadable(&self, error: io::Error) -> DataPlaneError {
        failed(format!("reading the tables in {}", self.directory.display()), error)
    }
}

/// The name of a service that has none; no object is called so.
fn unnamed(id: u32) -> String {
    format!("?{id}")
}

/// A connection as an element of its family's table.
enum Slot {
    V4(Flow4),
    V6(Flow6),
}

/// None if its ends are not of one family.
fn slot(connection: &Connection, service: u32) -> Option<Slot> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::flow::flow_flag;

    #[test]
    fn connections_become_slots() {
        let end = |text: &str, port| (text.parse::<IpAddr>().unwrap(), port);
        let mut connection = Connection {
            service: 3,
            protocol: 6,
            from: (end("192.0.2.9", 40_000), end("10.96.0.1", 80)),
            to: (end("192.0.2.1", 1_024), end("10.1.0.5", 8_080)),
            flags: flow_flag::THROUGH | flow_flag::EXTERNAL,
            seen: 77,
        };
        let Some(Slot::V4(flow)) = slot(&connection, 5) else { panic!("of v4") };
        assert_eq!(convert::address4(flow.key.destination), connection.from.1.0);
        assert_eq!(
            (u16::from_be(flow.key.source_port), u16::from_be(flow.destination_port)),
            (40_000, 8_080)
        );
        assert_eq!((flow.service, flow.seen, flow.flags, flow.epoch), (5, 77, connection.flags, 0));
        connection.to.0 = end("fd00::1", 1);
        assert!(slot(&connection, 5).is_none(), "one end of another family");
    }

    #[test]
    fn only_layouts_in_use_count() {
        let root = tempfile::tempdir().unwrap();
        let versions: Vec<PathBuf> = ["v1", "v2", "v9"].map(|name| root.path().join(name)).to_vec();
        assert!(predecessor(&versions).is_none());
        for version in &versions {
            fs::create_dir_all(version.join("links")).unwrap();
        }
        assert!(predecessor(&versions).is_none(), "nothing is attached");
        // In use, but without maps that could be read, or of a layout that we do not know.
        for name in ["v1", "v9"] {
            fs::write(root.path().join(name).join("links/cgroup-connect4"), "").unwrap();
            assert!(predecessor(&versions).is_none());
        }
    }
}
