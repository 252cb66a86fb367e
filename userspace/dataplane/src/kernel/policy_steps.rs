//! The steps from one version of the tables of policies to the next, by which each pod changes at once.
//!
//! A change of a policy may give a pod another set of rules and its peers another class. The two are in
//! different maps: whichever is written first, the pod's set meets a class for which it has no rule, and a new
//! connection that both versions allow would be dropped. So for as long as it takes, an address whose class
//! changes is in a class of its own, which has the rules of its old class in the old sets, and those of its new
//! class in the new ones.

use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::masquerade::Prefix;
use ebpf_common::policy::{RuleKey, class};

/// The content of the maps of one version, and the sets that pods of the node use.
pub struct Version<'a> {
    pub sets: BTreeSet<u32>,
    pub rules: &'a BTreeMap<RuleKey, u32>,
    pub peers4: &'a BTreeMap<Prefix<u32>, u32>,
    pub peers6: &'a BTreeMap<Prefix<[u32; 4]>, u32>,
}

/// Rules and classes that are added before the pods get their new sets, and removed afterwards.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Between {
    pub rules: BTreeMap<RuleKey, u32>,
    pub peers4: BTreeMap<Prefix<u32>, u32>,
    pub peers6: BTreeMap<Prefix<[u32; 4]>, u32>,
}

impl Between {
    /// Returns `true` if addresses can get their new classes before the pods get their new sets.
    pub fn is_empty(&self) -> bool {
        self.peers4.is_empty() && self.peers6.is_empty()
    }
}

/// Returns the rules and classes between two versions. There are none if all sets that are in use stay: rules
/// for the new classes are then written before the addresses get them.
pub fn between(old: &Version<'_>, new: &Version<'_>) -> Between {
    if old.sets.is_subset(&new.sets) {
        return Between::default();
    }
    let mut classes = Classes::new([old, new]);
    let peers4 = changed(old.peers4, new.peers4, &mut classes);
    let peers6 = changed(old.peers6, new.peers6, &mut classes);
    let (old_rules, new_rules) = (by_set_and_class(old.rules), by_set_and_class(new.rules));
    let mut rules = BTreeMap::new();
    for ((old_class, new_class), between) in classes.between {
        for set in old.sets.union(&new.sets) {
            let (all, class) =
                if new.sets.contains(set) { (&new_rules, new_class) } else { (&old_rules, old_class) };
            // Those for all addresses apply anyway.
            for (key, name) in all.get(&(*set, class)).into_iter().flatten().filter(|_| class != class::ANY) {
                rules.insert(RuleKey { class: between, ..*key }, *name);
            }
        }
    }
    Between { rules, peers4, peers6 }
}

/// Returns the rules of each set for each class.
fn by_set_and_class(rules: &BTreeMap<RuleKey, u32>) -> BTreeMap<(u32, u32), Vec<(RuleKey, u32)>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (key, name) in rules {
        found.entry((key.set, key.class)).or_default().push((*key, *name));
    }
    found
}

/// The classes in use, and one for each pair of an old and a new class.
struct Classes {
    used: BTreeSet<u32>,
    next: u32,
    between: BTreeMap<(u32, u32), u32>,
}

impl Classes {
    fn new(versions: [&Version<'_>; 2]) -> Self {
        let of = |version: &Version<'_>| -> Vec<u32> {
            let peers = version.peers4.values().chain(version.peers6.values()).copied();
            version.rules.keys().map(|key| key.class).chain(peers).collect()
        };
        let used = versions.into_iter().flat_map(of).collect();
        Self { used, next: u32::MAX, between: BTreeMap::new() }
    }

    /// Returns the class between two others.
    fn of(&mut self, old: u32, new: u32) -> u32 {
        if let Some(known) = self.between.get(&(old, new)) {
            return *known;
        }
        while !self.used.insert(self.next) {
            self.next -= 1;
        }
        self.between.insert((old, new), self.next);
        self.next
    }
}

/// Returns the ranges whose class changes, with the class between both. The node's own addresses are left out:
/// no set names them.
fn changed<A: Bits>(
    old: &BTreeMap<Prefix<A>, u32>,
    new: &BTreeMap<Prefix<A>, u32>,
    classes: &mut Classes,
) -> BTreeMap<Prefix<A>, u32> {
    let (old_trie, new_trie) = (Trie::of(old), Trie::of(new));
    let ranges: BTreeSet<&Prefix<A>> = old.keys().chain(new.keys()).collect();
    let mut found = BTreeMap::new();
    for range in ranges {
        let (before, after) = (old_trie.class_of(range), new_trie.class_of(range));
        if before != after && before != class::NODE && after != class::NODE {
            found.insert(*range, classes.of(before, after));
        }
    }
    found
}

/// The classes of ranges, by length and highest bits.
struct Trie {
    /// Lengths that occur, the longest first.
    lengths: Vec<u32>,
    classes: BTreeMap<(u32, u128), u32>,
}

impl Trie {
    fn of<A: Bits>(peers: &BTreeMap<Prefix<A>, u32>) -> Self {
        let lengths: BTreeSet<u32> = peers.keys().map(|range| range.bits).collect();
        let key = |range: &Prefix<A>| (range.bits, masked(range.address.bits(), range.bits));
        Self {
            lengths: lengths.into_iter().rev().collect(),
            classes: peers.iter().map(|(range, class)| (key(range), *class)).collect(),
        }
    }

