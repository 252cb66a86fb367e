//! Errors of routers between the nodes about an outer header: the packet is too big for the next link. They
//! are sent to this node, which tells the client, about the packet inside.
//!
//! Routers report errors about packets with an option to the client themselves, under the backend's address.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::bpf_skb_adjust_room;
use ebpf_common::event::kind;
use ebpf_common::flow::flow_flag;
use ebpf_common::metric;

use super::{ABSENT, IPIP, IPV6, WORDS};
use crate::kernel::family::{Address as _, Family};
use crate::kernel::flow::{self, Place};
use crate::kernel::packet::{self, IP, Packet, Part, To};
use crate::kernel::{maps, read, reject, tcx};

/// Length of the header of an ICMP message.
const MESSAGE: usize = 8;
/// Bytes after the inner header that must be quoted as well: routers do not have to.
const QUOTED: u32 = 8;

/// Turns the error into one about the packet inside, for its sender; [`ABSENT`] if it is about none of ours.
#[inline(never)]
pub fn returned<F: Family>(skb: *mut __sk_buff, place: Place) -> i32 {
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    let mtu = read_inner::<F>(skb, packet);
    if mtu <= F::HEADER as u32 || !is_sent::<F>(packet) {
        return ABSENT;
    }
    let before = MESSAGE + 2 * F::HEADER;
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, -(before as i32), BPF_ADJ_ROOM_MAC, 0) } != 0 {
        return ABSENT;
    }
    maps::count(metric::TOO_BIG);
    flow::emit_event::<F>(kind::TOO_BIG, place, 0, packet);
    if !reject::too_big_for::<F>(skb, packet, mtu - F::HEADER as u32) {
        return tcx::DROP;
    }
    let to = To {
        source: packet.key.destination,
        destination: packet.key.source,
        source_port: 0,
        destination_port: 0,
        flags: 0,
        slot: 0,
    };
    let mut neighbour = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let neighbour = unsafe { packet::cleared(&mut neighbour) };
    let ifindex = tcx::way::<F>(skb, F::ICMP as u32, &to, neighbour);
    tcx::depart(skb, ifindex, neighbour)
}

/// Reads the packet inside, and returns the maximum size of the outer one; 0 if it is not this node's. The
/// backend in the outer header is stored in the scratch room.
#[inline(never)]
fn read_inner<F: Family>(skb: *mut __sk_buff, packet: &mut Packet<F::Address>) -> u32 {
    let outer = IP + F::HEADER + MESSAGE;
    let inner = (outer + F::HEADER) as u32;
    let (mut words, mut message) = (MaybeUninit::<[u32; WORDS]>::uninit(), MaybeUninit::<[u32; 2]>::uninit());
    // SAFETY: words may be zero.
    let (words, message) = unsafe { (packet::cleared(&mut words), packet::cleared(&mut message)) };
    if read::load(skb, (IP + F::HEADER) as u32, message, MESSAGE as u32).is_none()
        || read::load(skb, outer as u32, words, F::HEADER as u32).is_none()
    {
        return 0;
    }
    let (mtu, ours) = if F::VERSION == 4 {
        let mtu = u16::from_be((message[1] >> 16) as u16) as u32;
        (mtu, message[0] as u16 == 0x0403 && words[0] as u8 == 0x45 && (words[2] >> 8) as u8 == IPIP)
    } else {
        (u32::from_be(message[1]), message[0] as u16 == 0x0002 && (words[1] >> 16) as u8 == IPV6)
    };
    let Some(config) = maps::config() else {
        return 0;
    };
    let Some(scratch) = F::scratch() else {
        return 0;
    };
    let (source, backend) = ends::<F>(words);
    if !ours || !source.same(F::snat_address(config)) {
        return 0;
    }
    // SAFETY: the room is this processor's own.
    unsafe { packet::copy(&raw const backend, &raw mut (*scratch).outer.destination) };
    if read::load(skb, inner, words, F::HEADER as u32).is_none() {
        return 0;
    }
    let (plain, number) = if F::VERSION == 4 {
        let place = u16::from_be((words[1] >> 16) as u16) & 0x1fff;
        (words[0] as u8 == 0x45 && place == 0, (words[2] >> 8) as u8)
    } else {
        (words[0] as u8 >> 4 == 6, (words[1] >> 16) as u8)
    };
    (packet.key.source, packet.key.destination) = ends::<F>(words);
    if !plain || read::load(skb, inner + F::HEADER as u32, message, QUOTED).is_none() {
        return 0;
    }
    packet.key.source_port = message[0] as u16;
    packet.key.destination_port = (message[0] >> 16) as u16;
    packet.key.protocol = number as u32;
    packet.l4 = (IP + F::HEADER) as u32;
    packet.part = Part::Whole;
    mtu
}

/// Returns source and destination of a header.
#[inline(always)]
fn ends<F: Family>(words: &[u32; WORDS]) -> (F::Address, F::Address) {
    let (source, destination) = if F::VERSION == 4 {
        ([words[3], 0, 0, 0], [words[4], 0, 0, 0])
    } else {
        ([words[2], words[3], words[4], words[5]], [words[6], words[7], words[8], words[9]])
    };
    (F::Address::from_words(&source), F::Address::from_words(&destination))
}

/// Returns `true` if this node sends such packets in outer headers to the backend that [`read_inner`] has
/// stored. A separate function with a frame of its own: Linux 6.1 adds the frames where one function is
/// inside the other.
#[inline(never)]
fn is_sent<F: Family>(packet: &Packet<F::Address>) -> bool {
    let Some(scratch) = F::scratch() else {
        return false;
    };
    // SAFETY: the room is this processor's own.
    let (to, outer) = unsafe { (&mut (*scratch).sender, &(*scratch).outer) };
    flow::known::<F>(&packet.key, to)
        && to.flags & flow_flag::DSR_IPIP as u32 != 0
        && to.destination.same(&outer.destination)
}
