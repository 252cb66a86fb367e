//! Direct server return: the backend's node answers the client itself, under the frontend's address.
//!
//! ```text
//!   client ──▶ this node ──▶ backend's node ──▶ backend
//!      ▲                                          │
//!      └──────────────────────────────────────────┘
//! ```
//!
//! The backend's node has to learn which frontend the client used. It is told in one of two ways.
//!
//! - **In an option** of the IP header ([`OPTION4`]), or of IPv6 ([`OPTION6`]), which only packets
//!   carry that may begin a flow: 8 or 24 bytes more. The packet is already addressed to the backend.
//! - **In an outer IP header** around the packet as the client made it (RFC 2003, RFC 2473): 20 or
//!   40 bytes more on each packet, and no router has to like options.
//!
//! Either is believed only where the same frontend, in this node's tables, has the same backend and
//! the same manner. What does not fit the path any more is answered with "packet too big".

use core::mem::MaybeUninit;

use aya_ebpf::bindings::bpf_adj_room_mode::{BPF_ADJ_ROOM_MAC, BPF_ADJ_ROOM_NET};
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_RECOMPUTE_CSUM,
};
use aya_ebpf::helpers::{bpf_check_mtu, bpf_skb_adjust_room, bpf_skb_store_bytes};
use aya_ebpf::programs::TcContext;
use ebpf_common::event::kind;
use ebpf_common::flow::{FlowKey, flow_flag};
use ebpf_common::frontend::{Frontend, frontend_flag};
use ebpf_common::{metric, protocol, scope};

use super::family::{Address as _, Family, FrontendKey as _};
use super::flow::{self, Place};
use super::packet::{self, IP, IP_CHECK, Packet, Part, To, copy};
use super::read::{self, kind as read_kind};
use super::table;
use super::tcx::{self, DROP, NEXT};
use super::{lookup, maps, pick, reject};

/// Option of IPv4: copied into fragments, and for experiments (RFC 4727). Its length is 8 bytes:
/// type, length, the frontend's port, its address.
const OPTION4: u8 = 0x9e;
const OPTION4_LENGTH: usize = 8;
/// Destination option of IPv6: for experiments (RFC 4727), and to be skipped by who does not know it.
/// The header has 24 bytes: next header, its length, type and length of the option, the frontend's
/// port and address, and two bytes of fill that belong to the option.
const OPTION6: u8 = 0x1e;
const OPTION6_LENGTH: usize = 24;
const OPTION6_DATA: u32 = 20;
/// Protocol numbers of what is in an outer header, and of destination options.
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const DESTINATION_OPTIONS: u8 = 60;
const HOPS: u32 = 64;
/// Words of the longest thing that is put in.
const WORDS: usize = 10;

/// Bytes of the option.
const fn option_length<F: Family>() -> usize {
    if F::VERSION == 4 { OPTION4_LENGTH } else { OPTION6_LENGTH }
}

/// Manners of a flow.
const DIRECT: u32 = (flow_flag::DSR_OPTION | flow_flag::DSR_IPIP) as u32;

/// The flow's backend answers the client itself.
#[inline(always)]
pub fn is_direct(flags: u32) -> bool {
    flags & DIRECT != 0
}

/// Only these programs, not XDP, can carry the packet: something has to be put into it.
#[inline(always)]
pub fn needs_room<A>(packet: &Packet<A>, flags: u32) -> bool {
    flags & flow_flag::DSR_IPIP as u32 != 0
        || flags & flow_flag::DSR_OPTION as u32 != 0 && (packet.opens() || packet.protocol() != protocol::TCP)
}

