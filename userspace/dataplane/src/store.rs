//! Where tables are kept: the kernel's maps, or memory. What [`crate::sync`] needs of either.

use ebpf_common::frontend::Frontend;

use crate::arena::Block;
use crate::tables::{Backend, DataPlaneError, FrontendKey};

/// Address family, and which arena its backends are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(key: &FrontendKey) -> Self {
        if key.address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Name of the map that holds backends of this family.
    pub fn backends(self) -> &'static str {
        match self {
            Self::V4 => "BACKENDS4",
            Self::V6 => "BACKENDS6",
        }
    }
}

/// What a store already holds when a process opens it.
#[derive(Debug, Default)]
pub struct Contents {
    pub frontends: Vec<(FrontendKey, Frontend)>,
    /// Names of services, by id.
    pub names: Vec<(u32, String)>,
}

/// Frontends that a write could not bring in, each with its reason.
pub type Refused = Vec<(FrontendKey, DataPlaneError)>;

/// Typed access to the maps, element by element. Order and meaning are the caller's.
pub trait Store: Send {
    /// Reads everything that the caller has to know of.
    fn read(&mut self) -> Result<Contents, DataPlaneError>;

    /// Number of elements of the arena of a family.
    fn arena(&self, family: Family) -> u32;

    /// Number of services there can be; ids are smaller.
    fn services(&self) -> u32;

    /// Writes the backends of a block that no frontend names. All are of the block's family.
    fn write_block(&mut self, family: Family, block: Block, backends: &[Backend]);

    /// The block holds these backends in this order.
    fn block_equals(&self, family: Family, block: Block, backends: &[Backend]) -> bool;

    /// Inserts or replaces frontends, each at once. Values need no check; the store seals them.
    fn put_frontends(&mut self, frontends: &[(FrontendKey, Frontend)]) -> Refused;

    /// Deletes those of the frontends that belong to the service; gives how many it did.
    fn delete_frontends(&mut self, keys: &[FrontendKey], service: u32) -> Result<usize, DataPlaneError>;

    fn put_name(&mut self, service: u32, name: &str) -> Result<(), DataPlaneError>;

    fn delete_name(&mut self, service: u32) -> Result<(), DataPlaneError>;

    /// The node's epoch: flows that are as young have nothing to check.
    fn epoch(&self) -> u32;

    /// Makes flows of the service that are older than `epoch` check their backends.
    fn set_losses(&mut self, service: u32, epoch: u32);

    /// Raises the node's epoch; losses have been written.
    fn set_epoch(&mut self, epoch: u32);

    /// Returns when no program reads what has been replaced before the call.
    fn grace_period(&mut self);
}
