//! The backend's node: finds the frontend that a packet names, and checks it.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::{BPF_ADJ_ROOM_MAC, BPF_ADJ_ROOM_NET};
use aya_ebpf::helpers::bpf_skb_adjust_room;
use aya_ebpf::programs::TcContext;
use ebpf_common::flow::{FragmentKey, flow_flag};
use ebpf_common::frontend::{Frontend, frontend_flag};
use ebpf_common::{metric, scope};

use super::send::{self, malformed, store};
use super::{DESTINATION_OPTIONS, IPIP, IPV6, WORDS, build, option_length};
use crate::kernel::family::{Address as _, Family, FrontendKey as _};
use crate::kernel::flow::{self, Place};
use crate::kernel::packet::{self, IP, Packet, Part, copy};
use crate::kernel::read::{self, kind as read_kind};
use crate::kernel::tcx::{DROP, NEXT};
use crate::kernel::{fragment, lookup, maps, pick, table};

/// The next header of IPv6 that makes the packet a fragment.
const FRAGMENT: u8 = 44;

/// Returns the frontend that a direct packet names, if this node's tables have it in this forwarding mode.
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

/// Returns `true` for a packet from an uplink that another node may have sent directly: its header is longer
/// than usual, or there is another packet in it. Called after [`read::is_control`].
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

/// Receives a packet that [`may_be_direct`]; returns its verdict, or [`ABSENT`].
#[inline(never)]
pub fn receive<F: Family>(skb: *mut __sk_buff, place: Place) -> i32 {
    if maps::config().is_none_or(lookup::is_leaving) {
        return ABSENT;
    }
    let ctx = TcContext::new(skb);
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    match read::packet::<F>(&ctx, packet) {
        read_kind::BALANCED => receive_option::<F>(skb, packet, place),
        read_kind::OTHER => receive_outer::<F>(skb, packet, place),
        _ => ABSENT,
    }
}

/// Result of [`receive`]: the packet is an ordinary one, or has become one.
pub const ABSENT: i32 = i32::MIN;

/// Receives a packet with an option: if it names a frontend and is for a backend of that, replies are
/// translated to come from the frontend. The packet goes on without the option.
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
    let Some((port, address)) = build::named::<F>(words) else {
        return ABSENT;
    };
    if !expect_replies::<F>(packet, &address, port, place) || !remove_option::<F>(skb, words[0], words[1]) {
        return malformed::<F>(packet, place);
    }
    maps::count(metric::DSR_RECEIVED);
    // The other fragments follow the first one, whose ports have to be recorded.
    if packet.part == Part::Whole { NEXT } else { ABSENT }
}

/// Records that replies to the packet leave under the frontend's address, which the sender named. Returns `false`
/// if that frontend has no such backend on this node.
#[inline(always)]
fn expect_replies<F: Family>(
    packet: &Packet<F::Address>,
    address: &F::Address,
    port: u16,
    place: Place,
) -> bool {
    if !is_reply_of::<F>(packet, address, port) {
        return false;
    }
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return false;
    };
    // SAFETY: the room is this processor's own.
    let reply = unsafe { &(*scratch).new };
    if flow::replies_like::<F>(reply) {
        return true;
    }
    maps::count_service(reply.service, false);
    table::insert::<F>(reply, table::hash(&reply.key, config.seed), place) != table::NONE
}

/// Writes the translation of replies to the packet, if the frontend has its backend here. A separate
/// function: its frame is large, and so are those of the functions called next.
#[inline(never)]
fn is_reply_of<F: Family>(packet: &Packet<F::Address>, address: &F::Address, port: u16) -> bool {
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
    true
}

/// Removes the option; `first` and `second` are its first words.
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
        return send::resize4(skb, -1, first, second);
    }
    store(skb, IP + 4, &[build::second6(header[1], first as u8, -(length as i16))], 4)
}

/// Receives an outer packet: if it is for a backend of this node, and the inner one for a frontend of that
/// backend, the inner one begins a flow to it, and is an ordinary packet from then on.
#[inline(always)]
fn receive_outer<F: Family>(skb: *mut __sk_buff, outer: &mut Packet<F::Address>, place: Place) -> i32 {
    let inside = if F::VERSION == 4 { IPIP } else { IPV6 };
    if outer.key.protocol != inside as u32 {
        return ABSENT;
    }
    match find_inner::<F>(skb, &outer.key.destination) {
        inner::FOUND => {}
        inner::HELD => return DROP,
        _ => return ABSENT,
    }
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_adjust_room(skb, -(F::HEADER as i32), BPF_ADJ_ROOM_MAC, 0) } != 0 {
        return malformed::<F>(outer, place);
    }
    let ctx = TcContext::new(skb);
    maps::count(metric::DSR_RECEIVED);
    // The outer packet is not needed any more.
    match read::packet::<F>(&ctx, outer) {
        read_kind::BALANCED => flow::admit::<F>(outer, place),
        // Its first fragment has begun the flow.
        read_kind::LATER => {}
        _ => return malformed::<F>(outer, place),
    }
    ABSENT
}

