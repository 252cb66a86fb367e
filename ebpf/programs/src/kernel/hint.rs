//! Finds the slot of a flow by the hints of its set: sixteen bytes, of which eight are compared at once and
//! without a branch for each, since the matching one cannot be predicted.
//!
//! Only the owner of a slot writes its hint, before it publishes the slot's mark or releases it. So a valid
//! flow has its hint, and without a hint there was no flow; an empty slot has none, though one that is being
//! filled may have none either. A hint that matches the slot of another flow, or an empty one, only costs a
//! look at the marks.

use ebpf_common::flow::{FlowHints, WAYS, hint_of};

use super::family::Family;

/// A byte of 1 for each way of half a set, and one with its highest bit set.
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHEST: u64 = ONES << 7;
/// Multiplied with one bit of [`ONES`], it has the number of that bit in its highest byte.
const NUMBERS: u64 = 0x0001_0203_0405_0607;
/// Number of ways of half a set.
const HALF: u32 = WAYS / 2;

/// Returns the first way of a set that has the hint of a hash; [`WAYS`] or above for none.
#[inline(always)]
pub fn way<F: Family>(set: u32, hash: u64) -> u32 {
    let Some(hints) = F::hints(set) else {
        return WAYS;
    };
    let wanted = hint_of(hash) as u64 * ONES;
    // SAFETY: the pointer leads to an element of the map of hints; words are read whole.
    unsafe {
        let half = (&raw const (*hints).hints).cast::<u64>();
        let low = same(half.read_volatile(), wanted);
        if low != 0 {
            return first(low);
        }
        let high = same(half.add(1).read_volatile(), wanted);
        if high != 0 { first(high) + HALF } else { WAYS }
    }
}

/// Returns the highest bit of each way of a set that has no hint, for its halves; with `last` its ways from
/// the end on.
#[inline(always)]
pub fn vacant<F: Family>(set: u32, last: bool) -> [u64; 2] {
    let Some(hints) = F::hints(set) else {
        return [0; 2];
    };
    // SAFETY: as in `way`.
    let [low, high] = unsafe {
        let half = (&raw const (*hints).hints).cast::<u64>();
        [none(half.read_volatile()), none(half.add(1).read_volatile())]
    };
    if last { [high.swap_bytes(), low.swap_bytes()] } else { [low, high] }
}

/// Returns `true` if each way of a set has a hint.
#[inline(always)]
pub fn is_full<F: Family>(set: u32) -> bool {
    let [low, high] = vacant::<F>(set, false);
    low | high == 0
}

/// Returns the first way in the result of [`vacant`]; [`WAYS`] if there is none.
#[inline(always)]
pub fn first_vacant([low, high]: [u64; 2], last: bool) -> u32 {
    let way = match (low, high) {
        (0, 0) => return WAYS,
        (0, high) => first(high) + HALF,
        (low, _) => first(low),
    };
    if last { WAYS - 1 - way } else { way }
}

/// Returns the result of [`vacant`] without its first way.
#[inline(always)]
pub fn without_first([low, high]: [u64; 2]) -> [u64; 2] {
    if low != 0 { [low & (low - 1), high] } else { [0, high & high.wrapping_sub(1)] }
}

/// Returns `true` if no way of a set has the hint of a hash, except possibly `own`.
#[inline(always)]
pub fn is_alone<F: Family>(set: u32, own: u32, hash: u64) -> bool {
    let Some(hints) = F::hints(set) else {
        return false;
    };
    let wanted = hint_of(hash) as u64 * ONES;
    // Processors do not shift by more than a word's width: each half has its own.
    let own_low = if own < HALF { 1_u64 << (own * 8 + 7) } else { 0 };
    let own_high = if own >= HALF && own < WAYS { 1_u64 << ((own - HALF) * 8 + 7) } else { 0 };
    // SAFETY: as in `way`.
    unsafe {
        let half = (&raw const (*hints).hints).cast::<u64>();
        let low = same(half.read_volatile(), wanted) & !own_low;
        let high = same(half.add(1).read_volatile(), wanted) & !own_high;
        low | high == 0
    }
}

/// Returns the highest bit of each byte that is 0, and no other.
#[inline(always)]
fn none(hints: u64) -> u64 {
    !((hints & !HIGHEST).wrapping_add(!HIGHEST) | hints | !HIGHEST)
}

/// Returns the highest bit of each byte that is equal in both. Above the first there may be others too.
#[inline(always)]
fn same(hints: u64, wanted: u64) -> u64 {
    let differ = hints ^ wanted;
    differ.wrapping_sub(ONES) & !differ & HIGHEST
}

/// Returns the number of the first byte whose highest bit is set.
#[inline(always)]
fn first(bits: u64) -> u32 {
    (((bits & bits.wrapping_neg()) >> 7).wrapping_mul(NUMBERS) >> 56) as u32
}

/// Writes the hint of an owned slot: that of a hash, or 0.
#[inline(always)]
pub fn write<F: Family>(set: u32, way: u32, hint: u8) {
    if let Some(hints) = F::hints(set) {
        // SAFETY: the pointer leads to an element of the map of hints, which the mask keeps within; the
        // first way is the lowest byte.
        unsafe {
            const _: () = assert!(cfg!(target_endian = "little"));
            (&raw mut (*hints).hints).cast::<u8>().add((way & (WAYS - 1)) as usize).write_volatile(hint);
        }
    }
}

const _: () = assert!(size_of::<FlowHints>() == 16);
