//! The flows that programs keep, read beside them.

use std::io;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use ebpf_common::flow::{Flow, Flow4, Flow6, FlowTags, WAYS, tag};

use crate::map::{MappedArray, Plain};

/// Reads of one slot that may find it half written, before it is taken for empty.
const TRIES: usize = 4;

/// An element of a flow table, of either family.
pub trait Slot: Plain + PartialEq {
    /// Odd while somebody writes.
    fn version(&self) -> u32;
}

impl Slot for Flow4 {
    fn version(&self) -> u32 {
        self.version
    }
}

impl Slot for Flow6 {
    fn version(&self) -> u32 {
        self.flow.version
    }
}

/// Slots and tags of one family, mapped for reading.
pub struct FlowTable<T> {
    slots: MappedArray<T>,
    tags: MappedArray<FlowTags>,
}

impl<T: Slot> FlowTable<T> {
    /// Maps the arrays pinned in `directory`.
    pub fn open(directory: &Path, slots: &str, tags: &str) -> io::Result<Self> {
        let slots = MappedArray::open(&directory.join(slots), false)?;
        let tags = MappedArray::open(&directory.join(tags), false)?;
        if tags.len() * WAYS as usize != slots.len() {
            let text = format!("{} lines of tags for {} slots", tags.len(), slots.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self { slots, tags })
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Number of slots that hold a flow. Reads the tags only: one page in seventeen.
    pub fn used(&self) -> usize {
        let held =
            |line: usize| self.tags.get(line).tags.into_iter().filter(|held| *held >= tag::FIRST).count();
        (0..self.tags.len()).map(held).sum()
    }

    /// Copies of the flows, each whole; a slot that keeps changing is left out.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.tags.len()).flat_map(move |line| {
            let tags = self.tags.get(line).tags;
            let held = tags.into_iter().enumerate().filter(|(_, held)| *held >= tag::FIRST);
            held.filter_map(move |(way, _)| self.read(line * WAYS as usize + way))
        })
    }

    /// All flows.
    pub fn read_all(&self) -> Vec<T> {
        self.iter().collect()
    }

    fn read(&self, index: usize) -> Option<T> {
        for _ in 0..TRIES {
            let before = self.slots.get(index);
            // Reads are not moved past each other: the second copy is no older than the first.
            fence(Ordering::SeqCst);
            let after = self.slots.get(index);
            // A version alone would do if copies were taken in order; two equal copies need none.
            if before.version() % 2 == 0 && before == after {
                return Some(before);
            }
        }
        None
    }
}

/// Whether a flow has been closed by both ends, or by a reset.
pub fn closed<A>(flow: &Flow<A>) -> bool {
    use ebpf_common::flow::flow_flag::{FIN, FIN_PEER, RESET};
    flow.flags & RESET != 0 || flow.flags & (FIN | FIN_PEER) == FIN | FIN_PEER
}
