//! The owners of the parts of the backends' arena. Pure bookkeeping.

use std::collections::{BTreeMap, BTreeSet};

/// A run of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    pub start: u32,
    pub length: u32,
}

/// Free space by start and by length, and space that programs may still be reading.
#[derive(Debug)]
pub struct Arena {
    capacity: u32,
    taken: u32,
    /// Free runs, by start; no two touch.
    by_start: BTreeMap<u32, u32>,
    /// Free runs by (length, start): the shortest run that fits is taken.
    by_length: BTreeSet<(u32, u32)>,
    /// Freed, but a grace period has not passed yet.
    resting: Vec<Block>,
    resting_elements: u32,
}

impl Arena {
    pub fn new(capacity: u32) -> Self {
        let mut arena = Self {
            capacity,
            taken: capacity,
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            resting: Vec::new(),
            resting_elements: 0,
        };
        if capacity > 0 {
            arena.insert(0, capacity);
        }
        arena
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of elements that are in use or resting.
    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes `length` elements; `None` if no free run is long enough.
    pub fn allocate(&mut self, length: u32) -> Option<Block> {
        assert!(length > 0, "an empty block needs no place");
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, found);
        if found > length {
            self.insert(start + length, found - length);
        }
        Some(Block { start, length })
    }

    /// Takes a given run; returns `false`, and takes nothing, if part of it is not free.
    pub fn reserve(&mut self, block: Block) -> bool {
        let Some(end) = block.start.checked_add(block.length) else {
            return false;
        };
        let Some((&start, &length)) = self.by_start.range(..=block.start).next_back() else {
            return false;
        };
        if end > start + length {
            return false;
        }
        self.remove(start, length);
        if block.start > start {
            self.insert(start, block.start - start);
        }
        if start + length > end {
            self.insert(end, start + length - end);
        }
        true
    }

    /// Frees a block. It can be taken again after [`Arena::rested`].
    pub fn free(&mut self, block: Block) {
        self.resting.push(block);
        self.resting_elements += block.length;
    }

    /// Returns the number of elements that wait for a grace period.
    pub fn resting(&self) -> u32 {
        self.resting_elements
    }

    /// Makes resting blocks free; call it after a grace period since the last [`Arena::free`].
    pub fn rested(&mut self) {
        for block in std::mem::take(&mut self.resting) {
            self.merge(block);
        }
        self.resting_elements = 0;
    }

    /// Returns the number of elements that can be taken now.
    #[cfg(test)]
    pub fn available(&self) -> u32 {
        self.by_start.values().sum()
    }

    fn merge(&mut self, block: Block) {
        let Block { mut start, mut length } = block;
        if let Some((&before, &run)) = self.by_start.range(..start).next_back()
            && before + run == start
        {
            self.remove(before, run);
            (start, length) = (before, run + length);
        }
        if let Some(&run) = self.by_start.get(&(start + length)) {
            self.remove(start + length, run);
            length += run;
        }
        self.insert(start, length);
    }

    fn insert(&mut self, start: u32, length: u32) {
        self.taken -= length;
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.taken += length;
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn takes_the_shortest_that_fits() {
        let mut arena = Arena::new(100);
        assert!(arena.reserve(Block { start: 10, length: 80 }));
        let block = arena.allocate(5).unwrap();
        assert_eq!(block, Block { start: 0, length: 5 });
        assert_eq!(arena.allocate(6), Some(Block { start: 90, length: 6 }));
        assert_eq!(arena.allocate(6), None);
    }

    #[test]
    fn a_block_rests_before_it_is_taken_again() {
        let mut arena = Arena::new(4);
        let block = arena.allocate(4).unwrap();
        arena.free(block);
        assert_eq!((arena.allocate(1), arena.resting()), (None, 4));
        arena.rested();
        assert_eq!(arena.allocate(4), Some(block));
    }

    #[test]
    fn reserves_only_what_is_free() {
        let mut arena = Arena::new(10);
        assert!(arena.reserve(Block { start: 4, length: 2 }));
        assert!(!arena.reserve(Block { start: 5, length: 2 }));
        assert!(!arena.reserve(Block { start: 8, length: 3 }));
        assert!(!arena.reserve(Block { start: u32::MAX, length: 3 }));
        assert!(arena.reserve(Block { start: 6, length: 4 }));
        assert_eq!(arena.available(), 4);
    }

    proptest! {
        #![proptest_config(crate::seeded::config(256))]

        /// Blocks in use never overlap, and free plus used elements are all elements.
        #[test]
        fn keeps_count(steps in prop::collection::vec((0_u8..3, 1_u32..20), 1..200)) {
            let mut arena = Arena::new(128);
            let mut used: Vec<Block> = Vec::new();
            for (step, number) in steps {
                match step {
                    0 => if let Some(block) = arena.allocate(number) {
                        for other in &used {
                            prop_assert!(block.start >= other.start + other.length
                                || other.start >= block.start + block.length);
                        }
                        used.push(block);
                    },
                    1 if !used.is_empty() => {
                        let block = used.swap_remove(number as usize % used.len());
                        arena.free(block);
                    }
                    _ => arena.rested(),
                }
                let taken: u32 = used.iter().map(|block| block.length).sum();
                prop_assert_eq!(arena.available() + arena.resting() + taken, 128);
                prop_assert_eq!(arena.taken(), arena.resting() + taken);
            }
            for block in used.drain(..) {
                arena.free(block);
            }
            arena.rested();
            prop_assert_eq!(arena.allocate(128), Some(Block { start: 0, length: 128 }));
        }
    }
}
