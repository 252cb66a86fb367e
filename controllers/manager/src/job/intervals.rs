//! Sets of completion indexes as intervals, in the notation of a Job's status: `1,3-5,7`.

use std::fmt;

/// A set of indexes: disjoint, ascending intervals, each with its first and last index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals(Vec<(usize, usize)>);

impl Intervals {
    /// Parses a list of intervals in ascending order. Indexes from `completions` on are ignored, and so are parts that
    /// are no interval.
    pub fn parse(text: &str, completions: usize) -> Self {
        let mut intervals = Self::default();
        for part in text.split(',') {
            let mut limits = part.split('-').map(str::parse::<usize>);
            let Some(Ok(first)) = limits.next() else { continue };
            if first >= completions {
                break;
            }
            let last = match limits.next() {
                None => first,
                Some(Ok(last)) if last >= first => last.min(completions - 1),
                Some(_) => continue,
            };
            intervals.push((first, last));
        }
        intervals
    }

    /// Returns the union with ascending indexes.
    pub fn with(&self, indexes: impl IntoIterator<Item = usize>) -> Self {
        self.union(&Self(indexes.into_iter().map(|index| (index, index)).collect()))
    }

    /// Returns the union of both sets.
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<_> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut union = Self::default();
        all.into_iter().for_each(|interval| union.push(interval));
        union
    }

    /// Adds an interval that begins no earlier than the last one.
    fn push(&mut self, (first, last): (usize, usize)) {
        match self.0.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => self.0.push((first, last)),
        }
    }

    /// Returns the number of indexes.
    pub fn total(&self) -> usize {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, index: usize) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// Returns the number of indexes that both sets contain.
    pub fn common(&self, other: &Self) -> usize {
        let (mut common, mut a, mut b) = (0, 0, 0);
        while let (Some(one), Some(two)) = (self.0.get(a), other.0.get(b)) {
            let (first, last) = (one.0.max(two.0), one.1.min(two.1));
            common += (last + 1).saturating_sub(first);
            if one.1 <= two.1 {
                a += 1;
            } else {
                b += 1;
            }
        }
        common
    }

    /// Returns the lowest `count` indexes below `completions` that are not in the set.
    pub fn missing(&self, count: usize, completions: usize) -> Vec<usize> {
        let mut missing = Vec::new();
        let mut next = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            let free = next..first.min(completions);
            missing.extend(free.take(count - missing.len()));
            next = last + 1;
        }
        missing
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{first}")?;
            match last - first {
                0 => {}
                1 => write!(f, ",{last}")?,
                _ => write!(f, "-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read_up_to_the_completions_and_corrupt_parts_are_skipped() {
        for (text, completions, expected, total) in [
            ("", 5, "", 0),
            ("0", 5, "0", 1),
            ("1,2", 5, "1,2", 2),
            ("0-2", 5, "0-2", 3),
            ("0,1,2", 5, "0-2", 3),
            ("0-2,4", 3, "0-2", 3),
            ("0-9", 3, "0-2", 3),
            ("x,1", 5, "1", 1),
            ("1-y,3", 5, "3", 1),
            ("-5,3", 5, "3", 1),
            ("3-1,4", 5, "4", 1),
            ("7", 5, "", 0),
            ("3-5,6-8", 20, "3-8", 6),
        ] {
            let parsed = Intervals::parse(text, completions);
            assert_eq!((parsed.to_string().as_str(), parsed.total()), (expected, total), "{text:?}");
        }
    }

    #[test]
    fn missing_indexes_are_the_lowest_outside_of_the_set() {
        for (text, count, completions, expected) in [
            ("", 3, 5, &[0, 1, 2][..]),
            ("0", 2, 3, &[1, 2]),
            ("0-2,4", 3, 8, &[3, 5, 6]),
            ("1,3", 9, 5, &[0, 2, 4]),
            ("0-4", 2, 5, &[]),
            ("1", 0, 5, &[]),
        ] {
            assert_eq!(Intervals::parse(text, completions).missing(count, completions), expected, "{text:?}");
        }
    }

    fn set(indexes: &BTreeSet<usize>) -> Intervals {
        Intervals::default().with(indexes.iter().copied())
    }

    proptest! {
        #[test]
        fn intervals_behave_as_sets_of_numbers(
            a in prop::collection::btree_set(0_usize..40, 0..30),
            b in prop::collection::btree_set(0_usize..40, 0..30),
        ) {
            let union = set(&a).union(&set(&b));
            let expected: BTreeSet<usize> = a.union(&b).copied().collect();
            prop_assert_eq!(union.total(), expected.len());
            for index in 0..41 {
                prop_assert_eq!(union.contains(index), expected.contains(&index));
            }
            prop_assert_eq!(set(&a).common(&set(&b)), a.intersection(&b).count());
            prop_assert_eq!(&Intervals::parse(&union.to_string(), 41), &union);
            let missing = union.missing(41, 41);
            prop_assert!(missing.iter().all(|index| !expected.contains(index)));
            prop_assert_eq!(missing.len() + expected.len(), 41);
        }
    }
}