/// The manner of flows of a frontend, as bits of [`flow_flag`]; 0 if replies come back.
#[inline(always)]
pub fn manner(frontend_flags: u32) -> u32 {
    if frontend_flags & frontend_flag::DSR_OPTION as u32 != 0 {
        flow_flag::DSR_OPTION as u32
    } else if frontend_flags & frontend_flag::DSR_IPIP as u32 != 0 {
        flow_flag::DSR_IPIP as u32
    } else {
        0
    }
}

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
    let more = if outer {
        F::HEADER
    } else if needs_room(packet, to.flags) && packet.part != Part::Later {
        option_length::<F>()
    } else {
        0
    };
    if more != 0 {
        let mtu = fitting_mtu(skb, ifindex, more);
        if mtu != 0 {
            maps::count(metric::TOO_BIG);
            flow::tell::<F>(kind::TOO_BIG, place, 0, packet);
            return reject::too_big::<F>(skb, packet, mtu);
        }
    }
    let done = if outer {
        wrap::<F>(skb, &to.destination)
    } else {
        F::rewrite(skb, packet, to, true) && (more == 0 || add_option::<F>(skb, &packet.key))
    };
    if !done {
        return malformed::<F>(packet, place);
    }
    maps::count(metric::DSR_SENT);
    tcx::depart(skb, ifindex, neighbour)
}

#[inline(always)]
fn malformed<F: Family>(packet: &Packet<F::Address>, place: Place) -> i32 {
    maps::count(metric::MALFORMED);
    flow::tell::<F>(kind::MALFORMED, place, 0, packet);
    DROP
}

/// 0 if the packet fits the interface with so many bytes more; else the size that would fit.
#[inline(always)]
fn fitting_mtu(skb: *mut __sk_buff, ifindex: u32, more: usize) -> u32 {
    let mut mtu = 0_u32;
    // SAFETY: the context is the one that the kernel gave; the number lives on the stack.
    let answer = unsafe { bpf_check_mtu(skb.cast(), ifindex, &mut mtu, more as i32, 0) };
    // Negative where the interface cannot be asked: then the packet is tried.
    if answer > 0 { mtu.saturating_sub(more as u32) } else { 0 }
}

/// Puts the frontend, where the client sent the packet, into the header of a rewritten packet.
#[inline(never)]
fn add_option<F: Family>(skb: *mut __sk_buff, key: &FlowKey<F::Address>) -> bool {
    let length = option_length::<F>();
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, length as i32, BPF_ADJ_ROOM_NET, 0) } != 0 {
        return false;
    }
    let port = key.destination_port as u32;
    let address = key.destination.words();
    let (mut words, mut header) = (MaybeUninit::<[u32; WORDS]>::uninit(), MaybeUninit::<[u32; 2]>::uninit());
    // SAFETY: words may be zero.
    let (words, header) = unsafe { (packet::cleared(&mut words), packet::cleared(&mut header)) };
    if read::load(skb, IP as u32, header, 8).is_none() {
        return false;
    }
    if F::VERSION == 4 {
        words[0] = OPTION4 as u32 | (OPTION4_LENGTH as u32) << 8 | port << 16;
        words[1] = address[0];
        store(skb, IP + F::HEADER, words, length) && resize4(skb, header[0], 2, words[0], words[1], length)
    } else {
        let next = header[1] >> 16 & 0xff;
        let blocks = (OPTION6_LENGTH / 8 - 1) as u32;
        words[0] = next | blocks << 8 | (OPTION6 as u32) << 16 | OPTION6_DATA << 24;
        // The port and the address, which so begins in the middle of a word.
        words[1] = port | address[0] << 16;
        words[2] = address[0] >> 16 | address[1] << 16;
        words[3] = address[1] >> 16 | address[2] << 16;
        words[4] = address[2] >> 16 | address[3] << 16;
        words[5] = address[3] >> 16;
        let hops = header[1] & 0xff00_0000;
        let payload = u16::from_be(header[1] as u16).wrapping_add(length as u16).to_be() as u32;
        let base = [payload | (DESTINATION_OPTIONS as u32) << 16 | hops];
        store(skb, IP + F::HEADER, words, length) && store(skb, IP + 4, &base, 4)
    }
}

