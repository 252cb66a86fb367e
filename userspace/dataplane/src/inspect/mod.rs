//! Reads the live tables from any process: the pinned maps and links. It loads and changes nothing.
//!
//! ```text
//!   rows         services, frontends, backends
//!   connections  flows of packets, connections of sockets
//!   attached     pinned links, and what they are attached to
//!   latency      round-trip times by service, as the kernel measures them
//!   gauge        fill levels of the maps
//!   events       reports of programs about single packets
//!   explain      the tables that decide about one packet
//! ```

mod attached;
mod connections;
mod events;
pub mod explain;
mod gauge;
mod latency;
mod open;
mod policy;
mod rows;
mod snapshot;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use ebpf_common::LAYOUT_VERSION;
use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6, Lut};
use ebpf_common::{ServiceMetrics, metric};

pub(crate) use self::attached::interface_name;
pub use self::attached::{Attached, LinkRow};
pub use self::connections::{ConnectionRow, State};
pub use self::events::{EventRow, Events};
pub use self::gauge::Pressure;
pub use self::latency::{Latencies, LatencyRow, LatencyWatch};
use self::open::Open;
pub use self::policy::Judgement;
pub use self::rows::{BackendRow, FrontendRow, ServiceRow};
pub use self::snapshot::{Affinities, KnownFlow, KnownFrontend, Snapshot};

use crate::convert;
use crate::map::{HashTable, MappedArray, Name, PerProcessor, Plain};
use crate::tables::{Backend, FrontendKey};

