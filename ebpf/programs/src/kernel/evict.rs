//! The choice of a slot for a new flow, and the eviction of the flow that has it. [`super::table`] explains
//! how processors share slots.

use ebpf_common::event::kind;
use ebpf_common::flow::{Flow, FlowKey, WAYS, flow_flag, quiet_of, set_of, slot_of, start_of, tag};
use ebpf_common::{Config, metric};

use super::atomic::{exchange_if, unknown};
use super::family::{Family, V4, V6};
use super::insert::{New, Scratch, open};
use super::remove::{release, reply_of};
use super::table::{self, Found, NONE, beside, idle_limit, way_of, write_sibling};
use super::{event, hint, maps};

/// Number of slots that are tried for a new flow while other processors take them.
const TRIES: u32 = 4;

/// Bits of the result of [`occupy`]: the slot is in the neighbouring set, or holds a flow.
pub const BESIDE: u32 = WAYS;
pub const REPLACED: u32 = 2 * WAYS;

/// The other direction of a flow to be evicted, as it was before.
#[repr(C)]
pub struct Sibling<A> {
    hash: u64,
    key: FlowKey<A>,
    /// Index of its slot; [`NONE`] if there is no such flow.
    index: u32,
    version: u32,
    /// Mark of the flow to be evicted.
    mark: u32,
    reserved: u32,
}

/// The result of [`foresee`].
#[repr(C)]
pub struct Foreseen {
    set: u32,
    /// The result of [`victim`]; 0 for none.
    found: u32,
}

/// Finds the flow that will be evicted if one with this hash is inserted, and prefetches its slot. The memory
/// access then runs in parallel with other work: atomic instructions do not let later ones overtake, so that
/// each line requested only when it is needed would cause a wait.
#[inline(always)]
fn foresee<F: Family>(hash: u64, now: u32, reply: bool) {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return;
    };
    let set = set_of(hash, F::flow_mask(config));
    let mut found = 0;
    if hint::is_full::<F>(set) && hint::is_full::<F>(beside(set)) {
        found = F::victim(set, start_of(hash), now);
        if let Some(slot) = F::slot(slot_of(set, found & (WAYS - 1), F::flow_mask(config))) {
            // SAFETY: the pointer leads to a slot.
            unsafe { (&raw const (*slot).version).read_volatile() };
        }
    }
    // SAFETY: the room is this processor's own.
    unsafe {
        let foreseen = (&raw mut (*scratch).foreseen).cast::<Foreseen>().add(reply as usize);
        foreseen.write(Foreseen { set, found });
    }
}

/// Returns the result of [`foresee`] for a set, once; else the current [`victim`].
///
/// # Safety
/// `scratch` must lead to this processor's room.
#[inline(always)]
unsafe fn foreseen<F: Family>(
    scratch: *mut Scratch<F::Address>,
    set: u32,
    start: u32,
    new: &New<F::Address>,
) -> u32 {
    let reply = (new.flags & flow_flag::REVERSE as u32) as usize;
    // SAFETY: by the contract of this function.
    unsafe {
        let foreseen = (&raw mut (*scratch).foreseen).cast::<Foreseen>().add(reply);
        let found = (&raw const (*foreseen).found).read_volatile();
        (&raw mut (*foreseen).found).write_volatile(0);
        if found != 0 && (&raw const (*foreseen).set).read_volatile() == set {
            found
        } else {
            F::victim(set, start, new.seen)
        }
    }
}

/// Takes a slot: an empty one of the set or of the neighbouring one, else the best victim of the set, from
/// `start` on. Returns its way, with [`BESIDE`] and [`REPLACED`], or [`NONE`].
#[inline(always)]
pub fn occupy<F: Family>(config: &Config, set: u32, start: u32, new: &New<F::Address>) -> u32 {
    // Replies fill sets from their ends, others from their beginnings: if most packets are of one direction,
    // they touch fewer pages.
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
        let Some(scratch) = F::scratch() else {
            break;
        };
        // SAFETY: the room is this processor's own.
        let found = unsafe { foreseen::<F>(scratch, set, start, new) };
        let (way, quiet) = (found & (WAYS - 1), found / WAYS);
        let Some(slot) = F::slot(slot_of(set, way, F::flow_mask(config))) else {
            break;
        };
        // SAFETY: the pointers lead to elements of their maps, and ways are within a line of tags.
        unsafe {
            let mark = way_of(tags, way).read_volatile();
            // A processor that has refreshed it since relies on it.
            if mark < tag::FIRST || quiet_of(mark, new.seen) != quiet {
                continue;
            }
            if quiet <= tag::AHEAD && table::leads_to::<F>(slot, &new.key) {
                // It may be the new flow's other direction, and all others are as young: the next one.
                start = way + 1;
                continue;
            }
            let mark = note::<F>(config, slot, mark);
            if exchange_if(way_of(tags, way), mark, tag::BUSY) == mark {
                return way | REPLACED;
            }
        }
    }
    NONE
}

