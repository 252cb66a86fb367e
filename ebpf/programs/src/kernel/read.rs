//! Reads the headers of packets in buffers, whatever comes between network and transport.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_skb_load_bytes;
use aya_ebpf::programs::TcContext;
use ebpf_common::protocol;

use super::family::Family;
use super::icmp::types;
use super::packet::{self, IP, Packet, Part, TCP_HEADER, tcp_flag};
use super::{maps, masquerade, tcx};

/// The kinds of packets.
pub mod kind {
    /// Not for these programs, or truncated.
    pub const OTHER: u32 = 0;
    /// A packet with ports.
    pub const BALANCED: u32 = 1;
    /// A fragment without ports.
    pub const LATER: u32 = 2;
}

/// Headers that may come before the transport header of v6.
const EXTENSIONS: u32 = 6;
mod extension {
    pub const HOP_BY_HOP: u8 = 0;
    pub const FRAGMENT: u8 = 44;
    pub const DESTINATION: u8 = 60;
}

/// Types of the first chunk of a packet of SCTP.
mod chunk {
    pub const INIT: u8 = 1;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
    /// Its offset from the start of the transport header.
    pub const OFFSET: usize = 12;
}

/// Returns `true` for a control message after a plain header.
#[inline(always)]
pub fn is_control<F: Family>(ctx: &TcContext) -> bool {
    tcx::pull(ctx, (IP + F::HEADER + TCP_HEADER) as u32);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + F::HEADER > end {
        return false;
    }
    // SAFETY: compared with the end just above.
    unsafe { packet::is_plain::<F>(data, IP) && packet::next_protocol::<F>(data, IP) == F::ICMP }
}

/// Reads a packet after [`is_control`]; returns one of [`kind`].
#[inline(always)]
pub fn packet<F: Family>(ctx: &TcContext, packet: &mut Packet<F::Address>) -> u32 {
    if packet::parse_plain::<F>(ctx.data(), ctx.data_end(), packet) {
        return kind::BALANCED;
    }
    unusual::<F>(ctx.skb.skb, packet)
}

/// Reads fragments, headers with options or extensions, and rare protocols.
#[inline(never)]
fn unusual<F: Family>(skb: *mut __sk_buff, packet: &mut Packet<F::Address>) -> u32 {
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + IP + F::HEADER > end {
        return kind::OTHER;
    }
    // SAFETY: compared with the end just above.
    let number = unsafe {
        packet::copy((data + IP + F::SOURCE) as *const _, &mut packet.key.source);
        packet::copy((data + IP + F::DESTINATION) as *const _, &mut packet.key.destination);
        packet.hops = packet::load(data, IP + F::HOPS);
        let first: u8 = packet::load(data, IP);
        if first >> 4 != F::VERSION {
            return kind::OTHER;
        }
        let number = packet::next_protocol::<F>(data, IP);
        if F::VERSION == 4 {
            let length = (first & 15) as u32 * 4;
            if length < F::HEADER as u32 {
                return kind::OTHER;
            }
            packet.l4 = IP as u32 + length;
            packet.identification = packet::load::<u16>(data, IP + 4) as u32;
            packet.part = part(u16::from_be(packet::load(data, IP + 6)), 0x2000, 0x1fff);
            number
        } else {
            packet.l4 = (IP + F::HEADER) as u32;
            match skip(skb, packet, number) {
                Some(number) => number,
                None => return kind::OTHER,
            }
        }
    };
    packet.key.protocol = number as u32;
    let is_echo = number == F::ICMP && maps::config().is_some_and(masquerade::has_echoes);
    if number != protocol::TCP && number != protocol::UDP && number != protocol::SCTP && !is_echo {
        return kind::OTHER;
    }
    if packet.part == Part::Later {
        return kind::LATER;
    }
    if is_echo { echo::<F>(skb, packet) } else { transport(skb, packet, number) }
}

