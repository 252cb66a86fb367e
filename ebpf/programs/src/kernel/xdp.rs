//! Packets between an uplink and backends on other nodes: they never reach the stack. Fragments, options,
//! control messages and SCTP are left to the programs behind it. The additions of direct server return are
//! made here too, see [`dsr`].

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use aya_ebpf::bindings::{bpf_fib_lookup, xdp_action, xdp_md};
use aya_ebpf::helpers::bpf_fib_lookup as fib_lookup;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use ebpf_common::event::hook;
use ebpf_common::flow::Flow;
use ebpf_common::{config_flag, metric, protocol};

use super::dsr;
use super::family::{Family, V4, V6};
use super::flow::{self, verdict};
use super::maps::{self, DEVICES};
use super::next_hop::{self, NextHop};
use super::packet::{
    self, Delta, ETHERNET, ETHERTYPE, IP, Packet, TCP_CHECK, TCP_HEADER, To, UDP_CHECK, UDP_HEADER,
};
use super::trace::{self, Fate};

#[xdp]
pub fn uplink_xdp(ctx: XdpContext) -> u32 {
    // SAFETY: the context is the one that the kernel gave.
    trace::packet_begins(|| flow::place(hook::XDP, unsafe { (*ctx.ctx).ingress_ifindex }));
    let (data, end) = bounds(ctx.ctx);
    if data + ETHERNET > end {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: compared with the end just above.
    let action = match unsafe { packet::load::<u16>(data, ETHERTYPE) } {
        V4::ETHERTYPE => run::<V4>(ctx.ctx, data, end),
        V6::ETHERTYPE => run6(ctx.ctx),
        _ => xdp_action::XDP_PASS,
    };
    trace::packet_ends(match action {
        xdp_action::XDP_DROP => Fate::Dropped,
        xdp_action::XDP_PASS => Fate::Passed,
        _ => Fate::Sent,
    });
    action
}

/// Handles a packet of IPv6. A separate function, so that the stack of IPv4 does not have to hold it.
#[inline(never)]
fn run6(ctx: *mut xdp_md) -> u32 {
    let (data, end) = bounds(ctx);
    run::<V6>(ctx, data, end)
}

#[inline(always)]
fn run<F: Family>(ctx: *mut xdp_md, data: usize, end: usize) -> u32 {
    let mut packet = MaybeUninit::uninit();
    // SAFETY: read only after the parser has written it.
    let packet: &mut Packet<F::Address> = unsafe { &mut *packet.as_mut_ptr() };
    if !packet::parse_plain::<F>(data, end, packet) || packet.hops <= 1 {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: the context is the one that the kernel gave.
    let ifindex = unsafe { (*ctx).ingress_ifindex };
    let mut to = MaybeUninit::uninit();
    // SAFETY: read only after the decision has written it.
    let to: &mut To<F::Address> = unsafe { &mut *to.as_mut_ptr() };
    let (verdict, slot) = flow::decide_with_slot::<F>(packet, flow::place(hook::XDP, ifindex), to);
    match verdict {
        verdict::REWRITE if dsr::is_direct(to.flags) && dsr::needs_room(packet, to.flags) => {
            dsr::lift::<F>(ctx, packet, to)
        }
        verdict::REWRITE if F::VERSION == 4 => carry::<F>(ctx, packet, to, slot),
        verdict::REWRITE => carry_apart::<F>(ctx, packet, to),
        verdict::DROP => {
            trace::packet_decided::<F>(packet, to, verdict);
            xdp_action::XDP_DROP
        }
        _ => xdp_action::XDP_PASS,
    }
}

/// Returns the addresses of the packet's first byte and of the one after its last. Read again where they are
/// compared again: the verifier forgets the result of an earlier comparison, the compiler does not, and would
/// remove the second one.
#[inline(always)]
pub fn bounds(ctx: *mut xdp_md) -> (usize, usize) {
    // SAFETY: the context is the one that the kernel gave.
    unsafe {
        let data = (&raw const (*ctx).data).read_volatile() as usize;
        (data, (&raw const (*ctx).data_end).read_volatile() as usize)
    }
}

/// Handles a packet as [`carry`] does, with a stack of its own.
#[inline(never)]
fn carry_apart<F: Family>(ctx: *mut xdp_md, packet: &Packet<F::Address>, to: &To<F::Address>) -> u32 {
    carry::<F>(ctx, packet, to, None)
}

/// Rewrites a packet and sends it out; passes it to the stack, unchanged, if the next hop is not known.
#[inline(always)]
fn carry<F: Family>(
    ctx: *mut xdp_md,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    slot: Option<NonNull<Flow<F::Address>>>,
) -> u32 {
    let hop = match slot {
        Some(slot) => hop_at::<F>(ctx, packet, to, slot.as_ptr()),
        None => hop::<F>(ctx, packet, to),
    };
    let Some(hop) = hop else {
        trace::packet_decided::<F>(packet, to, verdict::REWRITE);
        return xdp_action::XDP_PASS;
    };
    trace::packet_decided::<F>(packet, to, verdict::REWRITE);
    let (data, end) = bounds(ctx);
    if !rewrite::<F>(data, end, packet, to, &hop, IP + F::HEADER) {
        return xdp_action::XDP_PASS;
    }
    leave(ctx, &hop)
}

/// Returns the next hop of the flow's packets, from the flow or the routing table.
#[inline(always)]
pub fn hop<F: Family>(ctx: *mut xdp_md, packet: &Packet<F::Address>, to: &To<F::Address>) -> Option<NextHop> {
    hop_at::<F>(ctx, packet, to, F::slot(to.slot)?)
}

/// Returns the next hop as [`hop`] does, of the flow in this slot.
#[inline(always)]
fn hop_at<F: Family>(
    ctx: *mut xdp_md,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    slot: *mut Flow<F::Address>,
) -> Option<NextHop> {
    let hop = next_hop::of(slot, &to.destination);
    if hop.is_for_xdp() {
        return Some(hop);
    }
    if !find_hop::<F>(ctx, packet.key.protocol, to, slot) {
        return None;
    }
    let hop = next_hop::of(slot, &to.destination);
    hop.is_for_xdp().then_some(hop)
}

/// Sends a finished packet.
#[inline(always)]
pub fn leave(ctx: *mut xdp_md, hop: &NextHop) -> u32 {
    // SAFETY: the context is the one that the kernel gave.
    if hop.ifindex == unsafe { (*ctx).ingress_ifindex } {
        maps::count(metric::XDP_TRANSMITTED);
        return xdp_action::XDP_TX;
    }
    maps::count(metric::XDP_REDIRECTED);
    DEVICES.redirect(hop.ifindex, 0).unwrap_or(xdp_action::XDP_DROP)
}

/// Looks up the route and the neighbour, and stores them in the flow for the rest of the tick.
#[inline(never)]
fn find_hop<F: Family>(
    ctx: *mut xdp_md,
    number: u32,
    to: &To<F::Address>,
    slot: *mut Flow<F::Address>,
) -> bool {
    // SAFETY: the context is the one that the kernel gave; the query lives on the stack for the
    // length of the call; the callers give a slot.
    unsafe {
        let ingress = (*ctx).ingress_ifindex;
        let mut query = MaybeUninit::uninit();
        let query = packet::fib_query::<F>(&mut query, number as u8, to, ingress);
        let answer = fib_lookup(ctx.cast(), query, size_of::<bpf_fib_lookup>() as i32, 0);
        if answer != 0 || query.family != F::AF {
            return false;
        }
        let may_redirect = maps::config().is_some_and(|config| config.flags & config_flag::XDP_REDIRECT != 0);
        if query.ifindex != ingress && !(may_redirect && DEVICES.get_ifindex(query.ifindex).is_some()) {
            return false;
        }
        next_hop::keep(slot, &to.destination, query, true);
    }
    true
}

/// Rewrites addresses, ports, checksums, remaining hops, and the link header; `l4` is the offset of the
/// transport header.
#[inline(always)]
pub fn rewrite<F: Family>(
    data: usize,
    end: usize,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    hop: &NextHop,
    l4: usize,
) -> bool {
    let delta = Delta::new(&packet.key, to);
    let change = packet::fold32(delta.addresses) + delta.ports;
    if data + l4 + UDP_HEADER > end {
        return false;
    }
    if packet.protocol() == protocol::TCP {
        if data + l4 + TCP_HEADER > end {
            return false;
        }
        // SAFETY: compared with the end just above.
        unsafe {
            let check = packet::adjusted(packet::load(data, l4 + TCP_CHECK), change);
            packet::store(data, l4 + TCP_CHECK, check);
        }
    } else {
        // SAFETY: compared with the end above.
        unsafe {
            let check: u16 = packet::load(data, l4 + UDP_CHECK);
            if check != 0 {
                let check = packet::adjusted(check, change);
                packet::store(data, l4 + UDP_CHECK, if check == 0 { 0xffff } else { check });
            }
        }
    }
    // SAFETY: compared with the end above.
    unsafe {
        packet::store(data, 0, hop.link[0]);
        packet::store(data, 4, hop.link[1]);
        packet::store(data, 8, hop.link[2]);
        packet::rewrite_ip::<F>(data, to, delta.addresses, true);
        packet::store(data, l4, packet::ports(to.source_port, to.destination_port));
    }
    true
}