/// Records where the other direction of a flow is, if it must be removed too: a client must not go on if its
/// replies find no way back, and another may get its port at the backend. An element for replies to a client
/// stays: it serves replies in transit, and is evicted in its turn. Recorded before the flow's slot is taken:
/// a processor that finds it taken begins the connection again, and its elements must not be removed. Returns
/// the mark, for which there is no room on the stack meanwhile.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn note<F: Family>(config: &Config, slot: *const Flow<F::Address>, mark: u32) -> u32 {
    let Some(scratch) = F::scratch() else {
        return mark;
    };
    // SAFETY: the room is this processor's own; the slot by the contract of this function.
    unsafe {
        let sibling = &raw mut (*scratch).evicted;
        if (&raw const (*slot).flags).read_volatile() & flow_flag::REVERSE == 0 {
            (*sibling).index = NONE;
            return mark;
        }
        (&raw mut (*sibling).mark).write_volatile(mark);
        write_sibling(slot, &raw mut (*sibling).key);
        (*sibling).hash = table::hash(&(*sibling).key, config.seed);
        touch::<F>(set_of((*sibling).hash, F::flow_mask(config)));
        let found = reply_of::<F>(config, &(*sibling).key, (*sibling).hash, slot);
        ((*sibling).index, (*sibling).version) =
            found.map_or((NONE, 0), |found| (found.index, found.version));
        (&raw const (*sibling).mark).read_volatile()
    }
}

/// Prefetches the marks of a set, as [`foresee`] does.
#[inline(always)]
pub fn touch<F: Family>(set: u32) {
    if let Some(tags) = F::tags(set) {
        // SAFETY: the pointer leads to an element of the map of tags.
        unsafe { tags.cast::<u32>().read_volatile() };
    }
}

/// Takes the first empty way of a set, or the last one; returns [`WAYS`] if there is none.
#[inline(always)]
fn empty_way<F: Family>(set: u32, last: bool) -> u32 {
    let mut ways = hint::vacant::<F>(set, last);
    for _ in 0..TRIES {
        let way = hint::first_vacant(ways, last);
        if way >= WAYS {
            break;
        }
        let Some(tags) = F::tags(set) else {
            break;
        };
        // SAFETY: the pointer leads to an element of the map of tags, and the way is within it.
        if unsafe { exchange_if(way_of(tags, way), tag::EMPTY, tag::BUSY) } == tag::EMPTY {
            return way;
        }
        // It is being filled.
        ways = hint::without_first(ways);
    }
    WAYS
}

/// Returns the way of a set whose flow has ended, or else has been quiet for longest, plus [`WAYS`] times how
/// long (see [`quiet_of`]). Of several, the first from `start` on: the clock of flows is coarse.
#[inline(always)]
fn victim<F: Family>(set: u32, start: u32, now: u32) -> u32 {
    let Some(tags) = F::tags(set) else {
        return 0;
    };
    let mut best = 0;
    for step in 0..WAYS {
        let way = start.wrapping_add(step) & (WAYS - 1);
        // SAFETY: an element of the map of tags; the way is within it.
        let mark = unsafe { way_of(tags, way).read_volatile() };
        // A mark that is not a flow's has weight 0: its highest bit is not set.
        let flow = ((mark as i32) >> 31) as u32;
        let weight = unknown((quiet_of(mark, now) * WAYS + WAYS - 1 - step) & flow, mark);
        if weight > best {
            best = weight;
        }
    }
    let step = WAYS - 1 - best % WAYS;
    best / WAYS * WAYS + (start.wrapping_add(step) & (WAYS - 1))
}

/// Defines functions that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $empty:ident, $victim:ident, $foresee:ident) => {
        /// Calls [`foresee`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $foresee(hash: u64, now: u32, reply: u32) -> u32 {
            foresee::<$family>(hash, now, reply != 0);
            0
        }

        /// Calls [`empty_way`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $empty(set: u32, last: u32) -> u32 {
            empty_way::<$family>(set, last != 0)
        }

        /// Calls [`victim`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $victim(set: u32, start: u32, now: u32) -> u32 {
            victim::<$family>(set, start, now)
        }
    };
}

once!(V4, empty_way4, victim4, foresee4);
once!(V6, empty_way6, victim6, foresee6);

/// Ends the flow in an owned slot that is to be reused, counts it, and removes its other direction, which
/// [`note`] has recorded.
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
        if !quiet && !event::is_spent(now) {
            let service = (&raw const (*slot).service).read_volatile();
            event::emit::<F>(kind::FLOW_EVICTED, place, service, &(*slot).key);
        }
        let Some(scratch) = F::scratch() else {
            return;
        };
        let sibling = &(*scratch).evicted;
        if let (false, Some(slot)) = (sibling.index == NONE, F::slot(sibling.index)) {
            let found = Found { slot, index: sibling.index, version: sibling.version };
            release::<F>(&found, sibling.hash);
        }
    }
}
