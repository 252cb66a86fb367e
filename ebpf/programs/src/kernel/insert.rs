//! Insertion of flows into the table. [`super::table`] explains how processors share it.

use ebpf_common::flow::{Flow, FlowKey, FlowTags, WAYS, age_of, hint_of, set_of, slot_of, start_of, tag_of};
use ebpf_common::masquerade::Prefix;

use super::atomic::{exchange, exchange_if};
use super::evict::{BESIDE, Foreseen, REPLACED, Sibling, evict, occupy};
use super::family::{Address, Family, V4, V6};
use super::icmp::Error;
use super::new_flow::Choice;
use super::packet::{self, To};
use super::remove::withdraw;
use super::table::{EXISTS, NONE, SAME_TAGS, beside, next_way, same_key_here};
use super::{hint, maps};

/// The content of a new flow.
#[repr(C)]
pub struct New<A> {
    pub key: FlowKey<A>,
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    pub service: u32,
    pub epoch: u32,
    pub seen: u32,
    /// Bits of [`flow_flag`].
    pub flags: u32,
}

/// Room for data that does not fit on the stack. Each part has one user, and no user runs inside itself.
#[repr(C)]
pub struct Scratch<A> {
    /// The flow that is being inserted.
    pub new: New<A>,
    /// The hash of its key, and the place of the packet: see [`put`].
    hash: u64,
    place: u64,
    /// The flows that may be evicted, of the packet's set and of its reply's: see [`foresee`].
    pub foreseen: [Foreseen; 2],
    /// The other direction of the flow that a packet belongs to.
    pub sibling: FlowKey<A>,
    /// The ingredients of the new flow.
    pub choice: Choice<A>,
    /// The flow that is evicted.
    pub evicted: Sibling<A>,
    /// An error and its translation.
    pub error: Error<A>,
    pub sender: To<A>,
    pub outer: To<A>,
    /// A destination that is looked up among those that keep the source.
    pub prefix: Prefix<A>,
}

/// Inserts a flow into the table; returns the index of its slot, [`EXISTS`] if its key is there, or [`NONE`]
/// if all slots of its set were being filled. `hash` is the key's; `place` is the packet's, see
/// [`super::flow::Place`].
#[inline(always)]
pub fn insert<F: Family>(new: &New<F::Address>, hash: u64, place: u32) -> u32 {
    F::insert_flow(new, hash, place)
}

/// [`insert`] of IPv4, verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn insert4(new: *const New<u32>, hash: u64, place: u32) -> u32 {
    // SAFETY: null, or the caller's.
    unsafe { new.as_ref() }.map_or(NONE, |new| put::<V4>(new, hash, place))
}

/// [`insert`] of IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn insert6(new: *const New<[u32; 4]>, hash: u64, place: u32) -> u32 {
    // SAFETY: null, or the caller's.
    unsafe { new.as_ref() }.map_or(NONE, |new| put::<V6>(new, hash, place))
}

#[inline(always)]
fn put<F: Family>(new: &New<F::Address>, hash: u64, place: u32) -> u32 {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return NONE;
    };
    // Data that is not needed during the search for a slot is not on the stack meanwhile.
    // SAFETY: the room is this processor's own.
    unsafe {
        (&raw mut (*scratch).hash).write_volatile(hash);
        (&raw mut (*scratch).place).write_volatile(place as u64);
    }
    let taken = occupy::<F>(config, set_of(hash, F::flow_mask(config)), start_of(hash), new);
    if taken == NONE {
        return NONE;
    }
    let Some(scratch) = F::scratch() else {
        return NONE;
    };
    // SAFETY: as above.
    let hash = unsafe { (&raw const (*scratch).hash).read_volatile() };
    let set = set_of(hash, F::flow_mask(config));
    let set = if taken & BESIDE != 0 { beside(set) } else { set };
    let way = taken & (WAYS - 1);
    let index = slot_of(set, way, F::flow_mask(config));
    let Some(slot) = F::slot(index) else {
        return NONE;
    };
    if taken & REPLACED != 0 {
        // SAFETY: as above.
        let place = unsafe { (&raw const (*scratch).place).read_volatile() as u32 };
        evict::<F>(slot, new.seen, place);
    } else {
        // SAFETY: the pointer leads to a slot that is ours.
        unsafe { open(slot) };
    }
    let Some(tags) = F::tags(set) else {
        return NONE;
    };
    // SAFETY: both pointers lead to elements of their maps, and the slot is ours.
    unsafe {
        let version = (&raw const (*slot).version).read_volatile();
        fill(slot, new);
        hint::write::<F>(set, way, hint_of(hash));
        exchange(way_of(tags, way), tag_of(hash) | age_of(new.seen, false));
        let alone = hint::is_alone::<F>(set, way, hash) && hint::is_alone::<F>(beside(set), WAYS, hash)
            || F::is_alone(set, new, hash, index) && F::is_alone(beside(set), new, hash, index);
        if alone && exchange_if(&raw mut (*slot).version, version, version.wrapping_add(1)) == version {
            return index;
        }
        withdraw::<F>(new, hash, index);
    }
    EXISTS
}