/// Stores the first `length` bytes of some words.
#[inline(always)]
fn store<const N: usize>(skb: *mut __sk_buff, offset: usize, words: &[u32; N], length: usize) -> bool {
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

/// Makes the header of IPv4 `more` words longer or shorter by an option of two words that it has, or
/// had; `first` is the header's first word.
#[inline(always)]
fn resize4(skb: *mut __sk_buff, first: u32, more: i32, option: u32, address: u32, length: usize) -> bool {
    let total = u16::from_be((first >> 16) as u16);
    let (total, change) = if more > 0 {
        (total.wrapping_add(length as u16), option as u64 + address as u64)
    } else {
        (total.wrapping_sub(length as u16), !option as u64 + !address as u64)
    };
    let new =
        first & 0xff00 | (first as u8).wrapping_add_signed(more as i8) as u32 | (total.to_be() as u32) << 16;
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + 20 > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        let check = packet::load(data, IP_CHECK);
        packet::store(data, IP_CHECK, packet::adjusted(check, change + !first as u64 + new as u64));
        packet::store(data, IP, new);
    }
    true
}

/// Puts an outer header around the packet, which has come one hop.
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
    if read::load(skb, IP as u32, inner, 12).is_none() || !one_hop::<F>(skb, inner) {
        return false;
    }
    let flag = if F::VERSION == 4 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 };
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, F::HEADER as i32, BPF_ADJ_ROOM_MAC, flag as u64) } != 0 {
        return false;
    }
    let (from, at) = (source.words(), backend.words());
    if F::VERSION == 4 {
        let total = u16::from_be((inner[0] >> 16) as u16).wrapping_add(F::HEADER as u16);
        words[0] = 0x45 | inner[0] & 0xff00 | (total.to_be() as u32) << 16;
        // No identification, not to be cut into fragments.
        words[1] = 0x40 << 16;
        words[2] = HOPS | (IPIP as u32) << 8;
        words[3] = from[0];
        words[4] = at[0];
        let sum = words[0] as u64 + words[1] as u64 + words[2] as u64 + words[3] as u64 + words[4] as u64;
        words[2] |= (!packet::fold(sum) as u32) << 16;
    } else {
        let length = u16::from_be(inner[1] as u16).wrapping_add(F::HEADER as u16);
        words[0] = inner[0];
        words[1] = length.to_be() as u32 | (IPV6 as u32) << 16 | HOPS << 24;
        [words[2], words[3], words[4], words[5]] = from;
        [words[6], words[7], words[8], words[9]] = at;
    }
    store(skb, IP, words, F::HEADER)
}

/// Takes one hop from the packet; `header` is the beginning of its IP header.
#[inline(always)]
fn one_hop<F: Family>(skb: *mut __sk_buff, header: &[u32; 3]) -> bool {
    if F::VERSION == 6 {
        return store(skb, IP + 4, &[header[1] - (1 << 24)], 4);
    }
    // Time to live is the lowest byte, the checksum the upper half.
    let word = header[2] - 1;
    let change = (!header[2] & 0xffff) as u64 + (word & 0xffff) as u64;
    let check = packet::adjusted((header[2] >> 16) as u16, change);
    store(skb, IP + 8, &[word & 0xffff | (check as u32) << 16], 4)
}

/// The frontend that a direct packet names, if this node's tables have it in this manner.
#[inline(always)]
fn frontend_of<F: Family>(address: &F::Address, port: u16, number: u8, manner: u16) -> Option<Frontend> {
    let mut key = F::FrontendKey::new(*address, port, number, scope::EXTERNAL);
    let found = match lookup::read::<F>(&key) {
        Some(found) => found,
        None => {
            // A node port, at the address of the node that the client asked.
            key.set_address(F::Address::ZERO);
            lookup::read::<F>(&key)?
        }
    };
    (found.flags() & manner != 0).then_some(found)
}

