//! The table of flows, see [`ebpf_common::flow`].
//!
//! # How processors share it
//!
//! **A slot has one owner at a time.** Who turns its mark into [`tag::BUSY`] by compare-and-exchange
//! owns it, and alone writes its key, its result and its hint; publishing another mark gives it up. A slot
//! that holds a flow is taken the same way: the compare-and-exchange names the mark that was read, so
//! of two that want to replace or remove the flow only one gets it. Nobody takes a slot to look whether he
//! wants it: he looks first, and once more when he has it where another may have got it in between.
//! So a flow whose mark is away is going.
//!
//! **A reader never mixes two flows.** An owner makes the version odd by an atomic exchange before
//! its first write; it becomes even after the last one. A reader wants the same even version before
//! and after its loads. Exchanges order the owner's stores on every machine; the reader's loads are
//! ordered by the machine (x86), or else overlap only if the slot is given to another flow within the
//! few instructions of one look-up, while it was quiet for longest. A next hop is read and kept for a
//! destination, and the slot's destination is compared afterwards.
//!
//! **A flow that is valid is found.** Its owner has written the hint before the mark, the mark (a full
//! barrier) before the version, and all of them stay until the slot is owned again. Hints are bytes that
//! processors store by themselves and load eight at a time; none of them is ever written for another's
//! slot. Where a look-up finds no hint in both sets, there is no flow. Where the first hint is not the
//! flow's, the marks of both sets are read. An empty slot keeps the key and the even version of what it
//! held: only a reader that was on the way there before still sees it, as if it had come earlier.
//!
//! **A key is in the table once.** A new flow is first *pending*: key, result, hint and mark are there,
//! the version is still odd. Then its maker scans the set, and the one beside it, for the same key: the
//! hints, and the marks where a hint is alike.
//! - The other one is valid (even): the maker withdraws, and uses that one.
//! - The other one is pending in a lower slot: the maker withdraws.
//! - The other one is pending in a higher slot: the maker raises that one's version by two, which
//!   *revokes* it, unless it has become valid meanwhile.
//!
//! To become valid is a compare-and-exchange of the version as the maker knows it, so of becoming
//! valid and being revoked one happens. Of two makers of one key, at least one sees the other, because
//! each publishes its hint and then its mark (a full barrier) before it scans. If the one in the lower
//! slot sees the other, it revokes it or withdraws; if only the one in the higher slot does, that one
//! withdraws. Two never become valid, and the lowest that is pending does unless another already has.
//! A flow that is going, its mark away, does not count: who finds it so puts it in anew beside it.
//!
//! **A flow that wakes up keeps its slot, or is begun anew.** Its first packet in a tick may come at the
//! moment at which another flow has chosen its slot, because it was quiet for longest. The packet
//! refreshes the age in the mark, and then looks whether the slot is still the flow's ([`refresh`]). If the
//! mark was refreshed first, the other one does not find the mark that it has chosen, and looks for
//! another. If it was taken first, the packet finds it away, and begins the connection anew. The one that
//! gets a reply's slot forgets what leads to the backend as that was *before* the slot was taken, by slot
//! and version: not what the packet puts in. The other direction's mark is refreshed the same way.
//!
//! **What is written without owning the slot** cannot harm another flow that has got it meanwhile:
//! `seen` and the age in the mark (make it look fresh, or ended until its next tick), bits of
//! [`flow_flag::CLOSING`] by atomic or (it is replaced sooner), `epoch` and `service` by
//! compare-and-exchange with what was read, and the next hop, whose interface is zero while it is
//! written and is compared afterwards.

use core::arch::asm;

use ebpf_common::flow::{
    Flow, FlowKey, FlowTags, WAYS, age_of, flow_flag, set_of, sets_mask, slot_of, tag, tag_of,
};
use ebpf_common::{Config, limits, protocol};

use super::atomic::{exchange_if, unknown};
use super::family::{Address, Family, V4, V6};
use super::packet::{self, To};
use super::{hint, maps};

pub use super::insert::{New, Scratch, insert, way_of};
pub use super::remove::{remove, remove_reply_of};

/// Result of [`elsewhere`] and [`insert`]: there is no such flow, or no slot for it.
pub const NONE: u32 = u32::MAX;
/// Result of [`insert`]: the key is in the table already.
pub const EXISTS: u32 = u32::MAX - 1;
/// Maximum number of slots of one set that may have the tag of a key without being its flow's.
pub const SAME_TAGS: u32 = 3;
/// Maximum number of changes of a slot's mark while it is taken, or refreshed.
pub const ATTEMPTS: u32 = 4;

