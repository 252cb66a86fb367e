//! Carries state from the maps of an earlier layout to ours, under traffic.
//!
//! ```text
//!   read old tables ─▶ write ours
//!   ─▶ attach ours behind theirs, hook by hook   theirs decide; what they pass on, ours pass on too
//!   ─▶ reserve keys of replies ─▶ theirs leave   what they know stays theirs, what is new is ours
//!   ─▶ copy connections                          ours know all that there is
//!   ─▶ theirs retire                             all is ours, on all hooks at once
//!   ─▶ detach theirs, hook by hook ─▶ remove their maps
//! ```
//!
//! The hooks of a node cannot be switched at once, and both directions of a connection pass different ones.
//! If a hook were given its new program in place of the old one, a connection that began just before at
//! another hook would be unknown to it, and one that it begins would be unknown to the others: its reply
//! would go out untranslated. So all hooks have both generations for a while, and at any moment each
//! connection is known on all of them to the generation that began it.
//!
//! Each earlier layout has a reader that returns plain data, see [`Earlier`]; everything else is the same for
//! all of them. A process that dies on the way leaves both generations in place, and traffic goes on; the
//! next process starts again: every step can be repeated. Only the tables are not read again once a program
//! of ours is attached, as the old ones may have been emptied by then.

mod connected;
mod flows;
#[cfg(test)]
pub mod older;
mod open;
#[cfg(test)]
mod same;
mod sockets;
#[cfg(test)]
mod steps;
#[cfg(test)]
pub mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ebpf_common::config_flag;
use ebpf_common::frontend::{Affinity, AffinityKey};

use super::attach::Attachments;
use super::failed;
use super::maps::Maps;
use crate::map::HashTable;
use crate::store::Store;
use crate::sync::Synchronizer;
use crate::tables::{DataPlaneError, NodeTables, Tables};

/// A directory beside the maps of a layout that marks their content as no longer needed.
pub const CARRIED: &str = "carried";

/// An address and a port.
type End = (IpAddr, u16);

/// The content of an earlier layout, as plain data. Services are known by the ids they had there.
pub trait Earlier {
    fn names(&self) -> io::Result<BTreeMap<u32, String>>;
    /// Returns the tables by name; services without one get a name that no object has.
    fn tables(&self) -> io::Result<Tables>;
    fn node(&self) -> io::Result<OldNode>;
    fn connections(&self) -> io::Result<Vec<Connection>>;
    fn sockets(&self) -> io::Result<Vec<Socket>>;
    /// Returns `true` if a connected socket still exists there.
    fn holds(&self, socket: &Socket) -> io::Result<bool>;
    fn affinities(&self) -> io::Result<Vec<OldAffinity>>;
    /// Removes one direction of a connection, unless it has had packets since it was read.
    fn forget(&self, connection: &Connection) -> io::Result<()>;
    /// Restricts its programs to source ports from this range (inclusive).
    fn set_snat_ports(&self, low: u16, high: u16) -> io::Result<()>;
    /// Makes its programs begin no connection, refuse nothing and drop nothing: they pass on what they do not
    /// know.
    fn leave(&self) -> io::Result<()>;
    /// Makes its programs forget all connections, atomically if possible, so that they pass on everything.
    /// [`Earlier::leave`] has been called before.
    fn retire(&self) -> io::Result<()>;
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
    /// and their replacements.
    pub to: (End, End),
    /// Bits of [`ebpf_common::flow::flow_flag`].
    pub flags: u16,
    /// Tick of the last packet.
    pub seen: u32,
}

/// The state of a local socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub cookie: u64,
    pub protocol: u8,
    /// One of [`ebpf_common::socket::direction`].
    pub direction: u8,
    pub key: End,
    pub value: End,
    pub service: u32,
    /// For a connected socket: cookie of the network namespace of a datagram socket, else 0.
    pub connected: Option<u64>,
}

/// The backend that a client stays with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldAffinity {
    pub key: AffinityKey,
    pub backend: [u32; 4],
    /// Tick of the last use.
    pub seen: u32,
}

/// The attached programs belong to a build with a later layout of the maps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is in use and of a later layout than this build's, which is {ours}: run a build that knows it, or \
     remove it, with its connections, before this one starts",
    .theirs.display()
)]
pub struct NewerLayout {
    /// Directory of its pins.
    pub theirs: PathBuf,
    pub ours: u32,
}

/// Is notified of each change that stands by itself, so that a test can end a process there.
#[derive(Default)]
pub struct Steps {
    #[cfg(test)]
    taken: std::cell::Cell<usize>,
    /// The last one.
    #[cfg(test)]
    last: Option<usize>,
    /// Called after each.
    #[cfg(test)]
    watch: Option<Box<dyn Fn()>>,
}

