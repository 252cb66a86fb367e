//! The answer to a packet whose frontend has no backend: a reset, or "port unreachable". It is
//! built in the packet itself, which goes back where it came from.

use aya_ebpf::helpers::{bpf_redirect, bpf_skb_change_tail, bpf_skb_load_bytes};
use aya_ebpf::programs::TcContext;
use ebpf_common::protocol;

use super::packet::{self, ETHERNET, IP, L4, Packet, TCP_HEADERS, tcp_flag};

const DROP: i32 = 2;
const TTL: u8 = 64;
/// Of the packet in question, an ICMP error carries the IP header and 8 bytes.
const QUOTE: usize = 28;
const ICMP: usize = L4;
const ICMP_LENGTH: usize = L4 + 8 + QUOTE;
const ICMP_UNREACHABLE_PORT: u16 = 0x0303;
const PROTOCOL_ICMP: u8 = 1;

/// Turns the packet into its refusal and sends it back.
#[inline(always)]
pub fn refuse(ctx: &TcContext, packet: &Packet) -> i32 {
    let done = if packet.protocol() == protocol::TCP { reset(ctx, packet) } else { unreachable(ctx, packet) };
    if done.is_none() {
        return DROP;
    }
    // SAFETY: takes numbers; the context is the one that the kernel gave.
    unsafe { bpf_redirect((*ctx.skb.skb).ifindex, 0) as i32 }
}

#[inline(always)]
fn reset(ctx: &TcContext, packet: &Packet) -> Option<()> {
    // A reset is never answered by a reset.
    if packet.tcp_flags & tcp_flag::RST != 0 {
        return None;
    }
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + TCP_HEADERS > end {
        return None;
    }
    // SAFETY: compared with the end just above.
    let (sequence, acknowledged, header, total) = unsafe {
        (
            u32::from_be(packet::load(data, L4 + 4)),
            u32::from_be(packet::load(data, L4 + 8)),
            (packet::load::<u8>(data, L4 + 12) >> 4) as u32 * 4,
            u16::from_be(packet::load(data, IP + 2)) as u32,
        )
    };
    let payload = total.wrapping_sub(20).wrapping_sub(header);
    let opens = (packet.tcp_flags & tcp_flag::SYN != 0) as u32;
    let closes = (packet.tcp_flags & tcp_flag::FIN != 0) as u32;
    let (sequence, acknowledge, flags) = if packet.tcp_flags & tcp_flag::ACK != 0 {
        (acknowledged, 0, tcp_flag::RST)
    } else {
        let next = sequence.wrapping_add(payload).wrapping_add(opens).wrapping_add(closes);
        (0, next, tcp_flag::RST | tcp_flag::ACK)
    };
    let data = resized(ctx, TCP_HEADERS)?;
    // SAFETY: `resized` has compared the length with the end.
    unsafe {
        turn_back(data, packet, 40, protocol::TCP);
        packet::store(data, L4, packet::ports(packet.key.destination_port, packet.key.source_port));
        packet::store(data, L4 + 4, sequence.to_be());
        packet::store(data, L4 + 8, acknowledge.to_be());
        packet::store(data, L4 + 12, [0x50, flags]);
        packet::store(data, L4 + 14, 0_u16);
        packet::store(data, L4 + 16, 0_u32);
        let pseudo = packet.key.source as u64
            + packet.key.destination as u64
            + ((protocol::TCP as u16).to_be() as u64)
            + (20_u16.to_be() as u64);
        packet::store(data, packet::TCP_CHECK, !packet::fold(pseudo + sum::<5>(data, L4)));
    }
    Some(())
}

#[inline(always)]
fn unreachable(ctx: &TcContext, packet: &Packet) -> Option<()> {
    let mut quote = [0_u32; QUOTE / 4];
    // SAFETY: the buffer lives on the stack for the length of the call, and its size is given.
    let loaded =
        unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), IP as u32, quote.as_mut_ptr().cast(), QUOTE as u32) };
    if loaded != 0 {
        return None;
    }
    let data = resized(ctx, ICMP_LENGTH)?;
    // SAFETY: `resized` has compared the length with the end.
    unsafe {
        turn_back(data, packet, (ICMP_LENGTH - ETHERNET) as u16, PROTOCOL_ICMP);
        packet::store(data, ICMP, ICMP_UNREACHABLE_PORT);
        packet::store(data, ICMP + 2, 0_u16);
        packet::store(data, ICMP + 4, 0_u32);
        let mut total = ICMP_UNREACHABLE_PORT as u64;
        for (word, value) in quote.iter().enumerate() {
            packet::store(data, ICMP + 8 + 4 * word, *value);
            total += *value as u64;
        }
        packet::store(data, ICMP + 2, !packet::fold(total));
    }
    Some(())
}

/// Cuts or stretches the packet; gives its new start.
#[inline(always)]
fn resized(ctx: &TcContext, length: usize) -> Option<usize> {
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_skb_change_tail(ctx.skb.skb, length as u32, 0) } != 0 {
        return None;
    }
    let data = ctx.data();
    if data + length > ctx.data_end() {
        return None;
    }
    Some(data)
}

/// Swaps both link addresses and writes an IP header from the destination to the source.
///
/// # Safety
/// The program must have compared `data + L4` with the end of the packet.
#[inline(always)]
unsafe fn turn_back(data: usize, packet: &Packet, length: u16, number: u8) {
    // SAFETY: by the contract of this function.
    unsafe {
        let destination: [u8; 6] = packet::load(data, 0);
        let source: [u8; 6] = packet::load(data, 6);
        packet::store(data, 0, source);
        packet::store(data, 6, destination);
        packet::store(data, IP, [0x45_u8, 0]);
        packet::store(data, IP + 2, length.to_be());
        packet::store(data, IP + 4, 0_u16);
        packet::store(data, IP + 6, 0x4000_u16.to_be());
        packet::store(data, IP + 8, [TTL, number]);
        packet::store(data, packet::IP_CHECK, 0_u16);
        packet::store(data, packet::IP_SOURCE, packet.key.destination);
        packet::store(data, packet::IP_DESTINATION, packet.key.source);
        packet::store(data, packet::IP_CHECK, !packet::fold(sum::<5>(data, IP)));
    }
}

/// Sum over `N` words.
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
