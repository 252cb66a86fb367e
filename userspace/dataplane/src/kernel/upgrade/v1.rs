//! Layout 1: flows, sockets and affinities in maps of the kernel's that throw out what was used
//! least, generations instead of epochs.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ebpf_common::flow::flow_flag;
use ebpf_common::frontend::{AffinityKey, Backend4, Backend6, FrontendKey4, FrontendKey6, frontend_flag};
use ebpf_common::protocol;
use ebpf_common::socket::{SocketKey4, SocketKey6, direction};

use super::{Connection, Earlier, OldAffinity, OldNode, Socket, unnamed};
use crate::convert::{self, address4, address6};
use crate::map::{HashTable, MappedArray, Name, Plain};
use crate::tables::{Backend, Frontend, FrontendKey, NodeTables, ServiceTables, Tables};

/// Value of `FRONTENDS4` and `FRONTENDS6`. Their keys are as they were.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldFrontend {
    /// Block start in bits 0–31, number of backends in 32–47, flags in 48–63.
    switch: u64,
    service: u32,
    generation: u32,
    /// In ticks.
    affinity: u32,
    reserved: u32,
    check: u64,
}

/// Key of `FLOWS4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldFlowKey {
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
    protocol: u32,
}

/// Value of `FLOWS4`. There were no flows of IPv6.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldFlow {
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
    service: u32,
    generation: u32,
    flags: u16,
    reserved: u16,
    seen: u32,
    hop: [u32; 5],
}

/// Flags that had the same bits as today.
const SAME_FLAGS: u16 = flow_flag::REVERSE
    | flow_flag::THROUGH
    | flow_flag::FIN
    | flow_flag::FIN_PEER
    | flow_flag::RESET
    | flow_flag::EXTERNAL;

/// Value of `SOCKETS4`. Its keys are as they were.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldSocket4 {
    address: u32,
    port: u16,
    reserved: u16,
    block: u32,
    service: u32,
}

/// Value of `SOCKETS6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldSocket6 {
    address: [u32; 4],
    port: u16,
    reserved: u16,
    block: u32,
    service: u32,
}

/// Key of `AFFINITY`: one a client and port of a service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldAffinityKey {
    client: u64,
    service: u32,
    port: u16,
    protocol: u8,
    scope: u8,
}

/// Value of `AFFINITY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldAffinityValue {
    address: [u32; 4],
    port: u16,
    reserved: u16,
    seen: u32,
}

/// The element of `CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct OldConfig {
    netns_cookie: u64,
    snat_address4: u32,
    wildcard_port_min: u16,
    wildcard_port_max: u16,
    snat_port_min: u16,
    snat_port_max: u16,
    flags: u32,
}

const _: () = {
    assert!(size_of::<OldFrontend>() == 32 && size_of::<OldConfig>() == 24);
    assert!(std::mem::offset_of!(OldConfig, snat_port_min) == 16);
    assert!(size_of::<OldFlowKey>() == 16 && size_of::<OldFlow>() == 48);
    assert!(size_of::<OldSocket4>() == 16 && size_of::<OldSocket6>() == 28);
    assert!(size_of::<OldAffinityKey>() == 16 && size_of::<OldAffinityValue>() == 24);
};

// SAFETY: integers and arrays of them; the sizes above leave no room for padding.
unsafe impl Plain for OldFrontend {}
// SAFETY: as above.
unsafe impl Plain for OldFlowKey {}
// SAFETY: as above.
unsafe impl Plain for OldFlow {}
// SAFETY: as above.
unsafe impl Plain for OldSocket4 {}
// SAFETY: as above.
unsafe impl Plain for OldSocket6 {}
// SAFETY: as above.
unsafe impl Plain for OldAffinityKey {}
// SAFETY: as above.
unsafe impl Plain for OldAffinityValue {}
// SAFETY: as above.
unsafe impl Plain for OldConfig {}

