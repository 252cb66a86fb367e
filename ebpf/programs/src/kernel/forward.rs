//! Packets between pods of the cluster that nothing translates: they go to the next hop without the stack, as
//! translated ones do.
//!
//! Forwarding by the stack costs more than everything that these programs do with such a packet. What the routing
//! table says of an address is kept for the rest of a tick, see [`Hop`]. The stack gets the packets that it has to
//! answer or to refuse (hops used up, too big, no route, a source that is not reached where the packet came from), and
//! those that are rare: fragments, options, control messages, marks of others.
//!
//! Both ends are in the cluster's ranges of pods, where no packet filter of others is known to translate them; nodes on
//! which pods are others' have [`config_flag::THROUGH_STACK`]. The interface by which the packet leaves judges policies
//! and bandwidth of its pod, and translates replies, as it does for packets of the stack.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM, bpf_fib_lookup, bpf_redir_neigh};
use aya_ebpf::helpers::{
    bpf_fib_lookup as fib_lookup, bpf_redirect, bpf_redirect_neigh, bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use ebpf_common::{Config, config_flag, limits, metric, protocol};

use super::family::{Address as _, Family, V4, V6};
use super::flow::Place;
use super::maps::{self, MASQUERADE, NEXT_HOPS};
use super::masquerade::Outside as _;
use super::packet::{self, ETHERNET, IP, IP_CHECK, Packet, Part, TCP_HEADER, UDP_HEADER};
use super::tcx::{DROP, NEXT};
use super::trace;

/// The routing table's answer for one address and packets of one interface, on one processor. Each has one place in
/// the map: one that shares it with another is looked up anew whenever the other was there.
#[repr(C, align(64))]
pub struct Hop {
    address: [u32; 4],
    /// 4 or 6.
    family: u32,
    /// The interface by which packets come that ask.
    from: u32,
    /// Tick in which the answer was given, and is valid.
    seen: u32,
    way: Way,
    /// Address of the neighbour to which packets go.
    neighbour: [u32; 4],
}

/// The way to an address.
#[derive(Clone, Copy)]
#[repr(C)]
struct Way {
    /// The interface; 0 if the stack gets the packets.
    ifindex: u32,
    /// Largest packet that the interface takes, without link header, in bytes.
    mtu: u32,
    /// Both link addresses, in the form of packets.
    link: [u32; 3],
}

/// Sends a packet that nothing translates on its way, if it is one between pods; else leaves it to the stack.
#[inline(always)]
pub fn forward<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, place: Place) -> i32 {
    let (Some(config), Some(settings)) = (maps::config(), MASQUERADE.get(0)) else {
        return NEXT;
    };
    let between_pods =
        packet.key.destination.is_in_cluster(settings) && packet.key.source.is_in_cluster(settings);
    if between_pods && is_on(config) && is_plain::<F>(packet) && is_ours(skb) {
        F::forward(skb, packet, place)
    } else {
        NEXT
    }
}

/// Returns `true` for a packet that is addressed to this host, belongs to no virtual LAN, whose interface sees it next,
/// and has no mark, by which others choose routes.
#[inline(always)]
fn is_ours(skb: *mut __sk_buff) -> bool {
    const PACKET_HOST: u32 = 0;
    // SAFETY: the context is the one that the kernel gave.
    unsafe { (*skb).pkt_type == PACKET_HOST && (*skb).vlan_present == 0 && (*skb).mark == 0 }
}

/// Returns `true` where these programs know the pods of the cluster, and nobody else translates packets.
#[inline(always)]
fn is_on(config: &Config) -> bool {
    const OTHERS: u32 =
        config_flag::THROUGH_STACK | config_flag::TRACKED | config_flag::SETTLING | config_flag::LEAVING;
    config.flags & (config_flag::MASQUERADE | OTHERS) == config_flag::MASQUERADE
}

/// Returns `true` for whole packets of TCP and UDP, without options.
#[inline(always)]
fn is_plain<F: Family>(packet: &Packet<F::Address>) -> bool {
    let number = packet.protocol();
    packet.l4 == (IP + F::HEADER) as u32
        && packet.part == Part::Whole
        && packet.hops > 1
        && (number == protocol::TCP || number == protocol::UDP)
}

