//! Packets between an uplink and backends on other nodes: they never meet the stack.

use core::ptr::addr_of;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{bpf_fib_lookup, xdp_action};
use aya_ebpf::helpers::bpf_fib_lookup as fib_lookup;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use ebpf_common::flow::Flow4;
use ebpf_common::{config_flag, limits, metric, protocol, scope};

use super::flow::{self, Decision, Reach};
use super::maps::{self, DEVICES};
use super::packet::{self, Delta, Packet};

const AF_INET: u8 = 2;

#[xdp]
pub fn uplink_xdp(ctx: XdpContext) -> u32 {
    let (data, end) = bounds(&ctx);
    let Some(packet) = packet::parse(data, end) else {
        return xdp_action::XDP_PASS;
    };
    if packet.ttl <= 1 {
        return xdp_action::XDP_PASS;
    }
    match flow::decide(&packet, scope::EXTERNAL, Reach::Through) {
        Decision::Pass | Decision::Refuse => xdp_action::XDP_PASS,
        Decision::Drop => xdp_action::XDP_DROP,
        Decision::Rewrite(flow) => carry(&ctx, &packet, flow),
    }
}

/// Addresses of the packet's first byte and of the one after its last. Read anew where they are
/// compared anew: the verifier forgets what an earlier comparison has shown, the compiler does not,
/// and would leave the second one out.
#[inline(always)]
fn bounds(ctx: &XdpContext) -> (usize, usize) {
    // SAFETY: the context is the one that the kernel gave.
    unsafe {
        let data = addr_of!((*ctx.ctx).data).read_volatile() as usize;
        (data, addr_of!((*ctx.ctx).data_end).read_volatile() as usize)
    }
}

/// Rewrites a packet and sends it out; to the stack, unchanged, if the way there is not known yet.
#[inline(always)]
fn carry(ctx: &XdpContext, packet: &Packet, flow: *mut Flow4) -> u32 {
    // SAFETY: the pointer leads to a value of the map.
    unsafe {
        let fresh = (*flow).hop_until.wrapping_sub((*flow).seen) <= limits::HOP_TICKS;
        if !(fresh && (*flow).hop_ifindex != 0) && !find_hop(ctx, packet, flow) {
            return xdp_action::XDP_PASS;
        }
    }
    // SAFETY: as above.
    let flow = unsafe { *flow };
    let (data, end) = bounds(ctx);
    if !rewrite(data, end, packet, &flow) {
        return xdp_action::XDP_PASS;
    }
    if flow.hop_ifindex == ctx.ingress_ifindex() as u32 {
        maps::count(metric::XDP_TRANSMITTED);
        return xdp_action::XDP_TX;
    }
    maps::count(metric::XDP_REDIRECTED);
    DEVICES.redirect(flow.hop_ifindex, 0).unwrap_or(xdp_action::XDP_DROP)
}

/// Looks up the route and the neighbour, and keeps them with the flow for a while.
///
/// # Safety
/// `flow` must lead to a value of `FLOWS4`.
#[inline(always)]
unsafe fn find_hop(ctx: &XdpContext, packet: &Packet, flow: *mut Flow4) -> bool {
    // SAFETY: by the contract of this function; the context is the one that the kernel gave; the query lives on the stack
    // for the length of the call; of its unions, the members of IPv4 are used throughout.
    unsafe {
        let ingress = ctx.ingress_ifindex() as u32;
        let mut query = packet::fib_query();
        query.family = AF_INET;
        query.l4_protocol = packet.protocol();
        query.sport = (*flow).source_port;
        query.dport = (*flow).destination_port;
        query.ifindex = ingress;
        query.__bindgen_anon_3.ipv4_src = (*flow).source;
        query.__bindgen_anon_4.ipv4_dst = (*flow).destination;
        let answer = fib_lookup(ctx.as_ptr(), &mut query, size_of::<bpf_fib_lookup>() as i32, 0);
        if answer != 0 || query.family != AF_INET {
            return false;
        }
        let may_redirect = maps::config().is_some_and(|config| config.flags & config_flag::XDP_REDIRECT != 0);
        if query.ifindex != ingress && !(may_redirect && DEVICES.get_ifindex(query.ifindex).is_some()) {
            return false;
        }
        (*flow).hop_ifindex = query.ifindex;
        (*flow).hop_destination = query.dmac;
        (*flow).hop_source = query.smac;
        (*flow).hop_until = (*flow).seen.wrapping_add(limits::HOP_TICKS);
        true
    }
}

/// Rewrites addresses, ports, checksums, time to live and the link header.
#[inline(always)]
fn rewrite(data: usize, end: usize, packet: &Packet, flow: &Flow4) -> bool {
    let delta = Delta::new(&packet.key, flow);
    let change = delta.addresses + delta.ports;
    if data + packet::UDP_HEADERS > end {
        return false;
    }
    if packet.protocol() == protocol::TCP {
        if data + packet::TCP_HEADERS > end {
            return false;
        }
        // SAFETY: compared with the end just above.
        unsafe {
            let check = packet::adjusted(packet::load(data, packet::TCP_CHECK), change);
            packet::store(data, packet::TCP_CHECK, check);
        }
    } else {
        // SAFETY: compared with the end above.
        unsafe {
            let check: u16 = packet::load(data, packet::UDP_CHECK);
            if check != 0 {
                let check = packet::adjusted(check, change);
                packet::store(data, packet::UDP_CHECK, if check == 0 { 0xffff } else { check });
            }
        }
    }
    // SAFETY: compared with the end above.
    unsafe {
        packet::store(data, 0, flow.hop_destination);
        packet::store(data, 6, flow.hop_source);
        packet::rewrite_ip(data, flow, &delta, true);
        packet::store(data, packet::L4, packet::ports(flow.source_port, flow.destination_port));
    }
    true
}
