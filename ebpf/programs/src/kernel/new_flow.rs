//! The start of a flow: its frontend, its backend, and an element for each direction.

use core::mem::MaybeUninit;

use ebpf_common::choice::spread;
use ebpf_common::event::kind;
use ebpf_common::flow::{FlowKey, flow_flag, set_of};
use ebpf_common::frontend::{AffinityKey, Frontend, backend_flag, frontend_flag};
use ebpf_common::{Config, config_flag, limits, metric, protocol, scope};

use super::family::{Address, Backend as _, Family, FrontendKey as _, V4, V6};
use super::flow::{Place, emit_event, is_xdp, scope_of, verdict};
use super::packet::{Packet, To, cleared, copy, tcp_flag};
use super::table::{self, New};
use super::{dsr, evict, lookup, maps, masquerade, pick, trace};

/// Defines functions that the kernel verifies once, and not with each call.
macro_rules! once {
    ($family:ty, $address:ty, $create:ident, $choose:ident, $look:ident) => {
        /// Calls [`create`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $create(
            packet: *const Packet<$address>,
            hash: u64,
            place: Place,
            to: *mut To<$address>,
        ) -> u32 {
            // SAFETY: null, or the caller's.
            match unsafe { (packet.as_ref(), to.as_mut()) } {
                (Some(packet), Some(to)) => create::<$family>(packet, hash, place, to),
                _ => verdict::DROP,
            }
        }

        /// Calls [`choose`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $choose(packet: *const Packet<$address>, hash: u64, place: Place) -> u32 {
            // SAFETY: null, or the caller's.
            unsafe { packet.as_ref() }.map_or(verdict::DROP, |packet| choose::<$family>(packet, hash, place))
        }

        /// Calls [`look_at`], verified apart from its callers.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $look(reply: *const New<$address>) -> u32 {
            // SAFETY: null, or the caller's.
            unsafe { reply.as_ref() }.map_or(place_of_reply::TAKEN, |reply| look_at::<$family>(reply))
        }
    };
}

once!(V4, u32, create4, choose4, look_at4);
once!(V6, [u32; 4], create6, choose6, look_at6);

/// The ingredients of a new flow.
#[repr(C)]
pub struct Choice<A> {
    backend: A,
    port: u16,
    /// Bits of [`backend_flag`].
    backend_flags: u16,
    service: u32,
    epoch: u32,
    /// Bits of [`frontend_flag`], and [`LEAVES`].
    flags: u32,
}

/// The packet leaves the cluster, and takes the node's address.
const LEAVES: u32 = 1 << 16;
/// The datagram is from outside, for a pod's own address: replies keep it.
const ENTERS: u32 = 1 << 17;

/// Begins a flow, if the packet is for a frontend.
#[inline(always)]
pub fn begin<F: Family>(
    packet: &Packet<F::Address>,
    hash: u64,
    place: Place,
    to: &mut To<F::Address>,
) -> u32 {
    let verdict = F::choose(packet, hash, place);
    if verdict != verdict::REWRITE {
        return verdict;
    }
    if trace::is_on() {
        trace_choice::<F>();
    }
    // The argument of a function that the kernel verifies on its own must have been written.
    // SAFETY: a reference to a value is one to room for it; zero is a value of all fields.
    let to = unsafe { cleared(&mut *(&raw mut *to).cast()) };
    F::create(packet, hash, place, to)
}

/// Logs the choice. A separate function, so that the stack of its callers does not have to hold a key.
#[inline(never)]
fn trace_choice<F: Family>() {
    if let Some(scratch) = F::scratch() {
        // SAFETY: the room is this processor's own.
        let choice = unsafe { &(*scratch).choice };
        trace::backend(&choice.backend, &choice.port, &choice.service);
    }
}

