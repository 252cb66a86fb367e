//! Addresses of both families, as the programs work with them.

use ebpf_common::choice;
use ebpf_common::flow::FlowKey;

use super::masquerade::Outside;

/// An address in the form of packets.
pub trait Address: Copy + Outside {
    const ZERO: Self;

    /// Compares without a branch for each word.
    fn same(&self, other: &Self) -> bool;

    /// Returns the words of the address; for v4 the address and zeros.
    fn words(&self) -> [u32; 4];

    /// Returns the address of the result of [`Address::words`].
    fn from_words(words: &[u32; 4]) -> Self;

    /// Returns the address as one word: itself for v4, folded for v6.
    fn fold(&self) -> u64;

    /// Returns the hash of a key, see [`FlowKey::<u32>::hash`].
    fn hash(key: &FlowKey<Self>, seed: u32) -> u64;

    /// Returns the sum of its words for the internet checksum.
    fn sum(&self) -> u64;

    /// Returns the sum of the complements of its words.
    fn sum_of_complement(&self) -> u64;
}

impl Address for u32 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn same(&self, other: &Self) -> bool {
        self == other
    }

    #[inline(always)]
    fn words(&self) -> [u32; 4] {
        [*self, 0, 0, 0]
    }

    #[inline(always)]
    fn from_words(words: &[u32; 4]) -> Self {
        words[0]
    }

    #[inline(always)]
    fn fold(&self) -> u64 {
        *self as u64
    }

    #[inline(always)]
    fn hash(key: &FlowKey<Self>, seed: u32) -> u64 {
        key.hash(seed)
    }

    #[inline(always)]
    fn sum(&self) -> u64 {
        *self as u64
    }

    #[inline(always)]
    fn sum_of_complement(&self) -> u64 {
        !*self as u64
    }
}

impl Address for [u32; 4] {
    const ZERO: Self = [0; 4];

    #[inline(always)]
    fn same(&self, other: &Self) -> bool {
        let (low, high) = (self[0] ^ other[0] | self[1] ^ other[1], self[2] ^ other[2] | self[3] ^ other[3]);
        low | high == 0
    }

    #[inline(always)]
    fn words(&self) -> [u32; 4] {
        *self
    }

    #[inline(always)]
    fn from_words(words: &[u32; 4]) -> Self {
        *words
    }

    #[inline(always)]
    fn fold(&self) -> u64 {
        choice::fold6(self)
    }

    #[inline(always)]
    fn hash(key: &FlowKey<Self>, seed: u32) -> u64 {
        key.hash(seed)
    }

    #[inline(always)]
    fn sum(&self) -> u64 {
        self[0] as u64 + self[1] as u64 + self[2] as u64 + self[3] as u64
    }

    #[inline(always)]
    fn sum_of_complement(&self) -> u64 {
        !self[0] as u64 + !self[1] as u64 + !self[2] as u64 + !self[3] as u64
    }
}
