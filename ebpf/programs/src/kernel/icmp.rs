//! Control messages: errors about packets that were translated, and echo requests to services.
//!
//! An error quotes a packet as it was when it failed; its sender knows it under other addresses.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_redirect;
use aya_ebpf::programs::TcContext;
use ebpf_common::event::kind;
use ebpf_common::flow::FlowKey;
use ebpf_common::{metric, protocol};

use super::dsr;
use super::family::{Address as _, Family};
use super::flow::{self, Place};
use super::lookup;
use super::maps;
use super::masquerade;
use super::packet::{self, Delta, IP, Packet, TCP_CHECK, To, UDP_CHECK};
use super::policy;
use super::tcx::{self, DROP, NEXT};

/// Offset of the checksum in a message.
pub const CHECK: usize = 2;
/// Length of a message's header: the quote comes after it.
const HEADER: usize = 8;
/// Number of bytes of the quoted packet's transport header that are always there.
const QUOTED: usize = 8;
/// The fragment offset in a v4 header.
const FRAGMENT_OFFSET: u16 = 0x1fff_u16.to_be();

/// Result of [`ingress`] and [`egress`] for an echo request or reply that is handled as a packet with an
/// identifier in place of a port.
pub const AS_PACKET: i32 = -3;
/// Offset of the identifier of an echo request or reply.
pub const IDENTIFIER: usize = 4;

/// Types of messages.
pub struct Types {
    pub echo: u8,
    pub reply: u8,
}

pub const fn types<F: Family>() -> Types {
    if F::VERSION == 4 { Types { echo: 8, reply: 0 } } else { Types { echo: 128, reply: 129 } }
}

/// Returns `true` if the message is about another packet.
#[inline(always)]
fn is_error<F: Family>(kind: u8) -> bool {
    if F::VERSION == 4 {
        // Destination unreachable, time exceeded, parameter problem.
        kind == 3 || kind == 11 || kind == 12
    } else {
        // The same, and packet too big.
        kind >= 1 && kind <= 4
    }
}

/// Returns the type of the message; `None` if it is truncated.
#[inline(always)]
fn kind_of<F: Family>(ctx: &TcContext) -> Option<u8> {
    let l4 = IP + F::HEADER;
    tcx::pull(ctx, (l4 + HEADER) as u32);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + l4 + HEADER > end {
        return None;
    }
    // SAFETY: compared with the end just above.
    Some(unsafe { packet::load(data, l4) })
}

/// Handles a message that came in.
#[inline(never)]
pub fn ingress<F: Family>(skb: *mut __sk_buff, place: Place) -> i32 {
    let ctx = TcContext::new(skb);
    let Some(kind) = kind_of::<F>(&ctx) else {
        return NEXT;
    };
    if is_error::<F>(kind) {
        let answer = dsr::returned::<F>(skb, place);
        return if answer == dsr::ABSENT { translate::<F>(skb, true) } else { answer };
    }
    let Some(config) = maps::config() else {
        return NEXT;
    };
    if kind == types::<F>().echo {
        let answer = echo::<F>(skb, place);
        let is_packet = masquerade::is_on(config, place) || policy::is_on();
        return if answer == NEXT && is_packet { AS_PACKET } else { answer };
    }
    if kind == types::<F>().reply && masquerade::has_echoes(config) { AS_PACKET } else { NEXT }
}

/// Handles a message that goes out.
#[inline(never)]
pub fn egress<F: Family>(skb: *mut __sk_buff) -> i32 {
    let ctx = TcContext::new(skb);
    match kind_of::<F>(&ctx) {
        Some(kind) if is_error::<F>(kind) => translate::<F>(skb, false),
        Some(kind) if kind == types::<F>().echo && maps::config().is_some_and(masquerade::has_echoes) => {
            AS_PACKET
        }
        _ => NEXT,
    }
}

