//! The log of the tracing copy of the programs about one flow, step by step.
//!
//! The copy is this object, loaded with a log level. In the programs that carry traffic the level is zero, a
//! constant that the kernel knows: it removes every branch on [`is_on`], and only the load of a byte is left
//! of each.
//!
//! A decision about a packet is recorded on the way, and logged at the end by a separate function: only the
//! end shows whether a reply belongs to the flow, and programs in the middle have no room on their stacks. A
//! packet's notes are this processor's own, as no program that decides about packets interrupts another. A
//! system call may be interrupted by another one, so it logs what it has at hand.

use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_get_smp_processor_id;
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use aya_log_ebpf::info;
use aya_log_ebpf::macro_support::{Level, level_enabled};
use ebpf_common::event::kind;
use ebpf_common::frontend::Frontend;
use ebpf_common::trace::{Traced, outcome};

use super::family::{Address as _, Family};
use super::flow::{Place, verdict};
use super::packet::{self, Packet, To};

/// The flow, as [`Traced::words`]; user space sets it when it loads the copy.
#[unsafe(no_mangle)]
static TRACED: Global<[u32; Traced::WORDS]> = Global::new([0; Traced::WORDS]);

/// Notes on the packet that is being decided about. Not pinned: each copy has its own.
#[map]
static NOTES: PerCpuArray<Notes> = PerCpuArray::with_max_entries(1, 0);

/// An address and a port.
#[repr(C)]
#[derive(Clone, Copy)]
struct End {
    address: [u32; 4],
    port: u32,
}

/// The findings about a packet so far.
#[repr(C)]
struct Notes {
    source: End,
    destination: End,
    /// The rewritten source of the packet.
    to_source: End,
    to_destination: End,
    backend: End,
    /// Bits of [`seen`].
    seen: u32,
    /// The frontend's service.
    service: u32,
    /// One of [`ebpf_common::event::kind`].
    reason: u32,
    /// The interface by which the packet leaves; 0 for none.
    way: u32,
    family: u32,
    protocol: u32,
    /// Bits of [`packet::tcp_flag`].
    flags: u32,
    /// The place of the packet, a [`super::flow::Place`].
    place: u32,
    /// One of [`verdict`].
    verdict: u32,
    /// One of [`outcome`].
    outcome: u32,
}

/// The recorded look-ups.
mod seen {
    pub const FRONTEND: u32 = 2;
    pub const BACKEND: u32 = 4;
    /// The connection is one that others translate.
    pub const OTHERS: u32 = 8;
    /// Everything else in the notes is about this packet.
    pub const DECIDED: u32 = 16;
    /// The packet leaves the cluster under the node's address.
    pub const LEAVES: u32 = 32;
}

/// Returns `true` in the tracing copy.
#[inline(always)]
pub fn is_on() -> bool {
    level_enabled(Level::Info)
}

/// Returns the notes. A separate function, so that the stack of its callers does not have to hold the key.
#[inline(never)]
fn notes() -> Option<&'static mut Notes> {
    // SAFETY: the element is this processor's own, and no packet program interrupts another.
    NOTES.get_ptr_mut(0).map(|notes| unsafe { &mut *notes })
}

/// Changes the notes, in the tracing copy.
#[inline(always)]
fn note(change: impl FnOnce(&mut Notes)) {
    if is_on()
        && let Some(notes) = notes()
    {
        change(notes);
    }
}

/// Changes the notes as [`note`] does, for functions at the end of the longest chain of calls: one more call
/// would exceed the stack that older kernels allow.
#[inline(always)]
fn note_deep(change: impl FnOnce(&mut Notes)) {
    if is_on()
        && let Some(notes) = NOTES.get_ptr_mut(0)
    {
        // SAFETY: as in `notes`.
        change(unsafe { &mut *notes });
    }
}

/// Records that a packet has arrived.
#[inline(always)]
pub fn packet_begins(place: impl FnOnce() -> Place) {
    note(|notes| {
        notes.place = place();
        notes.seen = 0;
        notes.reason = 0;
        notes.way = 0;
    });
}

/// Records that others translate a connection with these ends.
#[inline(always)]
pub fn others() {
    note_deep(|notes| notes.seen |= seen::OTHERS);
}

