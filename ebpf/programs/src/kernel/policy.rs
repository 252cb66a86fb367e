//! Network policies, see [`ebpf_common::policy`].
//!
//! A packet that leaves a pod is judged at the pod's interface once its backend is known, a packet to a pod
//! where it enters the pod's interface, after every translation. Both are looked up among the connections as
//! the pod sees them: what the pod sends before its translation, and what it receives after it.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_map_lookup_elem;
use aya_ebpf::programs::TcContext;
use ebpf_common::event::{hook, kind};
use ebpf_common::flow::FlowKey;
use ebpf_common::masquerade::Prefix;
use ebpf_common::policy::{
    Endpoint, GRACE, RuleKey, State, StateKey, class, endpoint_flag, idle, state_flag,
};
use ebpf_common::{config_flag, metric, protocol};

use super::event;
use super::family::{Address as _, Family, V4, V6};
use super::flow::{self, Place, verdict};
use super::maps::{
    self, POLICY_ENDPOINTS, POLICY_FLOWS, POLICY_PEERS4, POLICY_PEERS6, POLICY_RULES, POLICY_SCRATCH,
};
use super::packet::{self, IP, Packet, Part, TCP_HEADER, To, tcp_flag};
use super::read::{self, kind as read_kind};
use super::tcx;

/// Results of [`police`].
const DENY: u32 = 0;
const ALLOW: u32 = 1;

/// Directions of packets.
const INGRESS: u32 = 0;
const EGRESS: u32 = 1;

/// Result of [`rule_for`]: no rule allows it.
const NO_RULE: u32 = u32::MAX;

/// A packet in question, and room for keys that do not fit on the stack.
#[repr(C)]
pub struct Query {
    key: StateKey,
    /// The other end after service translation, or before its address was replaced.
    judged: [u32; 4],
    judged_port: u16,
    /// Bits of [`tcp_flag`].
    flags: u8,
    part: u8,
    version: u32,
    identification: u32,
    rule: RuleKey,
    prefix4: Prefix<u32>,
    prefix6: Prefix<[u32; 4]>,
    state: State,
    ends4: FlowKey<u32>,
    ends6: FlowKey<[u32; 4]>,
}

/// Returns `true` if pods of this node are subject to policies.
#[inline(always)]
pub fn is_on() -> bool {
    maps::config().is_some_and(|config| config.flags & config_flag::POLICY != 0)
}

/// Returns `true` if policies select the pod behind an interface.
#[inline(always)]
fn is_policed(ifindex: u32) -> bool {
    is_on() && POLICY_ENDPOINTS.get_ptr(&ifindex).is_some()
}

/// Returns `true` if a packet may leave the pod; `found` is the decision about its translation.
#[inline(always)]
pub fn may_leave<F: Family>(
    packet: &Packet<F::Address>,
    found: u32,
    to: &To<F::Address>,
    place: Place,
) -> bool {
    if place as u8 != hook::POD || !is_policed(place >> 8) {
        return true;
    }
    let Some(query) = POLICY_SCRATCH.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: the room is this processor's own.
    unsafe {
        write::<F>(query, packet, place >> 8, false);
        if found == verdict::REWRITE {
            (*query).judged = to.destination.words();
            (*query).judged_port = to.destination_port;
        }
    }
    police(place, EGRESS) == ALLOW
}

/// Writes a packet as the pod sees it.
///
/// # Safety
/// `query` must be this processor's own.
#[inline(always)]
unsafe fn write<F: Family>(query: *mut Query, packet: &Packet<F::Address>, ifindex: u32, arrives: bool) {
    let (source, destination) = (packet.key.source.words(), packet.key.destination.words());
    let (source_port, destination_port) = (packet.key.source_port, packet.key.destination_port);
    // SAFETY: by the contract of this function.
    let query = unsafe { &mut *query };
    query.key.ifindex = ifindex;
    query.key.protocol = packet.key.protocol;
    query.flags = packet.flags;
    query.part = packet.part as u8;
    query.version = F::VERSION as u32;
    query.identification = packet.identification;
    if arrives {
        (query.key.local, query.key.remote) = (destination, source);
        (query.key.local_port, query.key.remote_port) = (destination_port, source_port);
        query.judged = source;
        query.judged_port = destination_port;
    } else {
        (query.key.local, query.key.remote) = (source, destination);
        (query.key.local_port, query.key.remote_port) = (source_port, destination_port);
        query.judged = destination;
        query.judged_port = destination_port;
    }
}

