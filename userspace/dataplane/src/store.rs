//! The storage of tables: the kernel's maps, or memory; as far as [`crate::sync`] needs it.

use std::net::IpAddr;

use ebpf_common::frontend::{Frontend, Lut};
use ipnetwork::IpNetwork;

use crate::arena::Block;
use crate::tables::{Backend, DataPlaneError, FrontendKey};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(key: &FrontendKey) -> Self {
        Self::of_address(key.address)
    }

    pub fn of_address(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub fn has(self, backend: &Backend) -> bool {
        backend.address.is_ipv4() == (self == Self::V4)
    }
}

/// An arena, whose blocks never change while a frontend names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Backends of a family; units are elements.
    Backends(Family),
    /// Look-up tables; units are [`LUT_UNIT`] elements.
    Luts,
}

/// Elements of `LUTS` in a unit of its arena.
pub const LUT_UNIT: u32 = 16;
/// Entries in a unit of the arena of look-up tables.
const LUT_UNIT_ENTRIES: u32 = 4 * LUT_UNIT;

impl Space {
    pub const ALL: [Self; 3] = [Self::Backends(Family::V4), Self::Backends(Family::V6), Self::Luts];

    /// Returns its index in [`Space::ALL`].
    pub fn index(self) -> usize {
        match self {
            Self::Backends(Family::V4) => 0,
            Self::Backends(Family::V6) => 1,
            Self::Luts => 2,
        }
    }

    /// Returns the number of elements in a unit.
    pub fn unit(self) -> u32 {
        match self {
            Self::Backends(_) => 1,
            Self::Luts => LUT_UNIT,
        }
    }

    /// Returns the name of the map.
    pub fn map(self) -> &'static str {
        match self {
            Self::Backends(Family::V4) => "BACKENDS4",
            Self::Backends(Family::V6) => "BACKENDS6",
            Self::Luts => "LUTS",
        }
    }
}

/// Returns the look-up table in a block of its arena.
pub fn lut_in(block: Block) -> Lut {
    Lut { start: block.start * LUT_UNIT, bits: (block.length * LUT_UNIT_ENTRIES).ilog2() }
}

/// Returns the block of a look-up table; `None` if no build of ours has packed it.
pub fn lut_block(lut: Lut) -> Option<Block> {
    let length = 1_u32.checked_shl(lut.bits)? / LUT_UNIT_ENTRIES;
    (length > 0 && lut.start > 0).then_some(Block { start: lut.start / LUT_UNIT, length })
}

/// Returns the number of units of a table with this number of entries, which is a power of two and at least a
/// unit.
pub fn lut_units(entries: usize) -> u32 {
    entries as u32 / LUT_UNIT_ENTRIES
}

/// The content of a store when a process opens it.
#[derive(Debug, Default)]
pub struct Contents {
    pub frontends: Vec<(FrontendKey, Frontend)>,
    /// Names of services, by id.
    pub names: Vec<(u32, String)>,
    /// Source ranges, by id of the service.
    pub source_ranges: Vec<(u32, IpNetwork)>,
}

/// Frontends that could not be written, each with the reason.
pub type Refused = Vec<(FrontendKey, DataPlaneError)>;

/// Typed access to the maps, element by element. Order and meaning are the caller's.
pub trait Store: Send {
    /// Reads everything that the caller has to know.
    fn read(&mut self) -> Result<Contents, DataPlaneError>;

    /// Returns the number of units of an arena.
    fn units(&self, space: Space) -> u32;

    /// Returns the maximum number of services; ids are smaller.
    fn services(&self) -> u32;

    /// Writes the backends of a block that no frontend names. All are of the block's family, in
    /// the order of [`crate::convert::sort`].
    fn write_block(&mut self, family: Family, block: Block, backends: &[Backend]);

    /// Returns `true` if the block holds these backends in this order.
    fn block_equals(&self, family: Family, block: Block, backends: &[Backend]) -> bool;

    /// Returns `true` if all backends of one block are in the other; both are sorted.
    fn block_within(&self, family: Family, block: Block, other: Block) -> bool;

    /// Writes a look-up table that no frontend names.
    fn write_lut(&mut self, lut: Lut, entries: &[u16]);

    /// Returns `true` if the look-up table has these entries.
    fn lut_equals(&self, lut: Lut, entries: &[u16]) -> bool;

    /// Inserts or replaces frontends, each atomically. Values need no checksum; the store seals them.
    fn put_frontends(&mut self, frontends: &[(FrontendKey, Frontend)]) -> Refused;

    /// Deletes those of the frontends that belong to the service; returns the number deleted.
    fn delete_frontends(&mut self, keys: &[FrontendKey], service: u32) -> Result<usize, DataPlaneError>;

    /// Admits sources of a range.
    fn put_source_range(&mut self, service: u32, range: &IpNetwork) -> Result<(), DataPlaneError>;

    fn delete_source_range(&mut self, service: u32, range: &IpNetwork) -> Result<(), DataPlaneError>;

    fn put_names(&mut self, names: &[(u32, &str)]) -> Result<(), DataPlaneError>;

    fn delete_name(&mut self, service: u32) -> Result<(), DataPlaneError>;

    /// Returns the node's epoch: flows of this epoch have nothing to check.
    fn epoch(&self) -> u32;

    /// Makes flows of the service that are older than `epoch` check their backends.
    fn set_losses(&mut self, service: u32, epoch: u32);

    /// Raises the node's epoch; losses have been written before.
    fn set_epoch(&mut self, epoch: u32);

    /// Waits until no program reads what has been replaced before the call.
    fn grace_period(&mut self);
}