/// Sends a packet to its next hop, if its source is reached by the interface that it came from.
#[inline(always)]
fn send<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, place: Place) -> i32 {
    let from = place >> 8;
    // Before the other end: both may have the same place.
    match way::<F>(skb, packet, from, End::Source) {
        Some((slot, _)) if slot.way.ifindex == from => {}
        _ => return NEXT,
    }
    let Some((slot, known)) = way::<F>(skb, packet, from, End::Destination) else {
        return NEXT;
    };
    let ifindex = slot.way.ifindex;
    if ifindex == 0 || ifindex == from || !fits::<F>(skb, packet, slot.way.mtu) || !count_hop::<F>(skb) {
        return NEXT;
    }
    maps::count(metric::TCX_REDIRECTED);
    trace::way(ifindex);
    if known {
        // SAFETY: takes numbers.
        return if address(skb, &slot.way.link) { unsafe { bpf_redirect(ifindex, 0) as i32 } } else { DROP };
    }
    // The first packet of a tick leaves by the neighbour, so that the kernel goes on checking whether that is still
    // there.
    let mut neighbour = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let neighbour: &mut bpf_redir_neigh = unsafe { packet::cleared(&mut neighbour) };
    neighbour.nh_family = F::AF as u32;
    // SAFETY: the v4 address is the first word; the parameters live on the stack for the length of the call, and their
    // size is given.
    unsafe {
        packet::copy(&raw const slot.neighbour, (&raw mut neighbour.__bindgen_anon_1.ipv6_nh).cast());
        bpf_redirect_neigh(ifindex, neighbour, size_of::<bpf_redir_neigh>() as i32, 0) as i32
    }
}

/// An end of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum End {
    Source = 0,
    Destination = 1,
}

impl End {
    #[inline(always)]
    fn of<A: Copy>(self, packet: &Packet<A>) -> &A {
        if self == Self::Source { &packet.key.source } else { &packet.key.destination }
    }
}

/// Returns the way to an end of a packet, and whether it was known already.
#[inline(always)]
fn way<F: Family>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    from: u32,
    end: End,
) -> Option<(&'static Hop, bool)> {
    const _: () = assert!(limits::NEXT_HOPS.is_power_of_two());
    let address = end.of(packet);
    let seed = maps::config()?.seed as u64;
    let hash = (address.fold() ^ seed << 32 ^ from as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let slot = NEXT_HOPS.get_ptr_mut((hash >> 32) as u32 & (limits::NEXT_HOPS - 1))?;
    // SAFETY: the element is this processor's own, and programs do not migrate.
    let known = unsafe { (*slot).is_about::<F>(address, from) };
    if !known {
        F::ask_way(skb, packet, from, end as u32, slot);
    }
    // SAFETY: as above.
    Some((unsafe { &*slot }, known))
}

impl Hop {
    /// Returns `true` for the answer about an address, if it is of this tick.
    #[inline(always)]
    fn is_about<F: Family>(&self, address: &F::Address, from: u32) -> bool {
        let words = address.words();
        let low = self.address[0] ^ words[0] | self.address[1] ^ words[1];
        let high = self.address[2] ^ words[2] | self.address[3] ^ words[3];
        low | high == 0 && self.family == F::VERSION as u32 && self.from == from && self.seen == maps::tick()
    }
}

/// Asks the routing table for the way to an end of a packet, and stores the answer.
#[inline(always)]
fn ask<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, from: u32, end: u32, hop: &mut Hop) {
    let (source, destination) = (packet.key.source.words(), packet.key.destination.words());
    let (near, far) = if end == End::Source as u32 { (destination, source) } else { (source, destination) };
    let mut query = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let query: &mut bpf_fib_lookup = unsafe { packet::cleared(&mut query) };
    query.family = F::AF;
    query.l4_protocol = packet.protocol();
    query.ifindex = from;
    query.__bindgen_anon_3.ipv6_src = near;
    query.__bindgen_anon_4.ipv6_dst = far;
    // A length makes the kernel answer with the MTU.
    query.__bindgen_anon_1.tot_len = 1;
    // SAFETY: the context is the one that the kernel gave; the query lives on the stack for the length of the call.
    let answer = unsafe { fib_lookup(skb.cast(), query, size_of::<bpf_fib_lookup>() as i32, 0) };
    let (neighbour, own) = (query.dmac, query.smac);
    let half = |bytes: [u8; 6], at: usize| bytes[at] as u32 | (bytes[at + 1] as u32) << 8;
    hop.address = far;
    hop.family = F::VERSION as u32;
    hop.from = from;
    hop.seen = maps::tick();
    hop.way.ifindex = if answer == 0 && query.family == F::AF { query.ifindex } else { 0 };
    // SAFETY: the kernel has written the members if there is a route.
    unsafe {
        hop.way.mtu = query.__bindgen_anon_1.mtu_result as u32;
        hop.neighbour = query.__bindgen_anon_4.ipv6_dst;
    }
    hop.way.link[0] = half(neighbour, 0) | half(neighbour, 2) << 16;
    hop.way.link[1] = half(neighbour, 4) | half(own, 0) << 16;
    hop.way.link[2] = half(own, 2) | half(own, 4) << 16;
}

