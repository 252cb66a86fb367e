//! Which places of `HELD` a fragment may wait in.
//!
//! Whoever sends fragments without their first ones fills places for as long as that lasts, and each
//! pushes out the oldest. So the places are in groups, each a ring of its own, and a sender has one
//! group: it pushes out its own, and those of the few it shares the group with. Half of the groups
//! follow from the interface, so that one who makes up source addresses fills no more than half of the
//! places, and those who come in by other interfaces keep theirs; the rest follows from the source.

use crate::limits::{HELD_GROUPS, HELD_PER_GROUP};

/// Groups of an interface.
const OF_INTERFACE: u32 = HELD_GROUPS / 2;
/// 2^32 divided by the golden ratio: spreads neighbours.
const SPREAD: u32 = 0x9e37_79b1;

/// The group of fragments from a source (as the key of `FRAGMENTS` has it) by an interface.
#[inline(always)]
pub const fn group(source: &[u32; 4], interface: u32) -> u32 {
    let source = source[0] ^ source[1].rotate_left(7) ^ source[2].rotate_left(13) ^ source[3].rotate_left(22);
    // The upper bits of a product depend on all bits below.
    let (side, place) = (interface.wrapping_mul(SPREAD) >> 31, source.wrapping_mul(SPREAD) >> 16);
    side * OF_INTERFACE + place % OF_INTERFACE
}

/// Element of `HELD`, given how many of the group have been taken before.
#[inline(always)]
pub const fn place(group: u32, taken: u32) -> u32 {
    (group % HELD_GROUPS) * HELD_PER_GROUP + taken % HELD_PER_GROUP
}

const _: () = {
    assert!(HELD_GROUPS.is_power_of_two() && HELD_PER_GROUP.is_power_of_two());
    // 65,535 bytes over an MTU of 1,280, but for the first fragment.
    assert!(HELD_PER_GROUP >= 65_535_u32.div_ceil(1_280 - 40 - 8) - 1);
    assert!(place(HELD_GROUPS - 1, u32::MAX) == HELD_GROUPS * HELD_PER_GROUP - 1);
    assert!(group(&[1, 2, 3, 4], 5) / OF_INTERFACE == group(&[5, 6, 7, 8], 5) / OF_INTERFACE);
};
