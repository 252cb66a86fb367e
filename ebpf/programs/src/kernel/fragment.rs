//! Fragments: the first one determines the flow of all of them.
//!
//! A fragment that comes before its first one waits, as bytes in the map `HELD`: a packet itself cannot be
//! stored. When the first one comes, it goes through the queue of its interface once more, followed by the
//! waiting ones, in copies of it that are given their bytes.
//!
//! For SCTP the first one itself waits for the last: the effect of another port on the checksum depends on
//! the distance from the end.
//!
//! The list of waiting fragments is closed by one exchange of its head ([`Fragment::KNOWN`]), so that each
//! fragment is either in it by then, or finds that the first one is known. Slots of a group (see [`waiting`])
//! are taken in turn: if more wait than it has slots, the oldest is evicted.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, BPF_F_INVALIDATE_HASH, BPF_F_RECOMPUTE_CSUM, BPF_NOEXIST,
};
use aya_ebpf::helpers::{bpf_clone_redirect, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes};
use ebpf_common::event::kind;
use ebpf_common::flow::{Fragment, FragmentKey, Held, held};
use ebpf_common::{limits, metric, protocol, waiting};

use super::atomic::{count_up, exchange, exchange_if, within};
use super::family::{Address as _, Family};
use super::flow::{self, Place, verdict};
use super::maps::{self, FRAGMENTS, HELD, HELD_NEXT};
use super::packet::{self, IP, Packet, To};
use super::{new_flow, read, tcx};

/// Ticks for which the ports of a first fragment are valid, and for which others wait for it.
const LIFETIME: u32 = 30;

/// The treatment of a fragment whose first one is not known.
pub mod outcome {
    /// It cannot wait.
    pub const NONE: u32 = 0;
    /// It waits, and this packet is not needed any more.
    pub const HELD: u32 = 1;
    /// The first one has come meanwhile.
    pub const KNOWN: u32 = 2;
}

#[inline(always)]
fn key<F: Family>(packet: &Packet<F::Address>) -> FragmentKey {
    FragmentKey {
        source: packet.key.source.words(),
        destination: packet.key.destination.words(),
        identification: packet.identification,
        protocol: packet.key.protocol,
    }
}

#[inline(always)]
fn is_fresh(seen: u32) -> bool {
    maps::tick().wrapping_sub(seen) <= LIFETIME
}

/// Records the ports of a first fragment; returns the head of the list of those that wait for it.
#[inline(always)]
fn note<F: Family>(packet: &Packet<F::Address>, key: &FragmentKey) -> u32 {
    let now = maps::tick();
    let (source_port, destination_port) = (packet.key.source_port, packet.key.destination_port);
    let value = Fragment { source_port, destination_port, seen: now, waiting: Fragment::KNOWN, length: 0 };
    // A full map evicts its oldest element.
    if FRAGMENTS.insert(key, &value, BPF_NOEXIST as u64).is_ok() {
        return 0;
    }
    let Some(entry) = FRAGMENTS.get_ptr_mut(key) else {
        return 0;
    };
    // SAFETY: the pointer leads to a value of the map; if it is another datagram's by now, that one is
    // treated as if it had been evicted.
    unsafe {
        let in_time = is_fresh((&raw const (*entry).seen).read_volatile());
        let ports = packet::ports(source_port, destination_port);
        (&raw mut (*entry).source_port).cast::<u32>().write_volatile(ports);
        (&raw mut (*entry).seen).write_volatile(now);
        let waiting = exchange(&raw mut (*entry).waiting, Fragment::KNOWN);
        if in_time && waiting != Fragment::KNOWN { waiting } else { 0 }
    }
}

/// Records the ports of a first fragment that goes out.
#[inline(never)]
pub fn remember<F: Family>(packet: &Packet<F::Address>) {
    note::<F>(packet, &key::<F>(packet));
}

/// Records the ports of a first fragment that came in. Returns `true` if this packet is not needed any more:
/// others waited for it, and they and it have been sent through the interface's queue; or it waits itself.
#[inline(never)]
pub fn lead<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>) -> bool {
    let key = key::<F>(packet);
    if packet.protocol() == protocol::SCTP && length_of(&key) == 0 && first_waits(skb, &key) {
        return true;
    }
    let waiting = note::<F>(packet, &key);
    waiting != 0 && send_all(skb, &key, waiting)
}

/// Sends the packet, followed by those that wait, through the queue of the interface.
#[inline(always)]
fn send_all(skb: *mut __sk_buff, key: &FragmentKey, first: u32) -> bool {
    // SAFETY: the context is the one that the kernel gave.
    if unsafe { bpf_clone_redirect(skb, (*skb).ifindex, BPF_F_INGRESS as u64) } != 0 {
        return false;
    }
    let mut waiting = first;
    for _ in 0..limits::HELD_PER_GROUP {
        if waiting == 0 {
            break;
        }
        waiting = deliver(skb, key, waiting);
    }
    true
}

