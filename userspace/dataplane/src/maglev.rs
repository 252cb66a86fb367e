//! Look-up tables for weighted and consistent choice: Maglev hashing over tables whose sizes are powers of
//! two. Pure: the same backends and weights give the same table on every node.
//!
//! Every backend has an order of its own over all entries: an offset, then steps of an odd width, which reach
//! each entry of a power of two once. Backends take turns, as often as their weights say, and each tries the
//! next entry of its order.
//!
//! In the published algorithm, a backend goes on until it finds a free entry. Shares are then exact, but the
//! entries of a backend that leaves start chains: a backend that gets one of them takes one less later in its
//! order, which another one gets. At 128 entries a backend that leaves moves 1.4 % of the others' entries.
//! Here a backend that finds its entry taken waits for its next turn, so that each entry belongs to the one
//! that reaches it first, independently of the rest: nothing else moves. Shares alone would then be random; a
//! bound on either side ([`CAP`], [`LAG`]) brings them close to the weights for 0.1 % of the entries moved.

use ebpf_common::limits;

/// Target for the number of entries of the lightest backend, as far as [`SHARE_BITS`] allows: one more or
/// less then changes its share by a sixteenth at most.
const SHARE: u64 = 16;
/// Upper bound of the size that [`SHARE`] asks for.
const SHARE_BITS: u32 = 13;
/// No backend exceeds its share by more than this part of it (1/16), rounded up.
const CAP: u64 = 16;
/// A backend that lags behind its share by this part of it (1/8) goes on until it finds a free entry.
const LAG: u64 = 8;
/// A free entry. No list is that long.
const FREE: u16 = u16::MAX;

/// A backend as the table sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Depends on address and port alone, see [`crate::convert::identity`].
    pub identity: u64,
    /// Share of the entries, relative to those of others; 0 for none.
    pub weight: u16,
}

/// Returns the logarithm of the number of entries that these candidates need.
pub fn bits(candidates: &[Candidate]) -> u32 {
    let weights =
        || candidates.iter().map(|candidate| u64::from(candidate.weight)).filter(|weight| *weight > 0);
    let (count, sum) = (weights().count() as u64, weights().sum::<u64>());
    let lightest = weights().min().unwrap_or(1);
    let for_count = u64::from(limits::LUT_ENTRIES_PER_BACKEND) * count;
    let for_share = (SHARE * sum).div_ceil(lightest).min(1 << SHARE_BITS);
    let bits = for_count.max(for_share).max(1).next_power_of_two().ilog2();
    bits.clamp(limits::LUT_BITS_MIN, limits::LUT_BITS_MAX)
}

/// Returns a table of 2^`bits` entries, each the index of a candidate. If all weights are 0, all candidates
/// count alike: a service that drains completely is still served.
pub fn table(candidates: &[Candidate], bits: u32) -> Vec<u16> {
    assert!(!candidates.is_empty() && candidates.len() <= usize::from(FREE), "indexes fit an entry");
    let mut turns = turns(candidates, 1 << bits);
    let sum: u64 = turns.iter().map(|turn| turn.weight).sum();
    let count = turns.len() as u64;
    let mut entries = vec![FREE; 1 << bits];
    let mut filled = 0;
    // In the first round every candidate tries, so that no weight is too small for an entry; later ones have
    // as many tries as there are candidates, shared by weight.
    turns.iter_mut().for_each(|turn| turn.credit = sum);
    loop {
        for turn in &mut turns {
            while turn.credit >= sum {
                turn.credit -= sum;
                filled += u64::from(turn.attempt(&mut entries, filled, sum));
                if filled == 1 << bits {
                    return entries;
                }
            }
            turn.credit += turn.weight * count;
        }
    }
}

/// Returns the candidates that get entries, at the start of their orders.
fn turns(candidates: &[Candidate], size: u64) -> Vec<Turn> {
    let drains = candidates.iter().all(|candidate| candidate.weight == 0);
    let weight = |candidate: &Candidate| if drains { 1 } else { u64::from(candidate.weight) };
    let sum: u64 = candidates.iter().map(weight).sum();
    let turn = |(candidate, index): (&Candidate, u16)| {
        let mixed = mix(candidate.identity);
        let weight = weight(candidate);
        Turn {
            index,
            next: mixed as u32,
            spare: mix(mixed) as u32,
            step: (mixed >> 32) as u32 | 1,
            weight,
            credit: 0,
            taken: 0,
            most: (size * weight * (CAP + 1)).div_ceil(sum * CAP),
        }
    };
    candidates.iter().zip(0_u16..).map(turn).filter(|turn| turn.weight > 0).collect()
}

/// The position of a candidate in its order of the entries.
struct Turn {
    index: u16,
    next: u32,
    /// The position from which it searches for missing entries.
    spare: u32,
    /// The step width, which is odd.
    step: u32,
    weight: u64,
    /// The budget for tries; grows with each round.
    credit: u64,
    taken: u64,
    most: u64,
}

impl Turn {
    /// Takes the next entry of its order, if it is free; a candidate that lags behind goes on until it finds
    /// one. Returns `true` if it has one more.
    fn attempt(&mut self, entries: &mut [u16], filled: u64, sum: u64) -> bool {
        if self.taken >= self.most {
            return false;
        }
        let mask = entries.len() as u32 - 1;
        let first = self.next & mask;
        self.next = self.next.wrapping_add(self.step);
        let lags = self.taken * sum * LAG < filled * self.weight * (LAG - 1);
        let found = if entries[first as usize] == FREE {
            Some(first)
        } else if lags {
            // A separate order, so that its own next entries do not depend on others.
            loop {
                let spare = self.spare & mask;
                self.spare = self.spare.wrapping_add(self.step);
                if entries[spare as usize] == FREE {
                    break Some(spare);
                }
            }
        } else {
            None
        };
        if let Some(entry) = found {
            entries[entry as usize] = self.index;
            self.taken += 1;
        }
        found.is_some()
    }
}

