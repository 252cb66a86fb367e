//! Marks on the host's end of a pod's interface, by which the pod network and the proxy learn about each other.
//! Neither depends on the other's crate, and each works beside another program in the other's place.

/// The beginning of the alias of a pod's interface; the pod's UID follows. The pod network writes it when it
/// makes the interface, and the proxy reads it to tell which interface is which pod's.
pub const ALIAS_PREFIX: &str = "hawser pod ";

/// The group of a pod's interface whose policies are in force. The proxy sets it, and the pod network waits for
/// it before the pod's containers start.
pub const READY_GROUP: u32 = 0x6877;
