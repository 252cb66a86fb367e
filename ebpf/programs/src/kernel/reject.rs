//! The answer to a packet without a receiver: a reset, an abort, or "port unreachable". It is built in the
//! packet itself, which is sent back.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{bpf_redirect, bpf_skb_change_tail};
use aya_ebpf::programs::TcContext;
use ebpf_common::protocol;

use super::family::{Address as _, Family, V4, V6};
use super::packet::{self, IP, IP_CHECK, Packet, TCP_CHECK, TCP_HEADER, tcp_flag};
use super::tcx::{self, DROP};
use super::{read, sctp};

const HOPS: u8 = 64;
/// Length of an ICMP header.
const ICMP_HEADER: usize = 8;
/// Number of bytes after the IP header that an ICMP error quotes of the packet.
const QUOTED: usize = 8;
/// Maximum length of the quote, in words.
const QUOTE_WORDS: usize = 12;
/// Header of SCTP and one chunk.
const ABORT_LENGTH: usize = 16;
/// An abort, the flag that the tag is the receiver's own, and the chunk's length.
const ABORT: u8 = 6;
const REFLECTED: u8 = 1;
const CHUNK_LENGTH: u32 = 4;
/// The first chunk that opens an association.
const INIT: u8 = 1;

/// [`refuse`] of IPv4, verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn refuse4(skb: *mut __sk_buff, packet: *const Packet<u32>) -> i32 {
    // SAFETY: null, or the caller's.
    unsafe { packet.as_ref() }.map_or(DROP, |packet| refuse::<V4>(skb, packet))
}

/// [`refuse`] of IPv6, like [`refuse4`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn refuse6(skb: *mut __sk_buff, packet: *const Packet<[u32; 4]>) -> i32 {
    // SAFETY: null, or the caller's.
    unsafe { packet.as_ref() }.map_or(DROP, |packet| refuse::<V6>(skb, packet))
}

/// Turns the packet into its refusal and sends it back.
#[inline(always)]
fn refuse<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>) -> i32 {
    let done = match packet.protocol() {
        protocol::TCP => reset::<F>(skb, packet),
        protocol::SCTP => abort::<F>(skb, packet),
        _ => {
            // Type and code of "port unreachable".
            let kind = if F::VERSION == 4 { 0x0303 } else { 0x0401 };
            error::<F>(skb, packet, kind, 0)
        }
    };
    send_back(skb, done)
}

/// Turns the packet into the message that only `mtu` bytes fit, and sends it back.
#[inline(never)]
pub fn too_big<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, mtu: u32) -> i32 {
    send_back(skb, too_big_for::<F>(skb, packet, mtu).then_some(()))
}

/// Turns the packet into the same message, and leaves it to the caller to send it; returns `false` if it
/// cannot be built.
#[inline(always)]
pub fn too_big_for<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, mtu: u32) -> bool {
    // "Fragmentation needed", which has the size in its lower half, or "packet too big".
    let kind = if F::VERSION == 4 { 0x0403 } else { 0x0002 };
    error::<F>(skb, packet, kind, mtu.to_be()).is_some()
}

#[inline(always)]
fn send_back(skb: *mut __sk_buff, done: Option<()>) -> i32 {
    if done.is_none() {
        return DROP;
    }
    tcx::mark(skb);
    // SAFETY: takes numbers; the context is the one that the kernel gave.
    unsafe { bpf_redirect((*skb).ifindex, 0) as i32 }
}

/// Returns the offset of the transport header in an answer.
const fn l4<F: Family>() -> usize {
    IP + F::HEADER
}

