//! The way of packets in XDP to the backend's node: additional data goes into the room that the driver has
//! left before the packet, and the headers move down to it.
//!
//! A packet that cannot be sent this way is left unchanged to the programs behind: if the driver leaves no
//! room, if it would not fit the path (its sender gets an error there), or if the way is not known.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{xdp_action, xdp_md};
use aya_ebpf::helpers::bpf_xdp_adjust_head;
use ebpf_common::flow::flow_flag;
use ebpf_common::metric;

use super::{DESTINATION_OPTIONS, WORDS, build, fitting_mtu, option_length};
use crate::kernel::family::{Address as _, Family, V4, V6};
use crate::kernel::next_hop::NextHop;
use crate::kernel::packet::{self, ETHERTYPE, IP, Packet, To, UDP_HEADER};
use crate::kernel::{maps, xdp};

/// Defines functions that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $address:ty, $lift:ident) => {
        /// Calls [`send`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $lift(
            ctx: *mut xdp_md,
            packet: *const Packet<$address>,
            to: *const To<$address>,
        ) -> u32 {
            // SAFETY: null, or the caller's.
            match unsafe { (packet.as_ref(), to.as_ref()) } {
                (Some(packet), Some(to)) => send::<$family>(ctx, packet, to),
                _ => xdp_action::XDP_PASS,
            }
        }
    };
}

once!(V4, u32, lift4);
once!(V6, [u32; 4], lift6);

/// Sends a packet of a direct flow that needs additional room; returns the XDP action.
#[inline(always)]
pub fn lift<F: Family>(ctx: *mut xdp_md, packet: &Packet<F::Address>, to: &To<F::Address>) -> u32 {
    let (packet, to) = (&raw const *packet, &raw const *to);
    if F::VERSION == 4 { lift4(ctx, packet.cast(), to.cast()) } else { lift6(ctx, packet.cast(), to.cast()) }
}

#[inline(always)]
fn send<F: Family>(ctx: *mut xdp_md, packet: &Packet<F::Address>, to: &To<F::Address>) -> u32 {
    let Some(hop) = xdp::hop::<F>(ctx, packet, to) else {
        return xdp_action::XDP_PASS;
    };
    let Some(config) = maps::config() else {
        return xdp_action::XDP_PASS;
    };
    let outer = to.flags & flow_flag::DSR_IPIP as u32 != 0;
    let more = build::room::<F>(outer, true);
    let without_source = outer && F::snat_address(config).same(&F::Address::ZERO);
    if without_source || fitting_mtu(ctx.cast(), hop.ifindex, more) != 0 {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_xdp_adjust_head(ctx, -(more as i32)) } != 0 {
        return xdp_action::XDP_PASS;
    }
    let done = if outer {
        wrap::<F>(ctx, F::snat_address(config), &to.destination, &hop)
    } else {
        name::<F>(ctx, packet, to, &hop)
    };
    if !done {
        // The packet had this length before it was extended.
        return xdp_action::XDP_DROP;
    }
    maps::count(metric::DSR_SENT);
    xdp::leave(ctx, &hop)
}

/// Rewrites a packet with room for the option before its headers, and puts the option behind them.
#[inline(always)]
fn name<F: Family>(
    ctx: *mut xdp_md,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    hop: &NextHop,
) -> bool {
    let length = option_length::<F>();
    let (data, end) = xdp::bounds(ctx);
    if data + length + IP + F::HEADER + UDP_HEADER > end {
        return false;
    }
    // SAFETY: compared with the end just above; word by word downwards, so that none is written before it is
    // read.
    unsafe {
        for word in 0..F::HEADER / 4 {
            let value: u32 = packet::load(data, length + IP + 4 * word);
            packet::store(data, IP + 4 * word, value);
        }
        packet::store(data, ETHERTYPE, F::ETHERTYPE);
    }
    let l4 = IP + F::HEADER + length;
    if !xdp::rewrite::<F>(data, end, packet, to, hop, l4) {
        return false;
    }
    let mut words = MaybeUninit::<[u32; WORDS]>::uninit();
    // SAFETY: words may be zero; compared with the end above.
    unsafe {
        let words = packet::cleared(&mut words);
        build::option::<F>(&packet.key, packet::next_protocol::<F>(data, IP), words);
        for word in 0..length / 4 {
            packet::store(data, IP + F::HEADER + 4 * word, words[word]);
        }
        if F::VERSION == 4 {
            build::resize4(data, 1, words[0], words[1]);
        } else {
            let second = build::second6(packet::load(data, IP + 4), DESTINATION_OPTIONS, length as i16);
            packet::store(data, IP + 4, second);
        }
    }
    true
}

/// Puts an outer header before a packet, in the room that there is; counts one hop of the packet.
#[inline(always)]
fn wrap<F: Family>(ctx: *mut xdp_md, source: &F::Address, backend: &F::Address, hop: &NextHop) -> bool {
    let (data, end) = xdp::bounds(ctx);
    if data + F::HEADER + IP + F::HEADER > end {
        return false;
    }
    let mut words = MaybeUninit::<[u32; WORDS]>::uninit();
    // SAFETY: words may be zero; compared with the end just above.
    unsafe {
        let words = packet::cleared(&mut words);
        let at = F::HEADER + IP;
        let inner = [packet::load(data, at), packet::load(data, at + 4), packet::load(data, at + 8)];
        build::outer::<F>(&inner, source, backend, words);
        let (place, word) = build::one_hop::<F>(&inner);
        packet::store(data, at + 4 * place, word);
        for word in 0..F::HEADER / 4 {
            packet::store(data, IP + 4 * word, words[word]);
        }
        packet::store(data, 0, hop.link[0]);
        packet::store(data, 4, hop.link[1]);
        packet::store(data, 8, hop.link[2]);
        packet::store(data, ETHERTYPE, F::ETHERTYPE);
    }
    true
}