/// A packet from an uplink may be one that another node has sent so: its header is longer than
/// usual, or there is another packet in it. Asked after [`read::is_control`].
#[inline(always)]
pub fn may_be_direct<F: Family>(ctx: &TcContext) -> bool {
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + F::HEADER > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        let number = packet::next_protocol::<F>(data, IP);
        if F::VERSION == 4 {
            packet::load::<u8>(data, IP) & 15 > 6 || number == IPIP
        } else {
            number == DESTINATION_OPTIONS || number == IPV6
        }
    }
}

/// Receives a packet that [`may_be_direct`]; gives what is to become of it, or [`ABSENT`].
#[inline(never)]
pub fn receive<F: Family>(skb: *mut __sk_buff, place: Place) -> i32 {
    let ctx = TcContext::new(skb);
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    match read::packet::<F>(&ctx, packet) {
        read_kind::BALANCED if packet.part == Part::Whole => receive_option::<F>(skb, packet, place),
        read_kind::OTHER => receive_outer::<F>(skb, packet, place),
        _ => ABSENT,
    }
}

/// Answer of [`receive`]: the packet is an ordinary one, or has become one.
pub const ABSENT: i32 = i32::MIN;

/// If the packet says which frontend the client asked, and is for a backend of that frontend, replies
/// will be made the frontend's. The packet goes on without the option.
#[inline(always)]
fn receive_option<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, place: Place) -> i32 {
    let length = option_length::<F>();
    if packet.l4 < (IP + F::HEADER + length) as u32 {
        return ABSENT;
    }
    let mut words = MaybeUninit::<[u32; 6]>::uninit();
    // SAFETY: words may be zero.
    let words = unsafe { packet::cleared(&mut words) };
    if read::load(skb, (IP + F::HEADER) as u32, words, length as u32).is_none() {
        return ABSENT;
    }
    let (present, port, address) = if F::VERSION == 4 {
        let present = words[0] as u16 == OPTION4 as u16 | (OPTION4_LENGTH as u16) << 8;
        (present, (words[0] >> 16) as u16, [words[1], 0, 0, 0])
    } else {
        let wanted = ((OPTION6_LENGTH as u32 / 8 - 1) << 8) | (OPTION6 as u32) << 16 | OPTION6_DATA << 24;
        let join = |at: usize| words[at] >> 16 | words[at + 1] << 16;
        (words[0] & !0xff == wanted, words[1] as u16, [join(1), join(2), join(3), join(4)])
    };
    if !present {
        return ABSENT;
    }
    if !expect_replies::<F>(packet, &F::Address::from_words(&address), port, place)
        || !remove_option::<F>(skb, words[0], words[1])
    {
        return malformed::<F>(packet, place);
    }
    maps::count(metric::DSR_RECEIVED);
    NEXT
}

/// Notes that replies to the packet come from a frontend; false if it has no such backend here.
#[inline(never)]
fn expect_replies<F: Family>(
    packet: &Packet<F::Address>,
    address: &F::Address,
    port: u16,
    place: Place,
) -> bool {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return false;
    };
    let epoch = maps::epoch(config);
    let Some(frontend) = frontend_of::<F>(address, port, packet.protocol(), frontend_flag::DSR_OPTION) else {
        return false;
    };
    if pick::find::<F>(&frontend, &packet.key.destination, packet.key.destination_port).is_none() {
        return false;
    }
    // SAFETY: the room is this processor's own.
    let reply = unsafe { &mut (*scratch).new };
    // SAFETY: all are values.
    unsafe {
        copy(&packet.key.destination, &mut reply.key.source);
        copy(&packet.key.source, &mut reply.key.destination);
        copy(address, &mut reply.source);
        copy(&packet.key.source, &mut reply.destination);
    }
    reply.key.source_port = packet.key.destination_port;
    reply.key.destination_port = packet.key.source_port;
    reply.key.protocol = packet.key.protocol;
    reply.source_port = port;
    reply.destination_port = packet.key.source_port;
    reply.service = frontend.service;
    reply.epoch = epoch;
    reply.seen = maps::tick();
    reply.flags = flow_flag::REVERSE as u32;
    if flow::replies_like::<F>(reply) {
        return true;
    }
    maps::count_service(frontend.service, false);
    table::insert::<F>(reply, table::hash(&reply.key, config.seed), place) != table::NONE
}