#[inline(always)]
fn reset<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>) -> Option<()> {
    // A reset is never answered by a reset.
    if packet.flags & tcp_flag::RST != 0 {
        return None;
    }
    let mut header = MaybeUninit::<[u32; 4]>::uninit();
    // SAFETY: words may be zero.
    let header = unsafe { packet::cleared(&mut header) };
    read::load(skb, packet.l4, header, 16)?;
    let (sequence, acknowledged) = (u32::from_be(header[1]), u32::from_be(header[2]));
    let length = (header[3] as u8 >> 4) as u32 * 4;
    let payload = end_of::<F>(skb)?.wrapping_sub(packet.l4).wrapping_sub(length);
    let opens = (packet.flags & tcp_flag::SYN != 0) as u32;
    let closes = (packet.flags & tcp_flag::FIN != 0) as u32;
    let (sequence, acknowledge, flags) = if packet.flags & tcp_flag::ACK != 0 {
        (acknowledged, 0, tcp_flag::RST)
    } else {
        let next = sequence.wrapping_add(payload).wrapping_add(opens).wrapping_add(closes);
        (0, next, tcp_flag::RST | tcp_flag::ACK)
    };
    let data = answer::<F, TCP_HEADER>(skb, packet, protocol::TCP)?;
    let l4 = l4::<F>();
    // SAFETY: `answer` has compared the length with the end.
    unsafe {
        packet::store(data, l4, packet::ports(packet.key.destination_port, packet.key.source_port));
        packet::store(data, l4 + 4, sequence.to_be());
        packet::store(data, l4 + 8, acknowledge.to_be());
        packet::store(data, l4 + 12, 0x50 | (flags as u32) << 8);
        packet::store(data, l4 + 16, 0_u32);
        let sum = pseudo::<F>(packet, protocol::TCP, TCP_HEADER) + sum::<5>(data, l4);
        packet::store(data, l4 + TCP_CHECK, !packet::fold(sum));
    }
    Some(())
}

/// Returns the offset of the first byte after the packet, by its IP header: a frame may be longer.
#[inline(always)]
fn end_of<F: Family>(skb: *mut __sk_buff) -> Option<u32> {
    let mut word = MaybeUninit::<[u32; 1]>::uninit();
    // SAFETY: words may be zero.
    let word = unsafe { packet::cleared(&mut word) };
    if F::VERSION == 4 {
        read::load(skb, IP as u32, word, 4)?;
        Some(IP as u32 + u16::from_be((word[0] >> 16) as u16) as u32)
    } else {
        read::load(skb, IP as u32 + 4, word, 4)?;
        Some((IP + F::HEADER) as u32 + u16::from_be(word[0] as u16) as u32)
    }
}

#[inline(always)]
fn abort<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>) -> Option<()> {
    // An abort is never answered by an abort.
    if packet.flags & tcp_flag::RST != 0 {
        return None;
    }
    let mut header = MaybeUninit::<[u32; 5]>::uninit();
    // SAFETY: words may be zero.
    let header = unsafe { packet::cleared(&mut header) };
    read::load(skb, packet.l4, header, 16)?;
    // A packet that opens an association names the tag that it expects; all others have the receiver's own.
    let asks = header[3] as u8 == INIT && read::load(skb, packet.l4, header, 20).is_some();
    let (tag, flag) = if asks { (header[4], 0) } else { (header[1], REFLECTED) };
    let chunk = ABORT as u32 | (flag as u32) << 8 | CHUNK_LENGTH.swap_bytes();
    let ports = packet::ports(packet.key.destination_port, packet.key.source_port);
    let check = sctp::checksum(&[ports, tag, 0, chunk]);
    let data = answer::<F, ABORT_LENGTH>(skb, packet, protocol::SCTP)?;
    let l4 = l4::<F>();
    // SAFETY: `answer` has compared the length with the end.
    unsafe {
        packet::store(data, l4, ports);
        packet::store(data, l4 + 4, tag);
        packet::store(data, l4 + sctp::CHECK as usize, check);
        packet::store(data, l4 + 12, chunk);
    }
    Some(())
}

/// Builds an error of this type and code, in the form of packets, about the packet; `rest` is the word after
/// its checksum.
#[inline(always)]
fn error<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, kind: u32, rest: u32) -> Option<()> {
    let quoted = (F::HEADER + QUOTED) / 4;
    let mut quote = MaybeUninit::<[u32; QUOTE_WORDS]>::uninit();
    // SAFETY: words may be zero.
    let quote = unsafe { packet::cleared(&mut quote) };
    read::load(skb, IP as u32, quote, F::HEADER as u32)?;
    let mut ports = MaybeUninit::<[u32; 2]>::uninit();
    // SAFETY: words may be zero.
    let ports = unsafe { packet::cleared(&mut ports) };
    read::load(skb, packet.l4, ports, QUOTED as u32)?;
    quote[quoted - 2] = ports[0];
    quote[quoted - 1] = ports[1];
    let extra = packet.l4 as u16 - l4::<F>() as u16;
    if extra != 0 {
        leave_out::<F>(packet, quote, extra);
    }
    let (data, length) = if F::VERSION == 4 {
        (answer::<F, { ICMP_HEADER + 20 + QUOTED }>(skb, packet, F::ICMP)?, ICMP_HEADER + 20 + QUOTED)
    } else {
        (answer::<F, { ICMP_HEADER + 40 + QUOTED }>(skb, packet, F::ICMP)?, ICMP_HEADER + 40 + QUOTED)
    };
    let l4 = l4::<F>();
    // SAFETY: `answer` has compared the length with the end.
    unsafe {
        packet::store(data, l4, kind);
        packet::store(data, l4 + 4, rest);
        let mut total = kind as u64 + rest as u64;
        if F::VERSION == 6 {
            total += pseudo::<F>(packet, F::ICMP, length);
        }
        for word in 0..QUOTE_WORDS {
            if word < quoted {
                packet::store(data, l4 + ICMP_HEADER + 4 * word, quote[word]);
                total += quote[word] as u64;
            }
        }
        packet::store(data, l4 + 2, !packet::fold(total));
    }
    Some(())
}

