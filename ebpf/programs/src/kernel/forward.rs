//! Packets between pods of the cluster that nothing translates: they go to the next hop without the stack, as
//! translated ones do.
//!
//! Forwarding by the stack costs more than everything that these programs do with such a packet. What the routing
//! table says of a destination is kept for the rest of a tick, see [`Hop`]. The stack gets the packets that it has to
//! answer (hops used up, too big, no route), and those that are rare: fragments, options, control messages.
//!
//! Both ends are pods of the cluster, so that no packet filter of others is known to translate them; nodes on which
//! there may be one have [`config_flag::THROUGH_STACK`]. The interface by which the packet leaves judges policies and
//! bandwidth of its pod, and translates replies, as it does for packets of the stack.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM, bpf_fib_lookup, bpf_redir_neigh};
use aya_ebpf::helpers::{
    bpf_fib_lookup as fib_lookup, bpf_redirect, bpf_redirect_neigh, bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use ebpf_common::{Config, config_flag, limits, metric, protocol};

use super::atomic;
use super::family::{Address as _, Family, V4, V6};
use super::flow::Place;
use super::maps::{self, MASQUERADE, NEXT_HOPS};
use super::masquerade::Outside as _;
use super::packet::{self, ETHERNET, IP, IP_CHECK, Packet, Part, TCP_HEADER, UDP_HEADER};
use super::tcx::NEXT;
use super::trace;

/// The routing table's answer for one destination. A destination has one place in the map: one that shares it with
/// another is looked up anew whenever the other was there.
#[repr(C, align(64))]
pub struct Hop {
    /// Odd while the element is written, by the processor that has made it so.
    version: u32,
    /// The interface; 0 if the stack gets the packets.
    ifindex: u32,
    /// Tick in which the answer was given, and is valid.
    seen: u32,
    /// Largest packet that the route takes, without link header, in bytes.
    mtu: u32,
    destination: [u32; 4],
    /// Both link addresses, in the form of packets.
    link: [u32; 3],
    family: u32,
}

/// A copy of what [`Hop`] says.
#[derive(Clone, Copy)]
struct Way {
    ifindex: u32,
    mtu: u32,
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
    // SAFETY: the context is the one that the kernel gave. A packet of a virtual LAN is its interface's, which comes next.
    let tagged = unsafe { (*skb).vlan_present } != 0;
    if between_pods && !tagged && is_on(config) && is_plain::<F>(packet) {
        F::forward(skb, packet, place)
    } else {
        NEXT
    }
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

/// Sends a packet to its next hop.
#[inline(always)]
fn send<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, place: Place) -> i32 {
    let Some(slot) = slot::<F>(packet) else {
        return NEXT;
    };
    let now = maps::tick();
    match known::<F>(slot, packet, now) {
        Some(way) => {
            if way.ifindex == 0 || way.ifindex == place >> 8 || !fits::<F>(skb, packet, way.mtu) {
                return NEXT;
            }
            if !count_hop::<F>(skb) || !address(skb, &way.link) {
                return NEXT;
            }
            maps::count(metric::TCX_REDIRECTED);
            trace::way(way.ifindex);
            // SAFETY: takes numbers.
            unsafe { bpf_redirect(way.ifindex, 0) as i32 }
        }
        None => ask::<F>(skb, packet, place, slot, now),
    }
}

/// Returns the place of a packet's destination in the map.
#[inline(always)]
fn slot<F: Family>(packet: &Packet<F::Address>) -> Option<*mut Hop> {
    const _: () = assert!(limits::NEXT_HOPS.is_power_of_two());
    let hash = packet.key.destination.fold().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    NEXT_HOPS.get_ptr_mut((hash >> 32) as u32 & (limits::NEXT_HOPS - 1))
}

/// Returns what was found for a packet's destination in this tick.
#[inline(always)]
fn known<F: Family>(slot: *const Hop, packet: &Packet<F::Address>, now: u32) -> Option<Way> {
    // SAFETY: the callers give an element of the map; words are read whole.
    unsafe {
        let version = (&raw const (*slot).version).read_volatile();
        let link = (&raw const (*slot).link).cast::<u32>();
        let way = Way {
            ifindex: (&raw const (*slot).ifindex).read_volatile(),
            mtu: (&raw const (*slot).mtu).read_volatile(),
            link: [link.read_volatile(), link.add(1).read_volatile(), link.add(2).read_volatile()],
        };
        let valid = version & 1 == 0
            && (&raw const (*slot).seen).read_volatile() == now
            && (&raw const (*slot).family).read_volatile() == F::VERSION as u32
            && leads_to(slot, &packet.key.destination.words())
            && (&raw const (*slot).version).read_volatile() == version;
        valid.then_some(way)
    }
}

/// # Safety
/// `slot` must lead to an element of the map.
#[inline(always)]
unsafe fn leads_to(slot: *const Hop, destination: &[u32; 4]) -> bool {
    // SAFETY: by the contract of this function.
    unsafe {
        let words = (&raw const (*slot).destination).cast::<u32>();
        let low = words.read_volatile() ^ destination[0] | words.add(1).read_volatile() ^ destination[1];
        let high =
            words.add(2).read_volatile() ^ destination[2] | words.add(3).read_volatile() ^ destination[3];
        low | high == 0
    }
}

/// Asks the routing table, for this packet and the further ones of the tick. This one leaves by the neighbour, so that
/// the kernel goes on checking whether that is still there.
#[inline(always)]
fn ask<F: Family>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    place: Place,
    slot: *mut Hop,
    now: u32,
) -> i32 {
    let mut query = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let query: &mut bpf_fib_lookup = unsafe { packet::cleared(&mut query) };
    query.family = F::AF;
    query.l4_protocol = packet.protocol();
    query.sport = packet.key.source_port;
    query.dport = packet.key.destination_port;
    query.ifindex = place >> 8;
    query.__bindgen_anon_3.ipv6_src = packet.key.source.words();
    query.__bindgen_anon_4.ipv6_dst = packet.key.destination.words();
    // A length makes the kernel answer with the route's MTU.
    query.__bindgen_anon_1.tot_len = 1;
    // SAFETY: the context is the one that the kernel gave; the query lives on the stack for the length of the call.
    let answer = unsafe { fib_lookup(skb.cast(), query, size_of::<bpf_fib_lookup>() as i32, 0) };
    let ifindex =
        if answer == 0 && query.family == F::AF && query.ifindex != place >> 8 { query.ifindex } else { 0 };
    // SAFETY: the kernel has written the member if there is a route.
    let mtu = unsafe { query.__bindgen_anon_1.mtu_result } as u32;
    keep::<F>(slot, packet, query, ifindex, mtu, now);
    if ifindex == 0 || !fits::<F>(skb, packet, mtu) || !count_hop::<F>(skb) {
        return NEXT;
    }
    let mut neighbour = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let neighbour: &mut bpf_redir_neigh = unsafe { packet::cleared(&mut neighbour) };
    neighbour.nh_family = F::AF as u32;
    // SAFETY: the v4 address is the first word; the parameters live on the stack for the length of the call, and their
    // size is given.
    unsafe {
        neighbour.__bindgen_anon_1.ipv6_nh = query.__bindgen_anon_4.ipv6_dst;
        maps::count(metric::TCX_REDIRECTED);
        trace::way(ifindex);
        bpf_redirect_neigh(ifindex, neighbour, size_of::<bpf_redir_neigh>() as i32, 0) as i32
    }
}