impl Steps {
    #[cfg_attr(not(test), allow(clippy::unnecessary_wraps, clippy::unused_self, reason = "only tests stop"))]
    pub fn done(&self) -> Result<(), DataPlaneError> {
        #[cfg(test)]
        {
            self.taken.set(self.taken.get() + 1);
            if let Some(watch) = &self.watch {
                watch();
            }
            if Some(self.taken.get()) == self.last {
                return Err(failed("replacing a layout".to_owned(), io::Error::other("stopped")));
            }
        }
        Ok(())
    }
}

/// An earlier layout whose programs are running.
pub struct Predecessor {
    directory: PathBuf,
    reader: Box<dyn Earlier>,
}

/// The numbers of elements carried over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub flows: usize,
    pub sockets: usize,
    pub affinities: usize,
}

/// Finds the layout whose links are in use, if we can read it; ours has the number `layout`. `versions` are
/// the directories of all layouts below `root`.
///
/// # Errors
/// Returns [`NewerLayout`] before anything is touched.
pub fn predecessor(
    root: &Path,
    layout: u32,
    versions: &[PathBuf],
) -> Result<Option<Predecessor>, DataPlaneError> {
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix('v')?.parse::<u32>().ok();
    let mut others: Vec<(u32, &PathBuf)> = versions
        .iter()
        .filter_map(|path| Some((number(path)?, path)))
        .filter(|(number, path)| *number != layout && is_live(path))
        .collect();
    others.sort_unstable();
    let Some((number, path)) = others.pop() else {
        return Ok(None);
    };
    if number > layout {
        let error = NewerLayout { theirs: path.clone(), ours: layout };
        return Err(failed(format!("taking over what is attached by {}", root.display()), error));
    }
    let Some(open) = reader_of(number) else {
        return Ok(None);
    };
    let maps = path.join("maps");
    Ok(match open(&maps) {
        Ok(reader) => Some(Predecessor { directory: path.clone(), reader }),
        Err(error) => {
            tracing::warn!(maps = %maps.display(), %error, "cannot read the tables of an earlier layout");
            None
        }
    })
}

/// Opens the maps of a layout in a directory.
type OpenReader = fn(&Path) -> io::Result<Box<dyn Earlier>>;

/// Readers of earlier layouts, by the lowest number that they read. No layout but ours has been released yet,
/// so there are only the two of the tests: one that is made up, and later numbers with our maps.
const READERS: &[(u32, OpenReader)] = &[
    #[cfg(test)]
    (older::NUMBER, |maps| Ok(Box::new(older::Reader::open(maps)?))),
    #[cfg(test)]
    (ebpf_common::LAYOUT_VERSION, |maps| Ok(Box::new(same::Reader::open(maps)?))),
];

/// Returns the reader of a layout.
fn reader_of(number: u32) -> Option<OpenReader> {
    READERS.iter().rev().find(|(from, _)| *from <= number).map(|(_, open)| *open)
}

/// Returns `true` if links of this layout are attached.
pub fn is_live(version: &Path) -> bool {
    fs::read_dir(version.join("links")).is_ok_and(|mut links| links.next().is_some())
}

impl Predecessor {
    /// Makes our tables equal to the old ones.
    pub fn carry_tables(&self, ours: &mut Synchronizer<Maps>) -> Result<(), DataPlaneError> {
        let tables = self.reader.tables().map_err(|error| self.unreadable(error))?;
        let old = self.reader.node().map_err(|error| self.unreadable(error))?;
        ours.store.set_node(&old.tables)?;
        if old.snat_ports.0 > 0 {
            set_snat_ports(&mut ours.store, old.snat_ports);
        }
        let applied = ours.apply_full(&tables)?;
        tracing::info!(services = tables.len(), ?applied, "took over tables of an earlier layout");
        Ok(())
    }

    /// Lets XDP send to the same devices as before.
    pub fn carry_devices(&self, devices: &HashTable<u32, [u32; 2]>, settings: u32) -> io::Result<()> {
        if settings & config_flag::XDP_REDIRECT != 0 {
            for index in self.reader.node()?.devices {
                devices.insert(&index, &[index, 0])?;
            }
        }
        Ok(())
    }

    /// Copies connections, sockets and affinities that are not here yet; those that our programs have made
    /// are newer. With `early`, the source ports of our programs, the old ones still begin connections: then
    /// flows are not copied, only reserved.
    fn carry_connections(
        &self,
        ours: &Synchronizer<Maps>,
        maps: &Path,
        early: Option<(u16, u16)>,
    ) -> Result<Carried, DataPlaneError> {
        let id = self.ids(ours)?;
        let seed = ours.store.config().seed;
        let to = |error| failed("copying connections of an earlier layout".to_owned(), error);
        let flows = match early {
            Some(ports) => self.reserve_flows(maps, seed, ports, &id),
            None => self.carry_flows(maps, seed, &id),
        };
        Ok(Carried {
            flows: flows.map_err(to)?,
            sockets: self.carry_sockets(maps, &id, true).map_err(to)?,
            affinities: self.carry_affinities(maps, &id).map_err(to)?,
        })
    }

