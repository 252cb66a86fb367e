//! Packets on interfaces: those that no local socket made, and the stack's answers to them.
//!
//! Rewritten packets bypass the stack if the routing table has a route: the stack would refuse a packet from
//! one of its own addresses, such as a reply through a node's address. So do packets between pods, see
//! [`super::forward`].
//!
//! Rewritten packets are marked in `tc_index`, which the stack keeps and does not use: no interface on their
//! way out translates them a second time. See [`index`].

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, bpf_fib_lookup, bpf_redir_neigh,
};
use aya_ebpf::helpers::{
    bpf_fib_lookup as fib_lookup, bpf_l4_csum_replace, bpf_redirect, bpf_redirect_neigh, bpf_skb_pull_data,
    bpf_skb_store_bytes,
};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use ebpf_common::event::{hook, kind};
use ebpf_common::flow::flow_flag;
use ebpf_common::{config_flag, metric, protocol};

use super::family::{Address as _, Family, V4, V6};
use super::flow::{self, Place, verdict};
use super::next_hop::{self, NextHop};
use super::packet::{self, Delta, ETHERNET, IP, Packet, Part, To};
use super::read::{self, kind as read_kind};
use super::trace::Fate;
use super::{bandwidth, dsr, forward, fragment, icmp, maps, masquerade, policy, sctp, trace};

/// Passes the packet to the next program, or the stack.
pub const NEXT: i32 = -1;
pub const DROP: i32 = 2;

/// Looks up the route without the neighbour's address; bpf_redirect_neigh does that.
const FIB_LOOKUP_SKIP_NEIGH: u32 = 4;
/// The answer that there is a route, and that the neighbour's address is not known.
const FIB_LOOKUP_NO_NEIGHBOUR: i32 = 7;

/// Bits of `tc_index` that these programs use.
pub mod index {
    /// The packet has been translated on this node.
    pub const TRANSLATED: u32 = 0x4000;
}

#[classifier]
pub fn uplink_ingress(ctx: TcContext) -> i32 {
    match ethertype(&ctx) {
        V4::ETHERTYPE => incoming::<V4>(&ctx, hook::UPLINK),
        V6::ETHERTYPE => incoming::<V6>(&ctx, hook::UPLINK),
        _ => NEXT,
    }
}

#[classifier]
pub fn pod_ingress(ctx: TcContext) -> i32 {
    if !bandwidth::may_leave(&ctx) {
        return DROP;
    }
    match ethertype(&ctx) {
        V4::ETHERTYPE => incoming::<V4>(&ctx, hook::POD),
        V6::ETHERTYPE => incoming::<V6>(&ctx, hook::POD),
        _ => NEXT,
    }
}

/// Translates replies that reached the stack untranslated: of a backend that shares the node's addresses, of
/// one behind an interface without programs, or of one whose packets go through the stack; and packets of pods
/// that leave the cluster by way of the stack.
#[classifier]
pub fn egress(ctx: TcContext) -> i32 {
    match ethertype(&ctx) {
        V4::ETHERTYPE => admitted::<V4>(&ctx),
        V6::ETHERTYPE => admitted::<V6>(&ctx),
        _ => NEXT,
    }
}

/// Handles a packet that goes out, if it may reach the pod behind the interface.
#[inline(always)]
fn admitted<F: Family>(ctx: &TcContext) -> i32 {
    let action = leaving::<F>(ctx);
    if action != NEXT {
        return action;
    }
    if policy::is_on() && policy::may_arrive::<F>(ctx.skb.skb) == 0 {
        return DROP;
    }
    // Packets that no policy allows take nothing of the pod's bandwidth.
    if bandwidth::may_arrive::<F>(ctx) { NEXT } else { DROP }
}

/// Handles a packet that goes out.
#[inline(always)]
fn leaving<F: Family>(ctx: &TcContext) -> i32 {
    if read::is_control::<F>(ctx) {
        let answer = icmp::egress::<F>(ctx.skb.skb);
        if answer != icmp::AS_PACKET {
            return answer;
        }
    }
    outgoing::<F>(ctx.skb.skb)
}

/// Returns the packet's network protocol, in the form of packets.
#[inline(always)]
fn ethertype(ctx: &TcContext) -> u16 {
    // SAFETY: the context is the one that the kernel gave.
    unsafe { (*ctx.skb.skb).protocol as u16 }
}

