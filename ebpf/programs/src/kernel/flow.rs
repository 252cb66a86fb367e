//! The decision about a packet: by the connection it belongs to, or a new one.

use core::ptr::NonNull;

use ebpf_common::event::hook;
use ebpf_common::flow::{Flow, FlowKey, flow_flag};
use ebpf_common::{Config, metric, scope};

use super::family::{Family, FrontendKey as _, V4, V6};
pub use super::new_flow::{admit, choose_this, replies_like};
use super::packet::{Packet, To, copy, tcp_flag};
use super::table::{self, Found};
use super::{dsr, event, lookup, maps, masquerade, new_flow, pick};

/// The decision about a packet.
pub mod verdict {
    /// The packet is not ours.
    pub const PASS: u32 = 0;
    pub const DROP: u32 = 1;
    /// Send the sender an error.
    pub const REFUSE: u32 = 2;
    /// Rewrite as [`super::To`] says.
    pub const REWRITE: u32 = 3;
}

/// The place of a packet: one of [`hook`] in the lowest byte, the interface above it. It is a number, because
/// functions take only few arguments.
pub type Place = u32;

/// Returns the place of a packet.
#[inline(always)]
pub fn place(hook: u8, ifindex: u32) -> Place {
    hook as u32 | ifindex << 8
}

/// Returns the scope of the frontends at a place.
#[inline(always)]
pub fn scope_of(place: Place) -> u8 {
    if place as u8 == hook::POD { scope::INTERNAL } else { scope::EXTERNAL }
}

/// Returns `true` for XDP, which handles only flows between an uplink and backends on other nodes.
#[inline(always)]
pub fn is_xdp(place: Place) -> bool {
    place as u8 == hook::XDP
}

/// Emits an event about a packet.
#[inline(always)]
pub fn emit_event<F: Family>(kind: u8, place: Place, service: u32, packet: &Packet<F::Address>) {
    event::emit::<F>(kind, place, service, &packet.key);
}

/// Decides about a packet that came in. XDP gets only decisions that it can carry out.
#[inline(always)]
pub fn decide<F: Family>(packet: &Packet<F::Address>, place: Place, to: &mut To<F::Address>) -> u32 {
    decide_with_slot::<F>(packet, place, to).0
}

/// Decides as [`decide`] does, with the slot of the packet's flow if that is known already. An unknown one is
/// zero: older kernels refuse to read what was never written.
#[inline(always)]
pub fn decide_with_slot<F: Family>(
    packet: &Packet<F::Address>,
    place: Place,
    to: &mut To<F::Address>,
) -> (u32, Option<NonNull<Flow<F::Address>>>) {
    let Some(config) = maps::config() else {
        return (verdict::PASS, None);
    };
    let hash = table::hash(&packet.key, config.seed);
    if let Some(found) = table::find::<F>(config, &packet.key, hash)
        && found.read(to)
    {
        if is_xdp(place) && to.flags & flow_flag::THROUGH as u32 == 0 {
            return (verdict::PASS, None);
        }
        if keep::<F>(config, packet, &found, to.flags, place) {
            return (verdict::REWRITE, NonNull::new(found.slot));
        }
    }
    (new_flow::begin::<F>(packet, hash, place, to), None)
}

/// Decides about a packet by the existing flows; with `reply` only about one from a backend of ours, or one
/// that leaves the cluster.
#[inline(always)]
pub fn decide_known<F: Family>(
    packet: &Packet<F::Address>,
    place: Place,
    reply: bool,
    to: &mut To<F::Address>,
) -> u32 {
    let Some(config) = maps::config() else {
        return verdict::PASS;
    };
    let hash = table::hash(&packet.key, config.seed);
    if let Some(found) = table::find::<F>(config, &packet.key, hash)
        && found.read(to)
        && (!reply || to.flags & flow_flag::REVERSE as u32 != 0 || masquerade::is_plain::<F>(packet, to))
        && keep::<F>(config, packet, &found, to.flags, place)
    {
        return verdict::REWRITE;
    }
    verdict::PASS
}

/// Writes the translation of packets with these ends, without updating the flow; returns `false` if there is
/// no flow.
#[inline(always)]
pub fn known<F: Family>(key: &FlowKey<F::Address>, to: &mut To<F::Address>) -> bool {
    let Some(config) = maps::config() else {
        return false;
    };
    table::find_slowly::<F>(config, key, table::hash(key, config.seed)).is_some_and(|found| found.read(to))
}