/// Returns the tag of a way.
///
/// # Safety
/// `tags` must lead to an element of the map of tags, and `way` be below [`WAYS`].
#[inline(always)]
pub unsafe fn way_of(tags: *mut FlowTags, way: u32) -> *mut u32 {
    // SAFETY: by the contract of this function. The mask shows it to the kernel too.
    unsafe { tags.cast::<u32>().add((way & (WAYS - 1)) as usize) }
}

/// Makes the version of an owned slot odd.
///
/// # Safety
/// `slot` must lead to a slot that the caller owns.
#[inline(always)]
pub unsafe fn open<A>(slot: *mut Flow<A>) {
    // SAFETY: by the contract of this function.
    unsafe {
        let place = &raw mut (*slot).version;
        exchange(place, (place.read_volatile() | 1).wrapping_add(2));
    }
}

/// # Safety
/// `slot` must lead to a slot that the caller owns and has opened.
#[inline(always)]
unsafe fn fill<A: Address>(slot: *mut Flow<A>, new: &New<A>) {
    // SAFETY: by the contract of this function; pairs of ports, and flags with what is after them,
    // are aligned words.
    unsafe {
        packet::copy(&raw const new.key, &raw mut (*slot).key);
        packet::copy(&raw const new.source, &raw mut (*slot).source);
        packet::copy(&raw const new.destination, &raw mut (*slot).destination);
        let ports = packet::ports(new.source_port, new.destination_port);
        (&raw mut (*slot).source_port).cast::<u32>().write_volatile(ports);
        (&raw mut (*slot).service).write_volatile(new.service);
        (&raw mut (*slot).epoch).write_volatile(new.epoch);
        (&raw mut (*slot).seen).write_volatile(new.seen);
        (&raw mut (*slot).flags).cast::<u32>().write_volatile(new.flags);
        (&raw mut (*slot).hop_ifindex).write_volatile(0);
    }
}

/// Searches a set for another slot than `own` with the key of a pending flow; returns `true` if there is
/// none, or if the other one has been revoked.
#[inline(always)]
fn scan<F: Family>(set: u32, new: &New<F::Address>, hash: u64, own: u32) -> bool {
    let (Some(config), Some(tags)) = (maps::config(), F::tags(set)) else {
        return false;
    };
    let wanted = tag_of(hash);
    let mut from = 0;
    for _ in 0..SAME_TAGS {
        let way = next_way(tags, wanted, from);
        if way >= WAYS {
            return true;
        }
        from = way + 1;
        let index = slot_of(set, way, F::flow_mask(config));
        let Some(slot) = F::slot(index) else {
            return false;
        };
        // SAFETY: the pointer leads to a slot.
        unsafe {
            if index == own || !same_key_here(slot, &new.key) {
                continue;
            }
            let place = &raw mut (*slot).version;
            let version = place.read_volatile();
            let pending = version & 1 == 1;
            if !pending || index < own || exchange_if(place, version, version.wrapping_add(2)) != version {
                return false;
            }
        }
    }
    true
}

/// [`scan`] of IPv4, verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn scan4(set: u32, new: *const New<u32>, hash: u64, own: u32) -> u32 {
    // SAFETY: null, or the caller's.
    unsafe { new.as_ref() }.map_or(0, |new| scan::<V4>(set, new, hash, own) as u32)
}

/// [`scan`] of IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn scan6(set: u32, new: *const New<[u32; 4]>, hash: u64, own: u32) -> u32 {
    // SAFETY: null, or the caller's.
    unsafe { new.as_ref() }.map_or(0, |new| scan::<V6>(set, new, hash, own) as u32)
}