/// Returns `true` if a packet, or each segment of it, is not larger than the route takes.
#[inline(always)]
fn fits<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, mtu: u32) -> bool {
    // SAFETY: the context is the one that the kernel gave.
    let (length, segment) = unsafe { ((*skb).len, (*skb).gso_size) };
    if segment == 0 {
        return length <= mtu + ETHERNET as u32;
    }
    // Large datagrams may contain further headers.
    if packet.protocol() != protocol::TCP {
        return false;
    }
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    let l4 = IP + F::HEADER;
    if data + l4 + TCP_HEADER > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    let offset: u8 = unsafe { packet::load(data, l4 + 12) };
    segment + (offset >> 4) as u32 * 4 + F::HEADER as u32 <= mtu
}

/// Counts one hop in the header; returns `false` if it cannot.
#[inline(always)]
fn count_hop<F: Family>(skb: *mut __sk_buff) -> bool {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + F::HEADER + UDP_HEADER > end {
        return false;
    }
    if F::VERSION == 4 {
        // SAFETY: compared with the end just above.
        unsafe {
            let change = packet::count_hop4(data);
            packet::store(data, IP_CHECK, packet::adjusted(packet::load(data, IP_CHECK), change));
        }
        return true;
    }
    // Next header and hop limit: a sum that the device has computed covers them.
    // SAFETY: compared with the end above; the pair lives on the stack for the length of the call.
    unsafe {
        let mut pair: [u8; 2] = packet::load(data, IP + 6);
        pair[1] = pair[1].wrapping_sub(1);
        bpf_skb_store_bytes(skb, (IP + 6) as u32, pair.as_ptr().cast(), 2, BPF_F_RECOMPUTE_CSUM as u64) == 0
    }
}

/// Writes both link addresses.
#[inline(always)]
fn address(skb: *mut __sk_buff, link: &[u32; 3]) -> bool {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + ETHERNET > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        packet::store(data, 0, link[0]);
        packet::store(data, 4, link[1]);
        packet::store(data, 8, link[2]);
    }
    true
}

/// Defines functions that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $address:ty, $send:ident, $ask:ident) => {
        /// Calls [`send`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $send(skb: *mut __sk_buff, packet: *const Packet<$address>, place: Place) -> i32 {
            // SAFETY: null, or the caller's.
            unsafe { packet.as_ref() }.map_or(NEXT, |packet| send::<$family>(skb, packet, place))
        }

        /// Calls [`ask`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $ask(
            skb: *mut __sk_buff,
            packet: *const Packet<$address>,
            from: u32,
            end: u32,
            hop: *mut Hop,
        ) -> u32 {
            // SAFETY: null, or the caller's.
            if let (Some(packet), Some(hop)) = unsafe { (packet.as_ref(), hop.as_mut()) } {
                ask::<$family>(skb, packet, from, end, hop);
            }
            0
        }
    };
}

once!(V4, u32, forward4, ask_way4);
once!(V6, [u32; 4], forward6, ask_way6);
