//! What becomes of a packet: the connection it belongs to, or a new one.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use ebpf_common::flow::{Flow4, FlowKey4, flow_flag};
use ebpf_common::frontend::{AffinityKey, Backend4, Frontend, FrontendKey4, backend_flag, frontend_flag};
use ebpf_common::{Config, limits, metric, protocol, scope};

use super::maps::{self, FLOWS4};
use super::packet::{Packet, tcp_flag};
use super::{lookup, pick};

/// Which flows the caller can carry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All.
    Any,
    /// Only those between an uplink and a backend elsewhere; others get [`Decision::Pass`].
    Through,
}

/// What becomes of a packet.
pub enum Decision {
    /// Not for us.
    Pass,
    Drop,
    /// No backend: tell the sender.
    Refuse,
    /// Make it this.
    Rewrite(*mut Flow4),
}

/// Decides on a packet that arrived for `scope`.
#[inline(always)]
pub fn decide(packet: &Packet, scope: u8, reach: Reach) -> Decision {
    if let Some(flow) = FLOWS4.get_ptr_mut(&packet.key)
        && keep(packet, flow)
    {
        // SAFETY: the pointer leads to a value of the map.
        if reach == Reach::Through && unsafe { (*flow).flags } & flow_flag::THROUGH == 0 {
            return Decision::Pass;
        }
        return Decision::Rewrite(flow);
    }
    begin(packet, scope, reach)
}

/// Decides on a packet that this node made: only what a backend of ours answers.
#[inline(always)]
pub fn decide_reply(packet: &Packet) -> Decision {
    match FLOWS4.get_ptr_mut(&packet.key) {
        // SAFETY: the pointer leads to a value of the map.
        Some(flow) if unsafe { (*flow).flags } & flow_flag::REVERSE != 0 && keep(packet, flow) => {
            Decision::Rewrite(flow)
        }
        _ => Decision::Pass,
    }
}

/// The flow of packets with these ends, as it is.
#[inline(always)]
pub fn known(key: &FlowKey4) -> Option<Flow4> {
    // SAFETY: the pointer leads to a value of the map.
    FLOWS4.get_ptr(key).map(|flow| unsafe { *flow })
}

/// Brings the flow up to date; false if it is gone, because its backend is.
///
/// Established TCP connections keep their backend. A datagram, or a segment that opens a
/// connection, checks it when the service has lost a backend since.
#[inline(always)]
fn keep(packet: &Packet, flow: *mut Flow4) -> bool {
    // SAFETY: the pointer leads to a value of the map. Processors that handle packets of one flow
    // at the same time write the same values.
    unsafe {
        let fresh = packet.protocol() == protocol::UDP || packet.opens();
        if fresh && (*flow).flags & flow_flag::REVERSE == 0 {
            let generation = maps::generation((*flow).service);
            if generation != (*flow).generation {
                if !still_there(packet, &*flow) {
                    let _ = FLOWS4.remove(&(*flow).sibling(packet.key.protocol));
                    let _ = FLOWS4.remove(&packet.key);
                    maps::count(metric::FLOW_MOVED);
                    return false;
                }
                // Read before the look-up: a change in between is noticed by the next packet.
                (*flow).generation = generation;
            }
        }
        let now = maps::tick();
        if (*flow).seen != now {
            (*flow).seen = now;
            restore_reply(packet, flow);
        }
        if packet.tcp_flags & (tcp_flag::FIN | tcp_flag::RST | tcp_flag::SYN) != 0 {
            track(packet, flow);
        }
        true
    }
}

/// Puts the reverse element back, if it has been evicted while the client kept sending.
///
/// # Safety
/// `flow` must lead to a value of `FLOWS4`.
#[inline(always)]
unsafe fn restore_reply(packet: &Packet, flow: *mut Flow4) {
    // SAFETY: by the contract of this function.
    unsafe {
        if (*flow).flags & flow_flag::REVERSE != 0 {
            return;
        }
        let key = (*flow).sibling(packet.key.protocol);
        if FLOWS4.get_ptr(&key).is_some() {
            return;
        }
        let mut reply = blank();
        reply.source = packet.key.destination;
        reply.destination = packet.key.source;
        reply.source_port = packet.key.destination_port;
        reply.destination_port = packet.key.source_port;
        reply.service = (*flow).service;
        reply.generation = (*flow).generation;
        reply.flags = (*flow).flags & flow_flag::THROUGH | flow_flag::REVERSE;
        reply.seen = (*flow).seen;
        // Taken by another flow meanwhile, it is left to that one.
        let _ = FLOWS4.insert(&key, &reply, BPF_NOEXIST as u64);
    }
}

