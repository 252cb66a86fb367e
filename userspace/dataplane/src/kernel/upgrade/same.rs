//! A layout that differs from ours by its number alone, which tests replace or replace ours by, with real
//! programs on both sides. It reads our maps of today; the reader of this layout, once there is a later one,
//! begins as a copy with structures of its own.

use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ebpf_common::flow::{Flow, Flow4, Flow6};
use ebpf_common::frontend::{Affinity, AffinityKey, Backend4, Backend6, Frontend as Value};
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6, direction};
use ebpf_common::{Config, config_flag};

use super::flows::{Slot, slot};
use super::{Connection, Earlier, OldAffinity, OldNode, Socket, unnamed};
use crate::connected::ConnectedTable;
use crate::convert::{self, address4, address6};
use crate::flows::{FlowTable, FlowWriter};
use crate::kernel::maps::Maps;
use crate::map::{HashTable, MappedArray, Name, Plain};
use crate::store::Store as _;
use crate::tables::{Backend, Frontend, FrontendKey, NodeTables, Tables};

/// The maps of such a layout.
pub struct Reader {
    directory: PathBuf,
    flows4: FlowWriter<Flow4>,
    flows6: FlowWriter<Flow6>,
}

impl Reader {
    pub fn open(directory: &Path) -> io::Result<Self> {
        let this = Self {
            directory: directory.to_path_buf(),
            flows4: FlowWriter::open(directory, ["FLOWS4", "FLOW_TAGS4", "FLOW_HINTS4"])?,
            flows6: FlowWriter::open(directory, ["FLOWS6", "FLOW_TAGS6", "FLOW_HINTS6"])?,
        };
        this.array::<Config>("CONFIG", false)?;
        Ok(this)
    }

    fn array<T: Plain>(&self, name: &str, write: bool) -> io::Result<MappedArray<T>> {
        MappedArray::open(&self.directory.join(name), write)
    }

    fn read<K: Plain + Default, V: Plain + Default>(&self, name: &str) -> io::Result<Vec<(K, V)>> {
        HashTable::<K, V>::open(&self.directory.join(name))?.read_all()
    }

    fn backends(&self, key: &FrontendKey, value: &Value) -> io::Result<Vec<Backend>> {
        let places = value.block() as usize..value.block() as usize + usize::from(value.count());
        Ok(if key.address.is_ipv4() {
            let array = self.array::<Backend4>("BACKENDS4", false)?;
            places.map(|place| convert::backend4(&array.get(place))).collect()
        } else {
            let array = self.array::<Backend6>("BACKENDS6", false)?;
            places.map(|place| convert::backend6(&array.get(place))).collect()
        })
    }
}

impl Earlier for Reader {
    fn names(&self) -> io::Result<BTreeMap<u32, String>> {
        let names = self.read::<u32, Name>("SERVICE_NAMES")?;
        Ok(names.iter().map(|(id, name)| (*id, name.text())).collect())
    }

    /// Returns tables with a part of the properties of frontends: addresses, backends and affinity.
    fn tables(&self) -> io::Result<Tables> {
        let names = self.names()?;
        let contents =
            Maps::open(&self.directory).and_then(|mut maps| maps.read()).map_err(io::Error::other)?;
        let mut tables = Tables::new();
        for (key, value) in contents.frontends {
            let name = names.get(&value.service).cloned().unwrap_or_else(|| unnamed(value.service));
            let frontend = Frontend {
                affinity_seconds: convert::seconds(value.affinity) as u32,
                ..Frontend::new(key, self.backends(&key, &value)?)
            };
            tables.entry(name).or_default().frontends.push(frontend);
        }
        for service in tables.values_mut() {
            service.frontends.sort_by_key(|frontend| frontend.key);
        }
        Ok(tables)
    }

    fn node(&self) -> io::Result<OldNode> {
        let local4 = self.read::<u32, u32>("LOCAL_ADDRS4")?;
        let local6 = self.read::<[u32; 4], u32>("LOCAL_ADDRS6")?;
        let config = self.array::<Config>("CONFIG", false)?.get(0);
        let mut addresses: Vec<IpAddr> = local4.iter().map(|(word, _)| address4(*word).into()).collect();
        addresses.extend(local6.iter().map(|(words, _)| IpAddr::from(address6(*words))));
        let snat4 = (config.snat_address4 != 0).then(|| address4(config.snat_address4).into());
        let snat6 = (config.snat_address6 != [0; 4]).then(|| address6(config.snat_address6).into());
        let tables = NodeTables {
            addresses,
            snat_addresses: snat4.into_iter().chain(snat6).collect(),
            exempt: self.read::<u64, u64>("EXEMPT")?.into_iter().map(|(cookie, _)| cookie).collect(),
            through_stack: config.flags & config_flag::THROUGH_STACK != 0,
            guard_node_ports: config.flags & config_flag::GUARD_NODE_PORTS != 0,
            ..NodeTables::default()
        };
        let devices = HashTable::<u32, [u32; 2]>::open(&self.directory.join("DEVICES"))?.keys()?;
        Ok(OldNode { tables, snat_ports: (config.snat_port_min, config.snat_port_max), devices })
    }