/// Looks up the frontend and chooses one of its backends.
#[inline(always)]
fn choose<F: Family>(packet: &Packet<F::Address>, hash: u64, place: Place) -> u32 {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return verdict::PASS;
    };
    // SAFETY: the room is this processor's own.
    let choice = unsafe { &mut (*scratch).choice };
    // IPv6 has no room for that on the stack.
    if F::VERSION == 4 {
        evict::touch::<F>(set_of(hash, F::flow_mask(config)));
    }
    // Read before the frontend: see `maps::epoch`.
    choice.epoch = maps::epoch(config);
    if is_others::<F>(config, packet) {
        return verdict::PASS;
    }
    let (address, port) = (packet.key.destination, packet.key.destination_port);
    let mut key = F::FrontendKey::new(address, port, packet.protocol(), scope_of(place));
    let Some(frontend) = lookup::frontend::<F>(&mut key, |_| false) else {
        return if is_xdp(place) { verdict::PASS } else { unknown::<F>(config, packet, place, choice) };
    };
    if F::VERSION == 4 {
        maps::touch_service(frontend.service);
    }
    let flags = frontend.flags();
    if flags & frontend_flag::SOURCE_RANGES != 0 && !F::is_allowed(frontend.service, packet.key.source) {
        maps::count(metric::SOURCE_RANGE_DROPPED);
        emit_event::<F>(kind::SOURCE_RANGE, place, frontend.service, packet);
        return verdict::DROP;
    }
    let backend = if frontend.count() == 0 {
        None
    } else {
        // A hash without the seed is the same on all nodes.
        let consistent = flags & frontend_flag::CONSISTENT != 0;
        let hash = if consistent { table::hash(&packet.key, 0) } else { hash };
        pick::backend::<F>(&frontend, spread(hash), || AffinityKey {
            client: packet.key.source.fold() & !AffinityKey::SOCKET,
            service: frontend.service,
            family: F::VERSION as u16,
            scope: scope_of(place) as u16,
        })
    };
    let Some(backend) = backend else {
        return if is_xdp(place) { verdict::PASS } else { no_backend::<F>(&frontend, packet, place) };
    };
    // SAFETY: both are values.
    unsafe { copy(&backend.address(), &mut choice.backend) };
    choice.port = backend.port();
    choice.backend_flags = backend.flags();
    choice.service = frontend.service;
    choice.flags = flags as u32;
    if is_xdp(place) && backend.flags() & backend_flag::LOCAL != 0 {
        return verdict::PASS;
    }
    if masquerade::is_on(config, place) && masquerade::applies::<F>(packet, &choice.backend) {
        choice.flags |= LEAVES;
    }
    verdict::REWRITE
}

/// Returns `true` if the packet belongs to a connection that the kernel's own connection tracking translates,
/// by rules of others, and that none of our flows is known for: it would be torn from its backend.
#[inline(always)]
pub fn is_others<F: Family>(config: &Config, packet: &Packet<F::Address>) -> bool {
    if config.flags & (config_flag::TRACKED | config_flag::SETTLING) == 0 {
        return false;
    }
    let settling = config.flags & config_flag::SETTLING != 0;
    if settling && !packet.is_datagram() && packet.flags & tcp_flag::SYN == 0 {
        return true;
    }
    let found = tracked::<F>(&packet.key);
    found != 0 && (!packet.opens() || found & ebpf_common::tracked::OPENING != 0)
}

/// Returns the state of others' connection with these ends. A separate function, so that the stack of its
/// callers does not have to hold it.
#[inline(never)]
fn tracked<F: Family>(ends: &FlowKey<F::Address>) -> u32 {
    let Some(scratch) = F::scratch() else {
        return 0;
    };
    // SAFETY: the room is this processor's own.
    let key = unsafe { &mut (*scratch).sibling };
    // Older kernels take no key from the memory of a function's argument.
    // SAFETY: both are values.
    unsafe { copy(ends, &mut *key) };
    let found = F::tracked(key);
    if found != 0 {
        trace::others();
    }
    found
}

/// Records that another node has chosen a backend here; [`admit`] then begins the flow.
#[inline(always)]
pub fn choose_this<F: Family>(frontend: &Frontend, backend: &F::Backend) {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return;
    };
    // SAFETY: the room is this processor's own.
    let choice = unsafe { &mut (*scratch).choice };
    // SAFETY: both are values.
    unsafe { copy(&backend.address(), &mut choice.backend) };
    // A change in between is noticed by a later packet at the other node, which checks again.
    choice.epoch = maps::epoch(config);
    choice.port = backend.port();
    choice.backend_flags = backend.flags() | backend_flag::LOCAL;
    choice.service = frontend.service;
    choice.flags = 0;
}

/// Begins a flow to the backend that [`choose_this`] has recorded, unless there is one already.
#[inline(always)]
pub fn admit<F: Family>(packet: &Packet<F::Address>, place: Place) {
    let Some(config) = maps::config() else {
        return;
    };
    let hash = table::hash(&packet.key, config.seed);
    if table::find::<F>(config, &packet.key, hash).is_some() {
        return;
    }
    let mut to = MaybeUninit::uninit();
    // SAFETY: zero is a value of all fields.
    let to = unsafe { cleared(&mut to) };
    F::create(packet, hash, place, to);
}