/// Returns `true` if a packet that is neither balanced nor translated may leave the pod.
#[inline(always)]
pub fn may_leave_unread<F: Family>(packet: &Packet<F::Address>, kind: u32, place: Place) -> bool {
    if place as u8 != hook::POD || !is_policed(place >> 8) || is_exempt::<F>(packet, kind) {
        return true;
    }
    let Some(query) = POLICY_SCRATCH.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: the room is this processor's own.
    unsafe { write::<F>(query, packet, place >> 8, false) };
    police(place, EGRESS) == ALLOW
}

/// Returns `true` for control messages other than echo requests and replies: errors, and the discovery of
/// neighbours.
#[inline(always)]
fn is_exempt<F: Family>(packet: &Packet<F::Address>, kind: u32) -> bool {
    kind == read_kind::OTHER && packet.protocol() == F::ICMP && packet.part != Part::Later
}

/// Returns `true` if a packet that is about to enter an interface may reach the pod behind it. Packets of the
/// node itself may, and those that the pod sends to itself.
#[inline(never)]
pub fn may_arrive<F: Family>(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    // SAFETY: the context is the one that the kernel gave.
    let (ifindex, from) = unsafe { ((*skb).ifindex, (*skb).ingress_ifindex) };
    if from == 0 || from == ifindex || !is_policed(ifindex) {
        return ALLOW;
    }
    tcx::pull(&ctx, (IP + F::HEADER + TCP_HEADER) as u32);
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    let kind = read::packet::<F>(&ctx, packet);
    let Some(query) = POLICY_SCRATCH.get_ptr_mut(0) else {
        return DENY;
    };
    if is_exempt::<F>(packet, kind) {
        return ALLOW;
    }
    // SAFETY: the room is this processor's own.
    unsafe {
        write::<F>(query, packet, ifindex, true);
        original::<F>(packet, query);
    }
    police(flow::place(hook::EGRESS, ifindex), INGRESS)
}

/// Replaces the source to judge by the client's, if the packet took the node's address on this node.
///
/// # Safety
/// `query` must be this processor's own.
#[inline(always)]
unsafe fn original<F: Family>(packet: &mut Packet<F::Address>, query: *mut Query) {
    let Some(config) = maps::config() else {
        return;
    };
    if !F::snat_address(config).same(&packet.key.source) {
        return;
    }
    let mut to = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let to = unsafe { packet::cleared(&mut to) };
    // The reply's ends: functions that look flows up take a key of their own.
    core::mem::swap(&mut packet.key.source, &mut packet.key.destination);
    core::mem::swap(&mut packet.key.source_port, &mut packet.key.destination_port);
    if flow::known::<F>(&packet.key, to) {
        // SAFETY: by the contract of this function.
        unsafe { (*query).judged = to.destination.words() };
    }
}

/// Returns [`ALLOW`] or [`DENY`] for the packet in `POLICY_SCRATCH`. The kernel verifies it once, and not with
/// each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn police(place: Place, direction: u32) -> u32 {
    let ifindex = place >> 8;
    let (Some(query), Some(endpoint)) = (POLICY_SCRATCH.get_ptr_mut(0), POLICY_ENDPOINTS.get_ptr(&ifindex))
    else {
        return ALLOW;
    };
    // SAFETY: the room is this processor's own; an element that is replaced stays readable for this packet.
    let (query, endpoint) = unsafe { (&mut *query, &*endpoint) };
    if direction == EGRESS && same(&query.judged, &query.key.local) {
        // A pod reaches itself.
        return ALLOW;
    }
    let now = maps::tick();
    if query.part == Part::Later as u8 {
        return fragment(query, endpoint, now, place, direction);
    }
    let verdict = connection(query, endpoint, now, direction);
    if verdict != NO_RULE {
        if query.part == Part::First as u8 {
            remember_fragment(query, now);
        }
        return ALLOW;
    }
    refuse(query, endpoint, place, direction)
}

