//! The table of flows, see [`ebpf_common::flow`].
//!
//! # How processors share it
//!
//! **A slot has one owner at a time.** Who turns its tag into [`tag::BUSY`] by compare-and-exchange
//! owns it, and alone writes its key and result; publishing another tag gives it up. A slot that
//! holds a flow is taken the same way: the compare-and-exchange names the tag that was read, so
//! of two that want to replace or remove the flow only one gets it.
//!
//! **A reader never mixes two flows.** An owner makes the version odd by an atomic exchange before
//! its first write; it becomes even after the last one. A reader wants the same even version before
//! and after its loads. Exchanges order the owner's stores on every machine; the reader's loads are
//! ordered by the machine (x86), or else overlap only if the slot is given to another flow within the
//! few instructions of one look-up, while it was quiet for longest.
//!
//! **A key is in the table once.** A new flow is first *pending*: key, result and tag are there, the
//! version is still odd. Then its maker scans the set, and the one beside it, for the same key.
//! - The other one is valid (even): the maker withdraws, and uses that one.
//! - The other one is pending in a lower slot: the maker withdraws.
//! - The other one is pending in a higher slot: the maker raises that one's version by two, which
//!   *revokes* it, unless it has become valid meanwhile.
//!
//! To become valid is a compare-and-exchange of the version as the maker knows it, so of becoming
//! valid and being revoked one happens. Of two makers of one key, at least one sees the other, because
//! each publishes its tag (a full barrier) before it scans. If the one in the lower slot sees the
//! other, it revokes it or withdraws; if only the one in the higher slot does, that one withdraws.
//! Two never become valid, and the lowest that is pending does unless another already has.
//!
//! **What is written without owning the slot** cannot harm another flow that has got it meanwhile:
//! `seen` (makes it look fresh), bits of [`flow_flag::CLOSING`] by atomic or (it is replaced
//! sooner), `epoch` and `service` by compare-and-exchange with what was read, and the next hop, whose
//! interface is zero while it is written and is compared afterwards.

use core::arch::asm;

use ebpf_common::flow::{Flow, FlowKey, FlowTags, WAYS, flow_flag, tag, tag_of};
use ebpf_common::{Config, limits, protocol};

use super::atomic::{exchange, exchange_if, unknown};
use super::begin::Choice;
use super::evict::{BESIDE, REPLACED, evict, occupy};
use super::family::{Address, Family, V4, V6};
use super::icmp::Error;
use super::maps;
use super::packet::{self, To};

/// Answer of [`elsewhere`] and [`insert`]: there is no such flow, or no slot for it.
pub const NONE: u32 = u32::MAX;
/// Answer of [`insert`]: the key is in the table already.
pub const EXISTS: u32 = u32::MAX - 1;
/// Slots of one set that may have the tag of a key without being its flow's.
const SAME_TAGS: u32 = 3;

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

/// Notes the epoch up to which the flow's backend is known to be in use.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn set_epoch<A>(slot: *mut Flow<A>, old: u32, new: u32) {
    // SAFETY: by the contract of this function.
    unsafe { exchange_if(&raw mut (*slot).epoch, old, new) };
}

/// Gives the flow to another service.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn set_service<A>(slot: *mut Flow<A>, old: u32, new: u32) {
    // SAFETY: by the contract of this function.
    unsafe { exchange_if(&raw mut (*slot).service, old, new) };
}

/// Hash of a key: the lower half names the slot, the upper half is the tag.
#[inline(always)]
pub fn hash<A: Address>(key: &FlowKey<A>, seed: u32) -> u64 {
    A::hash(key, seed)
}

/// The version of a slot that holds a valid flow with this key; none if it does not.
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

/// As [`holds`], where the key does not fit into registers: it is read again for each slot.
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
unsafe fn same_key_here<A: Address>(slot: *const Flow<A>, key: &FlowKey<A>) -> bool {
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

/// The slot is still of the version that [`holds`] gave: what was read from it in between belongs
/// together.
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
    /// Writes down what the packet becomes; false if the slot has been given to another flow since.
    #[inline(always)]
    pub fn read(&self, to: &mut To<A>) -> bool {
        let slot = self.slot;
        // SAFETY: the pointer leads to a slot.
        unsafe {
            let ports = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
            packet::copy(&raw const (*slot).source, &mut to.source);
            packet::copy(&raw const (*slot).destination, &mut to.destination);
            to.source_port = ports as u16;
            to.destination_port = (ports >> 16) as u16;
            to.flags = (&raw const (*slot).flags).read_volatile() as u32;
            to.slot = self.index;
            unchanged(slot, self.version)
        }
    }
}

