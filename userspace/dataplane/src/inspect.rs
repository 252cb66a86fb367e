//! A look into the live tables, from any process: reads the pinned maps, loads and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ebpf_common::flow::{Flow4, flow_flag};
use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6, frontend_flag};
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6, direction};
use ebpf_common::{LAYOUT_VERSION, ServiceMetrics, metric};
use serde::Serialize;

use crate::convert::{self, address4, address6};
use crate::flows::FlowTable;
use crate::map::{HashTable, MappedArray, Name, PerProcessor, Plain};
use crate::tables::{Backend, FrontendKey, Protocol, Scope};

/// The tables could not be read.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("no tables under {}: is the data plane running on this node?", root.display())]
    Absent { root: PathBuf },
    #[error("reading map {map}")]
    Map {
        map: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// One service and what it counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceRow {
    pub id: u32,
    /// `namespace/name`.
    pub name: String,
    pub frontends: usize,
    /// Distinct backends over all frontends.
    pub backends: usize,
    /// Connections, or first datagrams, that got a backend.
    pub connections: u64,
    /// Those that found none.
    pub refused: u64,
}

/// One frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendRow {
    pub service: String,
    #[serde(flatten)]
    pub key: FrontendKey,
    pub backends: usize,
    /// Seconds of client affinity; 0 for none.
    pub affinity_seconds: u64,
    pub drop_when_empty: bool,
}

/// One backend of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendRow {
    pub service: String,
    pub frontend: FrontendKey,
    #[serde(flatten)]
    pub backend: Backend,
}

/// One translated connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionRow {
    pub service: String,
    pub protocol: Option<Protocol>,
    /// The client; none for a local socket, which has `socket` instead.
    pub client: Option<(IpAddr, u16)>,
    /// Cookie of the local socket.
    pub socket: Option<u64>,
    pub frontend: (IpAddr, u16),
    pub backend: (IpAddr, u16),
    /// The source that the backend sees, where it is not the client.
    pub source: Option<(IpAddr, u16)>,
    /// Ended, by FIN of both sides or RST.
    pub closed: bool,
}

/// How full a map is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pressure {
    pub map: &'static str,
    pub used: usize,
    pub limit: usize,
}

/// A frontend with its value and backends; the key is none if another build wrote it.
type Entry = (Option<FrontendKey>, Frontend, Vec<Backend>);

/// Pinned maps of one node, open for reading.
pub struct Inspector {
    directory: PathBuf,
}

impl Inspector {
    /// Looks below the directory that the data plane was given.
    pub fn open(bpf_root: &Path) -> Result<Self, InspectError> {
        let directory = bpf_root.join(format!("v{LAYOUT_VERSION}")).join("maps");
        if !directory.is_dir() {
            return Err(InspectError::Absent { root: bpf_root.to_path_buf() });
        }
        Ok(Self { directory })
    }

