//! Packets on interfaces: what no local socket made, and what the stack answers to it.
//!
//! Whatever is rewritten leaves past the stack where the routing table has a way: the stack would
//! refuse a packet from one of its own addresses, which is what a reply through a node's address is.

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, bpf_fib_lookup, bpf_redir_neigh};
use aya_ebpf::helpers::{
    bpf_fib_lookup as fib_lookup, bpf_l4_csum_replace, bpf_redirect_neigh, bpf_skb_pull_data,
};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use ebpf_common::flow::Flow4;
use ebpf_common::{metric, protocol, scope};

use super::flow::{self, Decision, Reach};
use super::icmp;
use super::maps;
use super::packet::{self, Delta, Packet};
use super::reject;

/// Go on with the next program, or the stack.
const NEXT: i32 = -1;
const DROP: i32 = 2;

const AF_INET: u8 = 2;
/// Find the way without asking for the neighbour's address; bpf_redirect_neigh does that.
const FIB_LOOKUP_SKIP_NEIGH: u32 = 4;

#[classifier]
pub fn uplink_ingress(ctx: TcContext) -> i32 {
    ingress(&ctx, scope::EXTERNAL)
}

#[classifier]
pub fn pod_ingress(ctx: TcContext) -> i32 {
    ingress(&ctx, scope::INTERNAL)
}

/// A backend that shares the node's addresses answers through the stack: its replies are
/// translated here. What the node forwards was translated when it came in.
#[classifier]
pub fn egress(ctx: TcContext) -> i32 {
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { (*ctx.skb.skb).ingress_ifindex } != 0 {
        return NEXT;
    }
    let Some(packet) = parse(&ctx) else {
        return icmp::translate(&ctx, false).unwrap_or(NEXT);
    };
    if let Decision::Rewrite(flow) = flow::decide_reply(&packet) {
        // SAFETY: the pointer leads to a value of the map.
        let flow = unsafe { *flow };
        if rewrite(&ctx, &packet, &flow, false).is_none() {
            return DROP;
        }
    }
    NEXT
}

#[inline(always)]
fn ingress(ctx: &TcContext, scope: u8) -> i32 {
    let Some(packet) = parse(ctx) else {
        return icmp::translate(ctx, true).unwrap_or(NEXT);
    };
    match flow::decide(&packet, scope, Reach::Any) {
        Decision::Pass => NEXT,
        Decision::Drop => DROP,
        Decision::Refuse => reject::refuse(ctx, &packet),
        Decision::Rewrite(flow) => {
            // SAFETY: the pointer leads to a value of the map.
            let flow = unsafe { *flow };
            carry(ctx, &packet, &flow)
        }
    }
}

/// Rewrites a packet and sends it on its way.
#[inline(always)]
fn carry(ctx: &TcContext, packet: &Packet, flow: &Flow4) -> i32 {
    let way = if packet.ttl > 1 { way(ctx, packet.protocol(), flow) } else { None };
    if rewrite(ctx, packet, flow, way.is_some()).is_none() {
        return DROP;
    }
    depart(way)
}

/// Sends a rewritten packet past the stack where there is a way, else to the stack.
#[inline(always)]
pub fn depart(way: Option<(u32, u32)>) -> i32 {
    let Some((ifindex, next_hop)) = way else {
        maps::count(metric::TCX_TO_STACK);
        return NEXT;
    };
    // SAFETY: all fields are integers, for which zero is a value.
    let mut neighbour: bpf_redir_neigh = unsafe { core::mem::zeroed() };
    neighbour.nh_family = AF_INET as u32;
    neighbour.__bindgen_anon_1.ipv4_nh = next_hop;
    maps::count(metric::TCX_REDIRECTED);
    // SAFETY: the parameters live on the stack for the length of the call, and their size is given.
    unsafe { bpf_redirect_neigh(ifindex, &mut neighbour, size_of::<bpf_redir_neigh>() as i32, 0) as i32 }
}

/// Interface and next hop of a flow; none if it ends on this node, or has no way.
#[inline(always)]
pub fn way(ctx: &TcContext, protocol: u8, flow: &Flow4) -> Option<(u32, u32)> {
    // SAFETY: the context is the one that the kernel gave; the parameters live on the stack for
    // the length of the call; of the unions, the members of IPv4 are used throughout.
    unsafe {
        let mut query = packet::fib_query();
        query.family = AF_INET;
        query.l4_protocol = protocol;
        query.sport = flow.source_port;
        query.dport = flow.destination_port;
        query.ifindex = (*ctx.skb.skb).ifindex;
        query.__bindgen_anon_3.ipv4_src = flow.source;
        query.__bindgen_anon_4.ipv4_dst = flow.destination;
        let answer = fib_lookup(
            ctx.skb.skb.cast(),
            &mut query,
            size_of::<bpf_fib_lookup>() as i32,
            FIB_LOOKUP_SKIP_NEIGH,
        );
        if answer != 0 || query.family != AF_INET {
            return None;
        }
        Some((query.ifindex, query.__bindgen_anon_4.ipv4_dst))
    }
}

/// Makes the packet one of the flow's other side, with valid checksums.
#[inline(always)]
fn rewrite(ctx: &TcContext, packet: &Packet, flow: &Flow4, hop: bool) -> Option<()> {
    let delta = Delta::new(&packet.key, flow);
    let check = packet.check_offset() as u32;
    // A datagram without a checksum stays without one.
    let mangled = if packet.protocol() == protocol::UDP { BPF_F_MARK_MANGLED_0 as u64 } else { 0 };
    let addresses = (delta.addresses >> 32) + (delta.addresses & 0xffff_ffff);
    let addresses = (addresses >> 32) + (addresses & 0xffff_ffff);
    let old = packet::ports(packet.key.source_port, packet.key.destination_port);
    let new = packet::ports(flow.source_port, flow.destination_port);
    // SAFETY: the context is the one that the kernel gave; the helper checks the offset. It knows
    // which part of the checksum the device or the stack has yet to fill in.
    unsafe {
        let skb = ctx.skb.skb;
        if bpf_l4_csum_replace(skb, check, 0, addresses, BPF_F_PSEUDO_HDR as u64 | mangled) != 0 {
            return None;
        }
        if old != new && bpf_l4_csum_replace(skb, check, old as u64, new as u64, 4 | mangled) != 0 {
            return None;
        }
    }
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + packet::UDP_HEADERS > end {
        return None;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        packet::rewrite_ip(data, flow, &delta, hop);
        packet::store(data, packet::L4, new);
    }
    Some(())
}

/// Reads the headers, after bringing them into the linear part of the buffer if need be.
#[inline(always)]
fn parse(ctx: &TcContext) -> Option<Packet> {
    if ctx.data() + packet::TCP_HEADERS > ctx.data_end() && ctx.len() as usize >= packet::UDP_HEADERS {
        let length =
            if ctx.len() < packet::TCP_HEADERS as u32 { ctx.len() } else { packet::TCP_HEADERS as u32 };
        // SAFETY: the context is the one that the kernel gave. A refusal leaves the packet as it
        // was, and reading stops at its end.
        unsafe { bpf_skb_pull_data(ctx.skb.skb, length) };
    }
    packet::parse(ctx.data(), ctx.data_end())
}
