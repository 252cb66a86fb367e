//! What the tables shall hold, as plain data, and the trait that brings them there.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Transport protocol, with its IP protocol number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[repr(u8)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// For whom a frontend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub enum Scope {
    /// Traffic from inside: local sockets and pods.
    Internal,
    /// Traffic that arrives on an uplink.
    External,
}

/// Where a frontend listens. A node port has the unspecified address of its family: it answers on
/// every address given to [`DataPlane::set_node_addresses`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct FrontendKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
    pub scope: Scope,
}

/// One place that traffic may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Backend {
    pub address: IpAddr,
    pub port: u16,
    /// The backend is on this node.
    pub local: bool,
}

/// What traffic to a frontend gets. With no backends it is refused at once.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Frontend {
    pub key: FrontendKey,
    /// The candidates by policy, local ones first. Order is part of the value: equal inputs give
    /// equal tables.
    pub backends: Vec<Backend>,
    /// Seconds of client affinity; 0 for none.
    pub affinity_seconds: u32,
    /// Traffic is dropped, not refused, when there are no backends (policy Local).
    pub drop_when_empty: bool,
}

/// Everything that one Service puts into the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServiceTables {
    /// In the order of their keys.
    pub frontends: Vec<Frontend>,
}

/// Desired state: by service name, `namespace/name`.
pub type Tables = BTreeMap<String, ServiceTables>;

/// What an apply did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    pub frontends_written: usize,
    pub frontends_deleted: usize,
    pub blocks_written: usize,
    pub blocks_freed: usize,
}

/// The tables refused a change, or the kernel did; what was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// A map is full; raise the limit named.
    #[error("{service}: map {map} is full at {limit} entries")]
    Full { service: String, map: &'static str, limit: u32 },
    /// The kernel refused.
    #[error("{attempted}")]
    Kernel {
        /// What was attempted, on which map, program or interface.
        attempted: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

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

    /// The addresses of this node on which node ports answer.
    fn set_node_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), DataPlaneError>;

    /// Attaches to the interfaces that carry traffic no local socket made. Called with the whole
    /// set, as often as it changes; interfaces that vanished are forgotten.
    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError>;
}

/// An interface to attach to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface {
    pub name: String,
    /// Kernel index; a new index under an old name is a new interface.
    pub index: u32,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Towards other hosts: XDP and tcx ingress.
    Uplink,
    /// The host's end of a pod's interface: tcx ingress.
    Pod,
}
