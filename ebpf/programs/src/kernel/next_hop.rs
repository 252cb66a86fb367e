//! Next hops of flows: stored in a flow's slot for the rest of a tick, so that not every packet needs a route
//! look-up.

use aya_ebpf::bindings::bpf_fib_lookup;
use ebpf_common::flow::Flow;

use super::family::Address;

/// Added to an interface that XDP may not be able to use: other programs have found it.
const NOT_FOR_XDP: u32 = 1 << 31;

/// The interface, and both link addresses in the form of packets.
#[derive(Clone, Copy)]
pub struct NextHop {
    /// 0 if it is not known, or is being replaced. Other programs than XDP mask its highest bit.
    pub ifindex: u32,
    pub link: [u32; 3],
}

const _: () = {
    assert!(core::mem::offset_of!(Flow<u32>, hop_destination) % 4 == 0);
    assert!(
        core::mem::offset_of!(Flow<u32>, hop_source) == core::mem::offset_of!(Flow<u32>, hop_destination) + 6
    );
};

impl NextHop {
    /// Returns `true` if XDP may use it.
    #[inline(always)]
    pub fn is_for_xdp(&self) -> bool {
        self.ifindex != 0 && self.ifindex & NOT_FOR_XDP == 0
    }

    /// Returns the interface, for other programs than XDP; 0 if it is not known.
    #[inline(always)]
    pub fn interface(&self) -> u32 {
        self.ifindex & !NOT_FOR_XDP
    }
}

/// Returns the next hop of a flow to this destination. `slot` leads to its slot, which may be another flow's
/// by now: that has a destination of its own, written before its next hop is.
#[inline(always)]
pub fn of<A: Address>(slot: *const Flow<A>, destination: &A) -> NextHop {
    // SAFETY: the callers give a slot. Both link addresses are three aligned words.
    unsafe {
        let place = &raw const (*slot).hop_ifindex;
        let link = (&raw const (*slot).hop_destination).cast::<u32>();
        let ifindex = place.read_volatile();
        let link = [link.read_volatile(), link.add(1).read_volatile(), link.add(2).read_volatile()];
        let same = place.read_volatile() == ifindex && leads_to(slot, destination);
        NextHop { ifindex: if same { ifindex } else { 0 }, link }
    }
}

/// # Safety
/// `slot` must lead to a slot.
#[inline(always)]
unsafe fn leads_to<A: Address>(slot: *const Flow<A>, destination: &A) -> bool {
    // SAFETY: by the contract of this function.
    unsafe { (&raw const (*slot).destination).read_volatile().same(destination) }
}

/// Stores the answer of the routing table for a destination, for the rest of the tick, asked by XDP or
/// others. `slot` leads to the flow's slot; if it is another's by now, that flow has to ask for itself.
#[inline(always)]
pub fn keep<A: Address>(slot: *mut Flow<A>, destination: &A, answer: &bpf_fib_lookup, by_xdp: bool) {
    // SAFETY: the callers give a slot.
    if unsafe { !leads_to(slot, destination) } {
        return;
    }
    let (neighbour, own) = (answer.dmac, answer.smac);
    let half = |bytes: [u8; 6], at: usize| bytes[at] as u32 | (bytes[at + 1] as u32) << 8;
    // SAFETY: as in `of`. A reader in between sees an interface of 0 before or after.
    unsafe {
        let place = &raw mut (*slot).hop_ifindex;
        let link = (&raw mut (*slot).hop_destination).cast::<u32>();
        place.write_volatile(0);
        link.write_volatile(half(neighbour, 0) | half(neighbour, 2) << 16);
        link.add(1).write_volatile(half(neighbour, 4) | half(own, 0) << 16);
        link.add(2).write_volatile(half(own, 2) | half(own, 4) << 16);
        place.write_volatile(answer.ifindex | if by_xdp { 0 } else { NOT_FOR_XDP });
        if !leads_to(slot, destination) {
            place.write_volatile(0);
        }
    }
}