/// Records the choice of a backend of a service, read from these places; without a service, that the packet
/// leaves the cluster.
#[inline(always)]
pub fn backend<A: Copy>(address: &A, port: &u16, service: &u32) {
    note(|notes| {
        if *service == 0 {
            notes.seen |= seen::LEAVES;
            return;
        }
        notes.seen |= seen::FRONTEND | seen::BACKEND;
        notes.service = *service;
        set(&mut notes.backend, address, *port);
    });
}

/// Records an event as the reason why the packet does not go on; `kind` is one of
/// [`ebpf_common::event::kind`], and `service` 0 if there is none.
#[inline(always)]
pub fn reason(kind: u8, service: u32) {
    // The evicted flow is another one.
    if kind == kind::FLOW_EVICTED {
        return;
    }
    note_deep(|notes| {
        notes.reason = kind as u32;
        if service != 0 {
            notes.seen |= seen::FRONTEND;
            notes.service = service;
        }
    });
}

/// Records the interface by which the packet leaves; 0 for the stack.
#[inline(always)]
pub fn way(ifindex: u32) {
    note(|notes| notes.way = ifindex);
}

/// Records the decision about the packet; `verdict` is one of [`verdict`].
#[inline(always)]
pub fn packet_decided<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>, verdict: u32) {
    if is_on() {
        note_decision::<F>(packet, to, verdict);
    }
}

/// Records a decision. A separate function, so that the stack of its callers does not have to hold anything
/// for it.
#[inline(never)]
fn note_decision<F: Family>(packet: &Packet<F::Address>, to: &To<F::Address>, verdict: u32) {
    let Some(notes) = notes() else {
        return;
    };
    let key = &packet.key;
    set(&mut notes.source, &key.source, key.source_port);
    set(&mut notes.destination, &key.destination, key.destination_port);
    if verdict == verdict::REWRITE {
        set(&mut notes.to_source, &to.source, to.source_port);
        set(&mut notes.to_destination, &to.destination, to.destination_port);
    }
    notes.family = F::VERSION as u32;
    notes.protocol = key.protocol;
    notes.flags = packet.flags as u32;
    notes.verdict = verdict;
    notes.seen |= seen::DECIDED;
}

/// The execution of a decision about a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Carried out as decided; [`way`] has been called if it was sent out.
    Carried,
    Dropped,
    /// Passed unchanged to the next program, whatever was decided.
    Passed,
    /// Sent out if it was to be rewritten.
    Sent,
}

/// Records that a decision, if there was one, has been carried out: logs it if the packet is of the flow.
#[inline(always)]
pub fn packet_ends(fate: Fate) {
    note(|notes| {
        if notes.seen & seen::DECIDED == 0 {
            return;
        }
        if fate == Fate::Passed {
            notes.verdict = verdict::PASS;
        }
        notes.outcome = match notes.verdict {
            verdict::REWRITE if fate == Fate::Dropped => outcome::DROPPED,
            verdict::REWRITE if fate == Fate::Carried && notes.way == 0 => outcome::TO_STACK,
            verdict::REWRITE => outcome::SENT,
            verdict::DROP => outcome::DROPPED,
            verdict::REFUSE => outcome::REFUSED,
            _ => outcome::PASSED,
        };
        trace_packet();
    });
}

/// Copies directly from the place of the address: another copy would take room on the stack, of which there
/// is none.
#[inline(always)]
fn set<A: Copy>(end: &mut End, address: &A, port: u16) {
    if size_of::<A>() < size_of_val(&end.address) {
        end.address = [0; 4];
    }
    // SAFETY: both are values, and an address is no longer than four words.
    unsafe { packet::copy(address, end.address.as_mut_ptr().cast()) };
    end.port = port as u32;
}

/// Logs the notes, if they are about a packet of the flow. Verified by the kernel once, and not with each
/// call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_packet() -> u32 {
    if !is_on() {
        return 0;
    }
    let Some(notes) = notes() else {
        return 0;
    };
    if !is_traced(notes) {
        return 0;
    }
    // SAFETY: takes nothing, returns a number.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let (is_v4, rewritten) = (notes.family == 4, notes.verdict == verdict::REWRITE);
    log_packet(notes, processor);
    if is_v4 {
        log_ends4(notes, processor);
    } else {
        log_ends6(notes, processor);
    }
    log_frontend(notes, processor);
    if notes.seen & seen::BACKEND != 0 {
        if is_v4 {
            log_backend4(notes, processor);
        } else {
            log_backend6(notes, processor);
        }
    }
    if rewritten {
        if is_v4 {
            log_rewrite4(notes, processor);
        } else {
            log_rewrite6(notes, processor);
        }
    }
    log_end(notes, processor);
    1
}