/// Updates the flow; returns `false` if it is gone, because its backend is.
///
/// Established connections keep their backend. A datagram, or a packet that opens a connection, checks it if
/// a service has lost a backend since.
#[inline(always)]
fn keep<F: Family>(
    config: &Config,
    packet: &Packet<F::Address>,
    found: &Found<F::Address>,
    flags: u32,
    place: Place,
) -> bool {
    let now = maps::tick();
    // SAFETY: the pointer leads to a slot; words are read whole.
    let (seen, epoch) = unsafe {
        ((&raw const (*found.slot).seen).read_volatile(), (&raw const (*found.slot).epoch).read_volatile())
    };
    let moved =
        packet.is_datagram() && flags & flow_flag::REVERSE as u32 == 0 && epoch != maps::epoch(config);
    let noted = packet.flags & (tcp_flag::FIN | tcp_flag::RST) != 0 || packet.opens();
    if seen == now && !moved && !noted {
        return true;
    }
    // After its mark was refreshed: a flow that still has its slot keeps it.
    // SAFETY: the pointer leads to a slot.
    F::attend(packet, found.index, now, place) != 0 && unsafe { table::unchanged(found.slot, found.version) }
}

/// Does the work for few packets of a flow: the first of a tick, the first after a loss, those that begin or
/// end a connection. Returns `false` if the flow is gone, or is being evicted.
#[inline(always)]
fn attend<F: Family>(packet: &Packet<F::Address>, index: u32, now: u32, place: Place) -> bool {
    let (Some(config), Some(slot)) = (maps::config(), F::slot(index)) else {
        return false;
    };
    // SAFETY: the pointer leads to a slot. Processors that handle packets of one flow at the same
    // time write the same values, and the table says what may be written.
    unsafe {
        let flags = (&raw const (*slot).flags).read_volatile() as u32;
        let forward = flags & flow_flag::REVERSE as u32 == 0;
        let fresh = packet.is_datagram() || packet.opens();
        if forward && fresh && (is_over::<F>(packet, slot, flags) || is_taken::<F>(packet, slot)) {
            if let Some(scratch) = F::scratch() {
                let sibling = &raw mut (*scratch).sibling;
                table::write_sibling(slot, sibling);
                // Another flow may have taken it since this one has ended.
                table::remove_reply_of::<F>(&*sibling, slot);
            }
            table::remove::<F>(&packet.key);
            return false;
        }
        // First of all: nothing that others rely on is written for a flow that is being evicted.
        if !table::refresh::<F>(config, index, now, flags) {
            return false;
        }
        if (&raw const (*slot).seen).read_volatile() != now {
            (&raw mut (*slot).seen).write_volatile(now);
            // The next hop is looked up again in each tick.
            if (&raw const (*slot).hop_ifindex).read_volatile() != 0 {
                (&raw mut (*slot).hop_ifindex).write_volatile(0);
            }
            if forward {
                restore_reply::<F>(packet, slot, now, place);
            }
        }
        if track::<F>(packet, slot, now) {
            table::refresh::<F>(config, index, now, (&raw const (*slot).flags).read_volatile() as u32);
        }
    }
    true
}

/// Returns `true` if a packet that may go to any backend finds that the flow's is gone, or that the
/// connection with its ends is over.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn is_over<F: Family>(packet: &Packet<F::Address>, slot: *mut Flow<F::Address>, flags: u32) -> bool {
    if packet.opens() && table::is_closed(flags) {
        return true;
    }
    let Some(config) = maps::config() else {
        return false;
    };
    if lookup::is_leaving(config) {
        // The programs that take the flow over check.
        return false;
    }
    // SAFETY: by the contract of this function.
    unsafe {
        let service = (&raw const (*slot).service).read_volatile();
        let epoch = (&raw const (*slot).epoch).read_volatile();
        // Read before the loss and the frontend: a change in between is noticed by the next packet.
        let current = maps::epoch(config);
        if epoch == current {
            return false;
        }
        if service == 0 && flags & flow_flag::MASQUERADE as u32 != 0 {
            if !is_still_masqueraded::<F>(packet, slot) {
                return true;
            }
        } else if maps::loss(service).wrapping_sub(epoch) as i32 > 0 {
            let owner = still_there::<F>(packet, slot, flags);
            if owner == NOBODY {
                maps::count(metric::FLOW_MOVED);
                return true;
            }
            // From now on the other service's losses concern the flow.
            table::set_service(slot, service, owner);
        }
        table::set_epoch(slot, epoch, current);
    }
    false
}

/// Returns `true` if a packet of a flow that only replaces the source would begin the same flow today.
#[inline(never)]
fn is_still_masqueraded<F: Family>(packet: &Packet<F::Address>, slot: *const Flow<F::Address>) -> bool {
    let (address, port) = (packet.key.destination, packet.key.destination_port);
    let mut key = F::FrontendKey::new(address, port, packet.protocol(), scope::INTERNAL);
    // SAFETY: the callers give a slot.
    let source = unsafe { (&raw const (*slot).source).read_volatile() };
    lookup::frontend::<F>(&mut key, |_| false).is_none() && masquerade::still_applies::<F>(packet, &source)
}

/// Result of [`still_there`]: the backend is gone.
const NOBODY: u32 = u32::MAX;