/// The maps of layout 1.
pub struct Reader {
    directory: PathBuf,
}

impl Reader {
    /// Checks that the maps in `directory` are those of the layout.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let this = Self { directory: directory.to_path_buf() };
        this.table::<FrontendKey4, OldFrontend>("FRONTENDS4")?;
        this.table::<OldFlowKey, OldFlow>("FLOWS4")?;
        this.array::<OldConfig>("CONFIG")?;
        Ok(this)
    }

    fn table<K: Plain, V: Plain>(&self, name: &str) -> io::Result<HashTable<K, V>> {
        HashTable::open(&self.directory.join(name))
    }

    fn array<T: Plain>(&self, name: &str) -> io::Result<MappedArray<T>> {
        MappedArray::open(&self.directory.join(name), false)
    }

    fn read<K: Plain + Default, V: Plain + Default>(&self, name: &str) -> io::Result<Vec<(K, V)>> {
        self.table::<K, V>(name)?.read_all()
    }
}

impl Earlier for Reader {
    fn names(&self) -> io::Result<BTreeMap<u32, String>> {
        let names = self.read::<u32, Name>("SERVICE_NAMES")?;
        Ok(names.iter().map(|(id, name)| (*id, name.text())).collect())
    }

    fn tables(&self) -> io::Result<Tables> {
        let names = self.names()?;
        let backends4 = self.array::<Backend4>("BACKENDS4")?;
        let backends6 = self.array::<Backend6>("BACKENDS6")?;
        let mut tables = Tables::new();
        let mut add = |key: Option<FrontendKey>, value: &OldFrontend, backends: Vec<Backend>| {
            let name = names.get(&value.service).cloned().unwrap_or_else(|| unnamed(value.service));
            let service: &mut ServiceTables = tables.entry(name).or_default();
            service.frontends.extend(key.map(|key| frontend(key, value, backends)));
        };
        for (key, value) in self.read::<FrontendKey4, OldFrontend>("FRONTENDS4")? {
            let places = places(&value, backends4.len());
            add(
                convert::key4(&key),
                &value,
                places.map(|at| convert::backend4(&backends4.get(at))).collect(),
            );
        }
        for (key, value) in self.read::<FrontendKey6, OldFrontend>("FRONTENDS6")? {
            let places = places(&value, backends6.len());
            add(
                convert::key6(&key),
                &value,
                places.map(|at| convert::backend6(&backends6.get(at))).collect(),
            );
        }
        for service in tables.values_mut() {
            service.frontends.sort_by_key(|frontend| frontend.key);
        }
        Ok(tables)
    }

    fn node(&self) -> io::Result<OldNode> {
        let local4 = self.read::<u32, u32>("LOCAL_ADDRS4")?;
        let local6 = self.read::<[u32; 4], u32>("LOCAL_ADDRS6")?;
        let config = self.array::<OldConfig>("CONFIG")?.get(0);
        let mut addresses: Vec<IpAddr> = local4.iter().map(|(word, _)| address4(*word).into()).collect();
        addresses.extend(local6.iter().map(|(words, _)| IpAddr::from(address6(*words))));
        addresses.sort_unstable();
        let snat = (config.snat_address4 != 0).then(|| address4(config.snat_address4).into());
        Ok(OldNode {
            tables: NodeTables {
                addresses,
                snat_addresses: snat.into_iter().collect(),
                ..NodeTables::default()
            },
            snat_ports: (config.snat_port_min, config.snat_port_max),
            devices: self.table::<u32, [u32; 2]>("DEVICES")?.keys()?,
        })
    }