/// Handles a packet that came in.
#[inline(always)]
fn incoming<F: Family>(ctx: &TcContext, hook: u8) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: the context is the one that the kernel gave.
    let place = unsafe {
        let index = (&raw const (*skb).tc_index).read_volatile();
        // A mark of another network namespace.
        if index & index::TRANSLATED != 0 {
            (&raw mut (*skb).tc_index).write_volatile(index & !index::TRANSLATED);
        }
        flow::place(hook, (*skb).ifindex)
    };
    if read::is_control::<F>(ctx) {
        let answer = icmp::ingress::<F>(skb, place);
        if answer != icmp::AS_PACKET {
            return answer;
        }
    } else if hook == hook::UPLINK && dsr::may_be_direct::<F>(ctx) {
        let answer = dsr::receive::<F>(skb, place);
        if answer != dsr::ABSENT {
            return answer;
        }
    }
    ingress::<F>(skb, place)
}

/// Handles a packet that came in and is no control message but an echo request or reply.
#[inline(never)]
fn ingress<F: Family>(skb: *mut __sk_buff, place: Place) -> i32 {
    let ctx = TcContext::new(skb);
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    let mut to = MaybeUninit::uninit();
    // SAFETY: read only after a decision has written it.
    let to: &mut To<F::Address> = unsafe { &mut *to.as_mut_ptr() };
    let kind = read::packet::<F>(&ctx, packet);
    if kind != read_kind::BALANCED && !policy::may_leave_unread::<F>(packet, kind, place) {
        return DROP;
    }
    if kind == read_kind::LATER {
        return fragment::ingress::<F>(skb, packet, place, to);
    }
    if kind != read_kind::BALANCED {
        return NEXT;
    }
    if packet.part == Part::First && fragment::lead::<F>(skb, packet) {
        return DROP;
    }
    trace::packet_begins(|| place);
    let found = flow::decide::<F>(packet, place, to);
    trace::packet_decided::<F>(packet, to, found);
    let action = match found {
        verdict::PASS | verdict::REWRITE if !policy::may_leave::<F>(packet, found, to, place) => DROP,
        verdict::REWRITE => F::carry(skb, packet, to, place),
        verdict::DROP => DROP,
        verdict::REFUSE => F::refuse(skb, packet),
        _ => forward::forward::<F>(skb, packet, place),
    };
    trace::packet_ends(if action == DROP { Fate::Dropped } else { Fate::Carried });
    action
}

#[inline(never)]
fn outgoing<F: Family>(skb: *mut __sk_buff) -> i32 {
    let ctx = TcContext::new(skb);
    // SAFETY: the context is the one that the kernel gave.
    let place = unsafe {
        if (&raw const (*skb).tc_index).read_volatile() & index::TRANSLATED != 0 {
            return NEXT;
        }
        flow::place(hook::EGRESS, (*skb).ifindex)
    };
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    let mut to = MaybeUninit::uninit();
    // SAFETY: read only after a decision has written it.
    let to: &mut To<F::Address> = unsafe { &mut *to.as_mut_ptr() };
    match read::packet::<F>(&ctx, packet) {
        read_kind::BALANCED => {}
        read_kind::LATER if fragment::recall::<F>(packet) => {}
        _ => return NEXT,
    }
    if packet.part == Part::First {
        fragment::remember::<F>(packet);
    }
    trace::packet_begins(|| place);
    let found = flow::decide_known::<F>(packet, place, true, to);
    trace::packet_decided::<F>(packet, to, found);
    if found == verdict::REWRITE {
        if !F::rewrite(skb, packet, to, false) {
            trace::packet_ends(Fate::Dropped);
            return DROP;
        }
        mark(skb);
    }
    trace::packet_ends(Fate::Carried);
    NEXT
}

/// Marks a packet as translated.
#[inline(always)]
pub fn mark(skb: *mut __sk_buff) {
    // SAFETY: the callers give the context that the kernel gave.
    unsafe {
        let place = &raw mut (*skb).tc_index;
        place.write_volatile(place.read_volatile() | index::TRANSLATED);
    }
}