/// Returns the bytes of a datagram of SCTP without IP headers; 0 if its last fragment has not come.
#[inline(always)]
fn length_of(key: &FragmentKey) -> u32 {
    let Some(entry) = FRAGMENTS.get_ptr(key) else {
        return 0;
    };
    // SAFETY: the pointer leads to a value of the map; words are read whole.
    unsafe {
        let fresh = is_fresh((&raw const (*entry).seen).read_volatile());
        let length = (&raw const (*entry).length).read_volatile() & !Fragment::FIRST_WAITS;
        if fresh { length } else { 0 }
    }
}

/// Returns the same length, of the datagram that a first fragment begins.
#[inline(never)]
pub fn length<F: Family>(packet: &Packet<F::Address>) -> u32 {
    length_of(&key::<F>(packet))
}

/// Lets a first fragment wait for the last one; returns `false` if it cannot.
#[inline(always)]
fn first_waits(skb: *mut __sk_buff, key: &FragmentKey) -> bool {
    if hold(skb, key) != outcome::HELD {
        return false;
    }
    if let Some(entry) = FRAGMENTS.get_ptr_mut(key) {
        // SAFETY: the pointer leads to a value of the map. If the last fragment comes at this
        // moment, the datagram is lost.
        unsafe { exchange_if(&raw mut (*entry).length, 0, Fragment::FIRST_WAITS) };
    }
    true
}

/// Records the length of a datagram of SCTP, if this is its last fragment. Returns `true` if the first one
/// waited for that: then all that waited, and this one, have been sent through the interface's queue.
#[inline(never)]
fn conclude<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>) -> bool {
    let Some(length) = end::<F>(skb, packet.l4) else {
        return false;
    };
    let key = key::<F>(packet);
    let Some(entry) = entry(&key) else {
        return false;
    };
    // SAFETY: the pointer leads to a value of the map.
    unsafe {
        if exchange(&raw mut (*entry).length, length) & Fragment::FIRST_WAITS == 0 {
            return false;
        }
        let waiting = exchange(&raw mut (*entry).waiting, 0);
        waiting != 0 && waiting != Fragment::KNOWN && send_all(skb, &key, waiting)
    }
}

/// Returns the offset at which the datagram ends, if this is its last fragment; `l4` is the offset of the
/// payload.
#[inline(always)]
fn end<F: Family>(skb: *mut __sk_buff, l4: u32) -> Option<u32> {
    let (mut header, mut place) = (MaybeUninit::<[u32; 2]>::uninit(), MaybeUninit::<[u32; 1]>::uninit());
    // SAFETY: words may be zero.
    let (header, place) = unsafe { (packet::cleared(&mut header), packet::cleared(&mut place)) };
    read::load(skb, IP as u32, header, 8)?;
    let (more, offset, total) = if F::VERSION == 4 {
        let place = u16::from_be((header[1] >> 16) as u16) as u32;
        (place & 0x2000, (place & 0x1fff) * 8, u16::from_be((header[0] >> 16) as u16) as u32)
    } else {
        read::load(skb, l4 - 8, place, 4)?;
        let place = u16::from_be((place[0] >> 16) as u16) as u32;
        (place & 1, place & 0xfff8, u16::from_be(header[1] as u16) as u32 + F::HEADER as u32)
    };
    (more == 0).then_some(offset + total.wrapping_sub(l4 - IP as u32) & 0xffff)
}

/// Sends a copy of the packet with the bytes of one that waited through the queue of the interface; returns
/// the next of the list. Verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn deliver(skb: *mut __sk_buff, key: *const FragmentKey, place: u32) -> u32 {
    // SAFETY: null, or the caller's.
    let (Some(key), Some(slot)) = (unsafe { key.as_ref() }, HELD.get_ptr_mut(place.wrapping_sub(1))) else {
        return 0;
    };
    // SAFETY: the pointer leads to an element; it is ours while its state is busy. The context is the
    // one that the kernel gave; the helpers check lengths.
    unsafe {
        let state = &raw mut (*slot).state;
        // It was evicted by another fragment, and so were all that came before it.
        if exchange_if(state, held::FULL, held::BUSY) != held::FULL {
            return 0;
        }
        if !same(&raw const (*slot).key, key) {
            exchange(state, held::FULL);
            return 0;
        }
        let next = (&raw const (*slot).next).read_volatile();
        let length = (&raw const (*slot).length).read_volatile();
        if length > 0 && length <= Held::PACKET as u32 {
            let length = within::<{ Held::PACKET }>(length);
            let from = (&raw const (*slot).packet).cast();
            let flags = (BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH) as u64;
            if bpf_skb_change_tail(skb, IP as u32 + length, 0) == 0
                && bpf_skb_store_bytes(skb, IP as u32, from, length, flags) == 0
            {
                bpf_clone_redirect(skb, (*skb).ifindex, BPF_F_INGRESS as u64);
            }
        }
        exchange(state, held::FREE);
        next
    }
}