/// Takes the option out again; `first` and `second` are its first words.
#[inline(always)]
fn remove_option<F: Family>(skb: *mut __sk_buff, first: u32, second: u32) -> bool {
    let length = option_length::<F>();
    let mut header = MaybeUninit::<[u32; 2]>::uninit();
    // SAFETY: words may be zero.
    let header = unsafe { packet::cleared(&mut header) };
    if read::load(skb, IP as u32, header, 8).is_none() {
        return false;
    }
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, -(length as i32), BPF_ADJ_ROOM_NET, 0) } != 0 {
        return false;
    }
    if F::VERSION == 4 {
        return resize4(skb, header[0], -2, first, second, length);
    }
    let payload = u16::from_be(header[1] as u16).wrapping_sub(length as u16).to_be() as u32;
    store(skb, IP + 4, &[payload | (first & 0xff) << 16 | header[1] & 0xff00_0000], 4)
}

/// If the outer packet is for a backend of this node, and the inner one for a frontend of that
/// backend, the inner one begins a flow to it, and is an ordinary packet from then on.
#[inline(always)]
fn receive_outer<F: Family>(skb: *mut __sk_buff, outer: &mut Packet<F::Address>, place: Place) -> i32 {
    let inside = if F::VERSION == 4 { IPIP } else { IPV6 };
    if outer.key.protocol != inside as u32 {
        return ABSENT;
    }
    if !find_inner::<F>(skb, &outer.key.destination) {
        return ABSENT;
    }
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, -(F::HEADER as i32), BPF_ADJ_ROOM_MAC, 0) } != 0 {
        return malformed::<F>(outer, place);
    }
    let ctx = TcContext::new(skb);
    // The outer packet is not needed any more.
    if read::packet::<F>(&ctx, outer) != read_kind::BALANCED {
        return malformed::<F>(outer, place);
    }
    maps::count(metric::DSR_RECEIVED);
    flow::admit::<F>(outer, place);
    ABSENT
}

/// Whether the inner packet is for a frontend that has this backend; the backend is then noted as
/// chosen.
#[inline(never)]
fn find_inner<F: Family>(skb: *mut __sk_buff, backend: &F::Address) -> bool {
    let at = (IP + F::HEADER) as u32;
    let (mut words, mut ports) = (MaybeUninit::<[u32; WORDS]>::uninit(), MaybeUninit::<[u32; 1]>::uninit());
    // SAFETY: words may be zero.
    let (words, ports) = unsafe { (packet::cleared(&mut words), packet::cleared(&mut ports)) };
    if read::load(skb, at, words, F::HEADER as u32).is_none()
        || read::load(skb, at + F::HEADER as u32, ports, 4).is_none()
    {
        return false;
    }
    let (plain, number, destination) = if F::VERSION == 4 {
        (words[0] as u8 == 0x45, (words[2] >> 8) as u8, [words[4], 0, 0, 0])
    } else {
        (words[0] as u8 >> 4 == 6, (words[1] >> 16) as u8, [words[6], words[7], words[8], words[9]])
    };
    if !plain {
        return false;
    }
    let destination = F::Address::from_words(&destination);
    let port = (ports[0] >> 16) as u16;
    let Some(frontend) = frontend_of::<F>(&destination, port, number, frontend_flag::DSR_IPIP) else {
        return false;
    };
    let Some(backend) = pick::at_address::<F>(&frontend, backend) else {
        return false;
    };
    flow::choose_this::<F>(&frontend, &backend);
    true
}
