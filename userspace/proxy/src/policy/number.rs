//! Numbers that are derived from what they stand for, so that equal content has equal numbers in every
//! process: a restart changes nothing in the tables.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use apiserver_meta::fnv::{fnv1a_64, fnv1a_64_after};

/// FNV-1a of the bytes that a value is hashed as.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = fnv1a_64_after(self.0, bytes.iter().copied());
    }
}

/// Returns a hash that is the same in every process of a build.
pub fn digest(value: &impl Hash) -> u64 {
    let mut hasher = Fnv(fnv1a_64([]));
    value.hash(&mut hasher);
    hasher.finish()
}

/// Numbers of one kind, greater than 1.
#[derive(Debug, Default)]
pub struct Numbers(BTreeMap<u32, u64>);

impl Numbers {
    /// Returns the number for a digest. If two digests collide, the second gets the next free number.
    pub fn of(&mut self, digest: u64) -> u32 {
        let mut number = ((digest >> 32) ^ digest) as u32;
        loop {
            if number > 1 && *self.0.entry(number).or_insert(digest) == digest {
                return number;
            }
            number = number.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_has_one_number_and_no_number_is_given_twice() {
        let mut numbers = Numbers::default();
        let first = numbers.of(digest(&"a"));
        assert_eq!(numbers.of(digest(&"a")), first);
        assert_ne!(numbers.of(digest(&"b")), first);
        assert_eq!((numbers.of(1), numbers.of(1 << 32), numbers.of(2)), (2, 3, 4));
    }
}