/// Reads the identifier of an echo request or reply; other control messages are not for these programs. A
/// reply is marked as an answer, which begins nothing.
#[inline(always)]
fn echo<F: Family>(skb: *mut __sk_buff, packet: &mut Packet<F::Address>) -> u32 {
    let mut header = MaybeUninit::<[u32; 2]>::uninit();
    // SAFETY: words may be zero.
    let header = unsafe { packet::cleared(&mut header) };
    if load(skb, packet.l4, header, 8).is_none() {
        return kind::OTHER;
    }
    let (message, identifier) = (header[0] as u8, header[1] as u16);
    if message == types::<F>().echo {
        packet.key.source_port = identifier;
        packet.key.destination_port = 0;
        packet.flags = 0;
    } else if message == types::<F>().reply {
        packet.key.source_port = 0;
        packet.key.destination_port = identifier;
        packet.flags = tcp_flag::ACK;
    } else {
        return kind::OTHER;
    }
    kind::BALANCED
}

/// Returns the part of its datagram that a packet contains, from the fragment offset and its flag.
#[inline(always)]
fn part(word: u16, more: u16, offset: u16) -> Part {
    if word & offset != 0 {
        Part::Later
    } else if word & more != 0 {
        Part::First
    } else {
        Part::Whole
    }
}

/// Skips the extension headers of v6; returns the number of the transport protocol.
#[inline(always)]
fn skip<A>(skb: *mut __sk_buff, packet: &mut Packet<A>, first: u8) -> Option<u8> {
    let mut number = first;
    for _ in 0..EXTENSIONS {
        let optional = number == extension::HOP_BY_HOP || number == extension::DESTINATION;
        if !optional && number != extension::FRAGMENT {
            return Some(number);
        }
        let mut header = MaybeUninit::<[u32; 2]>::uninit();
        // SAFETY: words may be zero.
        let header = unsafe { packet::cleared(&mut header) };
        load(skb, packet.l4, header, 8)?;
        number = header[0] as u8;
        if optional {
            packet.l4 += 8 + (header[0] >> 8 & 0xff) * 8;
            continue;
        }
        packet.l4 += 8;
        packet.part = part(u16::from_be((header[0] >> 16) as u16), 1, 0xfff8);
        packet.identification = header[1];
        if packet.part == Part::Later {
            return Some(number);
        }
    }
    None
}

/// Reads the ports, and the flags of the connection's state.
#[inline(always)]
fn transport<A>(skb: *mut __sk_buff, packet: &mut Packet<A>, number: u8) -> u32 {
    let mut header = MaybeUninit::<[u32; 4]>::uninit();
    // SAFETY: words may be zero.
    let header = unsafe { packet::cleared(&mut header) };
    // Ports, and for TCP the flags, for SCTP the first chunk.
    let length = if number == protocol::UDP { 8 } else { 16 };
    if load(skb, packet.l4, header, length).is_none() {
        return kind::OTHER;
    }
    packet.key.source_port = header[0] as u16;
    packet.key.destination_port = (header[0] >> 16) as u16;
    packet.flags = match number {
        protocol::TCP => (header[3] >> 8) as u8,
        protocol::SCTP => match header[chunk::OFFSET / 4] as u8 {
            chunk::INIT => tcp_flag::SYN,
            chunk::ABORT | chunk::SHUTDOWN_COMPLETE => tcp_flag::RST,
            _ => 0,
        },
        _ => 0,
    };
    kind::BALANCED
}

/// Loads bytes of a packet into words, in the order of the packet.
#[inline(always)]
pub fn load<const N: usize>(
    skb: *mut __sk_buff,
    offset: u32,
    words: &mut [u32; N],
    length: u32,
) -> Option<()> {
    // SAFETY: the callers give the context that the kernel gave, and lengths that the buffer has;
    // the helper checks the offset.
    let loaded = unsafe { bpf_skb_load_bytes(skb.cast(), offset, words.as_mut_ptr().cast(), length) };
    (loaded == 0).then_some(())
}