    fn connections(&self) -> io::Result<Vec<Connection>> {
        let flows = self.read::<OldFlowKey, OldFlow>("FLOWS4")?;
        Ok(flows.iter().map(|(key, flow)| connection(key, flow)).collect())
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        let v4 = self.read::<SocketKey4, OldSocket4>("SOCKETS4")?;
        let v6 = self.read::<SocketKey6, OldSocket6>("SOCKETS6")?;
        let v4 = v4.iter().map(|(key, value)| Socket {
            cookie: key.cookie,
            protocol: key.protocol,
            direction: key.direction,
            key: (address4(key.address).into(), u16::from_be(key.port)),
            value: (address4(value.address).into(), u16::from_be(value.port)),
            service: value.service,
            connected: connected(key.protocol, key.direction),
        });
        let v6 = v6.iter().map(|(key, value)| Socket {
            cookie: key.cookie,
            protocol: key.protocol,
            direction: key.direction,
            key: (address6(key.address).into(), u16::from_be(key.port)),
            value: (address6(value.address).into(), u16::from_be(value.port)),
            service: value.service,
            connected: connected(key.protocol, key.direction),
        });
        Ok(v4.chain(v6).collect())
    }

    fn holds(&self, socket: &Socket) -> io::Result<bool> {
        let Socket { cookie, protocol, direction, key: (address, port), .. } = *socket;
        let port = port.to_be();
        match address {
            IpAddr::V4(address) => {
                let key = SocketKey4 { cookie, address: convert::word(address), port, protocol, direction };
                Ok(self.table::<SocketKey4, OldSocket4>("SOCKETS4")?.get(&key)?.is_some())
            }
            IpAddr::V6(address) => {
                let address = convert::words(address);
                let key = SocketKey6 { cookie, address, port, protocol, direction, reserved: 0 };
                Ok(self.table::<SocketKey6, OldSocket6>("SOCKETS6")?.get(&key)?.is_some())
            }
        }
    }

    fn forget(&self, connection: &Connection) -> io::Result<()> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (connection.from.0.0, connection.from.1.0) else {
            return Ok(());
        };
        let key = OldFlowKey {
            source: convert::word(source),
            destination: convert::word(destination),
            source_port: connection.from.0.1.to_be(),
            destination_port: connection.from.1.1.to_be(),
            protocol: u32::from(connection.protocol),
        };
        let flows = self.table::<OldFlowKey, OldFlow>("FLOWS4")?;
        match flows.get(&key)? {
            Some(found) if found.seen == connection.seen => flows.remove(&key).map(drop),
            _ => Ok(()),
        }
    }

    fn set_snat_ports(&self, low: u16, high: u16) -> io::Result<()> {
        let config: MappedArray<OldConfig> = MappedArray::open(&self.directory.join("CONFIG"), true)?;
        // Both ports are one word, the lower one first.
        const WORD: usize = std::mem::offset_of!(OldConfig, snat_port_min) / 4;
        config.word(0, WORD).store(u32::from(low) | u32::from(high) << 16, Ordering::SeqCst);
        Ok(())
    }

    /// What has no frontend is not theirs.
    fn leave(&self) -> io::Result<()> {
        let frontends4 = self.table::<FrontendKey4, OldFrontend>("FRONTENDS4")?;
        for (key, _) in frontends4.read_all()? {
            frontends4.remove(&key)?;
        }
        let frontends6 = self.table::<FrontendKey6, OldFrontend>("FRONTENDS6")?;
        for (key, _) in frontends6.read_all()? {
            frontends6.remove(&key)?;
        }
        Ok(())
    }

    /// One direction after the other: until both are gone, the one that is left becomes what it
    /// becomes here.
    fn retire(&self) -> io::Result<()> {
        let flows = self.table::<OldFlowKey, OldFlow>("FLOWS4")?;
        for key in flows.keys()? {
            flows.remove(&key)?;
        }
        Ok(())
    }

    fn affinities(&self) -> io::Result<Vec<OldAffinity>> {
        let mut latest: Vec<OldAffinity> = self
            .read::<OldAffinityKey, OldAffinityValue>("AFFINITY")?
            .iter()
            .map(|(key, value)| OldAffinity {
                key: AffinityKey {
                    client: key.client,
                    service: key.service,
                    // Only the first word of an address of IPv4 was used.
                    family: if value.address[1..] == [0; 3] { 4 } else { 6 },
                    scope: u16::from(key.scope),
                },
                backend: value.address,
                seen: value.seen,
            })
            .collect();
        // A client has one backend for all ports now: the one that it used last comes first.
        latest.sort_by_key(|one| std::cmp::Reverse(one.seen));
        Ok(latest)
    }
}

