//! The way of packets in buffers to the backend's node.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::bpf_adj_room_mode::{BPF_ADJ_ROOM_MAC, BPF_ADJ_ROOM_NET};
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_RECOMPUTE_CSUM,
};
use aya_ebpf::helpers::{bpf_skb_adjust_room, bpf_skb_store_bytes};
use aya_ebpf::programs::TcContext;
use ebpf_common::event::kind;
use ebpf_common::flow::{FlowKey, flow_flag};
use ebpf_common::metric;

use super::build;
use super::{DESTINATION_OPTIONS, OPTION4_LENGTH, WORDS, fitting_mtu, needs_room, option_length};
use crate::kernel::family::{Address as _, Family};
use crate::kernel::flow::{self, Place};
use crate::kernel::packet::{self, IP, Packet, Part, To};
use crate::kernel::tcx::{self, DROP};
use crate::kernel::{maps, read, reject};

/// The longest header of IPv4.
const LONGEST: usize = 60;

/// Sends a packet of a direct flow on its way.
#[inline(never)]
pub fn send<F: Family>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    to: &To<F::Address>,
    place: Place,
) -> i32 {
    let mut neighbour = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let neighbour = unsafe { packet::cleared(&mut neighbour) };
    let ifindex = tcx::way::<F>(skb, packet.key.protocol, to, neighbour);
    if ifindex == 0 || packet.hops <= 1 {
        return malformed::<F>(packet, place);
    }
    let outer = to.flags & flow_flag::DSR_IPIP as u32 != 0;
    let option = !outer && needs_room(packet, to.flags) && packet.part != Part::Later;
    let more = build::room::<F>(outer, option);
    // A header of IPv4 has no room for more options.
    if option && F::VERSION == 4 && packet.l4 > (IP + LONGEST - OPTION4_LENGTH) as u32 {
        return malformed::<F>(packet, place);
    }
    if more != 0 {
        let mtu = fitting_mtu(skb.cast(), ifindex, more);
        if mtu != 0 {
            maps::count(metric::TOO_BIG);
            flow::emit_event::<F>(kind::TOO_BIG, place, 0, packet);
            return reject::too_big::<F>(skb, packet, mtu);
        }
    }
    let done = if outer {
        wrap::<F>(skb, &to.destination)
    } else {
        F::rewrite(skb, packet, to, true) && (!option || add_option::<F>(skb, &packet.key))
    };
    if !done {
        return malformed::<F>(packet, place);
    }
    maps::count(metric::DSR_SENT);
    tcx::depart(skb, ifindex, neighbour)
}

#[inline(always)]
pub fn malformed<F: Family>(packet: &Packet<F::Address>, place: Place) -> i32 {
    maps::count(metric::MALFORMED);
    flow::emit_event::<F>(kind::MALFORMED, place, 0, packet);
    DROP
}

/// Adds an option with the frontend, to which the client sent the packet, to the header of a rewritten
/// packet.
#[inline(never)]
fn add_option<F: Family>(skb: *mut __sk_buff, key: &FlowKey<F::Address>) -> bool {
    let length = option_length::<F>();
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, length as i32, BPF_ADJ_ROOM_NET, 0) } != 0 {
        return false;
    }
    let (mut words, mut header) = (MaybeUninit::<[u32; WORDS]>::uninit(), MaybeUninit::<[u32; 2]>::uninit());
    // SAFETY: words may be zero.
    let (words, header) = unsafe { (packet::cleared(&mut words), packet::cleared(&mut header)) };
    if read::load(skb, IP as u32, header, 8).is_none() {
        return false;
    }
    build::option::<F>(key, (header[1] >> 16) as u8, words);
    if !store(skb, IP + F::HEADER, words, length) {
        return false;
    }
    if F::VERSION == 4 {
        resize4(skb, 1, words[0], words[1])
    } else {
        let second = build::second6(header[1], DESTINATION_OPTIONS, length as i16);
        store(skb, IP + 4, &[second], 4)
    }
}

/// Stores the first `length` bytes of some words.
#[inline(always)]
pub fn store<const N: usize>(skb: *mut __sk_buff, offset: usize, words: &[u32; N], length: usize) -> bool {
    // SAFETY: the context is the one that the kernel gave; the callers give lengths that the words
    // have; the helper checks the offset.
    let stored = unsafe {
        bpf_skb_store_bytes(
            skb,
            offset as u32,
            words.as_ptr().cast(),
            length as u32,
            BPF_F_RECOMPUTE_CSUM as u64,
        )
    };
    stored == 0
}

/// Changes the length of a packet's IPv4 header by `more` words, as [`build::resize4`] does; returns `false` if the
/// packet is too short.
#[inline(always)]
pub fn resize4(skb: *mut __sk_buff, more: i8, option: u32, address: u32) -> bool {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + 20 > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    unsafe { build::resize4(data, more, option, address) };
    true
}

/// Puts an outer header around the packet, and counts one hop of it.
#[inline(never)]
fn wrap<F: Family>(skb: *mut __sk_buff, backend: &F::Address) -> bool {
    let Some(config) = maps::config() else {
        return false;
    };
    let source = F::snat_address(config);
    if source.same(&F::Address::ZERO) {
        maps::count(metric::SNAT_NO_ADDRESS);
        return false;
    }
    let (mut words, mut inner) = (MaybeUninit::<[u32; WORDS]>::uninit(), MaybeUninit::<[u32; 3]>::uninit());
    // SAFETY: words may be zero.
    let (words, inner) = unsafe { (packet::cleared(&mut words), packet::cleared(&mut inner)) };
    if read::load(skb, IP as u32, inner, 12).is_none() {
        return false;
    }
    let (place, word) = build::one_hop::<F>(inner);
    if !store(skb, IP + 4 * place, &[word], 4) {
        return false;
    }
    let flag = if F::VERSION == 4 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 };
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, F::HEADER as i32, BPF_ADJ_ROOM_MAC, flag as u64) } != 0 {
        return false;
    }
    build::outer::<F>(inner, source, backend, words);
    store(skb, IP, words, F::HEADER)
}