    fn connections(&self) -> io::Result<Vec<Connection>> {
        let v4 = FlowTable::<Flow4>::open(&self.directory, "FLOWS4", "FLOW_TAGS4")?;
        let v6 = FlowTable::<Flow6>::open(&self.directory, "FLOWS6", "FLOW_TAGS6")?;
        let v4 = v4.iter().map(|flow| connection(&flow, |word| address4(word).into()));
        Ok(v4.chain(v6.iter().map(|flow| connection(&flow.flow, |words| address6(words).into()))).collect())
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        let peer = |cookie, protocol, way, key, value, service| Socket {
            cookie,
            protocol,
            direction: way,
            key,
            value,
            service,
            connected: None,
        };
        let connected = ConnectedTable::open(&self.directory)?;
        let mut all: Vec<Socket> = connected
            .iter()
            .map(|one| Socket {
                connected: Some(one.netns),
                ..peer(one.cookie, one.protocol, direction::REVERSE, one.backend, one.frontend, one.service)
            })
            .collect();
        for (key, value) in self.read::<SocketKey4, Socket4>("SOCKETS4")? {
            let at = |word, port| (IpAddr::from(address4(word)), u16::from_be(port));
            let (from, to) = (at(key.address, key.port), at(value.address, value.port));
            all.push(peer(key.cookie, key.protocol, key.direction, from, to, value.service));
        }
        for (key, value) in self.read::<SocketKey6, Socket6>("SOCKETS6")? {
            let at = |words, port| (IpAddr::from(address6(words)), u16::from_be(port));
            let (from, to) = (at(key.address, key.port), at(value.address, value.port));
            all.push(peer(key.cookie, key.protocol, key.direction, from, to, value.service));
        }
        Ok(all)
    }

    fn holds(&self, socket: &Socket) -> io::Result<bool> {
        Ok(ConnectedTable::open(&self.directory)?.get(socket.cookie).is_some())
    }

    fn affinities(&self) -> io::Result<Vec<OldAffinity>> {
        let all = self.read::<AffinityKey, Affinity>("AFFINITY")?;
        let one = |(key, value): &(AffinityKey, Affinity)| OldAffinity {
            key: *key,
            backend: value.address,
            seen: value.seen,
        };
        Ok(all.iter().map(one).collect())
    }

    fn forget(&self, connection: &Connection) -> io::Result<()> {
        let seed = self.array::<Config>("CONFIG", false)?.get(0).seed;
        match slot(connection, connection.service) {
            Some(Slot::V4(flow)) => {
                let hash = flow.key.hash(seed);
                if let Some(found) = self.flows4.get(&flow, hash).filter(|found| found.seen == flow.seen) {
                    self.flows4.remove(&found, hash);
                }
            }
            Some(Slot::V6(flow)) => {
                let hash = flow.flow.key.hash(seed);
                let found = self.flows6.get(&flow, hash);
                if let Some(found) = found.filter(|found| found.flow.seen == flow.flow.seen) {
                    self.flows6.remove(&found, hash);
                }
            }
            None => {}
        }
        Ok(())
    }

    fn set_snat_ports(&self, low: u16, high: u16) -> io::Result<()> {
        const WORD: usize = offset_of!(Config, snat_port_min) / 4;
        let both = u32::from(low) | u32::from(high) << 16;
        self.array::<Config>("CONFIG", true)?.word(0, WORD).store(both, Ordering::SeqCst);
        Ok(())
    }

    fn leave(&self) -> io::Result<()> {
        const WORD: usize = offset_of!(Config, flags) / 4;
        self.array::<Config>("CONFIG", true)?.word(0, WORD).fetch_or(config_flag::LEAVING, Ordering::SeqCst);
        Ok(())
    }

    /// Sets the masks to zero: every look-up goes to the first set, or to the next one, which are emptied
    /// then; the others know their content by now.
    fn retire(&self) -> io::Result<()> {
        let config = self.array::<Config>("CONFIG", true)?;
        for mask in [offset_of!(Config, flow_mask4), offset_of!(Config, flow_mask6)] {
            config.word(0, mask / 4).store(0, Ordering::SeqCst);
        }
        let seed = config.get(0).seed;
        self.flows4.around(0).for_each(|flow| self.flows4.remove(&flow, flow.key.hash(seed)));
        self.flows6.around(0).for_each(|flow| self.flows6.remove(&flow, flow.flow.key.hash(seed)));
        Ok(())
    }
}

fn connection<A: Copy>(flow: &Flow<A>, ip: impl Fn(A) -> IpAddr) -> Connection {
    let end = |address, port| (ip(address), u16::from_be(port));
    let key = &flow.key;
    Connection {
        service: flow.service,
        protocol: key.protocol as u8,
        from: (end(key.source, key.source_port), end(key.destination, key.destination_port)),
        to: (end(flow.source, flow.source_port), end(flow.destination, flow.destination_port)),
        flags: flow.flags,
        seen: flow.seen,
    }
}