/// Returns the service whose frontend the flow came through, if that still has the flow's backend: another
/// service may have taken it over.
#[inline(never)]
fn still_there<F: Family>(packet: &Packet<F::Address>, slot: *const Flow<F::Address>, flags: u32) -> u32 {
    let external = flags & flow_flag::EXTERNAL as u32 != 0;
    let scope = if external { scope::EXTERNAL } else { scope::INTERNAL };
    let (address, port) = (packet.key.destination, packet.key.destination_port);
    let mut key = F::FrontendKey::new(address, port, packet.protocol(), scope);
    let Some(frontend) = lookup::frontend::<F>(&mut key, |_| false) else {
        return NOBODY;
    };
    // SAFETY: the callers give a slot.
    let (backend, port) = unsafe {
        (
            (&raw const (*slot).destination).read_volatile(),
            (&raw const (*slot).destination_port).read_volatile(),
        )
    };
    if pick::find::<F>(&frontend, &backend, port).is_some() { frontend.service } else { NOBODY }
}

/// Returns `true` if replies to the translated packet are another flow's: that one got the port while this
/// one was quiet. A separate function, so that its stack is not that of the functions that insert flows.
#[inline(never)]
fn is_taken<F: Family>(packet: &Packet<F::Address>, slot: *const Flow<F::Address>) -> bool {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return false;
    };
    // SAFETY: the callers give a slot; the room is this processor's own.
    unsafe {
        if dsr::is_direct((&raw const (*slot).flags).read_volatile() as u32) {
            return false;
        }
        let sibling = &raw mut (*scratch).sibling;
        table::write_sibling(slot, sibling);
        let hash = table::hash(&*sibling, config.seed);
        table::find::<F>(config, &*sibling, hash)
            .is_some_and(|found| !table::leads_to::<F>(found.slot, &packet.key))
    }
}

/// Restores the reverse element, if it was evicted while the client kept sending.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn restore_reply<F: Family>(
    packet: &Packet<F::Address>,
    slot: *const Flow<F::Address>,
    now: u32,
    place: Place,
) {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return;
    };
    // SAFETY: by the contract of this function; the room is this processor's own.
    unsafe {
        let reply = &raw mut (*scratch).new;
        table::write_sibling(slot, &raw mut (*reply).key);
        let hash = table::hash(&(*reply).key, config.seed);
        if let Some(found) = table::find_apart::<F>(config, &(*reply).key, hash) {
            // Otherwise it would look quiet until the reply comes, and might be evicted just before.
            let flags = (&raw const (*found.slot).flags).read_volatile() as u32;
            if table::refresh::<F>(config, found.index, now, flags)
                && table::unchanged(found.slot, found.version)
            {
                return;
            }
        }
        let flags = (&raw const (*slot).flags).read_volatile();
        if dsr::is_direct(flags as u32) {
            return;
        }
        copy(&packet.key.destination, &raw mut (*reply).source);
        copy(&packet.key.source, &raw mut (*reply).destination);
        (*reply).source_port = packet.key.destination_port;
        (*reply).destination_port = packet.key.source_port;
        (*reply).service = (&raw const (*slot).service).read_volatile();
        (*reply).epoch = (&raw const (*slot).epoch).read_volatile();
        (*reply).seen = now;
        (*reply).flags = (flags & flow_flag::KEPT_BY_REPLY | flow_flag::REVERSE) as u32;
        // If another flow has taken it meanwhile, it is left to that one.
        table::insert::<F>(&*reply, hash, place);
    }
}

/// Records the end of a connection in both of its elements; returns `false` if the packet does not end it.
///
/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn track<F: Family>(packet: &Packet<F::Address>, slot: *mut Flow<F::Address>, now: u32) -> bool {
    let (mine, peers) = if packet.flags & tcp_flag::RST != 0 {
        (flow_flag::RESET, flow_flag::RESET)
    } else if packet.flags & tcp_flag::FIN != 0 {
        (flow_flag::FIN, flow_flag::FIN_PEER)
    } else {
        return false;
    };
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return false;
    };
    // SAFETY: by the contract of this function, and of the table for the sibling; the room is this
    // processor's own.
    unsafe {
        let sibling = &raw mut (*scratch).sibling;
        table::write_sibling(slot, sibling);
        table::set_flags(slot, mine);
        let hash = table::hash(&*sibling, config.seed);
        if let Some(found) = table::find::<F>(config, &*sibling, hash) {
            table::set_flags(found.slot, peers);
            let flags = (&raw const (*found.slot).flags).read_volatile() as u32;
            table::refresh::<F>(config, found.index, now, flags);
        }
    }
    true
}

/// Defines functions that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $address:ty, $attend:ident) => {
        /// Calls [`attend`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $attend(packet: *const Packet<$address>, slot: u32, now: u32, place: Place) -> u32 {
            // SAFETY: null, or the caller's.
            unsafe { packet.as_ref() }.map_or(0, |packet| attend::<$family>(packet, slot, now, place) as u32)
        }
    };
}

once!(V4, u32, attend4);
once!(V6, [u32; 4], attend6);
