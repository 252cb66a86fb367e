//! The trait that brings [`crate::tables`] to the kernel, or to the memory of a test.

use crate::inspect::Inspector;
use crate::tables::{
    Applied, Checkup, DataPlaneError, Interface, Look, NodeTables, Others, ServiceTables, Tables,
};

/// The tables of one node. Implemented by the kernel's maps and by an in-memory fake.
pub trait DataPlane: Send {
    /// Makes the tables equal to `desired`, reading back what an earlier process left. Writes
    /// only differences; order: delete frontends, write blocks, write frontends, free blocks.
    fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError>;

    /// Replaces what one service contributes; `None` removes it. No packet sees a half of it.
    fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError>;

    /// The node's own settings. May be called as often as they change.
    fn set_node(&mut self, node: &NodeTables) -> Result<(), DataPlaneError>;

    /// Attaches to the interfaces that carry traffic no local socket made. Called with the whole
    /// set, as often as it changes; interfaces that vanished are forgotten.
    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError>;

    /// Looks whether what was attached still is, with the same programs, and whether the programs
    /// run and the tables can be read. Mends what somebody else has undone.
    fn check(&mut self) -> Result<Checkup, DataPlaneError> {
        Ok(Checkup::default())
    }

    /// Looks which connections others in the kernel translate, by rules and its connection tracking, and
    /// lets those pass that would otherwise be taken for new ones of ours. Called before the first
    /// apply, after it, and for as long as there are some. Datagrams to a service whose translation
    /// leads to an endpoint that the service has lost are taken away from the others.
    fn let_others_pass(&mut self, look: Look) -> Result<Others, DataPlaneError> {
        let _ = look;
        Ok(Others::default())
    }

    /// Services that the tables of an earlier process have, and that are served until the first
    /// full apply says otherwise.
    fn kept(&self) -> usize {
        0
    }

    /// A reader of the live tables, for whoever looks beside their owner; none where they are not
    /// the kernel's.
    fn observer(&self) -> Option<Inspector> {
        None
    }
}