    /// Returns the class of addresses of a range that are in no smaller one.
    fn class_of<A: Bits>(&self, range: &Prefix<A>) -> u32 {
        let bits = range.address.bits();
        let around = self.lengths.iter().filter(|length| **length <= range.bits);
        around
            .filter_map(|length| self.classes.get(&(*length, masked(bits, *length))))
            .next()
            .copied()
            .unwrap_or(class::ANY)
    }
}

fn masked(bits: u128, length: u32) -> u128 {
    bits & !u128::MAX.checked_shr(length).unwrap_or(0)
}

/// An address as in packets.
trait Bits: Copy + Ord {
    /// Returns the address as the highest bits of a number.
    fn bits(&self) -> u128;
}

impl Bits for u32 {
    fn bits(&self) -> u128 {
        u128::from(Self::from_be(*self)) << 96
    }
}

impl Bits for [u32; 4] {
    fn bits(&self) -> u128 {
        self.iter().fold(0, |bits, word| bits << 32 | u128::from(u32::from_be(*word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: u32 = 9;

    fn address(last: u8) -> u32 {
        u32::from_be_bytes([10, 0, 0, last]).to_be()
    }

    fn peers(list: &[(u8, u32, u32)]) -> BTreeMap<Prefix<u32>, u32> {
        list.iter()
            .map(|(last, bits, class)| (Prefix { bits: *bits, address: address(*last) }, *class))
            .collect()
    }

    fn rules(list: &[(u32, u32)]) -> BTreeMap<RuleKey, u32> {
        let key = |(set, class): &(u32, u32)| {
            (RuleKey { bits: RuleKey::ALL_PROTOCOLS, set: *set, class: *class, ..RuleKey::default() }, NAME)
        };
        list.iter().map(key).collect()
    }

    /// Sets, rules by set and class, and peers by last byte, length and class.
    type Case<'a> = (&'a [u32], &'a [(u32, u32)], &'a [(u8, u32, u32)]);

    fn of((old_sets, old_rules, old_peers): Case<'_>, (new_sets, new_rules, new_peers): Case<'_>) -> Between {
        let (old_rules, new_rules, none) = (rules(old_rules), rules(new_rules), BTreeMap::new());
        let (old_peers, new_peers) = (peers(old_peers), peers(new_peers));
        let sets = |list: &[u32]| list.iter().copied().collect();
        let old = Version { sets: sets(old_sets), rules: &old_rules, peers4: &old_peers, peers6: &none };
        let new = Version { sets: sets(new_sets), rules: &new_rules, peers4: &new_peers, peers6: &none };
        between(&old, &new)
    }

    #[test]
    fn an_address_whose_class_changes_keeps_its_old_rules_and_has_its_new_ones() {
        let found = of((&[11], &[(11, 21)], &[(1, 32, 21)]), (&[12], &[(12, 22)], &[(1, 32, 22)]));
        assert_eq!(found.peers4, peers(&[(1, 32, u32::MAX)]));
        assert_eq!(found.rules, rules(&[(11, u32::MAX), (12, u32::MAX)]));
    }

    #[test]
    fn addresses_that_were_told_apart_before_are_told_apart_between() {
        let found = of(
            (&[11], &[(11, 21)], &[(1, 32, 21), (2, 32, 23)]),
            (&[12], &[(12, 22)], &[(1, 32, 22), (2, 32, 22)]),
        );
        assert_eq!(found.peers4, peers(&[(1, 32, u32::MAX), (2, 32, u32::MAX - 1)]));
        assert_eq!(found.rules, rules(&[(11, u32::MAX), (12, u32::MAX), (12, u32::MAX - 1)]));
    }

    #[test]
    fn ranges_that_come_or_go_have_the_class_of_the_range_around_them() {
        let found = of(
            (&[11], &[(11, 21)], &[(0, 24, 21), (7, 32, 23)]),
            (&[12], &[(12, 21)], &[(0, 24, 21), (8, 32, 22)]),
        );
        assert_eq!(found.peers4, peers(&[(7, 32, u32::MAX), (8, 32, u32::MAX - 1)]));
        let gone_and_new = rules(&[(12, u32::MAX), (11, u32::MAX - 1)]);
        assert_eq!(found.rules, gone_and_new);
    }

    #[test]
    fn nothing_is_between_if_all_sets_stay_or_no_class_changes() {
        let same_set = of((&[11], &[(11, 21)], &[(1, 32, 21)]), (&[11], &[(11, 22)], &[(1, 32, 22)]));
        assert_eq!(same_set, Between::default());
        let same_class = of((&[11], &[(11, 21)], &[(1, 32, 21)]), (&[12], &[(12, 21)], &[(1, 32, 21)]));
        assert_eq!(same_class, Between::default());
    }

    #[test]
    fn a_class_between_is_none_that_is_in_use() {
        let found =
            of((&[11], &[(11, u32::MAX)], &[(1, 32, u32::MAX)]), (&[12], &[(12, 22)], &[(1, 32, 22)]));
        assert_eq!(found.peers4, peers(&[(1, 32, u32::MAX - 1)]));
    }
}