/// Sets bits of a flow's flags.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn set_flags<A>(slot: *mut Flow<A>, flags: u16) {
    const _: () = assert!(cfg!(target_endian = "little") && core::mem::offset_of!(Flow<u32>, flags) % 4 == 0);
    // SAFETY: by the contract of this function; flags and the half word after them are an aligned
    // word, and the flags are its lower half.
    unsafe {
        let place = (&raw mut (*slot).flags).cast::<u32>();
        asm!("lock *(u32 *)({place} + 0) |= {flags}", place = in(reg) place, flags = in(wreg) flags as u32);
    }
}

/// Records the epoch up to which the flow's backend is known to be in use.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn set_epoch<A>(slot: *mut Flow<A>, old: u32, new: u32) {
    // SAFETY: by the contract of this function.
    unsafe { exchange_if(&raw mut (*slot).epoch, old, new) };
}

/// Assigns the flow to another service.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn set_service<A>(slot: *mut Flow<A>, old: u32, new: u32) {
    // SAFETY: by the contract of this function.
    unsafe { exchange_if(&raw mut (*slot).service, old, new) };
}

/// Returns the hash of a key: the lower half selects the slot, the upper half is the tag.
#[inline(always)]
pub fn hash<A: Address>(key: &FlowKey<A>, seed: u32) -> u64 {
    A::hash(key, seed)
}

/// Returns the version of a slot that holds a valid flow with this key; `None` if it does not.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn holds<A: Address>(slot: *const Flow<A>, key: &FlowKey<A>) -> Option<u32> {
    // SAFETY: by the contract of this function.
    unsafe {
        let version = (&raw const (*slot).version).read_volatile();
        (same_key(slot, key) && version & 1 == 0).then_some(version)
    }
}

/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn same_key<A: Address>(slot: *const Flow<A>, key: &FlowKey<A>) -> bool {
    // SAFETY: by the contract of this function; ports are an aligned word after the addresses.
    unsafe {
        let ports = (&raw const (*slot).key.source_port).cast::<u32>().read_volatile();
        ports == packet::ports(key.source_port, key.destination_port)
            && (&raw const (*slot).key.source).read_volatile().same(&key.source)
            && (&raw const (*slot).key.destination).read_volatile().same(&key.destination)
            && (&raw const (*slot).key.protocol).read_volatile() == key.protocol
    }
}

/// Checks a slot as [`holds`] does, for keys that do not fit into registers: they are read again for each
/// slot.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn holds_here<A: Address>(slot: *const Flow<A>, key: &FlowKey<A>) -> bool {
    // SAFETY: by the contract of this function.
    unsafe { (&raw const (*slot).version).read_volatile() & 1 == 0 && same_key_here(slot, key) }
}

/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn same_key_here<A: Address>(slot: *const Flow<A>, key: &FlowKey<A>) -> bool {
    const _: () = assert!(size_of::<FlowKey<u32>>() % 4 == 0);
    let (here, there) = ((&raw const *key).cast::<u32>(), slot.cast::<u32>());
    for word in 0..size_of::<FlowKey<A>>() / 4 {
        // SAFETY: by the contract of this function; the key is the first field of a slot.
        if unsafe { here.add(word).read_volatile() != there.add(word).read_volatile() } {
            return false;
        }
    }
    true
}

/// Returns `true` if the slot still has the version that [`holds`] returned: what was read from it in between
/// is consistent.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn unchanged<A>(slot: *const Flow<A>, version: u32) -> bool {
    // SAFETY: by the contract of this function.
    unsafe { (&raw const (*slot).version).read_volatile() == version }
}

/// A flow that was found.
pub struct Found<A> {
    pub slot: *mut Flow<A>,
    pub index: u32,
    pub version: u32,
}

impl<A: Address> Found<A> {
    /// Writes the rewritten ends of the packet; returns `false` if the slot has been given to another flow
    /// since.
    #[inline(always)]
    pub fn read(&self, to: &mut To<A>) -> bool {
        let slot = self.slot;
        // SAFETY: the pointer leads to a slot.
        unsafe {
            let ports = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
            packet::copy(&raw const (*slot).source, &mut to.source);
            packet::copy(&raw const (*slot).destination, &mut to.destination);
            packet::set_ports(&raw mut to.source_port, ports);
            to.flags = (&raw const (*slot).flags).read_volatile() as u32;
            to.slot = self.index;
            unchanged(slot, self.version)
        }
    }
}