/// # Safety
/// Both must lead to keys.
#[inline(always)]
unsafe fn same(one: *const FragmentKey, other: *const FragmentKey) -> bool {
    for word in 0..size_of::<FragmentKey>() / 4 {
        // SAFETY: by the contract of this function; within the keys.
        let differ = unsafe {
            one.cast::<u32>().add(word).read_volatile() != other.cast::<u32>().add(word).read_volatile()
        };
        if differ {
            return false;
        }
    }
    true
}

/// Lets a fragment wait for its first one; returns one of [`outcome`]. Verified by the kernel once and not
/// with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hold(skb: *mut __sk_buff, key: *const FragmentKey) -> u32 {
    // SAFETY: null, or the caller's.
    let Some(key) = (unsafe { key.as_ref() }) else {
        return outcome::NONE;
    };
    // Linux 6.1 takes no key for a map from the memory of a caller.
    let mut own = MaybeUninit::uninit();
    // SAFETY: both are keys, and every word of the own one is written.
    let key = unsafe {
        packet::copy(key, own.as_mut_ptr());
        own.assume_init_ref()
    };
    let Some(entry) = entry(key) else {
        return outcome::NONE;
    };
    // SAFETY: the pointers lead to elements of their maps, and the slot is ours once it is busy. The
    // context is the one that the kernel gave; the helper checks the length.
    unsafe {
        let length = (*skb).len.wrapping_sub(IP as u32);
        if length == 0 || length > Held::PACKET as u32 {
            return outcome::NONE;
        }
        let length = within::<{ Held::PACKET }>(length);
        let group = waiting::group(&key.source, (*skb).ifindex);
        let Some(next) = HELD_NEXT.get_ptr_mut(group) else {
            return outcome::NONE;
        };
        let place = waiting::place(group, count_up(next));
        let Some(slot) = HELD.get_ptr_mut(place) else {
            return outcome::NONE;
        };
        let state = &raw mut (*slot).state;
        let before = state.read_volatile();
        if before == held::BUSY || exchange_if(state, before, held::BUSY) != before {
            return outcome::NONE;
        }
        if before == held::FULL {
            maps::count(metric::FRAGMENT_UNKNOWN);
            forget(&(*slot).key);
        }
        let to = (&raw mut (*slot).packet).cast();
        if bpf_skb_load_bytes(skb.cast(), IP as u32, to, length) != 0 {
            exchange(state, held::FREE);
            return outcome::NONE;
        }
        packet::copy(key, &raw mut (*slot).key);
        (&raw mut (*slot).length).write_volatile(length);
        let found = join(entry, slot, place + 1);
        if found == outcome::HELD {
            maps::count(metric::FRAGMENT_HELD);
        }
        found
    }
}

/// Removes the entry of a datagram after the eviction of one of its fragments: the rest of it would waste
/// room in `FRAGMENTS`.
#[inline(always)]
fn forget(key: &FragmentKey) {
    if let Some(entry) = FRAGMENTS.get_ptr(key) {
        // SAFETY: the pointer leads to a value of the map; a word is read whole.
        if unsafe { (&raw const (*entry).waiting).read_volatile() } != Fragment::KNOWN {
            // Another processor may have done the same before.
            let _ = FRAGMENTS.remove(key);
        }
    }
}

/// Returns the element of a datagram, created if necessary. The remains of an earlier datagram with the same
/// identification are removed.
#[inline(always)]
fn entry(key: &FragmentKey) -> Option<*mut Fragment> {
    let now = maps::tick();
    if let Some(entry) = FRAGMENTS.get_ptr_mut(key) {
        // SAFETY: the pointer leads to a value of the map.
        unsafe {
            if !is_fresh((&raw const (*entry).seen).read_volatile()) {
                (&raw mut (*entry).seen).write_volatile(now);
                (&raw mut (*entry).length).write_volatile(0);
                exchange(&raw mut (*entry).waiting, 0);
            }
        }
        return Some(entry);
    }
    let mut value = MaybeUninit::<Fragment>::uninit();
    // SAFETY: zero is a value of all fields.
    let value = unsafe { packet::cleared(&mut value) };
    value.seen = now;
    // Fails if another processor is first.
    let _ = FRAGMENTS.insert(key, &*value, BPF_NOEXIST as u64);
    FRAGMENTS.get_ptr_mut(key)
}

