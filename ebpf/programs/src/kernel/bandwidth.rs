//! Limits of what pods send and receive, see [`ebpf_common::bandwidth`].

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::programs::TcContext;
use ebpf_common::bandwidth::{self, QUIET, TRIES, UNIT_SHIFT};
use ebpf_common::event::{hook, kind};
use ebpf_common::{metric, protocol};

use super::family::{Family, V4, V6};
use super::maps::{self, BANDWIDTH, BANDWIDTH_FILTER};
use super::packet::{self, ETHERNET, IP, TCP_HEADER};
use super::{atomic, event, flow, read, tcx};

/// Results of [`meter`].
const PASS: u32 = 0;
const DROP: u32 = 1;
/// Drop it, and report that.
const TELL: u32 = 2;

/// Directions of packets.
const INGRESS: u32 = 0;
const EGRESS: u32 = 1;

/// Length of a UDP header.
const UDP_HEADER: u32 = 8;

/// Returns `true` if the pod behind an interface may send the packet.
#[inline(always)]
pub fn may_leave(ctx: &TcContext) -> bool {
    let skb = ctx.skb.skb;
    // SAFETY: the context is the one that the kernel gave.
    let (ifindex, ethertype) = unsafe { ((*skb).ifindex, (*skb).protocol as u16) };
    if !may_be_limited(ifindex) {
        return true;
    }
    match ethertype {
        V4::ETHERTYPE => passes::<V4>(skb, ifindex, EGRESS),
        V6::ETHERTYPE => passes::<V6>(skb, ifindex, EGRESS),
        // SAFETY: the context is the one that the kernel gave.
        _ => meter(ifindex, EGRESS, unsafe { (*skb).len }) == PASS,
    }
}

/// Returns `true` if a packet that is about to enter an interface may reach the pod behind it.
#[inline(always)]
pub fn may_arrive<F: Family>(ctx: &TcContext) -> bool {
    let skb = ctx.skb.skb;
    // SAFETY: the context is the one that the kernel gave.
    let ifindex = unsafe { (*skb).ifindex };
    !may_be_limited(ifindex) || passes::<F>(skb, ifindex, INGRESS)
}

/// Returns `false` if the interface has no limit.
#[inline(always)]
fn may_be_limited(ifindex: u32) -> bool {
    let (word, bit) = bandwidth::filter(ifindex);
    // SAFETY: an element of an array stays where it is; a word is read whole.
    BANDWIDTH_FILTER.get_ptr(word).is_some_and(|word| unsafe { word.read_volatile() } & bit != 0)
}

#[inline(always)]
fn passes<F: Family>(skb: *mut __sk_buff, ifindex: u32, direction: u32) -> bool {
    let verdict = meter(ifindex, direction, wire_length::<F>(skb));
    if verdict == TELL {
        emit_excess::<F>(skb, direction);
    }
    verdict == PASS
}

/// Returns the number of bytes of a packet on a wire, where each segment has headers of its own.
#[inline(never)]
fn wire_length<F: Family>(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the context is the one that the kernel gave.
    let (length, segments) = unsafe { ((*skb).len, (*skb).gso_segs) };
    if segments <= 1 {
        return length;
    }
    let ctx = TcContext::new(skb);
    tcx::pull(&ctx, (IP + F::HEADER + TCP_HEADER) as u32);
    let (data, end) = (ctx.data(), ctx.data_end());
    let mut headers = (ETHERNET + F::HEADER) as u32;
    if data + IP + F::HEADER + TCP_HEADER <= end {
        // SAFETY: compared with the end just above. Options of IPv4 and extensions of IPv6, with which no
        // packet of segmentation offload is made, are not counted.
        headers += unsafe {
            if packet::next_protocol::<F>(data, IP) == protocol::UDP {
                UDP_HEADER
            } else {
                let offset: u8 = packet::load(data, IP + F::HEADER + 12);
                (offset >> 4) as u32 * 4
            }
        };
    }
    length.wrapping_add((segments - 1).wrapping_mul(headers))
}

/// Charges a packet to the pod behind an interface; returns [`PASS`], [`DROP`] or [`TELL`]. The kernel verifies
/// it once, and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn meter(ifindex: u32, direction: u32, length: u32) -> u32 {
    let Some(limit) = BANDWIDTH.get_ptr_mut(&ifindex) else {
        return PASS;
    };
    // SAFETY: the pointer leads to a value of the map, whose words are read and written whole; one that is
    // replaced stays readable for this packet.
    unsafe {
        let bucket = if direction == EGRESS { &raw mut (*limit).egress } else { &raw mut (*limit).ingress };
        let (pace, burst) = ((*bucket).pace, (*bucket).burst);
        if burst == 0 {
            return PASS;
        }
        let cost = bandwidth::cost(pace, length);
        let now = bpf_ktime_get_ns() << UNIT_SHIFT;
        let place = &raw mut (*bucket).due;
        let mut due = place.read_volatile();
        let mut tries = 0;
        while tries < TRIES {
            let Some(new) = bandwidth::admit(due, burst, now, cost) else {
                return refuse(&raw mut (*bucket).told, direction);
            };
            let found = atomic::exchange_long_if(place, due, new);
            if found == due {
                return PASS;
            }
            due = found;
            tries += 1;
        }
        // Other processors have charged theirs meanwhile: this one passes as well, and is paid for.
        atomic::add(place, cost);
    }
    PASS
}

/// Counts a packet that exceeds the limit; returns [`TELL`] for one of many.
///
/// # Safety
/// `told` must lead to a word of a map.
#[inline(always)]
unsafe fn refuse(told: *mut u32, direction: u32) -> u32 {
    maps::count(if direction == EGRESS { metric::BANDWIDTH_EGRESS } else { metric::BANDWIDTH_INGRESS });
    let tick = maps::tick();
    // SAFETY: by the contract of this function.
    unsafe {
        let before = told.read_volatile();
        if before != 0 && tick.wrapping_sub(before) < QUIET {
            return DROP;
        }
        told.write_volatile(tick);
    }
    TELL
}

/// Emits an event about a packet that exceeds the limit.
#[inline(never)]
fn emit_excess<F: Family>(skb: *mut __sk_buff, direction: u32) -> u32 {
    let ctx = TcContext::new(skb);
    tcx::pull(&ctx, (IP + F::HEADER + TCP_HEADER) as u32);
    let mut packet = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let packet = unsafe { packet::cleared(&mut packet) };
    read::packet::<F>(&ctx, packet);
    let (kind, hook) = if direction == EGRESS {
        (kind::BANDWIDTH_EGRESS, hook::POD)
    } else {
        (kind::BANDWIDTH_INGRESS, hook::EGRESS)
    };
    // SAFETY: the context is the one that the kernel gave.
    let place = flow::place(hook, unsafe { (*skb).ifindex });
    event::emit::<F>(kind, place, 0, &packet.key);
    0
}
