//! Index into `METRICS`: 64-bit counters, one set a CPU.

macro_rules! metrics {
    ($($(#[doc = $doc:literal])* $name:ident = $index:literal, $label:literal;)*) => {
        $($(#[doc = $doc])* pub const $name: u32 = $index;)*
        /// Labels in the order of the indexes.
        pub const LABELS: [&str; COUNT as usize] = [$($label),*];
        const _: () = {
            let indexes: [u32; COUNT as usize] = [$($index),*];
            let mut i = 0;
            while i < indexes.len() {
                assert!(indexes[i] == i as u32, "indexes are dense");
                i += 1;
            }
        };
    };
}

/// Number of counters.
pub const COUNT: u32 = 14;

metrics! {
    /// A socket's connect or first datagram was given a backend.
    SOCKET_TRANSLATED = 0, "socket_translated";
    /// A socket was refused for want of a backend.
    SOCKET_REFUSED = 1, "socket_refused";
    /// A packet began a flow.
    FLOW_CREATED = 2, "flow_created";
    /// No packet could begin the flow: every port tried was in use.
    SNAT_EXHAUSTED = 3, "snat_exhausted";
    /// The kernel refused to insert a flow.
    FLOW_INSERT_FAILED = 4, "flow_insert_failed";
    /// A reset or an unreachable message was sent for want of a backend.
    PACKET_REFUSED = 5, "packet_refused";
    /// A packet was dropped for want of a backend.
    PACKET_DROPPED_EMPTY = 6, "packet_dropped_empty";
    /// XDP sent a packet out of the interface it came from.
    XDP_TRANSMITTED = 7, "xdp_transmitted";
    /// XDP sent a packet out of another interface.
    XDP_REDIRECTED = 8, "xdp_redirected";
    /// tcx sent a packet past the stack.
    TCX_REDIRECTED = 9, "tcx_redirected";
    /// tcx translated a packet and gave it to the stack.
    TCX_TO_STACK = 10, "tcx_to_stack";
    /// A flow left a backend that is gone.
    FLOW_MOVED = 11, "flow_moved";
    /// A frontend was read while it was replaced, and read again.
    FRONTEND_REREAD = 12, "frontend_reread";
    /// A packet needs the node's address as its source, and the node has none.
    SNAT_NO_ADDRESS = 13, "snat_no_address";
}