/// The tables could not be read.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("no tables under {}: does the proxy run on this node, with the same --bpf-root?", root.display())]
    Absent { root: PathBuf },
    #[error(
        "the tables under {} have layout {}, and this program reads layout {LAYOUT_VERSION}: \
         look with the program that runs the proxy",
        root.display(),
        found.join(", ")
    )]
    Layout { root: PathBuf, found: Vec<String> },
    #[error("looking for tables under {}", root.display())]
    Root {
        root: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("reading map {map}")]
    Map {
        map: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("listing the TCP connections of this node's network namespaces")]
    Sockets(#[source] io::Error),
    #[error("opening the ring buffer of events")]
    Events(#[source] Box<aya::maps::MapError>),
    #[error("reading the links pinned in {}", directory.display())]
    Links {
        directory: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// A frontend with its value, its backends and its look-up table.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    key: FrontendKey,
    value: Frontend,
    /// Backends in the order of the block.
    backends: Vec<Backend>,
    /// By entry, the index of the backend in the block. Empty without a table.
    lut: Vec<u16>,
}

/// Pinned maps of one node, open for reading.
#[derive(Clone, Debug)]
pub struct Inspector {
    directory: PathBuf,
}

impl Inspector {
    /// Opens the maps below the directory of the data plane.
    ///
    /// # Errors
    /// Fails if there are no maps, none of this layout, or no permission to read them.
    pub fn open(bpf_root: &Path) -> Result<Self, InspectError> {
        let directory = bpf_root.join(format!("v{LAYOUT_VERSION}"));
        let root = bpf_root.to_path_buf();
        match std::fs::metadata(directory.join("maps")) {
            Ok(_) => return Ok(Self { directory }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(InspectError::Root { root, cause }),
        }
        let found = layouts(bpf_root);
        Err(if found.is_empty() {
            InspectError::Absent { root }
        } else {
            InspectError::Layout { root, found }
        })
    }

    /// Returns the names of the services in the tables, sorted.
    ///
    /// # Errors
    /// Fails if the map of names cannot be read.
    pub fn service_names(&self) -> Result<Vec<String>, InspectError> {
        let mut names: Vec<String> = self.names()?.into_values().collect();
        names.sort();
        Ok(names)
    }

    /// Returns totals over all processors, by label.
    ///
    /// # Errors
    /// Fails if the counters cannot be read.
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

    fn map(&self, name: &str) -> PathBuf {
        self.directory.join("maps").join(name)
    }

    pub(crate) fn table<K: Plain, V: Plain>(
        &self,
        map: &'static str,
    ) -> Result<HashTable<K, V>, InspectError> {
        HashTable::open(&self.map(map)).map_err(|cause| InspectError::Map { map, cause })
    }

    fn read<K: Plain + Default, V: Plain + Default>(
        &self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, InspectError> {
        self.table(map)?.read_all().map_err(|cause| InspectError::Map { map, cause })
    }

    fn counters<T: Plain + Default>(&self, map: &'static str) -> Result<PerProcessor<T>, InspectError> {
        PerProcessor::open(&self.map(map)).map_err(|cause| InspectError::Map { map, cause })
    }

    fn array<T: Plain>(&self, map: &'static str) -> Result<MappedArray<T>, InspectError> {
        MappedArray::open(&self.map(map), false).map_err(|cause| InspectError::Map { map, cause })
    }

    fn service_counters(&self) -> Result<ServiceCounters, InspectError> {
        self.array("SERVICE_METRICS").map(ServiceCounters)
    }

    /// Returns names of services by id.
    fn names(&self) -> Result<BTreeMap<u32, String>, InspectError> {
        let table: Vec<(u32, Name)> = self.read("SERVICE_NAMES")?;
        Ok(table.iter().map(|(id, name)| (*id, name.text())).collect())
    }

    fn arena(&self) -> Result<Arena, InspectError> {
        Ok(Arena {
            backends4: self.array("BACKENDS4")?,
            backends6: self.array("BACKENDS6")?,
            luts: self.array("LUTS")?,
        })
    }

    /// Returns all frontends that a build of ours wrote, marks included.
    fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        let arena = self.arena()?;
        let mut entries = Vec::new();
        for (key, value) in self.read::<FrontendKey4, Frontend>("FRONTENDS4")? {
            entries.extend(convert::key4(&key).map(|key| arena.entry(key, value)));
        }
        for (key, value) in self.read::<FrontendKey6, Frontend>("FRONTENDS6")? {
            entries.extend(convert::key6(&key).map(|key| arena.entry(key, value)));
        }
        Ok(entries)
    }
}

/// The counters of services.
struct ServiceCounters(MappedArray<ServiceMetrics>);

impl ServiceCounters {
    /// Returns the totals of one service; zero for one that the map has no room for.
    fn of(&self, service: u32) -> ServiceMetrics {
        let mut total = ServiceMetrics::default();
        for stripe in 0..ServiceMetrics::STRIPES {
            let place = ServiceMetrics::place(service, stripe) as usize;
            if place < self.0.len() {
                let counted = self.0.get(place);
                total.connections += counted.connections;
                total.refused += counted.refused;
            }
        }
        total
    }
}

/// Returns the versions of the layouts that have maps here.
fn layouts(bpf_root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(bpf_root).into_iter().flatten().flatten();
    let version = |entry: std::fs::DirEntry| {
        let version = entry.file_name().to_str()?.strip_prefix('v')?.parse::<u32>().ok()?;
        entry.path().join("maps").is_dir().then(|| version.to_string())
    };
    let mut found: Vec<String> = entries.filter_map(version).collect();
    found.sort();
    found
}

/// The arena of the frontends' lists and look-up tables.
struct Arena {
    backends4: MappedArray<Backend4>,
    backends6: MappedArray<Backend6>,
    luts: MappedArray<u64>,
}

impl Arena {
    fn entry(&self, key: FrontendKey, value: Frontend) -> Entry {
        let backends = if key.address.is_ipv4() {
            let places = range(&value, self.backends4.len());
            places.map(|index| convert::backend4(&self.backends4.get(index))).collect()
        } else {
            let places = range(&value, self.backends6.len());
            places.map(|index| convert::backend6(&self.backends6.get(index))).collect()
        };
        Entry { key, value, backends, lut: self.lut(value.lut) }
    }

    fn lut(&self, word: u32) -> Vec<u16> {
        let Some(lut) = Lut::unpack(word).filter(|lut| lut.bits <= ebpf_common::limits::LUT_BITS_MAX) else {
            return Vec::new();
        };
        let start = (lut.start as usize).min(self.luts.len());
        let end = (start + (1 << lut.bits) / 4).min(self.luts.len());
        let places = |word: u64| (0..4).map(move |place| (word >> (16 * place)) as u16);
        (start..end).flat_map(|index| places(self.luts.get(index))).collect()
    }
}

/// Returns the indexes of a frontend's backends, within the arena.
fn range(frontend: &Frontend, length: usize) -> std::ops::Range<usize> {
    let start = (frontend.block() as usize).min(length);
    start..(start + usize::from(frontend.count())).min(length)
}

fn name(names: &BTreeMap<u32, String>, service: u32) -> String {
    names.get(&service).cloned().unwrap_or_else(|| format!("?{service}"))
}

/// Returns the time in ticks, as programs have it.
pub(crate) fn tick_now() -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the value, which lives on the stack for the length of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let nanoseconds = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    (nanoseconds >> ebpf_common::TICK_SHIFT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tables_are_explained() {
        let root = tempfile::tempdir().unwrap();
        let error = |root: &Path| Inspector::open(root).unwrap_err();
        assert!(matches!(error(&root.path().join("none")), InspectError::Absent { .. }));
        assert!(matches!(error(root.path()), InspectError::Absent { .. }));
        std::fs::create_dir_all(root.path().join("v1/maps")).unwrap();
        std::fs::create_dir_all(root.path().join("other/maps")).unwrap();
        let text = error(root.path()).to_string();
        assert!(text.contains("have layout 1, and this program"), "{text}");
        // A file in place of a directory is neither.
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(matches!(error(&root.path().join("file")), InspectError::Root { .. }));
        std::fs::create_dir_all(root.path().join(format!("v{LAYOUT_VERSION}/maps"))).unwrap();
        Inspector::open(root.path()).unwrap();
    }
}
