//! ICMP errors about packets that were translated. They quote the packet as it was when it failed;
//! its sender knows it under other addresses.

use aya_ebpf::helpers::bpf_skb_pull_data;
use aya_ebpf::programs::TcContext;
use ebpf_common::flow::{Flow4, FlowKey4};
use ebpf_common::protocol;

use super::flow;
use super::packet::{self, Delta, IP, L4};
use super::tcx;

const NUMBER: u8 = 1;
const CHECK: usize = L4 + 2;
/// Where the quoted IP header and the quoted ports are.
const QUOTE: usize = L4 + 8;
const QUOTE_PORTS: usize = QUOTE + 20;
/// The error, and of the packet that it quotes the IP header and 8 bytes.
const LENGTH: usize = QUOTE + 28;

const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const FRAGMENT_OFFSET: u16 = 0x1fff_u16.to_be();

/// An error and the packet that it is about.
struct Error {
    /// Of the error's own header; no ports.
    outer: FlowKey4,
    quoted: FlowKey4,
    ttl: u8,
}

/// Translates an error back, and sends it on its way if `forward`; none if it is not one, or not
/// about a flow of ours.
#[inline(always)]
pub fn translate(ctx: &TcContext, forward: bool) -> Option<i32> {
    let error = read(ctx)?;
    // What the quoted packet is an answer to has the same two ends, the other way round.
    let sender = flow::known(&error.quoted.reversed())?;
    // A backend speaks for the service; any other source of errors speaks for itself.
    let own = error.outer.source == error.quoted.destination;
    let mut outer = flow::blank();
    outer.source = if own { sender.source } else { error.outer.source };
    outer.destination = sender.destination;
    let way = if forward && error.ttl > 1 { tcx::way(ctx, NUMBER, &outer) } else { None };
    write(ctx, &error, &sender, &outer, way.is_some());
    Some(tcx::depart(way))
}

#[inline(always)]
fn read(ctx: &TcContext) -> Option<Error> {
    if (ctx.len() as usize) < LENGTH {
        return None;
    }
    if ctx.data() + LENGTH > ctx.data_end() {
        // SAFETY: the context is the one that the kernel gave. A refusal leaves the packet as it
        // was, and is noticed below.
        unsafe { bpf_skb_pull_data(ctx.skb.skb, LENGTH as u32) };
    }
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + LENGTH > end {
        return None;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        if packet::load::<u8>(data, IP + 9) != NUMBER || !packet::is_plain(data, IP) {
            return None;
        }
        let kind: u8 = packet::load(data, L4);
        if kind != UNREACHABLE && kind != TIME_EXCEEDED && kind != PARAMETER_PROBLEM {
            return None;
        }
        let quoted_protocol: u8 = packet::load(data, QUOTE + 9);
        let balanced = quoted_protocol == protocol::TCP || quoted_protocol == protocol::UDP;
        let first = packet::load::<u16>(data, QUOTE + 6) & FRAGMENT_OFFSET == 0;
        if packet::load::<u8>(data, QUOTE) != 0x45 || !balanced || !first {
            return None;
        }
        Some(Error {
            outer: FlowKey4 {
                source: packet::load(data, packet::IP_SOURCE),
                destination: packet::load(data, packet::IP_DESTINATION),
                source_port: 0,
                destination_port: 0,
                protocol: NUMBER as u32,
            },
            quoted: FlowKey4 {
                source: packet::load(data, QUOTE + 12),
                destination: packet::load(data, QUOTE + 16),
                source_port: packet::load(data, QUOTE_PORTS),
                destination_port: packet::load(data, QUOTE_PORTS + 2),
                protocol: quoted_protocol as u32,
            },
            ttl: packet::load(data, packet::IP_TTL),
        })
    }
}

/// Quotes the packet as its sender made it. `sender` is the flow of answers to the sender: it goes
/// from the service to where the packet came from.
#[inline(always)]
fn write(ctx: &TcContext, error: &Error, sender: &Flow4, outer: &Flow4, hop: bool) {
    let mut made = flow::blank();
    made.source = sender.destination;
    made.destination = sender.source;
    made.source_port = sender.destination_port;
    made.destination_port = sender.source_port;
    let inner = Delta::new(&error.quoted, &made);
    let delta = Delta::new(&error.outer, outer);
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + LENGTH > end {
        return;
    }
    // SAFETY: compared with the end just above.
    unsafe {
        let check = packet::adjusted(packet::load(data, QUOTE + 10), inner.addresses);
        packet::store(data, QUOTE + 10, check);
        packet::store(data, QUOTE + 12, made.source);
        packet::store(data, QUOTE + 16, made.destination);
        packet::store(data, QUOTE_PORTS, packet::ports(made.source_port, made.destination_port));
        // The quoted header sums up to the same as before; only the ports make a difference.
        packet::store(data, CHECK, packet::adjusted(packet::load(data, CHECK), inner.ports));
        packet::rewrite_ip(data, outer, &delta, hop);
    }
}