/// Spreads the bits of a word over all of it.
const fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates(weights: &[u16], salt: u64) -> Vec<Candidate> {
        let one =
            |(number, weight): (u64, &u16)| Candidate { identity: salt << 20 | number, weight: *weight };
        (0..).zip(weights).map(one).collect()
    }

    fn full(candidates: &[Candidate]) -> Vec<u16> {
        table(candidates, bits(candidates))
    }

    fn counts(entries: &[u16], candidates: usize) -> Vec<usize> {
        let mut counts = vec![0; candidates];
        entries.iter().for_each(|entry| counts[usize::from(*entry)] += 1);
        counts
    }

    /// Returns the share of entries that moved although their backend remains.
    fn moved(before: &[Candidate], gone: usize) -> f64 {
        let mut after = before.to_vec();
        after.remove(gone);
        let (old, new) = (full(before), full(&after));
        assert_eq!(old.len(), new.len(), "sizes are alike here");
        let kept = |index: u16| usize::from(index) - usize::from(usize::from(index) > gone);
        let of_others: Vec<_> = old.iter().zip(&new).filter(|(old, _)| usize::from(**old) != gone).collect();
        let moved = of_others.iter().filter(|(old, new)| kept(**old) != usize::from(**new)).count();
        moved as f64 / of_others.len() as f64
    }

    #[test]
    fn sizes_follow_the_number_of_backends_within_bounds() {
        assert_eq!(bits(&candidates(&[1], 0)), 7);
        assert_eq!(bits(&candidates(&[1; 16], 0)), 11);
        assert_eq!(bits(&candidates(&[1; 100], 0)), 14);
        assert_eq!(bits(&candidates(&[1; 2_000], 0)), limits::LUT_BITS_MAX);
        // A canary of one in a hundred gets its sixteen entries.
        assert_eq!(bits(&candidates(&[1, 99], 0)), 11);
        assert_eq!(bits(&candidates(&[1, u16::MAX], 0)), SHARE_BITS);
        assert_eq!(bits(&candidates(&[0, 0], 0)), limits::LUT_BITS_MIN);
    }

    #[test]
    fn alike_on_all_nodes() {
        // A change of the algorithm would move flows between nodes of two versions.
        let table = table(&candidates(&[1, 2, 3], 7), 6);
        let sum = table.iter().fold(0_u64, |sum, entry| sum.wrapping_mul(31).wrapping_add(u64::from(*entry)));
        assert_eq!(sum, KNOWN, "{table:?}");
    }

    const KNOWN: u64 = 1_354_291_222_605_167_740;

    #[test]
    fn without_weights_all_are_served() {
        let counts = counts(&table(&candidates(&[0, 0], 1), 6), 2);
        assert!(counts.iter().all(|count| (30..=34).contains(count)), "{counts:?}");
    }

    proptest! {
        #![proptest_config(crate::seeded::config(48))]

        /// If one of a hundred leaves, at most 1 % of the others' entries move.
        #[test]
        fn hardly_anything_moves_when_one_of_a_hundred_goes(salt in any::<u64>(), gone in 0_usize..100) {
            let moved = moved(&candidates(&[1; 100], salt), gone);
            prop_assert!(moved <= 0.01, "{:.2} % moved", moved * 100.0);
        }

        /// Numbers of entries nearly equal the weights, and every weight has one.
        #[test]
        fn entries_follow_weights(
            salt in any::<u64>(),
            weights in prop::collection::vec(prop_oneof![Just(0), 1_u16..10, 1_u16..1000], 1..60),
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            let candidates = candidates(&weights, salt);
            let entries = full(&candidates);
            let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (count, weight) in counts(&entries, weights.len()).into_iter().zip(&weights) {
                let fair = entries.len() as f64 * f64::from(*weight) / sum;
                prop_assert_eq!(count == 0, *weight == 0);
                let (least, most) = (fair * 7.0 / 8.0 - 2.0, fair * 17.0 / 16.0 + 1.0);
                let within = least <= count as f64 && count as f64 <= most;
                prop_assert!(within, "{} for a fair {:.1}", count, fair);
            }
        }

        /// Without weights, shares are within bounds for any number of backends.
        #[test]
        fn balance_without_weights(salt in any::<u64>(), number in 1_usize..400) {
            let candidates = candidates(&vec![1; number], salt);
            let entries = full(&candidates);
            let fair = entries.len() as f64 / number as f64;
            for count in counts(&entries, number) {
                prop_assert!(fair * 7.0 / 8.0 - 2.0 <= count as f64 && count as f64 <= fair * 17.0 / 16.0 + 1.0);
            }
        }
    }

    #[test]
    fn the_longest_list_has_its_table_in_time() {
        let weights: Vec<u16> = (0..20_000).map(|number| if number == 0 { u16::MAX } else { 1 }).collect();
        let counts = counts(&full(&candidates(&weights, 3)), weights.len());
        assert!(counts.iter().all(|count| *count > 0));
    }
}