/// Returns the flow of a key. Most are found in the slot that the hints of their set show.
#[inline(always)]
pub fn find<F: Family>(config: &Config, key: &FlowKey<F::Address>, hash: u64) -> Option<Found<F::Address>> {
    let flow_mask = F::flow_mask(config);
    let set = set_of(hash, flow_mask);
    let way = hint::way::<F>(set, hash);
    if way < WAYS {
        let index = slot_of(set, way, flow_mask);
        let slot = F::slot(index)?;
        // SAFETY: the pointer leads to a slot.
        if let Some(version) = unsafe { holds(slot, key) } {
            return Some(Found { slot, index, version });
        }
    } else if hint::way::<F>(beside(set), hash) >= WAYS {
        return None;
    }
    search::<F>(key, hash, set)
}

/// Finds a flow as [`find`] does, with little stack: the key of IPv6 is not copied to it.
#[inline(always)]
pub fn find_apart<F: Family>(
    config: &Config,
    key: &FlowKey<F::Address>,
    hash: u64,
) -> Option<Found<F::Address>> {
    if F::VERSION == 4 {
        return find::<F>(config, key, hash);
    }
    let set = set_of(hash, F::flow_mask(config));
    if hint::way::<F>(set, hash) >= WAYS && hint::way::<F>(beside(set), hash) >= WAYS {
        return None;
    }
    let index = F::elsewhere(key, hash, set);
    if index == NONE {
        return None;
    }
    let slot = F::slot(index)?;
    // SAFETY: the pointer leads to a slot. Its key has just been compared; if it has changed since, the
    // caller compares what it needs.
    let version = unsafe { (&raw const (*slot).version).read_volatile() };
    (version & 1 == 0).then_some(Found { slot, index, version })
}

/// Finds a flow as [`find`] does, by a function that the programs share: for rare calls with little stack.
#[inline(always)]
pub fn find_slowly<F: Family>(
    config: &Config,
    key: &FlowKey<F::Address>,
    hash: u64,
) -> Option<Found<F::Address>> {
    search::<F>(key, hash, set_of(hash, F::flow_mask(config)))
}

#[inline(always)]
fn search<F: Family>(key: &FlowKey<F::Address>, hash: u64, set: u32) -> Option<Found<F::Address>> {
    let index = F::elsewhere(key, hash, set);
    if index == NONE {
        return None;
    }
    let slot = F::slot(index)?;
    // SAFETY: as above.
    unsafe { holds(slot, key) }.map(|version| Found { slot, index, version })
}

/// Returns the index of the slot that has this key, valid, in a set or the neighbouring one; [`NONE`] for
/// none.
#[inline(always)]
fn elsewhere<F: Family>(key: &FlowKey<F::Address>, hash: u64, set: u32) -> u32 {
    let Some(config) = maps::config() else {
        return NONE;
    };
    let index = within::<F>(config, key, hash, set);
    if index == NONE { within::<F>(config, key, hash, beside(set)) } else { index }
}

/// Returns the neighbour of a set, which takes its flows when it is full. Most machines fetch both lines of
/// tags together.
#[inline(always)]
pub fn beside(set: u32) -> u32 {
    set ^ 1
}

/// Returns the index of the slot of a set that has this key, valid; [`NONE`] for none.
#[inline(always)]
fn within<F: Family>(config: &Config, key: &FlowKey<F::Address>, hash: u64, set: u32) -> u32 {
    let Some(tags) = F::tags(set) else {
        return NONE;
    };
    let wanted = tag_of(hash);
    let mut from = 0;
    for _ in 0..SAME_TAGS {
        let way = next_way(tags, wanted, from);
        if way >= WAYS {
            return NONE;
        }
        let index = slot_of(set, way, F::flow_mask(config));
        let Some(slot) = F::slot(index) else {
            return NONE;
        };
        // SAFETY: the pointer leads to a slot.
        if unsafe { holds_here(slot, key) } {
            return index;
        }
        from = way + 1;
    }
    NONE
}

