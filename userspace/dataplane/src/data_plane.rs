//! The trait that writes [`crate::tables`] to the kernel, or to the memory of a test.

use crate::inspect::Inspector;
use crate::policy::PolicyTables;
use crate::tables::{
    Applied, Bandwidths, Checkup, DataPlaneError, Interface, Look, NodeTables, Others, ServiceTables, Tables,
};

/// The tables of one node. Implemented by the kernel's maps and by an in-memory fake.
pub trait DataPlane: Send {
    /// Makes the tables equal to `desired`, starting from what an earlier process left. Writes only
    /// differences, in this order: delete frontends, write blocks, write frontends, free blocks.
    fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError>;

    /// Replaces the tables of one service; `None` removes it. No packet sees a half of the change.
    fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError>;

    /// Sets the node's own settings. May be called as often as they change.
    fn set_node(&mut self, node: &NodeTables) -> Result<(), DataPlaneError>;

    /// Sets what policies allow the pods of this node. May be called as often as it changes; pods that are not
    /// in it are not isolated.
    fn set_policies(&mut self, policies: &PolicyTables) -> Result<(), DataPlaneError> {
        let _ = policies;
        Ok(())
    }

    /// Sets what the pods of this node may send and receive. May be called as often as it changes; pods that
    /// are not in it are not limited.
    fn set_bandwidths(&mut self, limits: &Bandwidths) -> Result<(), DataPlaneError> {
        let _ = limits;
        Ok(())
    }

    /// Attaches to the interfaces that carry traffic of other origins than local sockets. Called with the
    /// whole set, as often as it changes; interfaces that vanished are forgotten.
    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError>;

    /// Checks that programs are still attached, and the same ones, that they run, and that the tables can be
    /// read. Repairs what somebody else has undone.
    fn check(&mut self) -> Result<Checkup, DataPlaneError> {
        Ok(Checkup::default())
    }

    /// Finds the connections that others in the kernel translate, by rules and its connection tracking, and
    /// lets those pass that would otherwise be taken for new ones of ours. Called before the first apply,
    /// after it, and for as long as there are some. If such a translation leads datagrams to an endpoint that
    /// the service has lost, it is removed.
    fn let_others_pass(&mut self, look: Look) -> Result<Others, DataPlaneError> {
        let _ = look;
        Ok(Others::default())
    }

    /// Returns the number of services in the tables of an earlier process, which are served until the first
    /// full apply.
    fn adopted_services(&self) -> usize {
        0
    }

    /// Returns a reader of the live tables, for use beside their owner; `None` if they are not the kernel's.
    fn observer(&self) -> Option<Inspector> {
        None
    }
}
