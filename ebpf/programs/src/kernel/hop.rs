//! Where packets of a flow go next: kept in its slot for the rest of a tick, so that not each of them
//! asks for the way.

use aya_ebpf::bindings::bpf_fib_lookup;
use ebpf_common::flow::Flow;

/// Added to an interface that XDP may perhaps not use: others have found it.
const NOT_FOR_XDP: u32 = 1 << 31;

/// The interface, and both link addresses as the packet has them.
#[derive(Clone, Copy)]
pub struct Hop {
    /// 0 if it is not known, or is being replaced. Others than XDP leave out its highest bit.
    pub ifindex: u32,
    pub link: [u32; 3],
}

const _: () = {
    assert!(core::mem::offset_of!(Flow<u32>, hop_destination) % 4 == 0);
    assert!(
        core::mem::offset_of!(Flow<u32>, hop_source) == core::mem::offset_of!(Flow<u32>, hop_destination) + 6
    );
};

impl Hop {
    /// XDP may use it.
    #[inline(always)]
    pub fn is_for_xdp(&self) -> bool {
        self.ifindex != 0 && self.ifindex & NOT_FOR_XDP == 0
    }

    /// The interface, for others than XDP; 0 if it is not known.
    #[inline(always)]
    pub fn interface(&self) -> u32 {
        self.ifindex & !NOT_FOR_XDP
    }
}

/// The flow's next hop. `slot` leads to a slot.
#[inline(always)]
pub fn of<A>(slot: *const Flow<A>) -> Hop {
    // SAFETY: the callers give a slot. Both link addresses are three aligned words.
    unsafe {
        let place = &raw const (*slot).hop_ifindex;
        let link = (&raw const (*slot).hop_destination).cast::<u32>();
        let ifindex = place.read_volatile();
        let link = [link.read_volatile(), link.add(1).read_volatile(), link.add(2).read_volatile()];
        Hop { ifindex: if place.read_volatile() == ifindex { ifindex } else { 0 }, link }
    }
}

/// Keeps what the routing table has answered, for the rest of the tick: what XDP has asked, or
/// others. `slot` leads to a slot.
#[inline(always)]
pub fn keep<A>(slot: *mut Flow<A>, answer: &bpf_fib_lookup, by_xdp: bool) {
    let (destination, source) = (answer.dmac, answer.smac);
    let half = |bytes: [u8; 6], at: usize| bytes[at] as u32 | (bytes[at + 1] as u32) << 8;
    // SAFETY: as in `of`. Who reads in between sees an interface of 0 before or after.
    unsafe {
        let place = &raw mut (*slot).hop_ifindex;
        let link = (&raw mut (*slot).hop_destination).cast::<u32>();
        place.write_volatile(0);
        link.write_volatile(half(destination, 0) | half(destination, 2) << 16);
        link.add(1).write_volatile(half(destination, 4) | half(source, 0) << 16);
        link.add(2).write_volatile(half(source, 2) | half(source, 4) << 16);
        place.write_volatile(answer.ifindex | if by_xdp { 0 } else { NOT_FOR_XDP });
    }
}
