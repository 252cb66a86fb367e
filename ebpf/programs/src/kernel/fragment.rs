//! Fragments: the first one says for all of them to which flow they belong.
//!
//! A fragment that comes before its first one waits: it goes once more through the queue of its
//! interface, a few times, counted in `tc_index` (see [`super::tcx::index`]).

use aya_ebpf::bindings::{__sk_buff, BPF_ANY, BPF_F_INGRESS};
use aya_ebpf::helpers::bpf_redirect;
use ebpf_common::event::kind;
use ebpf_common::flow::{Fragment, FragmentKey};
use ebpf_common::metric;

use super::family::{Address as _, Family};
use super::flow::{self, Place, verdict};
use super::maps::{self, FRAGMENTS};
use super::packet::{Packet, To};
use super::tcx::{self, index};

/// Ticks for which a first fragment speaks for the others.
const LIFETIME: u32 = 30;

#[inline(always)]
fn key<F: Family>(packet: &Packet<F::Address>) -> FragmentKey {
    FragmentKey {
        source: packet.key.source.words(),
        destination: packet.key.destination.words(),
        identification: packet.identification,
        protocol: packet.key.protocol,
    }
}

/// Notes the ports of a first fragment.
#[inline(never)]
pub fn remember<F: Family>(packet: &Packet<F::Address>) {
    let value = Fragment {
        source_port: packet.key.source_port,
        destination_port: packet.key.destination_port,
        seen: maps::tick(),
    };
    // A full map evicts its oldest element.
    let _ = FRAGMENTS.insert(&key::<F>(packet), &value, BPF_ANY as u64);
}

/// Both ports of a datagram, if its first fragment has said them.
#[inline(always)]
pub fn ports(key: &FragmentKey) -> Option<(u16, u16)> {
    let first = FRAGMENTS.get_ptr(key)?;
    // SAFETY: the pointer leads to a value of the map; what a recycled one says is another
    // datagram's, as it may be when identifications come round.
    let first = unsafe { first.read() };
    let fresh = maps::tick().wrapping_sub(first.seen) <= LIFETIME;
    fresh.then_some((first.source_port, first.destination_port))
}

/// Gives a later fragment the ports of its first one, if that is known.
#[inline(never)]
pub fn recall<F: Family>(packet: &mut Packet<F::Address>) -> bool {
    let Some((source, destination)) = ports(&key::<F>(packet)) else {
        return false;
    };
    packet.key.source_port = source;
    packet.key.destination_port = destination;
    true
}

/// Carries a later fragment as its first one; `to` is room for a decision. No function of its own:
/// Linux 6.1 counts a frame of the stack as 32 bytes or more, and allows 512 in all.
#[inline(always)]
pub fn ingress<F: Family>(
    skb: *mut __sk_buff,
    packet: &mut Packet<F::Address>,
    place: Place,
    to: &mut To<F::Address>,
) -> i32 {
    if !recall::<F>(packet) {
        return wait::<F>(skb, packet, place);
    }
    if flow::decide_known::<F>(packet, place, false, to) == verdict::REWRITE {
        maps::count(metric::FRAGMENT_TRANSLATED);
        return F::carry(skb, packet, to, place);
    }
    // Its first one was not translated either: what is for a service has been refused or dropped.
    if is_for_services::<F>(packet) { tcx::DROP } else { tcx::NEXT }
}

/// Lets a fragment wait for its first one, for a while.
#[inline(always)]
fn wait<F: Family>(skb: *mut __sk_buff, packet: &Packet<F::Address>, place: Place) -> i32 {
    // SAFETY: the context is the one that the kernel gave.
    unsafe {
        let field = &raw mut (*skb).tc_index;
        let value = field.read_volatile();
        if value & index::WAITED != index::WAITED {
            field.write_volatile(value + index::ONCE);
            return bpf_redirect((*skb).ifindex, BPF_F_INGRESS as u64) as i32;
        }
        field.write_volatile(value & !index::WAITED);
    }
    maps::count(metric::FRAGMENT_UNKNOWN);
    flow::tell::<F>(kind::FRAGMENT_UNKNOWN, place, 0, packet);
    let ours = is_for_services::<F>(packet) || has_node_ports::<F>(packet);
    if ours { tcx::DROP } else { tcx::NEXT }
}

/// The destination is in a range of services' addresses.
#[inline(always)]
fn is_for_services<F: Family>(packet: &Packet<F::Address>) -> bool {
    maps::config().is_some_and(|config| F::is_in_ranges(config, &packet.key.destination))
}

/// The destination is an address that node ports answer on, and there are some.
#[inline(always)]
fn has_node_ports<F: Family>(packet: &Packet<F::Address>) -> bool {
    maps::config().is_some_and(|config| config.wildcard_port_min <= config.wildcard_port_max)
        && F::is_local(&packet.key.destination)
}