/// The frontend that the flow came through still has its backend.
#[inline(always)]
fn still_there(packet: &Packet, flow: &Flow4) -> bool {
    let scope = if flow.flags & flow_flag::EXTERNAL != 0 { scope::EXTERNAL } else { scope::INTERNAL };
    let mut key = FrontendKey4 {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.protocol(),
        scope,
    };
    match lookup::frontend4(&mut key, |_| false) {
        Some(frontend) => pick::find4(&frontend, flow.destination, flow.destination_port).is_some(),
        None => false,
    }
}

/// Notes the beginning and the end of a connection in both of its elements.
///
/// # Safety
/// `flow` must lead to a value of `FLOWS4`.
#[inline(always)]
unsafe fn track(packet: &Packet, flow: *mut Flow4) {
    let (mine, peers) = if packet.tcp_flags & tcp_flag::RST != 0 {
        (flow_flag::RESET, flow_flag::RESET)
    } else if packet.tcp_flags & tcp_flag::FIN != 0 {
        (flow_flag::FIN, flow_flag::FIN_PEER)
    } else {
        (0, 0)
    };
    let keep = if packet.opens() { !flow_flag::CLOSING } else { !0 };
    // SAFETY: by the contract of this function, and of the map for the sibling.
    unsafe {
        let sibling = (*flow).sibling(packet.key.protocol);
        (*flow).flags = (*flow).flags & keep | mine;
        if let Some(sibling) = FLOWS4.get_ptr_mut(&sibling) {
            (*sibling).flags = (*sibling).flags & keep | peers;
        }
    }
}

/// Begins a flow, if the packet is for a frontend.
#[inline(always)]
fn begin(packet: &Packet, scope: u8, reach: Reach) -> Decision {
    let mut key = FrontendKey4 {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.protocol(),
        scope,
    };
    let Some(frontend) = lookup::frontend4(&mut key, |_| false) else {
        return Decision::Pass;
    };
    let hash = hash(&packet.key);
    let backend = if frontend.count() == 0 {
        None
    } else {
        pick::backend4(&frontend, hash, || AffinityKey {
            client: packet.key.source as u64,
            service: frontend.service,
            port: packet.key.destination_port,
            protocol: packet.protocol(),
            scope,
        })
    };
    let Some(backend) = backend else {
        return if reach == Reach::Through { Decision::Pass } else { no_backend(&frontend) };
    };
    if reach == Reach::Through && backend.flags & backend_flag::LOCAL != 0 {
        return Decision::Pass;
    }
    create(packet, scope, &frontend, &backend, hash)
}

#[inline(always)]
fn no_backend(frontend: &Frontend) -> Decision {
    maps::count_service(frontend.service, true);
    if frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0 {
        maps::count(metric::PACKET_DROPPED_EMPTY);
        Decision::Drop
    } else {
        maps::count(metric::PACKET_REFUSED);
        Decision::Refuse
    }
}

/// Inserts both elements of a flow.
#[inline(always)]
fn create(packet: &Packet, scope: u8, frontend: &Frontend, backend: &Backend4, hash: u32) -> Decision {
    let Some(config) = maps::config() else {
        return Decision::Drop;
    };
    let external = scope == scope::EXTERNAL;
    let through = external && backend.flags & backend_flag::LOCAL == 0;
    let own = packet.key.source;
    // A backend drops what comes from its own address: hairpin.
    let source = if through || backend.address == own { config.snat_address4 } else { own };
    if source == 0 {
        maps::count(metric::SNAT_NO_ADDRESS);
        return Decision::Drop;
    }
    let flags = if through { flow_flag::THROUGH } else { 0 };
    let mut flow = blank();
    flow.source = packet.key.destination;
    flow.destination = own;
    flow.source_port = packet.key.destination_port;
    flow.destination_port = packet.key.source_port;
    flow.service = frontend.service;
    flow.generation = frontend.generation;
    flow.flags = flags | flow_flag::REVERSE;
    flow.seen = maps::tick();
    let reply = FlowKey4 {
        source: backend.address,
        destination: source,
        source_port: backend.port,
        destination_port: packet.key.source_port,
        protocol: packet.key.protocol,
    };
    let Some(port) = claim(reply, &flow, config, source == own, hash) else {
        maps::count(metric::SNAT_EXHAUSTED);
        return Decision::Drop;
    };
    flow.source = source;
    flow.source_port = port;
    flow.destination = backend.address;
    flow.destination_port = backend.port;
    flow.flags = if external { flags | flow_flag::EXTERNAL } else { flags };
    let inserted = FLOWS4.insert(&packet.key, &flow, BPF_ANY as u64).is_ok();
    match FLOWS4.get_ptr_mut(&packet.key) {
        Some(value) if inserted => {
            maps::count(metric::FLOW_CREATED);
            maps::count_service(frontend.service, false);
            Decision::Rewrite(value)
        }
        _ => {
            maps::count(metric::FLOW_INSERT_FAILED);
            Decision::Drop
        }
    }
}

