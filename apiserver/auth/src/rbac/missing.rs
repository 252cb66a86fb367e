//! Difference of two sets of rules: the part that the others do not cover. A rule of a few hundred verbs,
//! groups and resources stands for millions of pieces, so they are neither made nor compared one by one:
//! pieces that the same rules cover are looked at once, and counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::rules::{Rule, url_covers};
use crate::limits::{MISSING_RULES, RULE_COMPARISONS};

/// The rights that are missing.
#[derive(Debug, Default, PartialEq)]
pub struct Missing {
    /// The first missing rights, of one verb and one resource each.
    pub named: Vec<Rule>,
    /// The number of missing rights.
    pub count: u64,
}

/// The rules are too many and too different to be compared.
#[derive(Debug, PartialEq)]
pub struct TooMany;

/// The parts of `wanted` that no single rule of `held` covers.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Result<Missing, TooMany> {
    let mut search = Search { held: Held::new(held), left: RULE_COMPARISONS, found: Missing::default() };
    for rule in wanted {
        search.rule(rule)?;
    }
    Ok(search.found)
}

/// A set of held rules, by their places.
type Bits = Vec<u64>;

/// The held rules that have an entry in one of their lists.
#[derive(Default)]
struct Axis<'h> {
    /// The rules that have the wildcard.
    all: Vec<usize>,
    /// The rules that have this entry.
    exact: HashMap<&'h str, Vec<usize>>,
    /// The rules that have a prefix of this or, for resources, the subresource of any.
    part: BTreeMap<&'h str, Vec<usize>>,
}

struct Held<'h> {
    count: usize,
    verbs: Axis<'h>,
    groups: Axis<'h>,
    resources: Axis<'h>,
    names: Axis<'h>,
    urls: Axis<'h>,
}

impl<'h> Held<'h> {
    fn new(rules: &'h [Rule]) -> Self {
        let [mut verbs, mut groups, mut resources, mut names, mut urls] = [(); 5].map(|()| Axis::default());
        for (place, rule) in rules.iter().enumerate() {
            let plain = [
                (&mut verbs, &rule.verbs),
                (&mut groups, &rule.api_groups),
                (&mut resources, &rule.resources),
            ];
            for (axis, list) in plain {
                for entry in list {
                    if entry == "*" {
                        axis.all.push(place);
                    } else {
                        axis.exact.entry(entry).or_default().push(place);
                    }
                }
            }
            for child in rule.resources.iter().filter_map(|resource| resource.strip_prefix("*/")) {
                resources.part.entry(child).or_default().push(place);
            }
            for name in &rule.resource_names {
                names.exact.entry(name).or_default().push(place);
            }
            if rule.resource_names.is_empty() {
                names.all.push(place);
            }
            for url in &rule.non_resource_urls {
                if url.ends_with('*') {
                    urls.part.entry(url).or_default().push(place);
                }
                urls.exact.entry(url).or_default().push(place);
            }
        }
        Self { count: rules.len(), verbs, groups, resources, names, urls }
    }

    fn words(&self) -> usize {
        self.count.div_ceil(64).max(1)
    }

    fn bits<'l>(&self, lists: impl IntoIterator<Item = &'l Vec<usize>>) -> Bits {
        let mut bits = vec![0; self.words()];
        for place in lists.into_iter().flatten() {
            bits[place / 64] |= 1 << (place % 64);
        }
        bits
    }
}

/// The entries of a wanted list that the same held rules have: those rules, and the positions of the entries.
type Class = (Bits, Vec<usize>);

struct Search<'h> {
    held: Held<'h>,
    left: usize,
    found: Missing,
}