/// Returns `true` if replies with these ends are already translated as in `reply`. Other flows are removed.
#[inline(always)]
pub fn replies_like<F: Family>(reply: &New<F::Address>) -> bool {
    let Some(config) = maps::config() else {
        return false;
    };
    let hash = table::hash(&reply.key, config.seed);
    let Some(found) = table::find::<F>(config, &reply.key, hash) else {
        return false;
    };
    // SAFETY: the pointer leads to a slot; a torn reading is of a flow that is being replaced.
    let same = unsafe {
        let ports = (&raw const (*found.slot).source_port).cast::<u32>().read_volatile();
        ports == super::packet::ports(reply.source_port, reply.destination_port)
            && (*found.slot).source.same(&reply.source)
    };
    if !same {
        table::remove::<F>(&reply.key);
    }
    same
}

#[inline(always)]
fn no_backend<F: Family>(frontend: &Frontend, packet: &Packet<F::Address>, place: Place) -> u32 {
    maps::count_service(frontend.service, true);
    if frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0 {
        maps::count(metric::PACKET_DROPPED_EMPTY);
        emit_event::<F>(kind::DROPPED_EMPTY, place, frontend.service, packet);
        verdict::DROP
    } else {
        maps::count(metric::PACKET_REFUSED);
        emit_event::<F>(kind::REFUSED, place, frontend.service, packet);
        verdict::REFUSE
    }
}

/// Handles a packet whose destination has no frontend: none may pass to an address of the service ranges. One
/// that leaves the cluster, or enters it, is its own backend.
#[inline(always)]
fn unknown<F: Family>(
    config: &Config,
    packet: &Packet<F::Address>,
    place: Place,
    choice: &mut Choice<F::Address>,
) -> u32 {
    if !F::is_in_ranges(config, &packet.key.destination) {
        // Other packets of TCP and SCTP belong to connections that were opened from outside, which keep the
        // pod's address, or to those whose flow is gone.
        let begins = packet.is_datagram() || packet.opens();
        let (kind, backend_flags) = if begins
            && masquerade::is_on(config, place)
            && masquerade::applies::<F>(packet, &packet.key.destination)
        {
            (LEAVES, 0)
        } else if packet.protocol() == protocol::UDP && masquerade::enters::<F>(config, packet, place) {
            (ENTERS, backend_flag::LOCAL)
        } else {
            return verdict::PASS;
        };
        // SAFETY: both are values.
        unsafe { copy(&packet.key.destination, &mut choice.backend) };
        choice.port = packet.key.destination_port;
        choice.backend_flags = backend_flags;
        choice.service = 0;
        choice.flags = kind;
        return verdict::REWRITE;
    }
    if packet.is_echo() {
        return verdict::PASS;
    }
    if lookup::is_marked::<F>(packet.key.destination) {
        maps::count(metric::UNKNOWN_PORT_REFUSED);
        emit_event::<F>(kind::UNKNOWN_PORT, place, 0, packet);
        return verdict::REFUSE;
    }
    maps::count(metric::UNALLOCATED_DROPPED);
    emit_event::<F>(kind::UNALLOCATED, place, 0, packet);
    verdict::DROP
}