    /// Maps old service ids to ours: the same service may have another id by now; one that is gone has none.
    fn ids<'a>(
        &self,
        ours: &'a Synchronizer<Maps>,
    ) -> Result<impl Fn(u32) -> Option<u32> + use<'a>, DataPlaneError> {
        let names = self.reader.names().map_err(|error| self.unreadable(error))?;
        let ids: BTreeMap<&str, u32> = ours.service_ids().collect();
        Ok(move |old: u32| {
            let name = names.get(&old).cloned().unwrap_or_else(|| unnamed(old));
            ids.get(name.as_str()).copied()
        })
    }

    /// Replaces the old programs by ours, on every hook, with no connection lost in between. Ours know the
    /// tables, and most connections.
    pub fn give_way(
        &self,
        ours: &mut Synchronizer<Maps>,
        attachments: &Attachments,
        maps: &Path,
        steps: &Steps,
    ) -> Result<(), DataPlaneError> {
        let links = self.directory.join("links");
        let writing = |error| failed(format!("writing the settings in {}", self.directory.display()), error);
        steps.done()?;
        if self.is_carried() {
            return self.end(ours, attachments, maps, steps);
        }
        attachments.beside(&links, steps)?;
        // A source port in use by the old programs would be answered by them if ours gave it out, too: each
        // generation has its own half. A range that was halved before is restored first.
        let theirs = self.reader.node().map_err(|error| self.unreadable(error))?.snat_ports;
        let settings = ours.store.config();
        let own = (settings.snat_port_min, settings.snat_port_max);
        // Nobody has ever written theirs, or there is nothing to halve.
        let whole = if theirs.0 > 0 { (theirs.0, own.1) } else { own };
        let (lower, upper) = halves(whole).filter(|_| theirs.0 > 0).unwrap_or((theirs, whole));
        self.reader.set_snat_ports(lower.0, lower.1).map_err(writing)?;
        ours.store.grace_period();
        steps.done()?;
        let early = self.carry_connections(ours, maps, Some(upper))?;
        set_snat_ports(&mut ours.store, upper);
        steps.done()?;
        self.reader.leave().map_err(writing)?;
        ours.store.grace_period();
        steps.done()?;
        let late = self.carry_connections(ours, maps, None)?;
        tracing::info!(?early, ?late, "took over connections of an earlier layout");
        fs::create_dir(self.directory.join(CARRIED)).map_err(writing)?;
        steps.done()?;
        self.end(ours, attachments, maps, steps)
    }

    /// Ends the old programs, of which nothing is needed any more.
    fn end(
        &self,
        ours: &mut Synchronizer<Maps>,
        attachments: &Attachments,
        maps: &Path,
        steps: &Steps,
    ) -> Result<(), DataPlaneError> {
        let links = self.directory.join("links");
        // The entries that answer sockets were in use there, and may have been evicted here if there was
        // little room and much time.
        let id = self.ids(ours)?;
        self.carry_sockets(maps, &id, false)
            .map_err(|error| failed("copying sockets of an earlier layout".to_owned(), error))?;
        drop(id);
        // Hooks are detached one after the other. If theirs still worked on some, the directions of a
        // connection would pass different generations, and one would not know what the other records.
        let writing = |error| failed(format!("writing the settings in {}", self.directory.display()), error);
        self.reader.retire().map_err(writing)?;
        steps.done()?;
        self.release_flows(maps, ours.store.config().seed)
            .map_err(|error| failed("releasing ports of an earlier layout".to_owned(), error))?;
        attachments.alone(&links, steps)?;
        // While they were attached, ours had half of the ports.
        let theirs = self.reader.node().map_err(|error| self.unreadable(error))?.snat_ports;
        if theirs.0 > 0 {
            let whole = (theirs.0, ours.store.config().snat_port_max);
            set_snat_ports(&mut ours.store, whole);
        }
        steps.done()?;
        attachments.forget(&links)
    }

    /// Returns `true` if ours know all connections, and nothing new comes.
    fn is_carried(&self) -> bool {
        self.directory.join(CARRIED).exists()
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

fn set_snat_ports(store: &mut Maps, (low, high): (u16, u16)) {
    let mut settings = store.config();
    (settings.snat_port_min, settings.snat_port_max) = (low, high);
    store.set_config(settings);
}

/// Splits a range of ports in two; `None` if it is too small for that.
fn halves((low, high): (u16, u16)) -> Option<((u16, u16), (u16, u16))> {
    let middle = low + high.checked_sub(low)? / 2;
    (middle < high).then_some(((low, middle), (middle + 1, high)))
}

/// Returns the name of a service without one; no object has it.
fn unnamed(id: u32) -> String {
    format!("?{id}")
}