/// Returns the verdict of a known connection, or of a new one.
#[inline(always)]
fn connection(query: &mut Query, endpoint: &Endpoint, now: u32, direction: u32) -> u32 {
    let opens = query.flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN;
    let number = query.key.protocol;
    let connected = number == protocol::TCP as u32 || number == protocol::SCTP as u32;
    if let Some(state) = POLICY_FLOWS.get_ptr_mut(&query.key) {
        // SAFETY: the pointer leads to a value of the map, whose words are read and written whole.
        unsafe {
            let flags = (*state).flags;
            let own = (flags & state_flag::EGRESS != 0) == (direction == EGRESS);
            let denied = flags & state_flag::DENIED != 0;
            let time = if !connected {
                idle::DATAGRAM
            } else if flags & state_flag::CLOSED != 0 {
                idle::CLOSED
            } else {
                idle::CONNECTION
            };
            let fresh = now.wrapping_sub((*state).seen) <= time;
            // A new connection with the same ends, or a datagram the other way after the flow was denied.
            let other = opens && (!own || flags & state_flag::CLOSED != 0) || denied && !connected && !own;
            if fresh && !other {
                if (*state).generation != endpoint.generation {
                    again(query, &mut *state, endpoint, own);
                }
                if (*state).seen != now {
                    (*state).seen = now;
                }
                if connected && query.flags & (tcp_flag::FIN | tcp_flag::RST) != 0 {
                    (*state).flags |= state_flag::CLOSED;
                }
                let denied = (*state).flags & state_flag::DENIED != 0;
                return if denied { NO_RULE } else { (*state).rule };
            }
        }
    }
    let (judged, port) = (query.judged, query.judged_port);
    let mut rule = rule_for(query, endpoint, direction, &judged, port);
    let mut begun_by = direction;
    if rule == NO_RULE && connected && !opens && now.wrapping_sub(endpoint.since) <= GRACE {
        // From before the pod was isolated: it may be a reply.
        let port = if direction == EGRESS { query.key.local_port } else { query.key.remote_port };
        begun_by = direction ^ 1;
        rule = rule_for(query, endpoint, begun_by, &judged, port);
        query.judged_port = port;
    }
    if rule == NO_RULE || rule == EXEMPT {
        return rule;
    }
    query.state.judged = judged;
    query.state.port = query.judged_port;
    query.state.flags = if begun_by == EGRESS { state_flag::EGRESS } else { 0 }
        | if query.version == 6 { state_flag::V6 } else { 0 };
    query.state.generation = endpoint.generation;
    query.state.seen = now;
    query.state.rule = rule;
    // If it is refused, the next packet is judged like this one.
    let _ = POLICY_FLOWS.insert(&query.key, &query.state, 0);
    rule
}

/// Result of [`rule_for`]: the other end is the pod's own node.
const EXEMPT: u32 = u32::MAX - 1;

/// Judges a known connection by newer rules.
#[inline(never)]
fn again(query: &mut Query, state: &mut State, endpoint: &Endpoint, own: bool) -> u32 {
    let direction = if state.flags & state_flag::EGRESS != 0 { EGRESS } else { INGRESS };
    if own {
        // A service may lead datagrams elsewhere by now.
        state.judged = query.judged;
        state.port = query.judged_port;
    }
    let (judged, port) = (state.judged, state.port);
    let rule = rule_for(query, endpoint, direction, &judged, port);
    if rule == NO_RULE {
        state.flags |= state_flag::DENIED;
    } else {
        state.flags &= !state_flag::DENIED;
        state.rule = rule;
    }
    state.generation = endpoint.generation;
    0
}

/// Returns the rule that allows the other end and port; 0 if the pod is not isolated in this direction.
#[inline(never)]
fn rule_for(query: &mut Query, endpoint: &Endpoint, direction: u32, peer: &[u32; 4], port: u16) -> u32 {
    let set = if direction == EGRESS { endpoint.egress } else { endpoint.ingress };
    let closed = endpoint.flags & endpoint_flag::CLOSED != 0;
    if set == 0 && !closed {
        return 0;
    }
    maps::count(metric::POLICY_JUDGED);
    let class = class_of(query, peer);
    if class == class::NODE && direction == EGRESS {
        return EXEMPT;
    }
    if closed {
        return NO_RULE;
    }
    query.rule.bits = RuleKey::ONE_PORT;
    query.rule.set = set;
    query.rule.class = class;
    query.rule.protocol = query.key.protocol as u8;
    query.rule.reserved = 0;
    query.rule.port = port;
    if class != class::ANY
        && let Some(rule) = look_up(&query.rule)
    {
        return rule;
    }
    query.rule.class = class::ANY;
    look_up(&query.rule).unwrap_or(NO_RULE)
}

/// Returns the value of the longest prefix of a rule's key.
#[inline(always)]
fn look_up(key: &RuleKey) -> Option<u32> {
    // SAFETY: the map's keys are of this type, and its values are words.
    unsafe {
        let map = (&raw const POLICY_RULES).cast::<c_void>().cast_mut();
        let found = bpf_map_lookup_elem(map, (&raw const *key).cast());
        (!found.is_null()).then(|| found.cast::<u32>().read_volatile())
    }
}