/// The flow of a key. Most are found in the slot that their hash names.
#[inline(always)]
pub fn find<F: Family>(config: &Config, key: &FlowKey<F::Address>, hash: u64) -> Option<Found<F::Address>> {
    let index = hash as u32 & F::flow_mask(config);
    let slot = F::slot(index)?;
    // SAFETY: the pointer leads to a slot.
    if let Some(version) = unsafe { holds(slot, key) } {
        return Some(Found { slot, index, version });
    }
    let index = F::elsewhere(key, hash, index >> WAYS.trailing_zeros());
    if index == NONE {
        return None;
    }
    let slot = F::slot(index)?;
    // SAFETY: as above.
    unsafe { holds(slot, key) }.map(|version| Found { slot, index, version })
}

/// Index of the slot that has this key, valid, in a set or the one beside it; [`NONE`] for none.
#[inline(always)]
fn elsewhere<F: Family>(key: &FlowKey<F::Address>, hash: u64, set: u32) -> u32 {
    let index = within::<F>(key, hash, set);
    if index == NONE { within::<F>(key, hash, beside(set)) } else { index }
}

/// The set beside a set, which takes its flows when it is full. Both lines of tags are fetched
/// together by most machines.
#[inline(always)]
pub fn beside(set: u32) -> u32 {
    set ^ 1
}

/// Index of the slot of a set that has this key, valid; [`NONE`] for none.
#[inline(always)]
fn within<F: Family>(key: &FlowKey<F::Address>, hash: u64, set: u32) -> u32 {
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
        let index = set * WAYS + way;
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

/// [`elsewhere`] of IPv4, checked by the kernel once and not with each call.
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

/// The first way from `from` on whose tag is the one wanted; [`WAYS`] for none. No function of its
/// own, nor are others on the way to the end of the longest chain of calls: Linux 6.1 counts a
/// frame of the stack as a multiple of 32 bytes, and allows 512 in all.
#[inline(always)]
pub fn next_way(tags: *const FlowTags, wanted: u32, from: u32) -> u32 {
    for way in 0..WAYS {
        // SAFETY: the callers give an element of the map of tags; the way is within it.
        let found = unsafe { tags.cast::<u32>().add(way as usize).read_volatile() };
        if found == wanted && way >= from {
            return unknown(way, wanted);
        }
    }
    unknown(WAYS, wanted)
}

/// What a new flow is made of.
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

/// Room for what does not fit on the stack. Each part has one user, and no user runs inside itself.
#[repr(C)]
pub struct Scratch<A> {
    /// The flow that is being put into the table.
    pub new: New<A>,
    /// The other direction of the flow that a packet belongs to.
    pub sibling: FlowKey<A>,
    /// What the new flow is made from.
    pub choice: Choice<A>,
    /// The flow that gives way.
    pub evicted: FlowKey<A>,
    /// An error and what becomes of it.
    pub error: Error<A>,
    pub sender: To<A>,
    pub outer: To<A>,
}

/// Puts a flow into the table; gives the index of its slot, [`EXISTS`] if its key is there, or
/// [`NONE`] if all slots of its set were being filled. `hash` is the key's; `place` says where the
/// packet is, see [`super::flow::Place`].
#[inline(always)]
pub fn insert<F: Family>(new: &New<F::Address>, hash: u64, place: u32) -> u32 {
    F::insert_flow(new, hash, place)
}

/// [`insert`] of IPv4, checked by the kernel once and not with each call.
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
    let Some(config) = maps::config() else {
        return NONE;
    };
    let home = hash as u32 & F::flow_mask(config);
    let set = home >> WAYS.trailing_zeros();
    let taken = occupy::<F>(set, home & (WAYS - 1), new);
    if taken == NONE {
        return NONE;
    }
    let set = if taken & BESIDE != 0 { beside(set) } else { set };
    let way = taken & (WAYS - 1);
    let index = set * WAYS + way;
    let (Some(tags), Some(slot)) = (F::tags(set), F::slot(index)) else {
        return NONE;
    };
    if taken & REPLACED != 0 {
        evict::<F>(slot, new.seen, place);
    }
    // SAFETY: both pointers lead to elements of their maps, and the slot is ours.
    unsafe {
        let version = open(slot);
        fill(slot, new);
        exchange(way_of(tags, way), tag_of(hash));
        let alone = F::is_alone(set, new, hash, index) && F::is_alone(beside(set), new, hash, index);
        if alone && exchange_if(&raw mut (*slot).version, version, version.wrapping_add(1)) == version {
            return index;
        }
        // The version stays odd. The slot may have been taken for another flow meanwhile.
        exchange_if(way_of(tags, way), tag_of(hash), tag::EMPTY);
    }
    EXISTS
}

