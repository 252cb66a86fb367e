//! The places of `HELD` in which a fragment may wait.
//!
//! A sender of fragments without their first ones fills places for as long as it sends, and each evicts the
//! oldest. So the places are in groups, each a ring of its own, and a sender has one group: it evicts its own
//! fragments, and those of the few senders that share the group. Half of the groups depend on the interface,
//! so that a sender with made-up source addresses fills no more than half of the places, and those on other
//! interfaces keep theirs; the rest of the choice depends on the source.

use crate::limits::{HELD_GROUPS, HELD_PER_GROUP};

/// Number of groups of an interface.
const OF_INTERFACE: u32 = HELD_GROUPS / 2;
/// 2^32 divided by the golden ratio: spreads neighbouring numbers.
const SPREAD: u32 = 0x9e37_79b1;

/// Returns the group of fragments from a source (in the form of the key of `FRAGMENTS`) on an interface.
#[inline(always)]
pub const fn group(source: &[u32; 4], interface: u32) -> u32 {
    let source = source[0] ^ source[1].rotate_left(7) ^ source[2].rotate_left(13) ^ source[3].rotate_left(22);
    // The upper bits of a product depend on all bits below.
    let (side, place) = (interface.wrapping_mul(SPREAD) >> 31, source.wrapping_mul(SPREAD) >> 16);
    side * OF_INTERFACE + place % OF_INTERFACE
}

/// Returns the index of an element of `HELD`, given how many of the group have been taken before.
#[inline(always)]
pub const fn place(group: u32, taken: u32) -> u32 {
    (group % HELD_GROUPS) * HELD_PER_GROUP + taken % HELD_PER_GROUP
}

const _: () = {
    assert!(HELD_GROUPS.is_power_of_two() && HELD_PER_GROUP.is_power_of_two());
    // 65,535 bytes over an MTU of 1,280, without the first fragment.
    assert!(HELD_PER_GROUP >= 65_535_u32.div_ceil(1_280 - 40 - 8) - 1);
    assert!(place(HELD_GROUPS - 1, u32::MAX) == HELD_GROUPS * HELD_PER_GROUP - 1);
    assert!(group(&[1, 2, 3, 4], 5) / OF_INTERFACE == group(&[5, 6, 7, 8], 5) / OF_INTERFACE);
};