/// Inserts both elements of a flow.
#[inline(always)]
fn create<F: Family>(packet: &Packet<F::Address>, hash: u64, place: Place, to: &mut To<F::Address>) -> u32 {
    let (Some(config), Some(scratch)) = (maps::config(), F::scratch()) else {
        return verdict::DROP;
    };
    // SAFETY: the room is this processor's own, and its parts do not overlap.
    let (choice, new) = unsafe { (&(*scratch).choice, &mut (*scratch).new) };
    let external = scope_of(place) == scope::EXTERNAL;
    let through = external && choice.backend_flags & backend_flag::LOCAL == 0;
    let own = &packet.key.source;
    let manner = if through { dsr::manner(choice.flags) } else { 0 };
    let leaves = choice.flags & LEAVES != 0;
    let replaced = through && manner == 0 || leaves || needs_node_address::<F>(packet, choice);
    let source = if replaced { F::snat_address(config) } else { own };
    if source.same(&F::Address::ZERO) {
        maps::count(metric::SNAT_NO_ADDRESS);
        emit_event::<F>(kind::SNAT_NO_ADDRESS, place, choice.service, packet);
        return verdict::DROP;
    }
    let flags = manner as u16
        | if through { flow_flag::THROUGH } else { 0 }
        | if leaves { flow_flag::MASQUERADE } else { 0 };
    // SAFETY: all are values.
    unsafe {
        copy(&choice.backend, &mut new.key.source);
        copy(source, &mut new.key.destination);
        copy(&packet.key.destination, &mut new.source);
        copy(own, &mut new.destination);
    }
    new.key.source_port = choice.port;
    new.key.destination_port = packet.key.source_port;
    new.key.protocol = packet.key.protocol;
    new.source_port = packet.key.destination_port;
    new.destination_port = packet.key.source_port;
    new.service = choice.service;
    new.epoch = choice.epoch;
    new.seen = maps::tick();
    new.flags = (flags | flow_flag::REVERSE) as u32;
    F::foresee(hash, new.seen, false);
    let enters = choice.flags & ENTERS != 0;
    // Replies of a backend that answers the client itself do not come here.
    if manner == 0 && !claim::<F>(config, new, (!replaced, enters), hash, place) {
        if enters {
            // The pod has begun a flow to the sender, under the node's address.
            return verdict::PASS;
        }
        exhausted::<F>(packet, choice, place);
        return verdict::DROP;
    }
    to.source_port = new.key.destination_port;
    to.destination_port = choice.port;
    to.flags = if external { flags | flow_flag::EXTERNAL } else { flags } as u32;
    // SAFETY: all are values.
    unsafe {
        copy(source, &mut to.source);
        copy(&choice.backend, &mut to.destination);
        copy(&packet.key, &mut new.key);
        copy(&to.source, &mut new.source);
        copy(&to.destination, &mut new.destination);
    }
    new.source_port = to.source_port;
    new.destination_port = to.destination_port;
    new.flags = to.flags;
    to.slot = table::insert::<F>(new, hash, place);
    if to.slot >= table::EXISTS {
        return instead::<F>(config, packet, hash, to);
    }
    maps::count(metric::FLOW_CREATED);
    count_kinds(choice);
    verdict::REWRITE
}

/// Counts a flow by service, and as one that leaves the cluster.
#[inline(always)]
fn count_kinds<A>(choice: &Choice<A>) {
    if choice.flags & LEAVES != 0 {
        maps::count(metric::MASQUERADED);
    }
    if choice.service != 0 {
        maps::count_service(choice.service, false);
    }
}

/// Counts and reports a packet for which no source port is free.
#[inline(always)]
fn exhausted<F: Family>(packet: &Packet<F::Address>, choice: &Choice<F::Address>, place: Place) {
    let (counter, kind) = if choice.flags & LEAVES != 0 {
        (metric::MASQUERADE_EXHAUSTED, kind::MASQUERADE_EXHAUSTED)
    } else {
        (metric::SNAT_EXHAUSTED, kind::SNAT_EXHAUSTED)
    };
    maps::count(counter);
    emit_event::<F>(kind, place, choice.service, packet);
}

/// Returns `true` if the backend must see the node's address as the client's: the frontend requires it, or
/// the client is the backend itself, which drops packets from its own address. The first does not apply to a
/// process of this node: packets to it must not come from its own address.
#[inline(always)]
fn needs_node_address<F: Family>(packet: &Packet<F::Address>, choice: &Choice<F::Address>) -> bool {
    if choice.backend.same(&packet.key.source) {
        return true;
    }
    choice.flags & frontend_flag::MASQUERADE as u32 != 0 && !F::is_local(&choice.backend)
}

/// Maximum number of look-ups of a flow that another processor is beginning.
const ATTEMPTS: u32 = 4;

/// Handles the case that another processor has begun the same flow at the same time, or that no slot was
/// free.
#[inline(always)]
fn instead<F: Family>(
    config: &Config,
    packet: &Packet<F::Address>,
    hash: u64,
    to: &mut To<F::Address>,
) -> u32 {
    // The other's element is found as soon as it cannot be revoked any more.
    let mut found = None;
    for _ in 0..ATTEMPTS {
        found = table::find::<F>(config, &packet.key, hash);
        if found.is_some() {
            break;
        }
    }
    if let Some(found) = found {
        let slot = found.slot;
        // SAFETY: the pointer leads to a slot.
        let same = unsafe {
            (&raw const (*slot).source_port).read_volatile() == to.source_port
                && (&raw const (*slot).destination_port).read_volatile() == to.destination_port
                && (&raw const (*slot).destination).read_volatile().same(&to.destination)
        };
        if !same {
            forget_reply::<F>(packet, to);
        }
        if found.read(to) {
            return verdict::REWRITE;
        }
    }
    // The reply's element is left: it may be the other's.
    maps::count(metric::FLOW_INSERT_FAILED);
    verdict::DROP
}