/// The tag of a way.
///
/// # Safety
/// `tags` must lead to an element of the map of tags, and `way` be below [`WAYS`].
#[inline(always)]
pub unsafe fn way_of(tags: *mut FlowTags, way: u32) -> *mut u32 {
    // SAFETY: by the contract of this function. The mask shows it to the kernel too.
    unsafe { tags.cast::<u32>().add((way & (WAYS - 1)) as usize) }
}

/// Makes the version of an owned slot odd, and gives it.
///
/// # Safety
/// `slot` must lead to a slot that the caller owns.
#[inline(always)]
pub unsafe fn open<A>(slot: *mut Flow<A>) -> u32 {
    // SAFETY: by the contract of this function.
    unsafe {
        let place = &raw mut (*slot).version;
        let version = (place.read_volatile() | 1).wrapping_add(2);
        exchange(place, version);
        version
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

/// Looks in a set for another slot than `own` with the key of a pending flow; true if there is none,
/// or if the other one has been revoked.
#[inline(always)]
fn scan<F: Family>(set: u32, new: &New<F::Address>, hash: u64, own: u32) -> bool {
    let Some(tags) = F::tags(set) else {
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
        let index = set * WAYS + way;
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

/// [`scan`] of IPv4, checked by the kernel once and not with each call.
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

/// Removes the flow under `key` if it leads back to that of `slot`: it may be another's by now.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
pub unsafe fn remove_reply_of<F: Family>(key: &FlowKey<F::Address>, slot: *const Flow<F::Address>) {
    let Some(config) = maps::config() else {
        return;
    };
    let hash = hash(key, config.seed);
    let Some(found) = find::<F>(config, key, hash) else {
        return;
    };
    // SAFETY: by the contract of this function, and of the table for what was found.
    unsafe {
        let ports = (&raw const (*slot).key.source_port).cast::<u32>().read_volatile();
        let back = (&raw const (*found.slot).source_port).cast::<u32>().read_volatile();
        if back == ports.rotate_left(16)
            && (*slot).key.source.same(&(*found.slot).destination)
            && (*slot).key.destination.same(&(*found.slot).source)
        {
            release::<F>(&found, hash);
        }
    }
}

/// Removes the flow under a key.
#[inline(always)]
pub fn remove<F: Family>(key: &FlowKey<F::Address>) {
    F::remove_flow(key);
}

/// [`remove`] of IPv4, checked by the kernel once and not with each call.
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

/// Empties a slot, unless somebody else takes it at the same time.
#[inline(always)]
fn release<F: Family>(found: &Found<F::Address>, hash: u64) {
    let Some(tags) = F::tags(found.index >> WAYS.trailing_zeros()) else {
        return;
    };
    let present = tag_of(hash);
    // SAFETY: the pointers lead to elements of their maps.
    unsafe {
        let place = way_of(tags, found.index);
        if exchange_if(place, present, tag::BUSY) != present {
            return;
        }
        // Another flow with the same tag may have got the slot before it was taken.
        if unchanged(found.slot, found.version) {
            open(found.slot);
            exchange(place, tag::EMPTY);
        } else {
            exchange(place, present);
        }
    }
}

/// Either side has reset the connection, or both have finished.
#[inline(always)]
pub fn is_closed(flags: u32) -> bool {
    const BOTH: u32 = (flow_flag::FIN | flow_flag::FIN_PEER) as u32;
    flags & flow_flag::RESET as u32 != 0 || flags & BOTH == BOTH
}

/// Ticks without a packet after which a flow may give way.
#[inline(always)]
pub fn idle_limit(number: u32, flags: u32) -> u32 {
    if number == protocol::UDP as u32 {
        limits::idle::UDP
    } else if is_closed(flags) {
        limits::idle::TCP_CLOSED
    } else {
        limits::idle::TCP
    }
}
