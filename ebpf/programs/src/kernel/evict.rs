//! Which slot a new flow gets, and what becomes of the flow that has it. [`super::table`] says how
//! processors share slots.

use core::arch::asm;

use ebpf_common::event::kind;
use ebpf_common::flow::{Flow, WAYS, tag};
use ebpf_common::metric;

use super::atomic::{exchange_if, unknown};
use super::family::{Address as _, Family, V4, V6};
use super::table::{
    NONE, New, beside, idle_limit, is_closed, next_way, open, remove_reply_of, way_of, write_sibling,
};
use super::{event, maps, packet};

/// Slots that are tried for a new flow while other processors take them away.
const TRIES: u32 = 4;

/// Bits of what [`occupy`] gives: the slot is in the set beside, or holds a flow.
pub const BESIDE: u32 = WAYS;
pub const REPLACED: u32 = 2 * WAYS;

/// Takes a slot: the home if that is empty, another empty one of the set or of the one beside it, else
/// the one of the set that can be missed most. Gives its way, with [`BESIDE`] and [`REPLACED`], or
/// [`NONE`].
#[inline(always)]
pub fn occupy<F: Family>(set: u32, home: u32, new: &New<F::Address>) -> u32 {
    let Some(tags) = F::tags(set) else {
        return NONE;
    };
    // SAFETY: the pointer leads to an element of the map of tags, and ways are within it.
    unsafe {
        if exchange_if(way_of(tags, home), tag::EMPTY, tag::BUSY) == tag::EMPTY {
            return home;
        }
    }
    let way = F::empty_way(set);
    if way < WAYS {
        return way;
    }
    let way = F::empty_way(beside(set));
    if way < WAYS {
        return way | BESIDE;
    }
    for _ in 0..TRIES {
        let way = F::victim(set, home, new);
        if way >= WAYS {
            break;
        }
        // SAFETY: as above.
        unsafe {
            let old = way_of(tags, way).read_volatile();
            if old >= tag::FIRST && exchange_if(way_of(tags, way), old, tag::BUSY) == old {
                return way | REPLACED;
            }
        }
    }
    NONE
}

/// Takes an empty way of a set; [`WAYS`] if there is none.
#[inline(always)]
fn empty_way<F: Family>(set: u32) -> u32 {
    let Some(tags) = F::tags(set) else {
        return WAYS;
    };
    for _ in 0..TRIES {
        let way = next_way(tags, tag::EMPTY, 0);
        if way >= WAYS {
            break;
        }
        // SAFETY: the callers give an element of the map of tags, and the way is within it.
        if unsafe { exchange_if(way_of(tags, way), tag::EMPTY, tag::BUSY) } == tag::EMPTY {
            return way;
        }
    }
    WAYS
}

/// The way of a set whose flow has ended, or else has been quiet for longest, and is not the other
/// direction of the new one; [`WAYS`] if all are being filled. Of several, the first from the home
/// on: the clock of flows is coarse.
#[inline(always)]
fn victim<F: Family>(set: u32, home: u32, new: &New<F::Address>) -> u32 {
    const ENDED: u32 = 1 << 30;
    let Some(tags) = F::tags(set) else {
        return WAYS;
    };
    let mut best = 0;
    let mut chosen = WAYS;
    for step in 0..WAYS {
        let way = (home + step) & (WAYS - 1);
        // SAFETY: the callers give an element of the map of tags; the way is within it.
        if unsafe { way_of(tags, way).read_volatile() } < tag::FIRST {
            continue;
        }
        let Some(slot) = F::slot(set * WAYS + way) else {
            return WAYS;
        };
        let new = apart(new);
        // SAFETY: the pointer leads to a slot; what is read is only weighed.
        let weight = unsafe {
            let quiet = new.seen.wrapping_sub((&raw const (*slot).seen).read_volatile()) & (ENDED - 1);
            let closed = is_closed((&raw const (*slot).flags).read_volatile() as u32);
            let ports = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
            let own = ports == packet::ports(new.key.destination_port, new.key.source_port)
                && (*slot).source.same(&new.key.destination)
                && (*slot).destination.same(&new.key.source);
            unknown(if own { 1 } else { 2 + quiet + if closed { ENDED } else { 0 } }, ports)
        };
        if weight > best {
            best = weight;
            chosen = unknown(way, weight);
        }
    }
    chosen
}

/// Functions that the kernel checks once, and not with each of their calls.
macro_rules! once {
    ($family:ty, $address:ty, $empty:ident, $victim:ident) => {
        /// See [`empty_way`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $empty(set: u32) -> u32 {
            empty_way::<$family>(set)
        }

        /// See [`victim`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $victim(set: u32, home: u32, new: *const New<$address>) -> u32 {
            // SAFETY: null, or the caller's.
            unsafe { new.as_ref() }.map_or(WAYS, |new| victim::<$family>(set, home, new))
        }
    };
}

once!(V4, u32, empty_way4, victim4);
once!(V6, [u32; 4], empty_way6, victim6);

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

/// The same reference, of which the compiler does not know it: what is read through it is read there
/// and then, not once before a loop and kept on the stack, of which there is little.
#[inline(always)]
fn apart<T>(value: &T) -> &T {
    let mut place: *const T = value;
    // SAFETY: a register is copied to itself, so it is the reference that it was.
    unsafe {
        asm!("{place} = {place}", place = inout(reg) place, options(nomem, nostack, preserves_flags));
        &*place
    }
}