/// Streams have peers of their own; of datagram sockets it was not told which are connected.
fn connected(number: u8, way: u8) -> Option<u64> {
    (number == protocol::TCP && way == direction::REVERSE).then_some(0)
}

/// Places of a frontend's backends within the arena.
fn places(value: &OldFrontend, length: usize) -> std::ops::Range<usize> {
    let start = (value.switch as u32 as usize).min(length);
    let count = usize::from((value.switch >> 32) as u16);
    start..(start + count).min(length)
}

fn frontend(key: FrontendKey, value: &OldFrontend, backends: Vec<Backend>) -> Frontend {
    let flags = (value.switch >> 48) as u16;
    Frontend {
        affinity_seconds: u32::try_from(convert::seconds(value.affinity)).unwrap_or(u32::MAX),
        drop_when_empty: flags & frontend_flag::DROP_WHEN_EMPTY != 0,
        ..Frontend::new(key, backends)
    }
}

fn connection(key: &OldFlowKey, flow: &OldFlow) -> Connection {
    let end = |address: u32, port: u16| (IpAddr::from(address4(address)), u16::from_be(port));
    Connection {
        service: flow.service,
        protocol: key.protocol as u8,
        from: (end(key.source, key.source_port), end(key.destination, key.destination_port)),
        to: (end(flow.source, flow.source_port), end(flow.destination, flow.destination_port)),
        flags: flow.flags & SAME_FLAGS,
        seen: flow.seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Protocol, Scope};

    #[test]
    fn frontends_are_read_within_their_arena() {
        let value = |start: u64, count: u64, flags: u64| OldFrontend {
            switch: start | count << 32 | flags << 48,
            ..OldFrontend::default()
        };
        assert_eq!(places(&value(10, 5, 0), 100), 10..15);
        assert_eq!(places(&value(98, 5, 0), 100), 98..100);
        assert_eq!(places(&value(4_000, 5, 0), 100), 100..100);
        let key = FrontendKey {
            address: IpAddr::from([10, 96, 0, 1]),
            port: 80,
            protocol: Protocol::Tcp,
            scope: Scope::External,
        };
        let old = OldFrontend { affinity: convert::ticks(10_800), ..value(0, 0, 1) };
        let read = frontend(key, &old, Vec::new());
        assert!(read.drop_when_empty && read.affinity_seconds.abs_diff(10_800) <= 1);
    }

    #[test]
    fn connections_keep_their_ends_and_what_still_has_a_meaning() {
        let ip = |last: u8| u32::from_ne_bytes([10, 0, 0, last]);
        let key = OldFlowKey {
            source: ip(1),
            destination: ip(2),
            source_port: 1_000_u16.to_be(),
            destination_port: 80_u16.to_be(),
            protocol: 17,
        };
        let flow = OldFlow {
            source: ip(3),
            destination: ip(4),
            source_port: 2_000_u16.to_be(),
            destination_port: 8_080_u16.to_be(),
            service: 9,
            flags: flow_flag::REVERSE | 1 << 15,
            seen: 5,
            ..OldFlow::default()
        };
        let read = connection(&key, &flow);
        assert_eq!(read.from, ((IpAddr::from([10, 0, 0, 1]), 1_000), (IpAddr::from([10, 0, 0, 2]), 80)));
        assert_eq!(read.to, ((IpAddr::from([10, 0, 0, 3]), 2_000), (IpAddr::from([10, 0, 0, 4]), 8_080)));
        assert_eq!((read.flags, read.service, read.protocol, read.seen), (flow_flag::REVERSE, 9, 17, 5));
    }
}
