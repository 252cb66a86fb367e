//! The choice among backends by the hash of a flow, shared by the programs and by user space, which predicts
//! their decisions.

const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// Derives a hash for the choice of a backend that is independent of the choice of a slot, which takes the
/// same hash.
#[inline(always)]
pub const fn spread(hash: u64) -> u32 {
    (hash.wrapping_mul(SPREAD) >> 32) as u32
}

/// Returns an index into a list of `count` for a hash, uniform if the hash is.
#[inline(always)]
pub const fn uniform(count: u32, hash: u32) -> u32 {
    ((hash as u64 * count as u64) >> 32) as u32
}

/// Folds a v6 address into one word.
#[inline(always)]
pub const fn fold6(address: &[u32; 4]) -> u64 {
    let high = address[0] as u64 | (address[1] as u64) << 32;
    let low = address[2] as u64 | (address[3] as u64) << 32;
    high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ low.rotate_left(29)
}

/// Returns the score of a backend for a hash (rendezvous hashing): the highest gets the flow. `address` is a
/// v4 address, or a folded one, in the form of packets, like `port`. The lowest byte holds the backend's
/// index, so that one comparison decides.
#[inline(always)]
pub const fn score(address: u64, port: u16, hash: u32, place: u32) -> u64 {
    let backend = address << 16 ^ address >> 48 ^ port as u64;
    let mixed = (backend ^ (hash as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(SPREAD);
    (mixed ^ mixed >> 32).wrapping_mul(SPREAD) & !0xff | place as u64
}