/// The kinds of inner packets.
mod inner {
    /// Not ours.
    pub const OTHER: u32 = 0;
    pub const FOUND: u32 = 1;
    /// A fragment that waits for its first one.
    pub const HELD: u32 = 2;
}

/// Returns one of [`inner`], depending on whether the inner packet is for a frontend that has this backend;
/// the backend is then recorded as chosen.
#[inline(never)]
fn find_inner<F: Family>(skb: *mut __sk_buff, backend: &F::Address) -> u32 {
    let at = (IP + F::HEADER) as u32;
    let mut words = MaybeUninit::<[u32; WORDS]>::uninit();
    // SAFETY: words may be zero.
    let words = unsafe { packet::cleared(&mut words) };
    if read::load(skb, at, words, F::HEADER as u32).is_none() {
        return inner::OTHER;
    }
    let (plain, number, destination) = if F::VERSION == 4 {
        (words[0] as u8 == 0x45, (words[2] >> 8) as u8, [words[4], 0, 0, 0])
    } else {
        (words[0] as u8 >> 4 == 6, (words[1] >> 16) as u8, [words[6], words[7], words[8], words[9]])
    };
    if !plain {
        return inner::OTHER;
    }
    let destination = F::Address::from_words(&destination);
    let (number, port) = match inner_port::<F>(skb, words, number) {
        Ok(found) => found,
        Err(other) => return other,
    };
    let Some(frontend) = frontend_of::<F>(&destination, port, number, frontend_flag::DSR_IPIP) else {
        return inner::OTHER;
    };
    let Some(backend) = pick::at_address::<F>(&frontend, backend) else {
        return inner::OTHER;
    };
    flow::choose_this::<F>(&frontend, &backend);
    inner::FOUND
}

/// Returns protocol and destination port of an inner packet: its own, or for a later fragment those of the
/// first one, or one of [`inner`]. `words` is its header, `number` the following protocol.
#[inline(always)]
fn inner_port<F: Family>(skb: *mut __sk_buff, words: &[u32; WORDS], number: u8) -> Result<(u8, u16), u32> {
    let l4 = (IP + 2 * F::HEADER) as u32;
    let mut rest = MaybeUninit::<[u32; 3]>::uninit();
    // SAFETY: words may be zero.
    let rest = unsafe { packet::cleared(&mut rest) };
    read::load(skb, l4, rest, 8).ok_or(inner::OTHER)?;
    let (number, later, identification, ports) = if F::VERSION == 4 {
        let offset = u16::from_be((words[1] >> 16) as u16) & 0x1fff;
        (number, offset != 0, words[1] & 0xffff, rest[0])
    } else if number == FRAGMENT {
        // Position and identification of the fragment, and then the ports.
        let (place, identification) = (rest[0], rest[1]);
        let later = u16::from_be((place >> 16) as u16) & 0xfff8 != 0;
        if !later {
            read::load(skb, l4 + 8, rest, 4).ok_or(inner::OTHER)?;
        }
        (place as u8, later, identification, rest[0])
    } else {
        (number, false, 0, rest[0])
    };
    if !later {
        return Ok((number, (ports >> 16) as u16));
    }
    let (source, destination) = if F::VERSION == 4 {
        ([words[3], 0, 0, 0], [words[4], 0, 0, 0])
    } else {
        ([words[2], words[3], words[4], words[5]], [words[6], words[7], words[8], words[9]])
    };
    let key = FragmentKey { source, destination, identification, protocol: number as u32 };
    if let Some((_, port)) = fragment::ports(&key) {
        return Ok((number, port));
    }
    // A packet for no service in the tables may be in a tunnel of others.
    let may_wait = lookup::is_marked::<F>(F::Address::from_words(&destination));
    let held = may_wait && fragment::hold(skb, &key) == fragment::outcome::HELD;
    Err(if held { inner::HELD } else { inner::OTHER })
}