/// Returns the class of an address.
#[inline(always)]
fn class_of(query: &mut Query, address: &[u32; 4]) -> u32 {
    // SAFETY: the maps' keys are of these types, and their values are words.
    unsafe {
        let found = if query.version == 4 {
            query.prefix4.bits = 32;
            query.prefix4.address = address[0];
            let map = (&raw const POLICY_PEERS4).cast::<c_void>().cast_mut();
            bpf_map_lookup_elem(map, (&raw const query.prefix4).cast())
        } else {
            query.prefix6.bits = 128;
            query.prefix6.address = *address;
            let map = (&raw const POLICY_PEERS6).cast::<c_void>().cast_mut();
            bpf_map_lookup_elem(map, (&raw const query.prefix6).cast())
        };
        if found.is_null() { class::ANY } else { found.cast::<u32>().read_volatile() }
    }
}

#[inline(always)]
fn same(one: &[u32; 4], other: &[u32; 4]) -> bool {
    (one[0] ^ other[0] | one[1] ^ other[1] | one[2] ^ other[2] | one[3] ^ other[3]) == 0
}

/// Makes the key one of a datagram's fragments, which have no ports.
#[inline(always)]
fn fragment_key(query: &mut Query) {
    query.key.protocol |= StateKey::FRAGMENT;
    query.key.local_port = query.identification as u16;
    query.key.remote_port = (query.identification >> 16) as u16;
}

/// Lets the further fragments of a datagram pass.
#[inline(never)]
fn remember_fragment(query: &mut Query, now: u32) -> u32 {
    fragment_key(query);
    query.state.seen = now;
    let _ = POLICY_FLOWS.insert(&query.key, &query.state, 0);
    0
}

/// Returns the verdict of a fragment without ports: that of the first one.
#[inline(always)]
fn fragment(query: &mut Query, endpoint: &Endpoint, now: u32, place: Place, direction: u32) -> u32 {
    let (local_port, remote_port) = (query.key.local_port, query.key.remote_port);
    fragment_key(query);
    if let Some(state) = POLICY_FLOWS.get_ptr(&query.key) {
        // SAFETY: the pointer leads to a value of the map; a word is read whole.
        let seen = unsafe { (&raw const (*state).seen).read_volatile() };
        if now.wrapping_sub(seen) <= idle::FRAGMENT {
            return ALLOW;
        }
    }
    query.key.protocol &= !StateKey::FRAGMENT;
    (query.key.local_port, query.key.remote_port) = (local_port, remote_port);
    // The first one was not seen, or did not pass. Between a pod and its node all fragments pass.
    let judged = query.judged;
    let rule = rule_for(query, endpoint, direction, &judged, 0);
    if rule == 0 || rule == EXEMPT { ALLOW } else { refuse(query, endpoint, place, direction) }
}

/// Counts and reports a packet that no policy allows.
#[inline(never)]
fn refuse(query: &mut Query, endpoint: &Endpoint, place: Place, direction: u32) -> u32 {
    let (counter, kind, name) = if endpoint.flags & endpoint_flag::CLOSED != 0 {
        (metric::POLICY_UNKNOWN, kind::POLICY_UNKNOWN, endpoint.pod)
    } else if direction == EGRESS {
        (metric::POLICY_EGRESS, kind::POLICY_EGRESS, endpoint.egress_name)
    } else {
        (metric::POLICY_INGRESS, kind::POLICY_INGRESS, endpoint.ingress_name)
    };
    maps::count(counter);
    let key = &query.key;
    let leaves = direction == EGRESS;
    // The ends of the packet.
    let (source_port, destination_port) =
        if leaves { (key.local_port, key.remote_port) } else { (key.remote_port, key.local_port) };
    let (source, destination) = if leaves { (&key.local, &key.remote) } else { (&key.remote, &key.local) };
    if query.version == 4 {
        query.ends4.source = source[0];
        query.ends4.destination = destination[0];
        query.ends4.source_port = source_port;
        query.ends4.destination_port = destination_port;
        query.ends4.protocol = key.protocol;
        event::emit::<V4>(kind, place, name, &query.ends4);
    } else {
        query.ends6.source = *source;
        query.ends6.destination = *destination;
        query.ends6.source_port = source_port;
        query.ends6.destination_port = destination_port;
        query.ends6.protocol = key.protocol;
        event::emit::<V6>(kind, place, name, &query.ends6);
    }
    DENY
}