    /// Services by name.
    pub fn services(&self) -> Result<Vec<ServiceRow>, InspectError> {
        let counters: PerProcessor<ServiceMetrics> = self.counters("SERVICE_METRICS")?;
        let mut backends: BTreeMap<u32, (usize, BTreeSet<Backend>)> = BTreeMap::new();
        for (key, frontend, list) in self.tables()? {
            let entry = backends.entry(frontend.service).or_default();
            entry.0 += usize::from(key.is_some());
            entry.1.extend(list);
        }
        let mut rows = Vec::new();
        for (id, name) in self.names()? {
            let values =
                counters.get(id).map_err(|cause| InspectError::Map { map: "SERVICE_METRICS", cause })?;
            let (frontends, distinct) = backends.get(&id).cloned().unwrap_or_default();
            rows.push(ServiceRow {
                id,
                name,
                frontends,
                backends: distinct.len(),
                connections: values.iter().map(|value| value.connections).sum(),
                refused: values.iter().map(|value| value.refused).sum(),
            });
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// Frontends, by service and key.
    pub fn frontends(&self) -> Result<Vec<FrontendRow>, InspectError> {
        let names = self.names()?;
        let mut rows: Vec<FrontendRow> = self
            .tables()?
            .into_iter()
            .filter_map(|(key, frontend, list)| {
                Some(FrontendRow {
                    service: name(&names, frontend.service),
                    key: key?,
                    backends: list.len(),
                    affinity_seconds: convert::seconds(frontend.affinity),
                    drop_when_empty: frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0,
                })
            })
            .collect();
        rows.sort_by(|a, b| (&a.service, a.key).cmp(&(&b.service, b.key)));
        Ok(rows)
    }

    /// Backends, by service and frontend, in the order of the tables.
    pub fn backends(&self) -> Result<Vec<BackendRow>, InspectError> {
        let names = self.names()?;
        let mut rows: Vec<BackendRow> = Vec::new();
        for (key, frontend, list) in self.tables()? {
            let Some(key) = key else { continue };
            let service = name(&names, frontend.service);
            let row = |backend| BackendRow { service: service.clone(), frontend: key, backend };
            rows.extend(list.into_iter().map(row));
        }
        rows.sort_by(|a, b| (&a.service, a.frontend).cmp(&(&b.service, b.frontend)));
        Ok(rows)
    }

    /// What a client would get for an address, as the programs would look it up, without node
    /// ports; none if no frontend has it.
    pub fn find(
        &self,
        address: IpAddr,
        port: u16,
        protocol: Protocol,
        scope: Scope,
    ) -> Result<Option<(FrontendRow, Vec<Backend>)>, InspectError> {
        let wanted = FrontendKey { address, port, protocol, scope };
        let Some(row) = self.frontends()?.into_iter().find(|row| row.key == wanted) else {
            return Ok(None);
        };
        let backends = self.backends()?.into_iter().filter(|row| row.frontend == wanted);
        Ok(Some((row, backends.map(|row| row.backend).collect())))
    }

    /// Connections: those that packets made, then those of local sockets.
    pub fn connections(&self) -> Result<Vec<ConnectionRow>, InspectError> {
        let names = self.names()?;
        let mut rows = Vec::new();
        for flow in self.flows4()?.read_all() {
            if flow.flags & flow_flag::REVERSE == 0 {
                rows.push(flow_row(&names, &flow));
            }
        }
        for (key, value) in self.read::<SocketKey4, Socket4>("SOCKETS4")? {
            if key.direction == direction::REVERSE {
                let at = |address, port| (IpAddr::V4(address4(address)), u16::from_be(port));
                let (frontend, backend) = (at(value.address, value.port), at(key.address, key.port));
                rows.push(socket_row(&names, value.service, key.protocol, key.cookie, frontend, backend));
            }
        }
        for (key, value) in self.read::<SocketKey6, Socket6>("SOCKETS6")? {
            if key.direction == direction::REVERSE {
                let at = |address, port| (IpAddr::V6(address6(address)), u16::from_be(port));
                let (frontend, backend) = (at(value.address, value.port), at(key.address, key.port));
                rows.push(socket_row(&names, value.service, key.protocol, key.cookie, frontend, backend));
            }
        }
        rows.sort_by(|a, b| (&a.service, a.client, a.socket).cmp(&(&b.service, b.client, b.socket)));
        Ok(rows)
    }

    /// Totals over all processors, by label.
    pub fn metrics(&self) -> Result<BTreeMap<&'static str, u64>, InspectError> {
        let counters: PerProcessor<u64> = self.counters("METRICS")?;
        let mut totals = BTreeMap::new();
        for (index, label) in metric::LABELS.iter().enumerate().take(counters.len() as usize) {
            let values =
                counters.get(index as u32).map_err(|cause| InspectError::Map { map: "METRICS", cause })?;
            totals.insert(*label, values.iter().sum());
        }
        Ok(totals)
    }

    /// How full the maps are. Counts by reading, which takes a while for large ones.
    pub fn pressure(&self) -> Result<Vec<Pressure>, InspectError> {
        Ok(vec![
            self.used::<FrontendKey4, Frontend>("FRONTENDS4")?,
            self.used::<FrontendKey6, Frontend>("FRONTENDS6")?,
            Pressure { map: "FLOWS4", used: self.flows4()?.used(), limit: self.flows4()?.len() },
            self.used::<SocketKey4, Socket4>("SOCKETS4")?,
            self.used::<SocketKey6, Socket6>("SOCKETS6")?,
            self.used::<u32, Name>("SERVICE_NAMES")?,
        ])
    }

    fn flows4(&self) -> Result<FlowTable<Flow4>, InspectError> {
        FlowTable::open(&self.directory, "FLOWS4", "FLOW_TAGS4")
            .map_err(|cause| InspectError::Map { map: "FLOWS4", cause })
    }

    fn used<K: Plain + Default, V: Plain + Default>(
        &self,
        map: &'static str,
    ) -> Result<Pressure, InspectError> {
        let table: HashTable<K, V> =
            HashTable::open(&self.directory.join(map)).map_err(|cause| InspectError::Map { map, cause })?;
        let used = table.read_all().map_err(|cause| InspectError::Map { map, cause })?.len();
        Ok(Pressure { map, used, limit: table.max_entries() as usize })
    }

    fn read<K: Plain + Default, V: Plain + Default>(
        &self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, InspectError> {
        HashTable::open(&self.directory.join(map))
            .and_then(|table: HashTable<K, V>| table.read_all())
            .map_err(|cause| InspectError::Map { map, cause })
    }

    fn counters<T: Plain + Default>(&self, map: &'static str) -> Result<PerProcessor<T>, InspectError> {
        PerProcessor::open(&self.directory.join(map)).map_err(|cause| InspectError::Map { map, cause })
    }

    fn array<T: Plain>(&self, map: &'static str) -> Result<MappedArray<T>, InspectError> {
        MappedArray::open(&self.directory.join(map), false).map_err(|cause| InspectError::Map { map, cause })
    }

    fn names(&self) -> Result<BTreeMap<u32, String>, InspectError> {
        let table: Vec<(u32, Name)> = self.read("SERVICE_NAMES")?;
        Ok(table.iter().map(|(id, name)| (*id, name.text())).collect())
    }

    fn tables(&self) -> Result<Vec<Entry>, InspectError> {
        let backends4: MappedArray<Backend4> = self.array("BACKENDS4")?;
        let backends6: MappedArray<Backend6> = self.array("BACKENDS6")?;
        let mut rows = Vec::new();
        for (key, value) in self.read::<FrontendKey4, Frontend>("FRONTENDS4")? {
            let list = range(&value, backends4.len()).map(|index| convert::backend4(&backends4.get(index)));
            rows.push((convert::key4(&key), value, list.collect()));
        }
        for (key, value) in self.read::<FrontendKey6, Frontend>("FRONTENDS6")? {
            let list = range(&value, backends6.len()).map(|index| convert::backend6(&backends6.get(index)));
            rows.push((convert::key6(&key), value, list.collect()));
        }
        Ok(rows)
    }
}

/// Places of a frontend's backends, within the arena.
fn range(frontend: &Frontend, length: usize) -> std::ops::Range<usize> {
    let start = (frontend.block() as usize).min(length);
    start..(start + usize::from(frontend.count())).min(length)
}

fn name(names: &BTreeMap<u32, String>, service: u32) -> String {
    names.get(&service).cloned().unwrap_or_else(|| format!("?{service}"))
}

fn flow_row(names: &BTreeMap<u32, String>, flow: &Flow4) -> ConnectionRow {
    let key = &flow.key;
    let at = |address, port| (IpAddr::V4(address4(address)), u16::from_be(port));
    let client = at(key.source, key.source_port);
    let source = at(flow.source, flow.source_port);
    let both = flow_flag::FIN | flow_flag::FIN_PEER;
    ConnectionRow {
        service: name(names, flow.service),
        protocol: convert::protocol(key.protocol as u8),
        client: Some(client),
        socket: None,
        frontend: at(key.destination, key.destination_port),
        backend: at(flow.destination, flow.destination_port),
        source: (source != client).then_some(source),
        closed: flow.flags & flow_flag::RESET != 0 || flow.flags & both == both,
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
        closed: false,
    }
}