/// Quotes a header without the options or extensions that followed it.
#[inline(always)]
fn leave_out<F: Family>(packet: &Packet<F::Address>, quote: &mut [u32; QUOTE_WORDS], extra: u16) {
    if F::VERSION == 4 {
        let total = u16::from_be((quote[0] >> 16) as u16).wrapping_sub(extra);
        quote[0] = quote[0] & 0xff00 | 0x45 | (total.to_be() as u32) << 16;
        quote[2] &= 0xffff;
        let sum = quote[0] as u64 + quote[1] as u64 + quote[2] as u64 + quote[3] as u64 + quote[4] as u64;
        quote[2] |= (!packet::fold(sum) as u32) << 16;
    } else {
        let length = u16::from_be(quote[1] as u16).wrapping_sub(extra);
        quote[1] = quote[1] & 0xff00_0000 | (packet.key.protocol & 0xff) << 16 | length.to_be() as u32;
    }
}

/// Turns the packet into an answer with `N` bytes after its IP header, which is filled in; returns the
/// packet's new start.
#[inline(always)]
fn answer<F: Family, const N: usize>(
    skb: *mut __sk_buff,
    packet: &Packet<F::Address>,
    number: u8,
) -> Option<usize> {
    let length = l4::<F>() + N;
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_change_tail(skb, length as u32, 0) } != 0 {
        return None;
    }
    let ctx = TcContext::new(skb);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + length > end {
        return None;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        let destination: [u16; 3] = packet::load(data, 0);
        let source: [u16; 3] = packet::load(data, 6);
        packet::store(data, 0, source);
        packet::store(data, 6, destination);
        if F::VERSION == 4 {
            packet::store(data, IP, 0x45 | ((length - IP) as u16).to_be() as u32 >> 0 << 16);
            // No identification, and "don't fragment".
            packet::store(data, IP + 4, 0x40_u32 << 16);
            packet::store(data, IP + 8, HOPS as u32 | (number as u32) << 8);
            packet::copy(&packet.key.destination, (data + IP + F::SOURCE) as *mut _);
            packet::copy(&packet.key.source, (data + IP + F::DESTINATION) as *mut _);
            packet::store(data, IP_CHECK, !packet::fold(sum::<5>(data, IP)));
        } else {
            packet::store(data, IP, 0x60_u32);
            let rest = (N as u16).to_be() as u32;
            packet::store(data, IP + 4, rest | (number as u32) << 16 | (HOPS as u32) << 24);
            packet::copy(&packet.key.destination, (data + IP + F::SOURCE) as *mut _);
            packet::copy(&packet.key.source, (data + IP + F::DESTINATION) as *mut _);
        }
    }
    Some(data)
}

/// Returns the sum over the pseudo header of an answer.
#[inline(always)]
fn pseudo<F: Family>(packet: &Packet<F::Address>, number: u8, length: usize) -> u64 {
    packet.key.source.sum()
        + packet.key.destination.sum()
        + (number as u16).to_be() as u64
        + (length as u16).to_be() as u64
}

/// Returns the sum over `N` words.
///
/// # Safety
/// The program must have compared `data + offset + 4 * N` with the end of the packet.
#[inline(always)]
unsafe fn sum<const N: usize>(data: usize, offset: usize) -> u64 {
    let mut total = 0;
    for word in 0..N {
        // SAFETY: by the contract of this function.
        total += unsafe { packet::load::<u32>(data, offset + 4 * word) } as u64;
    }
    total
}
