//! Events that the programs report about single packets and system calls: drops, refusals, and evictions.
//! They are sampled, so that a flood of packets does not become a flood of events.

/// Record in the ring buffer `EVENTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the machine started.
    pub time: u64,
    /// A v4 address uses the first word; in the form of packets, like the ports.
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub source_port: u16,
    pub destination_port: u16,
    /// Index into `SERVICE_NAMES`; 0 for none.
    pub service: u32,
    /// Interface; 0 for a system call.
    pub ifindex: u32,
    /// One of [`kind`].
    pub kind: u8,
    /// One of [`hook`].
    pub hook: u8,
    /// IP protocol number.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// Number of events of this processor that were suppressed since the last one.
    pub suppressed: u32,
    pub reserved: u32,
}

/// Element of `EVENT_BUDGET`, one per processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventBudget {
    /// The tick in which `sent` events were counted.
    pub tick: u32,
    pub sent: u32,
    pub suppressed: u32,
    pub reserved: u32,
}

/// The causes of events.
pub mod kind {
    /// No backend: the sender got an error.
    pub const REFUSED: u8 = 1;
    /// No backend, and the frontend drops in that case.
    pub const DROPPED_EMPTY: u8 = 2;
    /// The source is in none of the service's ranges.
    pub const SOURCE_RANGE: u8 = 3;
    /// An address of the service range that no service has.
    pub const UNALLOCATED: u8 = 4;
    /// An address of a service with a port that the service does not have: refused.
    pub const UNKNOWN_PORT: u8 = 5;
    /// No source port was free.
    pub const SNAT_EXHAUSTED: u8 = 6;
    /// The packet needs the node's address as its source, and the node has none.
    pub const SNAT_NO_ADDRESS: u8 = 7;
    /// A flow in use was evicted by a new one.
    pub const FLOW_EVICTED: u8 = 8;
    /// A fragment whose first one is not known.
    pub const FRAGMENT_UNKNOWN: u8 = 9;
    /// The packet exceeds the path MTU with the additional bytes of direct server return.
    pub const TOO_BIG: u8 = 10;
    /// A process tried to bind a node port.
    pub const BIND_REFUSED: u8 = 11;
    /// The packet could not be rewritten.
    pub const MALFORMED: u8 = 12;
    /// No source port was free for a packet that leaves the cluster.
    pub const MASQUERADE_EXHAUSTED: u8 = 13;
    /// No policy allows the packet to reach the pod. `service` is an index into `POLICY_NAMES`.
    pub const POLICY_INGRESS: u8 = 14;
    /// No policy allows the packet to leave the pod. `service` is an index into `POLICY_NAMES`.
    pub const POLICY_EGRESS: u8 = 15;
    /// The pod's policies are not known yet. `service` is an index into `POLICY_NAMES`.
    pub const POLICY_UNKNOWN: u8 = 16;
    /// The packet exceeds what the pod may receive: once a minute, see [`crate::bandwidth::QUIET`].
    pub const BANDWIDTH_INGRESS: u8 = 17;
    /// The packet exceeds what the pod may send: once a minute.
    pub const BANDWIDTH_EGRESS: u8 = 18;
    /// Labels in the order of the numbers; number 0 is unused.
    pub const LABELS: [&str; 19] = [
        "unknown",
        "refused",
        "dropped_empty",
        "source_range",
        "unallocated",
        "unknown_port",
        "snat_exhausted",
        "snat_no_address",
        "flow_evicted",
        "fragment_unknown",
        "too_big",
        "bind_refused",
        "malformed",
        "masquerade_exhausted",
        "policy_ingress",
        "policy_egress",
        "policy_unknown",
        "bandwidth_ingress",
        "bandwidth_egress",
    ];
}

/// The origins of events.
pub mod hook {
    pub const SOCKET: u8 = 0;
    pub const POD: u8 = 1;
    pub const UPLINK: u8 = 2;
    pub const XDP: u8 = 3;
    pub const EGRESS: u8 = 4;
    /// Labels in the order of the numbers.
    pub const LABELS: [&str; 5] = ["socket", "pod", "uplink", "xdp", "egress"];
}

/// Maximum number of events per processor and tick.
pub const EVENTS_PER_TICK: u32 = 32;

const _: () = {
    assert!(size_of::<Event>() == 64);
    assert!(core::mem::offset_of!(Event, service) == 44);
    assert!(core::mem::offset_of!(Event, suppressed) == 56);
    assert!(size_of::<EventBudget>() == 16);
};