/// Removes the element for replies to the translated packet.
#[inline(always)]
fn forget_reply<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>) {
    let Some(scratch) = F::scratch() else {
        return;
    };
    // SAFETY: the room is this processor's own.
    let key = unsafe { &mut (*scratch).sibling };
    // SAFETY: all are values.
    unsafe {
        copy(&to.destination, &mut key.source);
        copy(&to.source, &mut key.destination);
    }
    key.source_port = to.destination_port;
    key.destination_port = to.source_port;
    key.protocol = packet.key.protocol;
    table::remove::<F>(key);
}

/// The state of a key of a reply.
pub mod place_of_reply {
    pub const FREE: u32 = 0;
    /// Taken by a flow that may be replaced.
    pub const LEFT: u32 = 1;
    pub const TAKEN: u32 = 2;
}

/// Inserts the reverse element, and only if its key is free: replies to two flows must not have the same
/// ends. If they would, another source port is chosen, unless the port is `fixed`.
#[inline(always)]
fn claim<F: Family>(
    config: &Config,
    reply: &mut New<F::Address>,
    (own_address, fixed): (bool, bool),
    hash: u64,
    place: Place,
) -> bool {
    let (low, high) = (config.snat_port_min, config.snat_port_max);
    let span = high.wrapping_sub(low) as u64 + 1;
    let own = u16::from_be(reply.key.destination_port);
    let keep = own_address || (own >= low && own <= high);
    let mut roll = hash as u32;
    for attempt in 0..limits::SNAT_TRIES {
        if fixed && attempt > 0 {
            break;
        }
        if attempt > 0 || !keep {
            let offset = if attempt < limits::SNAT_RANDOM_TRIES {
                roll = roll.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
                (roll as u64 * span) >> 32
            } else {
                let next = u16::from_be(reply.key.destination_port).wrapping_sub(low) as u64 + 1;
                if next < span { next } else { 0 }
            };
            reply.key.destination_port = low.wrapping_add(offset as u16).to_be();
        }
        if attempt == 0 {
            F::foresee(table::hash(&reply.key, config.seed), reply.seen, true);
        }
        let state = F::look_at(reply);
        if state == place_of_reply::TAKEN {
            continue;
        }
        if state == place_of_reply::LEFT {
            table::remove::<F>(&reply.key);
        }
        let hash = table::hash(&reply.key, config.seed);
        // Another processor may take the key at the same time: then the next port is tried.
        if table::insert::<F>(reply, hash, place) < table::EXISTS {
            return true;
        }
    }
    false
}

/// Returns the state of a reply's key. An element under it may be replaced if it is the same flow, has ended,
/// or has been quiet for long.
#[inline(always)]
fn look_at<F: Family>(reply: &New<F::Address>) -> u32 {
    let Some(config) = maps::config() else {
        return place_of_reply::TAKEN;
    };
    // Replies to others' connections must not be taken for replies to ours.
    if config.flags & config_flag::TRACKED != 0 && tracked::<F>(&reply.key) != 0 {
        return place_of_reply::TAKEN;
    }
    let hash = table::hash(&reply.key, config.seed);
    let Some(found) = table::find::<F>(config, &reply.key, hash) else {
        return place_of_reply::FREE;
    };
    let slot = found.slot;
    // SAFETY: the pointer leads to a slot; a torn reading costs a port, no more.
    unsafe {
        let ports = (&raw const (*slot).source_port).cast::<u32>().read_volatile();
        if ports == super::packet::ports(reply.source_port, reply.destination_port)
            && (&raw const (*slot).source).read_volatile().same(&reply.source)
            && (&raw const (*slot).destination).read_volatile().same(&reply.destination)
        {
            return place_of_reply::LEFT;
        }
        let flags = (&raw const (*slot).flags).read_volatile() as u32;
        let limit = table::idle_limit(reply.key.protocol, flags);
        let quiet = |seen: u32| reply.seen.wrapping_sub(seen) > limit;
        if !quiet((&raw const (*slot).seen).read_volatile()) {
            return place_of_reply::TAKEN;
        }
        // The client may still be sending although the backend is silent.
        let Some(scratch) = F::scratch() else {
            return place_of_reply::TAKEN;
        };
        let forward = &raw mut (*scratch).sibling;
        table::write_sibling(slot, forward);
        match table::find::<F>(config, &*forward, table::hash(&*forward, config.seed)) {
            Some(found) if !quiet((&raw const (*found.slot).seen).read_volatile()) => place_of_reply::TAKEN,
            _ => place_of_reply::LEFT,
        }
    }
}