/// Defines functions that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $address:ty, $carry:ident, $rewrite:ident) => {
        /// Calls [`carry`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $carry(
            skb: *mut __sk_buff,
            packet: *const Packet<$address>,
            to: *const To<$address>,
            place: Place,
        ) -> i32 {
            // SAFETY: null, or the caller's.
            match unsafe { (packet.as_ref(), to.as_ref()) } {
                (Some(packet), Some(to)) => carry::<$family>(skb, packet, to, place),
                _ => DROP,
            }
        }

        /// Calls [`rewrite`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $rewrite(
            skb: *mut __sk_buff,
            packet: *const Packet<$address>,
            to: *const To<$address>,
            hop: u32,
        ) -> u32 {
            // SAFETY: null, or the caller's.
            match unsafe { (packet.as_ref(), to.as_ref()) } {
                (Some(packet), Some(to)) => rewrite::<$family>(skb, packet, to, hop != 0) as u32,
                _ => 0,
            }
        }
    };
}

once!(V4, u32, carry4, rewrite4);
once!(V6, [u32; 4], carry6, rewrite6);

/// Rewrites a packet and sends it on its way.
#[inline(always)]
fn carry<F: Family>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    place: Place,
) -> i32 {
    if dsr::is_direct(to.flags) {
        return dsr::send::<F>(skb, packet, to, place);
    }
    let stack = goes_through_stack::<F>(packet, to);
    if stack && is_translated_later::<F>(packet, to) {
        // The stack sees the reply to the packet that it has seen; the interface by which the reply leaves
        // translates it.
        return NEXT;
    }
    let goes_on = packet.hops > 1 && !stack;
    let hop = match F::slot(to.slot) {
        Some(slot) if goes_on => next_hop::of(slot, &to.destination),
        _ => NextHop { ifindex: 0, link: [0; 3] },
    };
    let mut neighbour = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let neighbour = unsafe { packet::cleared(&mut neighbour) };
    let mut ifindex = hop.interface();
    if ifindex == 0 && goes_on {
        ifindex = find_way::<F>(skb, packet.key.protocol, to, true, neighbour);
    }
    if ifindex == 0 && masquerade::is_plain::<F>(packet, to) {
        // The stack says why it goes no further, or cuts it into fragments.
        maps::count(metric::TCX_TO_STACK);
        return NEXT;
    }
    if !F::rewrite(skb, packet, to, ifindex != 0) {
        maps::count(metric::MALFORMED);
        flow::emit_event::<F>(kind::MALFORMED, place, 0, packet);
        return DROP;
    }
    if hop.interface() != 0 { send_by(skb, &hop) } else { depart(skb, ifindex, neighbour) }
}

/// Sends a rewritten packet to the next hop in its flow.
#[inline(always)]
fn send_by(skb: *mut __sk_buff, hop: &NextHop) -> i32 {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + ETHERNET > end {
        return DROP;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        packet::store(data, 0, hop.link[0]);
        packet::store(data, 4, hop.link[1]);
        packet::store(data, 8, hop.link[2]);
    }
    mark(skb);
    maps::count(metric::TCX_REDIRECTED);
    trace::way(hop.interface());
    // SAFETY: takes numbers.
    unsafe { bpf_redirect(hop.interface(), 0) as i32 }
}

/// Returns `true` if packet filters of others are to see the flow, and no address of this node takes part in
/// it, which the stack would take for its own.
#[inline(always)]
fn goes_through_stack<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>) -> bool {
    if !maps::config().is_some_and(|config| config.flags & config_flag::THROUGH_STACK != 0) {
        return false;
    }
    if to.flags & flow_flag::REVERSE as u32 != 0 {
        // A reply from outside the cluster is translated before the stack sees it.
        is_masqueraded_reply::<F>(packet, to)
            || to.destination.same(&packet.key.destination)
                && to.destination_port == packet.key.destination_port
    } else if masquerade::is_plain::<F>(packet, to) {
        true
    } else {
        to.source.same(&packet.key.source) && to.source_port == packet.key.source_port
    }
}

/// Returns `true` if a packet that goes through the stack is translated where it leaves.
#[inline(always)]
fn is_translated_later<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>) -> bool {
    if to.flags & flow_flag::REVERSE as u32 != 0 {
        !is_masqueraded_reply::<F>(packet, to)
    } else {
        masquerade::is_plain::<F>(packet, to)
    }
}

