//! Reports events about single packets to user space, a bounded number per tick.

use aya_ebpf::helpers::bpf_ktime_get_coarse_ns;
use ebpf_common::event::{EVENTS_PER_TICK, Event, kind};
use ebpf_common::flow::FlowKey;
use ebpf_common::{TICK_SHIFT, metric};

use super::family::{Address as _, Family};
use super::flow::Place;
use super::maps::{self, EVENT_BUDGET, EVENTS};
use super::trace;

/// Returns `true` if the budget of this tick is spent; the suppressed event is counted then.
#[inline(always)]
pub fn is_spent(tick: u32) -> bool {
    let Some(budget) = EVENT_BUDGET.get_ptr_mut(0) else {
        return true;
    };
    // SAFETY: the element is this CPU's own, and programs do not migrate.
    unsafe {
        let spent = (*budget).tick == tick && (*budget).sent >= EVENTS_PER_TICK;
        if spent {
            (*budget).suppressed += 1;
            maps::count(metric::EVENTS_SUPPRESSED);
        }
        spent
    }
}

/// Emits one event: `kind` is one of [`ebpf_common::event::kind`], and `service` 0 if there is none. Cheap
/// when the budget of the tick is spent.
#[inline(never)]
pub fn emit<F: Family>(kind: u8, place: Place, service: u32, key: &FlowKey<F::Address>) {
    // A policy is no service.
    trace::reason(kind, if kind >= kind::POLICY_INGRESS { 0 } else { service });
    let Some(budget) = EVENT_BUDGET.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: takes nothing, returns a number.
    let time = unsafe { bpf_ktime_get_coarse_ns() };
    let tick = (time >> TICK_SHIFT) as u32;
    // SAFETY: the element is this CPU's own, and programs do not migrate.
    let suppressed = unsafe {
        if (*budget).tick != tick {
            (*budget).tick = tick;
            (*budget).sent = 0;
        }
        if (*budget).sent >= EVENTS_PER_TICK {
            (*budget).suppressed += 1;
            maps::count(metric::EVENTS_SUPPRESSED);
            return;
        }
        (*budget).sent += 1;
        (*budget).suppressed
    };
    let Some(mut entry) = EVENTS.reserve::<Event>(0) else {
        // SAFETY: as above.
        unsafe { (*budget).suppressed += 1 };
        maps::count(metric::EVENTS_SUPPRESSED);
        return;
    };
    let event = entry.as_mut_ptr();
    // SAFETY: the entry is as large as an event, and its fields are integers; this CPU's budget as
    // above.
    unsafe {
        (&raw mut (*event).time).write(time);
        (&raw mut (*event).source).write(key.source.words());
        (&raw mut (*event).destination).write(key.destination.words());
        (&raw mut (*event).source_port).write(key.source_port);
        (&raw mut (*event).destination_port).write(key.destination_port);
        (&raw mut (*event).service).write(service);
        (&raw mut (*event).ifindex).write(place >> 8);
        (&raw mut (*event).kind).write(kind);
        (&raw mut (*event).hook).write(place as u8);
        (&raw mut (*event).protocol).write(key.protocol as u8);
        (&raw mut (*event).family).write(F::VERSION);
        (&raw mut (*event).suppressed).write(suppressed);
        (&raw mut (*event).reserved).write(0);
        (*budget).suppressed = 0;
    }
    entry.submit(0);
}
