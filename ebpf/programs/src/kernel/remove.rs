//! Removal of flows from the table, other than by eviction. [`super::table`] explains how processors share
//! it.

use ebpf_common::Config;
use ebpf_common::flow::{Flow, FlowKey, tag, tag_of};

use super::atomic::{exchange, exchange_if};
use super::family::{Address as _, Family, V4, V6};
use super::insert::New;
use super::table::{ATTEMPTS, Found, find, find_apart, hash, place_of, same_key_here, unchanged, way_of};
use super::{hint, maps};

/// Returns the flow under `key` if it leads back to that of `slot`: it may be another's by now.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn reply_of<F: Family>(
    config: &Config,
    key: &FlowKey<F::Address>,
    hash: u64,
    slot: *const Flow<F::Address>,
) -> Option<Found<F::Address>> {
    let found = find_apart::<F>(config, key, hash)?;
    // SAFETY: by the contract of this function, and of the table for what was found.
    let back = unsafe {
        let ports = (&raw const (*slot).key.source_port).cast::<u32>().read_volatile();
        let back = (&raw const (*found.slot).source_port).cast::<u32>().read_volatile();
        back == ports.rotate_left(16)
            && (*slot).key.source.same(&(*found.slot).destination)
            && (*slot).key.destination.same(&(*found.slot).source)
    };
    back.then_some(found)
}

/// Removes the flow under `key` if it leads back to that of `slot`.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn remove_reply_of<F: Family>(key: &FlowKey<F::Address>, slot: *const Flow<F::Address>) {
    let Some(config) = maps::config() else {
        return;
    };
    let hash = hash(key, config.seed);
    // SAFETY: by the contract of this function.
    if let Some(found) = unsafe { reply_of::<F>(config, key, hash, slot) } {
        release::<F>(&found, hash);
    }
}

/// Removes the flow under a key.
#[inline(always)]
pub fn remove<F: Family>(key: &FlowKey<F::Address>) {
    F::remove_flow(key);
}

/// [`remove`] of IPv4, verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn remove4(key: *const FlowKey<u32>) -> u32 {
    // SAFETY: null, or the caller's.
    if let Some(key) = unsafe { key.as_ref() } {
        take_out::<V4>(key);
    }
    0
}

/// [`remove`] of IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn remove6(key: *const FlowKey<[u32; 4]>) -> u32 {
    // SAFETY: null, or the caller's.
    if let Some(key) = unsafe { key.as_ref() } {
        take_out::<V6>(key);
    }
    0
}

#[inline(always)]
fn take_out<F: Family>(key: &FlowKey<F::Address>) {
    let Some(config) = maps::config() else {
        return;
    };
    let hash = hash(key, config.seed);
    if let Some(found) = find::<F>(config, key, hash) {
        release::<F>(&found, hash);
    }
}

/// Takes a slot whose mark has the tag of a hash; returns its previous mark. `None` if the tag is another's
/// by now.
///
/// # Safety
/// `place` must lead to a mark.
#[inline(always)]
unsafe fn take(place: *mut u32, hash: u64) -> Option<u32> {
    for _ in 0..ATTEMPTS {
        // SAFETY: by the contract of this function.
        unsafe {
            let mark = place.read_volatile();
            if mark & !tag::AGE != tag_of(hash) {
                break;
            }
            // Its age may change meanwhile.
            if exchange_if(place, mark, tag::BUSY) == mark {
                return Some(mark);
            }
        }
    }
    None
}

/// Withdraws a pending flow: its version stays odd. The slot may be another flow's by now. A separate
/// function: it is rarely called, and [`put`] has little stack.
#[inline(never)]
pub fn withdraw<F: Family>(new: &New<F::Address>, hash: u64, index: u32) {
    empty::<F>(index, hash, |slot| {
        // SAFETY: the pointer leads to a slot.
        unsafe { (&raw const (*slot).version).read_volatile() & 1 == 1 && same_key_here(slot, &new.key) }
    });
}

/// Empties the slot of a flow that was found, unless another processor takes it at the same time.
#[inline(always)]
pub fn release<F: Family>(found: &Found<F::Address>, hash: u64) {
    let version = found.version;
    // SAFETY: the pointer leads to a slot.
    empty::<F>(found.index, hash, |slot| unsafe { unchanged(slot, version) });
}

/// Empties a slot if its flow has the tag of a hash and passes `is_meant`: another one with the same tag may
/// have got it.
#[inline(always)]
fn empty<F: Family>(index: u32, hash: u64, is_meant: impl Fn(*mut Flow<F::Address>) -> bool) {
    let Some(config) = maps::config() else {
        return;
    };
    let (set, way) = place_of(F::flow_mask(config), index);
    let (Some(tags), Some(slot)) = (F::tags(set), F::slot(index)) else {
        return;
    };
    // SAFETY: the pointers lead to elements of their maps.
    unsafe {
        let place = way_of(tags, way);
        // The present owner must not miss its mark, not even for a moment.
        if !is_meant(slot) {
            return;
        }
        let Some(mark) = take(place, hash) else {
            return;
        };
        if is_meant(slot) {
            // The version stays: only a processor whose look-up began before still reads the slot, and finds
            // its old content.
            hint::write::<F>(set, way, 0);
            exchange(place, tag::EMPTY);
        } else {
            exchange(place, mark);
        }
    }
}
