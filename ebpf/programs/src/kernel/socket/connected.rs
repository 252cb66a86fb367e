//! Sockets that are connected to a service, by cookie: see [`Connected`]. A connecting socket touches one
//! line of tags and one slot, a closing one the line alone; no lock is taken, and nothing is allocated.

use ebpf_common::flow::{FlowTags, WAYS, tag};
use ebpf_common::socket::Connected;

use super::super::atomic::exchange_if;
use super::super::family::{Address as _, Family};
use super::super::maps::{CONNECTED, CONNECTED_TAGS};

/// Returned in place of the way of a set: there is none.
const NONE: u32 = WAYS;

/// A socket and its translated destination.
pub struct Connection<A> {
    pub cookie: u64,
    pub netns: u64,
    pub service: u32,
    pub protocol: u8,
    pub frontend: (A, u16),
    pub backend: (A, u16),
}

/// Records a connection, in place of an earlier one of the same socket; returns `false` if its set is full.
#[inline(always)]
pub fn remember<F: Family>(connection: &Connection<F::Address>) -> bool {
    let (set, tag) = (Connected::set(connection.cookie), Connected::tag(connection.cookie));
    let Some(line) = CONNECTED_TAGS.get_ptr_mut(set) else {
        return false;
    };
    let (mut way, free) = find(line, tag);
    if way == NONE {
        if free == NONE || !claim(line, free, tag) {
            return false;
        }
        way = free;
    }
    let Some(slot) = CONNECTED.get_ptr_mut(Connected::element(set, way)) else {
        return false;
    };
    // SAFETY: the slot is this socket's own; others only read it, and the cookie tells them whether it is
    // complete.
    unsafe {
        (&raw mut (*slot).cookie).write_volatile(0);
        store::<F>(&raw mut (*slot).frontend, &connection.frontend.0);
        store::<F>(&raw mut (*slot).backend, &connection.backend.0);
        (&raw mut (*slot).frontend_port).write_volatile(connection.frontend.1);
        (&raw mut (*slot).backend_port).write_volatile(connection.backend.1);
        (&raw mut (*slot).netns).write_volatile(connection.netns);
        (&raw mut (*slot).service).write_volatile(connection.service);
        (&raw mut (*slot).protocol).write_volatile(connection.protocol as u16);
        (&raw mut (*slot).family).write_volatile(F::VERSION as u16);
        (&raw mut (*slot).cookie).write_volatile(connection.cookie);
    }
    true
}

/// The result of looking up a socket.
pub enum Recalled<A> {
    /// The address and port that the application connected to.
    Frontend(A, u16),
    /// It has no slot, though its set has one left.
    Nothing,
    /// It has no slot, and may have found its set full.
    Unknown,
}

/// Returns the address that the application connected to, given the destination of the socket's packets.
#[inline(always)]
pub fn recall<F: Family>(cookie: u64, backend: &F::Address, port: u16) -> Recalled<F::Address> {
    let set = Connected::set(cookie);
    let Some(line) = CONNECTED_TAGS.get_ptr_mut(set) else {
        return Recalled::Unknown;
    };
    let (way, free) = find(line, Connected::tag(cookie));
    if way == NONE {
        return if free == NONE { Recalled::Unknown } else { Recalled::Nothing };
    }
    let Some(slot) = CONNECTED.get_ptr(Connected::element(set, way)) else {
        return Recalled::Unknown;
    };
    // SAFETY: the slot is this socket's own, which is in this system call.
    let slot = unsafe { &*slot };
    let ours = slot.cookie == cookie && slot.family == F::VERSION as u16 && slot.backend_port == port;
    if !ours || !F::Address::from_words(&slot.backend).same(backend) {
        return Recalled::Unknown;
    }
    Recalled::Frontend(F::Address::from_words(&slot.frontend), slot.frontend_port)
}

/// Frees the slot of a socket, if it has one.
#[inline(always)]
pub fn forget(cookie: u64) {
    let Some(line) = CONNECTED_TAGS.get_ptr_mut(Connected::set(cookie)) else {
        return;
    };
    let (way, _) = find(line, Connected::tag(cookie));
    if way != NONE {
        // SAFETY: a tag of the line; the slot is this socket's own.
        unsafe { place(line, way).write_volatile(tag::EMPTY) };
    }
}

/// Returns the way that has the tag, and one that is free. Without branches: the verifier would follow each
/// of them.
#[inline(always)]
fn find(line: *mut FlowTags, wanted: u32) -> (u32, u32) {
    let (mut found, mut free) = (NONE, NONE);
    for way in 0..WAYS {
        // SAFETY: a tag of the line.
        let tag = unsafe { place(line, way).read_volatile() };
        let (own, empty) = (all_if_zero(tag ^ wanted), all_if_zero(tag ^ tag::EMPTY));
        found = found & !own | way & own;
        free = free & !empty | way & empty;
    }
    (found, free)
}

/// Returns all bits for zero, else none.
#[inline(always)]
fn all_if_zero(word: u32) -> u32 {
    ((word as u64).wrapping_sub(1) as i64 >> 63) as u32
}

/// Takes a free way.
#[inline(always)]
fn claim(line: *mut FlowTags, way: u32, new: u32) -> bool {
    // SAFETY: a tag of the line.
    unsafe { exchange_if(place(line, way), tag::EMPTY, new) == tag::EMPTY }
}

/// Returns the address of the tag of a way.
#[inline(always)]
unsafe fn place(line: *mut FlowTags, way: u32) -> *mut u32 {
    // SAFETY: within the line: the mask keeps the way below `WAYS`.
    unsafe { (&raw mut (*line).tags).cast::<u32>().add((way & (WAYS - 1)) as usize) }
}

/// Writes the words that the family has.
#[inline(always)]
unsafe fn store<F: Family>(to: *mut [u32; 4], address: &F::Address) {
    let words = address.words();
    let to = to.cast::<u32>();
    // SAFETY: the caller's pointer leads to four words.
    unsafe {
        to.write_volatile(words[0]);
        if F::VERSION == 6 {
            to.add(1).write_volatile(words[1]);
            to.add(2).write_volatile(words[2]);
            to.add(3).write_volatile(words[3]);
        }
    }
}