/// Answers an echo request to a service's address.
#[inline(never)]
fn echo<F: Family>(skb: *mut __sk_buff, place: Place) -> i32 {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    let l4 = IP + F::HEADER;
    if data + l4 + HEADER > end {
        return NEXT;
    }
    let mut packet = MaybeUninit::<Packet<F::Address>>::uninit();
    // SAFETY: compared with the end just above; zero is a value of all fields.
    let packet = unsafe {
        let packet = packet::cleared(&mut packet);
        packet::copy((data + IP + F::SOURCE) as *const _, &mut packet.key.source);
        packet::copy((data + IP + F::DESTINATION) as *const _, &mut packet.key.destination);
        packet
    };
    packet.key.protocol = F::ICMP as u32;
    if !lookup::is_marked::<F>(packet.key.destination) {
        if !maps::config().is_some_and(|config| F::is_in_ranges(config, &packet.key.destination)) {
            return NEXT;
        }
        maps::count(metric::UNALLOCATED_DROPPED);
        flow::emit_event::<F>(kind::UNALLOCATED, place, 0, packet);
        return DROP;
    }
    // SAFETY: compared with the end above; the addresses only change places, which no checksum sees.
    unsafe {
        let Types { echo, reply } = types::<F>();
        let destination: [u16; 3] = packet::load(data, 0);
        let source: [u16; 3] = packet::load(data, 6);
        packet::store(data, 0, source);
        packet::store(data, 6, destination);
        packet::copy(&packet.key.destination, (data + IP + F::SOURCE) as *mut _);
        packet::copy(&packet.key.source, (data + IP + F::DESTINATION) as *mut _);
        packet::store(data, l4, reply);
        let check: u16 = packet::load(data, l4 + CHECK);
        // The type is the lower byte of its word.
        let change = (!(echo as u16)) as u64 + reply as u64;
        packet::store(data, l4 + CHECK, packet::adjusted(check, change));
        maps::count(metric::ECHO_ANSWERED);
        tcx::mark(skb);
        bpf_redirect((*skb).ifindex, 0) as i32
    }
}

/// An error and the packet that it quotes.
#[repr(C)]
pub struct Error<A> {
    /// The ends in the error's own header; no ports.
    outer: FlowKey<A>,
    quoted: FlowKey<A>,
    /// Ends of an answer to the quoted packet.
    reply: FlowKey<A>,
    hops: u32,
}

/// Translates an error back, and sends it on its way if `forward`; leaves it unchanged if it is not about a
/// flow of ours.
#[inline(never)]
fn translate<F: Family>(skb: *mut __sk_buff, forward: bool) -> i32 {
    let Some(scratch) = F::scratch() else {
        return NEXT;
    };
    // SAFETY: the room is this processor's own, and its parts do not overlap.
    let (error, sender, outer) =
        unsafe { (&mut (*scratch).error, &mut (*scratch).sender, &mut (*scratch).outer) };
    if !read::<F>(skb, error) {
        return NEXT;
    }
    // The packet that the quoted one answers has the same two ends, reversed.
    if !flow::known::<F>(&error.reply, sender) {
        return NEXT;
    }
    // An error from a backend gets the service's address; any other keeps its own.
    let own = error.outer.source.same(&error.quoted.destination);
    // SAFETY: all are values.
    unsafe {
        packet::copy(if own { &sender.source } else { &error.outer.source }, &mut outer.source);
        packet::copy(&sender.destination, &mut outer.destination);
    }
    outer.source_port = 0;
    outer.destination_port = 0;
    let mut neighbour = MaybeUninit::uninit();
    // SAFETY: all fields are integers.
    let neighbour = unsafe { packet::cleared(&mut neighbour) };
    let ifindex =
        if forward && error.hops > 1 { tcx::way::<F>(skb, F::ICMP as u32, outer, neighbour) } else { 0 };
    write::<F>(skb, error, sender, outer, ifindex != 0);
    maps::count(metric::ICMP_TRANSLATED);
    if !forward {
        tcx::mark(skb);
        return NEXT;
    }
    tcx::depart(skb, ifindex, neighbour)
}