impl Search<'_> {
    fn spend(&mut self, work: usize) -> Result<(), TooMany> {
        self.left = self.left.checked_sub(work).ok_or(TooMany)?;
        Ok(())
    }

    fn rule(&mut self, rule: &Rule) -> Result<(), TooMany> {
        let verbs = self.classes(&rule.verbs, |held| &held.verbs, |_, _| None)?;
        let child = |axis: &Axis<'_>, wanted: &str| axis.part.get(wanted.split_once('/')?.1).cloned();
        let groups = self.classes(&rule.api_groups, |held| &held.groups, |_, _| None)?;
        let resources = self.classes(&rule.resources, |held| &held.resources, child)?;
        let names = if rule.resource_names.is_empty() {
            vec![(self.held.bits([&self.held.names.all]), vec![0])]
        } else {
            self.classes(&rule.resource_names, |held| &held.names, |_, _| None)?
        };
        let prefixes = self.held.urls.part.len();
        self.spend(rule.non_resource_urls.len().saturating_mul(prefixes))?;
        let begun = |axis: &Axis<'_>, wanted: &str| {
            let begins = axis.part.iter().filter(|(entry, _)| url_covers(entry, wanted));
            Some(begins.flat_map(|(_, places)| places).copied().collect())
        };
        let urls = self.classes(&rule.non_resource_urls, |held| &held.urls, begun)?;

        let mut first =
            First { named: BTreeSet::new(), most: MISSING_RULES.saturating_sub(self.found.named.len()) };
        self.combine(&[&verbs, &groups, &resources, &names], 0, &mut first)?;
        self.combine(&[&verbs, &urls], 1, &mut first)?;
        self.found.named.extend(first.named.iter().map(|(verb, of_url, rest)| {
            let one = |list: &[String], place: usize| list.get(place).cloned().into_iter().collect();
            let verbs = one(&rule.verbs, *verb);
            match rest.as_slice() {
                [url] if *of_url == 1 => {
                    Rule { verbs, non_resource_urls: one(&rule.non_resource_urls, *url), ..Rule::default() }
                }
                rest => Rule {
                    verbs,
                    api_groups: one(&rule.api_groups, rest[0]),
                    resources: one(&rule.resources, rest[1]),
                    resource_names: one(&rule.resource_names, rest[2]),
                    non_resource_urls: Vec::new(),
                },
            }
        }));
        Ok(())
    }

    /// The entries of a list by the held rules that have them; `more` finds those that have one otherwise
    /// than by its text.
    fn classes(
        &mut self,
        wanted: &[String],
        axis: for<'a, 'h> fn(&'a Held<'h>) -> &'a Axis<'h>,
        more: impl Fn(&Axis<'_>, &str) -> Option<Vec<usize>>,
    ) -> Result<Vec<Class>, TooMany> {
        let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, entry) in wanted.iter().enumerate() {
            places.entry(entry).or_default().push(place);
        }
        let mut classes: HashMap<Bits, Vec<usize>> = HashMap::new();
        // All entries that no rule names are alike.
        let mut unknown = Vec::new();
        for (entry, places) in places {
            let axis = axis(&self.held);
            let (exact, more) = (axis.exact.get(entry), more(axis, entry).unwrap_or_default());
            if exact.is_none() && more.is_empty() {
                unknown.extend(places);
                continue;
            }
            let bits = self.held.bits([&axis.all, &more].into_iter().chain(exact));
            let work = self.held.words() + axis.all.len() + more.len() + exact.map_or(0, Vec::len);
            classes.entry(bits).or_default().extend(places);
            self.spend(work)?;
        }
        if !unknown.is_empty() {
            let bits = self.held.bits([&axis(&self.held).all]);
            classes.entry(bits).or_default().extend(unknown);
        }
        let mut classes: Vec<Class> = classes.into_iter().collect();
        classes.iter_mut().for_each(|(_, places)| places.sort_unstable());
        classes.sort_unstable_by_key(|(_, places)| places[0]);
        Ok(classes)
    }

    /// Counts what no held rule has of all that the lists give together.
    fn combine(&mut self, lists: &[&[Class]], kind: u8, first: &mut First) -> Result<(), TooMany> {
        let many = lists.iter().fold(1_usize, |many, list| many.saturating_mul(list.len()));
        self.spend(many.saturating_mul(self.held.words()).saturating_mul(lists.len()))?;
        let every = vec![u64::MAX; self.held.words()];
        self.below(&every, lists, kind, &mut Vec::new(), first);
        Ok(())
    }

    fn below<'c>(
        &mut self,
        held: &Bits,
        lists: &[&'c [Class]],
        kind: u8,
        way: &mut Vec<&'c [usize]>,
        first: &mut First,
    ) {
        let Some((list, rest)) = lists.split_first() else {
            if held.iter().all(|word| *word == 0) {
                let pieces = way.iter().fold(1_u64, |all, places| all.saturating_mul(places.len() as u64));
                self.found.count = self.found.count.saturating_add(pieces);
                first.offer(kind, way);
            }
            return;
        };
        for (bits, places) in *list {
            let both = held.iter().zip(bits).map(|(a, b)| a & b).collect();
            way.push(places);
            self.below(&both, rest, kind, way, first);
            way.pop();
        }
    }
}

/// The first pieces that are missing: place of the verb, whether it is for a URL, places of the rest.
struct First {
    named: BTreeSet<(usize, u8, Vec<usize>)>,
    most: usize,
}

impl First {
    /// All that the places give together is missing; they are in order.
    fn offer(&mut self, kind: u8, way: &[&[usize]]) {
        let mut at = vec![0; way.len()];
        loop {
            let piece: Vec<usize> = at.iter().zip(way).map(|(at, places)| places[*at]).collect();
            let piece = (piece[0], kind, piece[1..].to_vec());
            if self.named.len() >= self.most && self.named.last().is_none_or(|last| *last < piece) {
                return;
            }
            self.named.insert(piece);
            if self.named.len() > self.most {
                self.named.pop_last();
            }
            // The next one, the last place counted first.
            let Some(next) = (0..way.len()).rev().find(|list| at[*list] + 1 < way[*list].len()) else {
                return;
            };
            at[next] += 1;
            at[next + 1..].fill(0);
        }
    }
}