/// Returns `true` if the packet has the ends of the flow, or becomes a reply to it.
#[inline(always)]
fn is_traced(notes: &Notes) -> bool {
    let words = TRACED.load();
    let flow = Traced::from_words(&words);
    if !flow.is_of(notes.family as u8, notes.protocol as u8) {
        return false;
    }
    let joins = |from: &End, to: &End| {
        flow.goes_to(&to.address, to.port as u16) && flow.comes_from(&from.address, from.port as u16)
    };
    joins(&notes.source, &notes.destination)
        || notes.verdict == verdict::REWRITE && joins(&notes.to_destination, &notes.to_source)
}

/// Returns a port in native byte order.
#[inline(always)]
fn port(port: u32) -> u16 {
    u16::from_be(port as u16)
}

/// Returns an address in the form of the log.
#[inline(always)]
fn v4(address: &[u32; 4]) -> u32 {
    u32::from_be(address[0])
}

#[inline(always)]
fn v6(address: &[u32; 4]) -> [u8; 16] {
    // SAFETY: words are as many bytes, in the order in which packets carry them.
    unsafe { (&raw const *address).cast::<[u8; 16]>().read() }
}

#[inline(never)]
fn log_packet(notes: &Notes, processor: u32) {
    let (hook, interface) = (notes.place & 0xff, notes.place >> 8);
    info!(
        (),
        "cpu {} hook#{} interface#{}: protocol#{} flags#{}",
        processor,
        hook,
        interface,
        notes.protocol,
        notes.flags
    );
}

/// Logs the ends of the packet. Each family has a function of its own, here and below: older kernels count
/// the stack of a function although nothing calls it, and a record takes some of it.
#[inline(never)]
fn log_ends4(notes: &Notes, processor: u32) {
    let (from, to) = (&notes.source, &notes.destination);
    info!(
        (),
        "cpu {}   packet: {:i}:{} > {:i}:{}",
        processor,
        v4(&from.address),
        port(from.port),
        v4(&to.address),
        port(to.port)
    );
}

#[inline(never)]
fn log_ends6(notes: &Notes, processor: u32) {
    let (from, to) = (&notes.source, &notes.destination);
    info!(
        (),
        "cpu {}   packet: [{:i}]:{} > [{:i}]:{}",
        processor,
        v6(&from.address),
        port(from.port),
        v6(&to.address),
        port(to.port)
    );
}

/// Logs the flow that was found, or the frontend and the backend.
#[inline(never)]
fn log_frontend(notes: &Notes, processor: u32) {
    if notes.seen & seen::LEAVES != 0 {
        info!((), "cpu {}   flow: none; frontend: none; leaves the cluster", processor);
        return;
    }
    if notes.verdict == verdict::REWRITE && notes.seen & seen::BACKEND == 0 {
        info!((), "cpu {}   flow: found, with these ends", processor);
        return;
    }
    if notes.seen & (seen::FRONTEND | seen::OTHERS) == seen::OTHERS {
        info!((), "cpu {}   flow: none; rules of others translate this connection", processor);
        return;
    }
    if notes.seen & seen::FRONTEND == 0 {
        info!((), "cpu {}   flow: none; frontend: none", processor);
        return;
    }
    info!((), "cpu {}   flow: none; frontend: service#{}", processor, notes.service);
}

#[inline(never)]
fn log_backend4(notes: &Notes, processor: u32) {
    let end = &notes.backend;
    info!((), "cpu {}   backend: {:i}:{}", processor, v4(&end.address), port(end.port));
}

#[inline(never)]
fn log_backend6(notes: &Notes, processor: u32) {
    let end = &notes.backend;
    info!((), "cpu {}   backend: [{:i}]:{}", processor, v6(&end.address), port(end.port));
}

#[inline(never)]
fn log_rewrite4(notes: &Notes, processor: u32) {
    let (from, to) = (&notes.to_source, &notes.to_destination);
    info!(
        (),
        "cpu {}   becomes: {:i}:{} > {:i}:{}",
        processor,
        v4(&from.address),
        port(from.port),
        v4(&to.address),
        port(to.port)
    );
}

#[inline(never)]
fn log_rewrite6(notes: &Notes, processor: u32) {
    let (from, to) = (&notes.to_source, &notes.to_destination);
    info!(
        (),
        "cpu {}   becomes: [{:i}]:{} > [{:i}]:{}",
        processor,
        v6(&from.address),
        port(from.port),
        v6(&to.address),
        port(to.port)
    );
}

