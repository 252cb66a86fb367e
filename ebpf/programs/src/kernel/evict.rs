//! Which slot a new flow gets, and what becomes of the flow that has it. [`super::table`] says how
//! processors share slots.

use ebpf_common::event::kind;
use ebpf_common::flow::{Flow, FlowTags, WAYS, flow_flag, quiet_of, slot_of, tag};
use ebpf_common::{Config, metric};

use super::atomic::{exchange, exchange_if, unknown};
use super::family::{Address as _, Family, V4, V6};
use super::insert::{New, open};
use super::table::{NONE, beside, idle_limit, remove_reply_of, way_of, write_sibling};
use super::{event, maps, packet};

/// Slots that are tried for a new flow while other processors take them away.
const TRIES: u32 = 4;

/// Bits of what [`occupy`] gives: the slot is in the set beside, or holds a flow.
pub const BESIDE: u32 = WAYS;
pub const REPLACED: u32 = 2 * WAYS;

/// Takes a slot: an empty one of the set or of the one beside it, else the one of the set that can be
/// missed most, from `start` on. Gives its way, with [`BESIDE`] and [`REPLACED`], or [`NONE`].
#[inline(always)]
pub fn occupy<F: Family>(config: &Config, set: u32, start: u32, new: &New<F::Address>) -> u32 {
    // Replies fill sets from their ends, others from their beginnings: where one direction has most of
    // the packets, these touch fewer pages.
    let last = new.flags & flow_flag::REVERSE as u32 != 0;
    let way = F::empty_way(set, last);
    if way < WAYS {
        return way;
    }
    let way = F::empty_way(beside(set), last);
    if way < WAYS {
        return way | BESIDE;
    }
    let Some(tags) = F::tags(set) else {
        return NONE;
    };
    let mut start = start;
    for _ in 0..TRIES {
        let way = F::victim(set, start, new.seen);
        if way >= WAYS {
            break;
        }
        // SAFETY: the pointer leads to an element of the map of tags, and ways are within it.
        unsafe {
            let old = way_of(tags, way).read_volatile();
            if old < tag::FIRST || exchange_if(way_of(tags, way), old, tag::BUSY) != old {
                continue;
            }
            match F::slot(slot_of(set, way, F::flow_mask(config))) {
                Some(slot) if !leads_back::<F>(slot, new) => return way | REPLACED,
                _ => exchange(way_of(tags, way), old),
            };
            // Another one has been quiet for as long: the other direction is no older than the new one.
            start = way + 1;
        }
    }
    NONE
}

/// The flow of an owned slot is the other direction of the new one.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn leads_back<F: Family>(slot: *const Flow<F::Address>, new: &New<F::Address>) -> bool {
    // SAFETY: by the contract of this function; ports are an aligned word.
    unsafe {
        let ports = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
        ports == packet::ports(new.key.destination_port, new.key.source_port)
            && (*slot).source.same(&new.key.destination)
            && (*slot).destination.same(&new.key.source)
    }
}

/// Takes the first empty way of a set, or the last one; [`WAYS`] if there is none.
#[inline(always)]
fn empty_way<F: Family>(set: u32, last: bool) -> u32 {
    let Some(tags) = F::tags(set) else {
        return WAYS;
    };
    for _ in 0..TRIES {
        let way = if last { last_empty(tags) } else { first_empty(tags) };
        if way >= WAYS {
            break;
        }
        // SAFETY: the pointer leads to an element of the map of tags, and the way is within it.
        if unsafe { exchange_if(way_of(tags, way), tag::EMPTY, tag::BUSY) } == tag::EMPTY {
            return way;
        }
    }
    WAYS
}

#[inline(always)]
fn first_empty(tags: *mut FlowTags) -> u32 {
    for way in 0..WAYS {
        // SAFETY: the callers give an element of the map of tags; the way is within it.
        let found = unsafe { tags.cast::<u32>().add(way as usize).read_volatile() };
        if found == tag::EMPTY {
            return unknown(way, found);
        }
    }
    WAYS
}

#[inline(always)]
fn last_empty(tags: *mut FlowTags) -> u32 {
    for way in (0..WAYS).rev() {
        // SAFETY: as in `first_empty`.
        let found = unsafe { tags.cast::<u32>().add(way as usize).read_volatile() };
        if found == tag::EMPTY {
            return unknown(way, found);
        }
    }
    WAYS
}

/// The way of a set whose flow has ended, or else has been quiet for longest; [`WAYS`] if all are being
/// filled. Of several, the first from `start` on: the clock of flows is coarse.
#[inline(always)]
fn victim<F: Family>(set: u32, start: u32, now: u32) -> u32 {
    let Some(tags) = F::tags(set) else {
        return WAYS;
    };
    let mut best = 0;
    let mut chosen = WAYS;
    for step in 0..WAYS {
        let way = start.wrapping_add(step) & (WAYS - 1);
        // SAFETY: an element of the map of tags; the way is within it.
        let mark = unsafe { way_of(tags, way).read_volatile() };
        let weight = unknown(quiet_of(mark, now) + 1, mark);
        if mark >= tag::FIRST && weight > best {
            best = weight;
            chosen = unknown(way, weight);
        }
    }
    chosen
}

/// Functions that the kernel checks once, and not with each of their calls.
macro_rules! once {
    ($family:ty, $empty:ident, $victim:ident) => {
        /// See [`empty_way`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $empty(set: u32, last: u32) -> u32 {
            empty_way::<$family>(set, last != 0)
        }

        /// See [`victim`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $victim(set: u32, start: u32, now: u32) -> u32 {
            victim::<$family>(set, start, now)
        }
    };
}

once!(V4, empty_way4, victim4);
once!(V6, empty_way6, victim6);

/// Ends the flow in an owned slot that is to be another's, counts it, and forgets its other
/// direction.
#[inline(always)]
pub fn evict<F: Family>(slot: *mut Flow<F::Address>, now: u32, place: u32) {
    // SAFETY: the pointer leads to a slot that is ours: nobody else writes its key and result.
    unsafe {
        open(slot);
        let seen = (&raw const (*slot).seen).read_volatile();
        let flags = (&raw const (*slot).flags).read_volatile() as u32;
        let number = (&raw const (*slot).key.protocol).read_volatile();
        let quiet = now.wrapping_sub(seen) > idle_limit(number, flags);
        maps::count(if quiet { metric::FLOW_REPLACED } else { metric::FLOW_EVICTED });
        if !quiet {
            let service = (&raw const (*slot).service).read_volatile();
            event::emit::<F>(kind::FLOW_EVICTED, place as u8, service, place >> 8, &(*slot).key);
        }
        if let Some(scratch) = F::scratch() {
            let key = &raw mut (*scratch).evicted;
            write_sibling(slot, key);
            remove_reply_of::<F>(&*key, slot);
        }
    }
}