/// Reads an error; returns `false` if it is neither about a packet with ports nor about an echo.
#[inline(always)]
fn read<F: Family>(skb: *mut __sk_buff, error: &mut Error<F::Address>) -> bool {
    let ctx = TcContext::new(skb);
    let quote = IP + F::HEADER + HEADER;
    let ports = quote + F::HEADER;
    // With a TCP checksum, if the quote is long enough.
    tcx::pull(&ctx, (ports + TCP_CHECK + 2) as u32);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + ports + QUOTED > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        let first: u8 = packet::load(data, quote);
        let number = packet::next_protocol::<F>(data, quote);
        let balanced = number == protocol::TCP || number == protocol::UDP || number == protocol::SCTP;
        let message: u8 = packet::load(data, ports);
        let request = number == F::ICMP && message == types::<F>().echo;
        let reply = number == F::ICMP && message == types::<F>().reply;
        let plain = if F::VERSION == 4 {
            first == 0x45 && packet::load::<u16>(data, quote + 6) & FRAGMENT_OFFSET == 0
        } else {
            first >> 4 == 6
        };
        if !(balanced || request || reply) || !plain {
            return false;
        }
        packet::copy((data + IP + F::SOURCE) as *const _, &mut error.outer.source);
        packet::copy((data + IP + F::DESTINATION) as *const _, &mut error.outer.destination);
        error.outer.source_port = 0;
        error.outer.destination_port = 0;
        packet::copy((data + quote + F::SOURCE) as *const _, &mut error.quoted.source);
        packet::copy((data + quote + F::DESTINATION) as *const _, &mut error.quoted.destination);
        if balanced {
            error.quoted.source_port = packet::load(data, ports);
            error.quoted.destination_port = packet::load(data, ports + 2);
        } else {
            let identifier: u16 = packet::load(data, ports + IDENTIFIER);
            error.quoted.source_port = if request { identifier } else { 0 };
            error.quoted.destination_port = if request { 0 } else { identifier };
        }
        error.quoted.protocol = number as u32;
        packet::copy(&error.quoted.destination, &mut error.reply.source);
        packet::copy(&error.quoted.source, &mut error.reply.destination);
        error.reply.source_port = error.quoted.destination_port;
        error.reply.destination_port = error.quoted.source_port;
        error.reply.protocol = number as u32;
        error.hops = packet::load::<u8>(data, IP + F::HOPS) as u32;
    }
    true
}

/// Quotes the packet as its sender made it. `sender` is the flow of answers to the sender: it goes from the
/// service to the packet's source.
#[inline(never)]
fn write<F: Family>(
    skb: *mut __sk_buff,
    error: &Error<F::Address>,
    sender: &To<F::Address>,
    outer: &To<F::Address>,
    hop: bool,
) {
    let made = To {
        source: sender.destination,
        destination: sender.source,
        source_port: sender.destination_port,
        destination_port: sender.source_port,
        flags: 0,
        slot: 0,
    };
    let is_echo = error.quoted.protocol == F::ICMP as u32;
    let inner = Delta::new(&error.quoted, &made);
    let delta = Delta::new(&error.outer, outer);
    let mut change = inner.ports;
    // A v4 header has the same sum as before; for v6, both pseudo header and quote change.
    if F::VERSION == 6 {
        change += packet::fold32(inner.addresses) + packet::fold32(delta.addresses);
    }
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    let quote = IP + F::HEADER + HEADER;
    let ports = quote + F::HEADER;
    if data + ports + QUOTED > end {
        return;
    }
    // SAFETY: compared with the end just above; TCP's checksum is compared where it is read.
    unsafe {
        let sum = inner.addresses + inner.ports;
        if error.quoted.protocol == protocol::UDP as u32 {
            change += quoted_check(data, ports + UDP_CHECK, sum, true);
        } else if error.quoted.protocol == protocol::TCP as u32 && data + ports + TCP_CHECK + 2 <= end {
            change += quoted_check(data, ports + TCP_CHECK, sum, false);
        } else if is_echo {
            // For IPv4 it does not cover the addresses.
            let sum = if F::VERSION == 4 { inner.ports } else { sum };
            change += quoted_check(data, ports + CHECK, sum, false);
        }
        if F::VERSION == 4 {
            let check = packet::adjusted(packet::load(data, quote + 10), inner.addresses);
            packet::store(data, quote + 10, check);
        }
        packet::copy(&sender.destination, (data + quote + F::SOURCE) as *mut _);
        packet::copy(&sender.source, (data + quote + F::DESTINATION) as *mut _);
        if is_echo {
            packet::store(data, ports + IDENTIFIER, made.source_port | made.destination_port);
        } else {
            packet::store(data, ports, packet::ports(made.source_port, made.destination_port));
        }
        let check = packet::adjusted(packet::load(data, IP + F::HEADER + CHECK), change);
        packet::store(data, IP + F::HEADER + CHECK, check);
        packet::rewrite_ip::<F>(data, outer, delta.addresses, hop);
    }
}

/// Adjusts the transport checksum of a quote; returns the change of sums over it. With `may_lack` a checksum
/// of zero stays.
///
/// # Safety
/// The program must have compared `data + offset + 2` with the end of the packet.
#[inline(always)]
unsafe fn quoted_check(data: usize, offset: usize, sum: u64, may_lack: bool) -> u64 {
    // SAFETY: by the contract of this function.
    unsafe {
        let old: u16 = packet::load(data, offset);
        if may_lack && old == 0 {
            return 0;
        }
        let new = packet::adjusted(old, sum);
        let new = if may_lack && new == 0 { 0xffff } else { new };
        packet::store(data, offset, new);
        (!old) as u64 + new as u64
    }
}