#[inline(never)]
fn log_end(notes: &Notes, processor: u32) {
    if notes.way != 0 {
        info!((), "cpu {}   decision: outcome#{} of interface#{}", processor, notes.outcome, notes.way);
    } else if notes.reason != 0 {
        info!((), "cpu {}   decision: outcome#{} (reason#{})", processor, notes.outcome, notes.reason);
    } else {
        info!((), "cpu {}   decision: outcome#{}", processor, notes.outcome);
    }
}

/// A system call that may be of the flow: its destination is, its source is not known yet.
#[derive(Clone, Copy)]
pub struct Call {
    cookie: u64,
    is_traced: bool,
}

impl Call {
    /// `call` is one of [`ebpf_common::trace::call`].
    #[inline(always)]
    pub fn begin<F: Family>(
        call: u32,
        cookie: impl FnOnce() -> u64,
        address: &F::Address,
        port: u16,
        protocol: u8,
    ) -> Self {
        if !is_on() {
            return Self { cookie: 0, is_traced: false };
        }
        let (cookie, address) = (cookie(), address.words());
        let words = TRACED.load();
        let flow = Traced::from_words(&words);
        let is_traced = flow.is_of(F::VERSION, protocol) && flow.goes_to(&address, port);
        if is_traced {
            let numbers = call | (F::VERSION as u32) << 8 | (protocol as u32) << 16;
            trace_call(cookie, &address, port as u32, numbers);
        }
        Self { cookie, is_traced }
    }

    #[inline(always)]
    fn log_if_traced(&self, log: impl FnOnce(u64) -> u32) {
        if is_on() && self.is_traced {
            log(self.cookie);
        }
    }

    /// Logs that the address has a frontend.
    #[inline(always)]
    pub fn frontend(&self, frontend: &Frontend) {
        self.log_if_traced(|cookie| trace_call_frontend(cookie, frontend.service, frontend.count() as u32));
    }

    /// Logs that the call goes to a backend.
    #[inline(always)]
    pub fn backend<F: Family>(&self, address: &F::Address, port: u16) {
        self.log_if_traced(|cookie| {
            trace_call_backend(cookie, &address.words(), port as u32, F::VERSION as u32)
        });
    }

    /// Logs that the call goes on unchanged.
    #[inline(always)]
    pub fn passed(&self) {
        self.log_if_traced(|cookie| trace_call_end(cookie, 0));
    }

    /// Logs that the call fails; `error` is a number of the operating system.
    #[inline(always)]
    pub fn failed(&self, error: i32) {
        self.log_if_traced(|cookie| trace_call_end(cookie, error as u32));
    }
}

/// Logs the start of a call; `numbers` holds the call, the family and the protocol.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_call(cookie: u64, address: *const [u32; 4], number: u32, numbers: u32) -> u32 {
    // SAFETY: null, or the caller's.
    let Some(address) = (unsafe { address.as_ref() }) else {
        return 0;
    };
    let (call, family, protocol) = (numbers & 0xff, numbers >> 8 & 0xff, numbers >> 16);
    if family == 4 {
        info!(
            (),
            "socket {} call#{}: protocol#{} to {:i}:{}",
            cookie,
            call,
            protocol,
            v4(address),
            port(number)
        );
    } else {
        info!(
            (),
            "socket {} call#{}: protocol#{} to [{:i}]:{}",
            cookie,
            call,
            protocol,
            v6(address),
            port(number)
        );
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_call_frontend(cookie: u64, service: u32, backends: u32) -> u32 {
    info!((), "socket {}   frontend: service#{}, backends: {}", cookie, service, backends);
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_call_backend(cookie: u64, address: *const [u32; 4], number: u32, family: u32) -> u32 {
    // SAFETY: null, or the caller's.
    let Some(address) = (unsafe { address.as_ref() }) else {
        return 0;
    };
    if family == 4 {
        info!((), "socket {}   decision: the call goes to {:i}:{}", cookie, v4(address), port(number));
    } else {
        info!((), "socket {}   decision: the call goes to [{:i}]:{}", cookie, v6(address), port(number));
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_call_end(cookie: u64, error: u32) -> u32 {
    if error == 0 {
        info!((), "socket {}   decision: the call is not changed", cookie);
    } else {
        info!((), "socket {}   decision: the call fails with error#{}", cookie, error);
    }
    0
}