/// [`elsewhere`] of IPv4, verified by the kernel once and not with each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn elsewhere4(key: *const FlowKey<u32>, hash: u64, set: u32) -> u32 {
    // SAFETY: null, or the caller's.
    unsafe { key.as_ref() }.map_or(NONE, |key| elsewhere::<V4>(key, hash, set))
}

/// [`elsewhere`] of IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn elsewhere6(key: *const FlowKey<[u32; 4]>, hash: u64, set: u32) -> u32 {
    // SAFETY: null, or the caller's.
    unsafe { key.as_ref() }.map_or(NONE, |key| elsewhere::<V6>(key, hash, set))
}

/// Returns the first way from `from` on whose mark has the wanted tag; [`WAYS`] for none. Inlined, like
/// others at the end of the longest chain of calls: Linux 6.1 counts a frame of the stack as a multiple of 32
/// bytes, and allows 512 in all.
#[inline(always)]
pub fn next_way(tags: *const FlowTags, wanted: u32, from: u32) -> u32 {
    for way in 0..WAYS {
        // SAFETY: the callers give an element of the map of tags; the way is within it.
        let found = unsafe { tags.cast::<u32>().add(way as usize).read_volatile() };
        if found & !tag::AGE == wanted && way >= from {
            return unknown(way, wanted);
        }
    }
    unknown(WAYS, wanted)
}

/// Writes the key of the element for the other direction.
///
/// # Safety
/// `slot` must lead to a slot, and `key` to a key.
#[inline(always)]
pub unsafe fn write_sibling<A: Address>(slot: *const Flow<A>, key: *mut FlowKey<A>) {
    // SAFETY: by the contract of this function; pairs of ports are aligned words.
    unsafe {
        packet::copy(&raw const (*slot).destination, &raw mut (*key).source);
        packet::copy(&raw const (*slot).source, &raw mut (*key).destination);
        let ports = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
        (&raw mut (*key).source_port).cast::<u32>().write_volatile(ports.rotate_left(16));
        (&raw mut (*key).protocol).write_volatile((&raw const (*slot).key.protocol).read_volatile());
    }
}

/// Returns `true` if the rewritten ends of packets of this flow are those of packets with `key`, reversed;
/// the reading is only a hint.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn leads_to<F: Family>(slot: *const Flow<F::Address>, key: &FlowKey<F::Address>) -> bool {
    // SAFETY: by the contract of this function; pairs of ports are aligned words.
    unsafe {
        let back = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
        back == packet::ports(key.destination_port, key.source_port)
            && (*slot).source.same(&key.destination)
            && (*slot).destination.same(&key.source)
    }
}

/// Returns set and way of a slot.
#[inline(always)]
pub fn place_of(config_mask: u32, index: u32) -> (u32, u32) {
    let sets = sets_mask(config_mask);
    (index & sets, index / (sets + 1))
}

/// Records in the mark of a slot when its flow was last seen, or that it has ended. Returns `false` if the
/// slot is being taken. A flow that still has its slot after that will not be evicted soon: a processor that
/// chose it before does not find the mark that it has seen.
#[inline(always)]
pub fn refresh<F: Family>(config: &Config, index: u32, now: u32, flags: u32) -> bool {
    let (set, way) = place_of(F::flow_mask(config), index);
    let Some(tags) = F::tags(set) else {
        return false;
    };
    for _ in 0..ATTEMPTS {
        // SAFETY: the pointer leads to an element of the map of tags, and ways are within it. Another
        // flow that has got the slot meanwhile only looks as old as this one.
        unsafe {
            let place = way_of(tags, way);
            let mark = place.read_volatile();
            if mark < tag::FIRST {
                return false;
            }
            if exchange_if(place, mark, mark & !tag::AGE | age_of(now, is_closed(flags))) == mark {
                break;
            }
        }
    }
    true
}

/// Returns `true` if either side has reset the connection, or both have finished.
#[inline(always)]
pub fn is_closed(flags: u32) -> bool {
    const BOTH: u32 = (flow_flag::FIN | flow_flag::FIN_PEER) as u32;
    flags & flow_flag::RESET as u32 != 0 || flags & BOTH == BOTH
}

/// Returns the ticks without a packet after which a flow may be evicted.
#[inline(always)]
pub fn idle_limit(number: u32, flags: u32) -> u32 {
    if number != protocol::TCP as u32 && number != protocol::SCTP as u32 {
        limits::idle::UDP
    } else if is_closed(flags) {
        limits::idle::TCP_CLOSED
    } else {
        limits::idle::TCP
    }
}
