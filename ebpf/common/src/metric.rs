//! Indexes into `METRICS`: 64-bit counters, one set per CPU.

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
pub const COUNT: u32 = 39;

metrics! {
    /// A socket's connect or first datagram got a backend.
    SOCKET_TRANSLATED = 0, "socket_translated";
    /// A socket was refused for lack of a backend.
    SOCKET_REFUSED = 1, "socket_refused";
    /// A packet began a flow.
    FLOW_CREATED = 2, "flow_created";
    /// No packet could begin the flow: every port tried was in use.
    SNAT_EXHAUSTED = 3, "snat_exhausted";
    /// No slot was free for a flow: others were filling all of its set.
    FLOW_INSERT_FAILED = 4, "flow_insert_failed";
    /// A reset or an unreachable message was sent for lack of a backend.
    PACKET_REFUSED = 5, "packet_refused";
    /// A packet was dropped for lack of a backend.
    PACKET_DROPPED_EMPTY = 6, "packet_dropped_empty";
    /// XDP sent a packet out of the interface it came from.
    XDP_TRANSMITTED = 7, "xdp_transmitted";
    /// XDP sent a packet out of another interface.
    XDP_REDIRECTED = 8, "xdp_redirected";
    /// tcx sent a packet past the stack.
    TCX_REDIRECTED = 9, "tcx_redirected";
    /// tcx translated a packet and passed it to the stack.
    TCX_TO_STACK = 10, "tcx_to_stack";
    /// A flow left a backend that is gone.
    FLOW_MOVED = 11, "flow_moved";
    /// A frontend was read while it was replaced, and read again.
    FRONTEND_REREAD = 12, "frontend_reread";
    /// A packet needs the node's address as its source, and the node has none.
    SNAT_NO_ADDRESS = 13, "snat_no_address";
    /// A flow took the slot of another that had been quiet for long or had ended.
    FLOW_REPLACED = 14, "flow_replaced";
    /// A flow took the slot of another that may still be in use: the table is too small.
    FLOW_EVICTED = 15, "flow_evicted";
    /// A packet's source is in none of its service's ranges.
    SOURCE_RANGE_DROPPED = 16, "source_range_dropped";
    /// A packet was for an address of the service ranges that no service has.
    UNALLOCATED_DROPPED = 17, "unallocated_dropped";
    /// A packet was for a port that the service at its address does not have.
    UNKNOWN_PORT_REFUSED = 18, "unknown_port_refused";
    /// An echo request to a service's address was answered.
    ECHO_ANSWERED = 19, "echo_answered";
    /// An ICMP error about a translated flow was translated.
    ICMP_TRANSLATED = 20, "icmp_translated";
    /// A fragment was translated by the ports of its first one.
    FRAGMENT_TRANSLATED = 21, "fragment_translated";
    /// A fragment came before its first one and could not wait for it, or was evicted while waiting.
    FRAGMENT_UNKNOWN = 22, "fragment_unknown";
    /// A packet went to a backend that answers the client itself.
    DSR_SENT = 23, "dsr_sent";
    /// A packet came for a backend here that answers the client itself.
    DSR_RECEIVED = 24, "dsr_received";
    /// A packet was too big for the path; its sender got an error.
    TOO_BIG = 25, "too_big";
    /// A process was kept from binding a node port.
    BIND_REFUSED = 26, "bind_refused";
    /// A packet could not be rewritten.
    MALFORMED = 27, "malformed";
    /// Events were suppressed.
    EVENTS_SUPPRESSED = 28, "events_suppressed";
    /// A fragment came before its first one, and waits for it.
    FRAGMENT_HELD = 29, "fragment_held";
    /// A flow began whose packets leave the cluster with the node's address.
    MASQUERADED = 30, "masqueraded";
    /// No packet could begin such a flow: every port tried was in use.
    MASQUERADE_EXHAUSTED = 31, "masquerade_exhausted";
    /// A packet from a pod's interface left the cluster unchanged: its source is no pod's of this node.
    MASQUERADE_SOURCE = 32, "masquerade_source";
    /// No policy allowed a packet to reach a pod.
    POLICY_INGRESS = 33, "policy_ingress";
    /// No policy allowed a packet to leave a pod.
    POLICY_EGRESS = 34, "policy_egress";
    /// A packet met a pod whose policies were not known yet.
    POLICY_UNKNOWN = 35, "policy_unknown";
    /// A policy judged the first packet of a connection, or one of a connection that an older policy had
    /// allowed.
    POLICY_JUDGED = 36, "policy_judged";
    /// A packet to a pod exceeded the pod's bandwidth.
    BANDWIDTH_INGRESS = 37, "bandwidth_ingress";
    /// A packet of a pod exceeded the pod's bandwidth.
    BANDWIDTH_EGRESS = 38, "bandwidth_egress";
}