/// Inserts a slot, which the caller owns, into the list of its datagram, unless that is closed.
///
/// # Safety
/// The pointers must lead to elements of their maps.
#[inline(always)]
unsafe fn join(entry: *mut Fragment, slot: *mut Held, place: u32) -> u32 {
    // SAFETY: by the contract of this function.
    unsafe {
        let (head, state) = (&raw mut (*entry).waiting, &raw mut (*slot).state);
        for _ in 0..limits::HELD_TRIES {
            let before = head.read_volatile();
            if before == Fragment::KNOWN {
                exchange(state, held::FREE);
                return outcome::KNOWN;
            }
            (&raw mut (*slot).next).write_volatile(before);
            // Full before it can be found.
            exchange(state, held::FULL);
            if exchange_if(head, before, place) == before {
                return outcome::HELD;
            }
            if exchange_if(state, held::FULL, held::BUSY) != held::FULL {
                return outcome::NONE;
            }
        }
        exchange(state, held::FREE);
    }
    outcome::NONE
}

/// Returns both ports of a datagram, if its first fragment has come.
#[inline(always)]
pub fn ports(key: &FragmentKey) -> Option<(u16, u16)> {
    let first = FRAGMENTS.get_ptr(key)?;
    // SAFETY: the pointer leads to a value of the map; a recycled one contains another datagram's ports, as
    // can happen when identifications wrap.
    let (ports, seen, waiting) = unsafe {
        (
            (&raw const (*first).source_port).cast::<u32>().read_volatile(),
            (&raw const (*first).seen).read_volatile(),
            (&raw const (*first).waiting).read_volatile(),
        )
    };
    (waiting == Fragment::KNOWN && is_fresh(seen)).then_some((ports as u16, (ports >> 16) as u16))
}

/// Gives a later fragment the ports of its first one, if that is known.
#[inline(never)]
pub fn recall<F: Family>(packet: &mut Packet<F::Address>) -> bool {
    let Some((source, destination)) = ports(&key::<F>(packet)) else {
        return false;
    };
    packet.key.source_port = source;
    packet.key.destination_port = destination;
    true
}

/// Recalls the ports as [`recall`] does, or lets the fragment wait; returns one of [`outcome`].
#[inline(never)]
fn recall_or_hold<F: Family>(skb: *mut __sk_buff, packet: &mut Packet<F::Address>) -> u32 {
    let key = key::<F>(packet);
    for _ in 0..2 {
        if let Some((source, destination)) = ports(&key) {
            packet.key.source_port = source;
            packet.key.destination_port = destination;
            return outcome::KNOWN;
        }
        let found = hold(skb, &key);
        if found != outcome::KNOWN {
            return found;
        }
    }
    outcome::NONE
}

/// Handles a later fragment as its first one; `to` is room for a decision. Inlined: Linux 6.1 counts a frame
/// of the stack as 32 bytes or more, and allows 512 in all.
#[inline(always)]
pub fn ingress<F: Family>(
    skb: *mut __sk_buff,
    packet: &mut Packet<F::Address>,
    place: Place,
    to: &mut To<F::Address>,
) -> i32 {
    if packet.protocol() == protocol::SCTP && conclude::<F>(skb, packet) {
        return tcx::DROP;
    }
    match recall_or_hold::<F>(skb, packet) {
        outcome::HELD => return tcx::DROP,
        outcome::KNOWN => {}
        _ => return give_up::<F>(packet, place),
    }
    if flow::decide_known::<F>(packet, place, false, to) == verdict::REWRITE {
        maps::count(metric::FRAGMENT_TRANSLATED);
        return F::carry(skb, packet, to, place);
    }
    // Its first one was not translated either: packets for a service have been refused or dropped, unless
    // others translate them.
    let others = maps::config().is_some_and(|config| new_flow::is_others::<F>(config, packet));
    if is_for_services::<F>(packet) && !others { tcx::DROP } else { tcx::NEXT }
}

/// Handles a fragment that cannot wait for its first one.
#[inline(always)]
fn give_up<F: Family>(packet: &Packet<F::Address>, place: Place) -> i32 {
    maps::count(metric::FRAGMENT_UNKNOWN);
    flow::emit_event::<F>(kind::FRAGMENT_UNKNOWN, place, 0, packet);
    let ours = is_for_services::<F>(packet) || has_node_ports::<F>(packet);
    if ours { tcx::DROP } else { tcx::NEXT }
}

/// Returns `true` if the destination is in a range of services' addresses.
#[inline(always)]
fn is_for_services<F: Family>(packet: &Packet<F::Address>) -> bool {
    maps::config().is_some_and(|config| F::is_in_ranges(config, &packet.key.destination))
}

/// Returns `true` if the destination is an address that serves node ports, and there are some.
#[inline(always)]
fn has_node_ports<F: Family>(packet: &Packet<F::Address>) -> bool {
    maps::config().is_some_and(|config| config.wildcard_port_min <= config.wildcard_port_max)
        && F::is_local(&packet.key.destination)
}