/// Returns `true` for a reply to a flow that only replaces the source of packets that leave the cluster.
#[inline(always)]
fn is_masqueraded_reply<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>) -> bool {
    to.flags & flow_flag::MASQUERADE as u32 != 0 && to.source.same(&packet.key.source)
}

/// Sends a rewritten packet past the stack if there is a route, else to the stack.
#[inline(always)]
pub fn depart(skb: *mut __sk_buff, ifindex: u32, neighbour: &mut bpf_redir_neigh) -> i32 {
    mark(skb);
    if ifindex == 0 {
        maps::count(metric::TCX_TO_STACK);
        return NEXT;
    }
    maps::count(metric::TCX_REDIRECTED);
    trace::way(ifindex);
    // SAFETY: the parameters live on the stack for the length of the call, and their size is given.
    unsafe { bpf_redirect_neigh(ifindex, neighbour, size_of::<bpf_redir_neigh>() as i32, 0) as i32 }
}

/// Returns interface and next hop of a packet; 0 if it ends on this node, or has no route.
#[inline(always)]
pub fn way<F: Family>(
    skb: *mut __sk_buff,
    number: u32,
    to: &To<F::Address>,
    neighbour: &mut bpf_redir_neigh,
) -> u32 {
    find_way::<F>(skb, number, to, false, neighbour)
}

/// Returns interface and next hop of a flow; 0 if it ends on this node, or has no route. With `keep` further
/// packets of this tick get it from the flow. The first packet leaves by the neighbour, so that the kernel
/// goes on checking whether that is still there.
#[inline(never)]
fn find_way<F: Family>(
    skb: *mut __sk_buff,
    number: u32,
    to: &To<F::Address>,
    keep: bool,
    neighbour: &mut bpf_redir_neigh,
) -> u32 {
    // SAFETY: the context is the one that the kernel gave; the parameters live on the stack for
    // the length of the call.
    unsafe {
        let mut query = MaybeUninit::uninit();
        let query = packet::fib_query::<F>(&mut query, number as u8, to, (*skb).ifindex);
        let length = size_of::<bpf_fib_lookup>() as i32;
        let flags = if keep { 0 } else { FIB_LOOKUP_SKIP_NEIGH };
        let answer = fib_lookup(skb.cast(), query, length, flags) as i32;
        if answer != 0 && answer != FIB_LOOKUP_NO_NEIGHBOUR || query.family != F::AF {
            return 0;
        }
        if keep
            && answer == 0
            && let Some(slot) = F::slot(to.slot)
        {
            next_hop::keep(slot, &to.destination, query, false);
        }
        neighbour.nh_family = F::AF as u32;
        // The v4 address is the first word.
        neighbour.__bindgen_anon_1.ipv6_nh = query.__bindgen_anon_4.ipv6_dst;
        query.ifindex
    }
}

/// Rewrites the packet to the flow's other side, with valid checksums; returns `false` if that is not
/// possible.
#[inline(always)]
fn rewrite<F: Family>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    hop: bool,
) -> bool {
    let delta = Delta::new(&packet.key, to);
    let new = packet::ports(to.source_port, to.destination_port);
    let old = packet::ports(packet.key.source_port, packet.key.destination_port);
    if packet.part != Part::Later {
        if packet.protocol() == protocol::SCTP {
            if old != new && !change_sctp::<F>(skb, packet, old, new) {
                return false;
            }
        } else if packet.protocol() == F::ICMP {
            if !change_echo::<F>(skb, packet, to, &delta) {
                return false;
            }
        } else if !change_transport(skb, packet, &delta, old, new) {
            return false;
        }
    }
    if F::VERSION == 4 {
        let ctx = TcContext::new(skb);
        let (data, end) = (ctx.data(), ctx.data_end());
        if data + IP + F::HEADER > end {
            return false;
        }
        // SAFETY: compared with the end just above.
        unsafe { packet::rewrite_ip::<F>(data, to, delta.addresses, hop) };
        return true;
    }
    rewrite_header6::<F>(skb, to, hop)
}