/// Inserts the reverse element, and only if its key is free: replies to two flows must not look
/// alike. Where they would, another source port is taken; gives the one that is.
#[inline(always)]
fn claim(mut reply: FlowKey4, flow: &Flow4, config: &Config, own_address: bool, hash: u32) -> Option<u16> {
    let (low, high) = (config.snat_port_min, config.snat_port_max);
    let span = high.wrapping_sub(low) as u64 + 1;
    let own = u16::from_be(reply.destination_port);
    let keep = own_address || (own >= low && own <= high);
    let mut roll = hash;
    for attempt in 0..limits::SNAT_TRIES {
        if attempt > 0 || !keep {
            roll = roll.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
            reply.destination_port = low.wrapping_add(((roll as u64 * span) >> 32) as u16).to_be();
        }
        if FLOWS4.insert(&reply, flow, BPF_NOEXIST as u64).is_ok() {
            return Some(reply.destination_port);
        }
        if may_replace(&reply, flow) {
            let inserted = FLOWS4.insert(&reply, flow, BPF_ANY as u64).is_ok();
            return inserted.then_some(reply.destination_port);
        }
    }
    None
}

/// An element that is all zero. Cleared word by word: the compiler would call a function that
/// clears single bytes.
#[inline(always)]
pub fn blank() -> Flow4 {
    let mut flow = MaybeUninit::<Flow4>::uninit();
    const _: () = assert!(size_of::<Flow4>() % size_of::<u32>() == 0 && align_of::<Flow4>() == 4);
    for word in 0..size_of::<Flow4>() / size_of::<u32>() {
        // SAFETY: within the value, whose alignment is that of its words.
        unsafe { flow.as_mut_ptr().cast::<u32>().add(word).write_volatile(0) };
    }
    // SAFETY: every word has been written; all fields are integers.
    unsafe { flow.assume_init() }
}

/// The element under `key` may make room for `flow`: it is the same flow, it has ended, or it has
/// been quiet for long.
#[inline(always)]
fn may_replace(key: &FlowKey4, flow: &Flow4) -> bool {
    let Some(present) = FLOWS4.get_ptr(key) else {
        return true;
    };
    // SAFETY: the pointer leads to a value of the map; a torn reading costs a port, no more.
    unsafe {
        if (*present).source == flow.source
            && (*present).destination == flow.destination
            && (*present).source_port == flow.source_port
            && (*present).destination_port == flow.destination_port
        {
            return true;
        }
        let closed = (*present).flags & flow_flag::RESET != 0
            || (*present).flags & flow_flag::CLOSING == flow_flag::FIN | flow_flag::FIN_PEER;
        let limit = match (key.protocol as u8, closed) {
            (protocol::TCP, true) => limits::idle::TCP_CLOSED,
            (protocol::TCP, false) => limits::idle::TCP,
            _ => limits::idle::UDP,
        };
        let quiet = |seen: u32| flow.seen.wrapping_sub(seen) > limit;
        if !quiet((*present).seen) {
            return false;
        }
        // The client may still be sending where the backend is silent.
        match FLOWS4.get_ptr(&(*present).sibling(key.protocol)) {
            Some(forward) => quiet((*forward).seen),
            None => true,
        }
    }
}

/// A hash of both ends that every node computes alike.
#[inline(always)]
fn hash(key: &FlowKey4) -> u32 {
    let ports = key.source_port as u64 | (key.destination_port as u64) << 16 | (key.protocol as u64) << 32;
    let mut state = key.source as u64 | (key.destination as u64) << 32;
    state = (state ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 32;
    state = (state ^ ports).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^= state >> 29;
    state = state.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (state >> 32) as u32
}