/// Stores an answer, unless another processor is storing one.
#[inline(always)]
fn keep<F: Family>(
    slot: *mut Hop,
    packet: &Packet<F::Address>,
    answer: &bpf_fib_lookup,
    ifindex: u32,
    mtu: u32,
    now: u32,
) {
    let (neighbour, own) = (answer.dmac, answer.smac);
    let half = |bytes: [u8; 6], at: usize| bytes[at] as u32 | (bytes[at + 1] as u32) << 8;
    let destination = packet.key.destination.words();
    // SAFETY: the callers give an element of the map. Of those that find the same version, one makes it odd.
    unsafe {
        let version = &raw mut (*slot).version;
        let before = version.read_volatile();
        if before & 1 != 0 || atomic::exchange_if(version, before, before.wrapping_add(1)) != before {
            return;
        }
        (&raw mut (*slot).ifindex).write_volatile(ifindex);
        (&raw mut (*slot).mtu).write_volatile(mtu);
        (&raw mut (*slot).seen).write_volatile(now);
        (&raw mut (*slot).family).write_volatile(F::VERSION as u32);
        let words = (&raw mut (*slot).destination).cast::<u32>();
        for (at, word) in destination.into_iter().enumerate() {
            words.add(at).write_volatile(word);
        }
        let link = (&raw mut (*slot).link).cast::<u32>();
        link.write_volatile(half(neighbour, 0) | half(neighbour, 2) << 16);
        link.add(1).write_volatile(half(neighbour, 4) | half(own, 0) << 16);
        link.add(2).write_volatile(half(own, 2) | half(own, 4) << 16);
        atomic::exchange(version, before.wrapping_add(2));
    }
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

/// Defines a function that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $address:ty, $name:ident) => {
        /// Calls [`send`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(skb: *mut __sk_buff, packet: *const Packet<$address>, place: Place) -> i32 {
            // SAFETY: null, or the caller's.
            unsafe { packet.as_ref() }.map_or(NEXT, |packet| send::<$family>(skb, packet, place))
        }
    };
}

once!(V4, u32, forward4);
once!(V6, [u32; 4], forward6);
