//! What the programs tell about single packets and system calls: drops, refusals, and what had to
//! give way. Sampled, so that a flood of packets is not a flood of events.

/// Record in the ring buffer `EVENTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the machine started.
    pub time: u64,
    /// A v4 address uses the first word; as the packet carries them, like the ports.
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
    /// Events of this processor that were left out since the last one.
    pub suppressed: u32,
    pub reserved: u32,
}

/// Element of `EVENT_BUDGET`, one a processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventBudget {
    /// Tick that `sent` is about.
    pub tick: u32,
    pub sent: u32,
    pub suppressed: u32,
    pub reserved: u32,
}

/// Why there is an event.
pub mod kind {
    /// No backend: the sender was told.
    pub const REFUSED: u8 = 1;
    /// No backend, and the frontend says to drop.
    pub const DROPPED_EMPTY: u8 = 2;
    /// The source is in none of the service's ranges.
    pub const SOURCE_RANGE: u8 = 3;
    /// An address of the service range that no service has.
    pub const UNALLOCATED: u8 = 4;
    /// An address of a service, a port that it does not have: refused.
    pub const UNKNOWN_PORT: u8 = 5;
    /// No source port was free.
    pub const SNAT_EXHAUSTED: u8 = 6;
    /// The packet needs the node's address as its source, and the node has none.
    pub const SNAT_NO_ADDRESS: u8 = 7;
    /// A flow that was in use gave way to a new one.
    pub const FLOW_EVICTED: u8 = 8;
    /// A fragment whose first one was not seen.
    pub const FRAGMENT_UNKNOWN: u8 = 9;
    /// The packet does not fit into the path with what direct server return adds.
    pub const TOO_BIG: u8 = 10;
    /// A process wanted to bind a node port.
    pub const BIND_REFUSED: u8 = 11;
    /// The packet could not be rewritten.
    pub const MALFORMED: u8 = 12;
    /// Labels in the order of the numbers; the first is nobody's.
    pub const LABELS: [&str; 13] = [
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
    ];
}

/// Where an event comes from.
pub mod hook {
    pub const SOCKET: u8 = 0;
    pub const POD: u8 = 1;
    pub const UPLINK: u8 = 2;
    pub const XDP: u8 = 3;
    pub const EGRESS: u8 = 4;
    /// Labels in the order of the numbers.
    pub const LABELS: [&str; 5] = ["socket", "pod", "uplink", "xdp", "egress"];
}

/// Events that one processor gives in a tick.
pub const EVENTS_PER_TICK: u32 = 32;

const _: () = {
    assert!(size_of::<Event>() == 64);
    assert!(core::mem::offset_of!(Event, service) == 44);
    assert!(core::mem::offset_of!(Event, suppressed) == 56);
    assert!(size_of::<EventBudget>() == 16);
};