/// Changes ports and checksum of SCTP, which depends on the length of the whole datagram.
#[inline(always)]
fn change_sctp<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, old: u32, new: u32) -> bool {
    let length = if packet.part == Part::Whole {
        // SAFETY: the context is the one that the kernel gave.
        unsafe { (*skb).len }.wrapping_sub(packet.l4)
    } else {
        fragment::length::<F>(packet)
    };
    length != 0 && sctp::change_ports(skb, packet.l4, length, old, new)
}

/// Changes checksum and identifier of an echo request or reply.
#[inline(always)]
fn change_echo<F: Family>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    delta: &Delta,
) -> bool {
    let check = packet.l4 + icmp::CHECK as u32;
    // One of the two is zero.
    let old = packet.key.source_port | packet.key.destination_port;
    let new = to.source_port | to.destination_port;
    // SAFETY: the context is the one that the kernel gave. The helpers check offsets.
    unsafe {
        // For IPv4 the checksum does not cover the addresses.
        if F::VERSION == 6
            && bpf_l4_csum_replace(skb, check, 0, packet::fold32(delta.addresses), BPF_F_PSEUDO_HDR as u64)
                != 0
        {
            return false;
        }
        let place = packet.l4 + icmp::IDENTIFIER as u32;
        bpf_l4_csum_replace(skb, check, old as u64, new as u64, 2) == 0
            && bpf_skb_store_bytes(skb, place, (&raw const new).cast(), 2, 0) == 0
    }
}

/// Changes transport checksum and ports.
#[inline(always)]
fn change_transport<A>(skb: *mut __sk_buff, packet: &Packet<A>, delta: &Delta, old: u32, new: u32) -> bool {
    let check = packet.check_offset();
    // A datagram without a checksum stays without one.
    let mangled = if packet.protocol() == protocol::UDP { BPF_F_MARK_MANGLED_0 as u64 } else { 0 };
    let addresses = packet::fold32(delta.addresses);
    // SAFETY: the context is the one that the kernel gave; the helpers check offsets. They know
    // which part of the checksum the device or the stack has yet to fill in.
    unsafe {
        if bpf_l4_csum_replace(skb, check, 0, addresses, BPF_F_PSEUDO_HDR as u64 | mangled) != 0 {
            return false;
        }
        if old == new {
            return true;
        }
        bpf_l4_csum_replace(skb, check, old as u64, new as u64, 4 | mangled) == 0
            && bpf_skb_store_bytes(skb, packet.l4, (&raw const new).cast(), 4, 0) == 0
    }
}

/// Rewrites hop limit and addresses of IPv6, and the sum that a device may have computed over them: there is
/// no checksum in the header that compensates for them.
#[inline(always)]
fn rewrite_header6<F: Family>(skb: *mut __sk_buff, to: &To<F::Address>, hop: bool) -> bool {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + F::HEADER > end {
        return false;
    }
    // Next header and hop limit, then both addresses.
    // SAFETY: compared with the end just above.
    let pair: [u8; 2] = unsafe { packet::load(data, IP + 6) };
    let first = (pair[0] as u32) << 16 | ((pair[1] - hop as u8) as u32) << 24;
    let (source, destination) = (to.source.words(), to.destination.words());
    let words = [
        first,
        source[0],
        source[1],
        source[2],
        source[3],
        destination[0],
        destination[1],
        destination[2],
        destination[3],
    ];
    const LENGTH: u32 = 34;
    // SAFETY: the buffer has two bytes before those that are stored, and lives on the stack.
    unsafe {
        let from = (&raw const words).cast::<u8>().add(2);
        let offset = (ETHERNET + 6) as u32;
        bpf_skb_store_bytes(skb, offset, from.cast(), LENGTH, BPF_F_RECOMPUTE_CSUM as u64) == 0
    }
}

/// Makes the first bytes of a packet linear in the buffer if necessary.
#[inline(always)]
pub fn pull(ctx: &TcContext, length: u32) {
    if ctx.data() + length as usize > ctx.data_end() {
        let length = if ctx.len() < length { ctx.len() } else { length };
        // SAFETY: the context is the one that the kernel gave. A refusal leaves the packet as it
        // was, and reading stops at its end.
        unsafe { bpf_skb_pull_data(ctx.skb.skb, length) };
    }
}
