//! Answers of plugins on each node for pods of one template, computed anew for nodes that have changed.

use std::collections::BTreeMap;

use super::attempt::Feasible;
use super::plugin::{NodeFilter, Normalize, Scores};
use super::profile::Profile;
use super::refusals::Refusals;
use crate::cluster::{Cluster, Node, NodeId, NodeSet, Position};
use crate::limits;
use crate::pod::{PodSpec, SpecId};

/// Cached views by template, those used last.
#[derive(Debug, Default)]
pub struct Views {
    /// By profile: its name, and its views. There are few.
    profiles: Vec<(String, BTreeMap<SpecId, View>)>,
    clock: u64,
    /// The list of an earlier attempt: memory for each node anew in each attempt would cost more than most decisions.
    spare_totals: Vec<i64>,
}

/// The nodes as seen by pods of one template and profile.
#[derive(Debug, Default)]
pub(super) struct View {
    position: Option<Position>,
    epochs: Vec<u64>,
    /// Nodes that pass all node filters.
    pub passing: NodeSet,
    /// The first refusal of each other node, but for those in `unexplained`.
    pub refusals: Refusals,
    /// Nodes that do not pass, and for which nobody has asked why.
    unexplained: NodeSet,
    /// Raw scores, in the order of the profile's score plugins; `None` for plugins without node scores.
    pub columns: Vec<Option<Column>>,
    /// Weighted sums of the scores that are not normalized, by index of the node.
    pub sums: Vec<i64>,
    /// The greatest of the sums of the nodes that pass, by word of the set.
    greatest: Vec<Option<i64>>,
    used: u64,
}

/// Raw scores of one plugin.
#[derive(Debug)]
pub(super) struct Column {
    /// By index of the node.
    pub raw: Vec<i64>,
    /// Number of scores that are not 0.
    non_zero: usize,
    pub normalize: Normalize,
}

impl Column {
    fn set(&mut self, id: NodeId, score: i64) {
        let before = self.raw.get(id.index()).copied().unwrap_or_default();
        self.non_zero = self.non_zero + usize::from(score != 0) - usize::from(before != 0);
        put(&mut self.raw, id, score);
    }

    /// Returns `true` if the scores are part of [`View::sums`].
    pub fn is_in_sums(&self) -> bool {
        self.normalize == Normalize::Identity
    }

    /// Returns the normalized scores of nodes.
    pub fn scores(&self, nodes: &Feasible) -> Scores {
        if self.non_zero == 0 {
            let mut score = [0];
            self.normalize.apply(&mut score);
            return Scores::Same(score[0]);
        }
        let mut scores: Vec<i64> = nodes.list().iter().map(|id| self.raw[id.index()]).collect();
        self.normalize.apply(&mut scores);
        Scores::Each(scores)
    }
}

impl Views {
    /// Takes back the totals of an attempt for the next one.
    pub fn recycle(&mut self, totals: Vec<i64>) {
        self.spare_totals = totals;
    }

    /// Returns an empty list of totals.
    pub(super) fn spare_totals(&mut self) -> Vec<i64> {
        let mut list = std::mem::take(&mut self.spare_totals);
        list.clear();
        list
    }

    /// Returns the up-to-date view of a template.
    pub(super) fn refresh(&mut self, profile: &Profile, spec: &PodSpec, cluster: &Cluster) -> &View {
        self.current(profile, spec, cluster)
    }

    /// Returns the up-to-date view of a template, with all refusals.
    pub(super) fn explain(&mut self, profile: &Profile, spec: &PodSpec, cluster: &Cluster) -> &View {
        let view = self.current(profile, spec, cluster);
        view.explain(profile, spec, cluster);
        view
    }

    fn current(&mut self, profile: &Profile, spec: &PodSpec, cluster: &Cluster) -> &mut View {
        self.clock += 1;
        let place = self.profiles.iter().position(|(name, _)| *name == profile.name).unwrap_or_else(|| {
            self.profiles.push((profile.name.clone(), BTreeMap::new()));
            self.profiles.len() - 1
        });
        let is_known = self.profiles[place].1.contains_key(&spec.id);
        if !is_known && self.len() >= limits::VIEWS {
            self.forget_oldest();
        }
        let view = self.profiles[place].1.entry(spec.id).or_default();
        view.used = self.clock;
        view.update(profile, spec, cluster);
        view
    }

    fn len(&self) -> usize {
        self.profiles.iter().map(|(_, views)| views.len()).sum()
    }

    fn forget_oldest(&mut self) {
        let oldest = |views: &BTreeMap<SpecId, View>| views.iter().map(|(id, view)| (view.used, *id)).min();
        let all = self.profiles.iter_mut().filter_map(|(_, views)| Some((oldest(views)?, views)));
        if let Some(((_, id), views)) = all.min_by_key(|((used, _), _)| *used) {
            views.remove(&id);
        }
    }
}

impl View {
    fn update(&mut self, profile: &Profile, spec: &PodSpec, cluster: &Cluster) {
        let epochs: Vec<u64> = profile.plugins.iter().map(|plugin| plugin.epoch(cluster)).collect();
        let known = self.position.filter(|_| epochs == self.epochs);
        let changed = known.and_then(|position| cluster.log().since(position));
        let is_current = known == Some(cluster.log().position());
        if is_current {
            return;
        }
        let filters: Vec<Box<dyn NodeFilter + '_>> = profile
            .filter
            .iter()
            .filter_map(|index| profile.plugin(*index).node_filter(spec, cluster))
            .collect();
        let scores: Vec<_> =
            profile.score.iter().map(|(index, _)| profile.plugin(*index).node_score(spec, cluster)).collect();
        let row = |view: &mut Self, node: &Node| {
            let passes = node.is_known && filters.iter().all(|filter| filter.passes(node));
            view.passing.set(node.id, passes);
            view.refusals.remove(node.id);
            view.unexplained.set(node.id, node.is_known && !passes);
            let mut sum = 0;
            for ((column, score), (_, weight)) in view.columns.iter_mut().zip(&scores).zip(&profile.score) {
                if let (Some(column), Some(score)) = (column, score) {
                    // Nodes that do not pass are not scored.
                    let raw = if passes { (score.raw)(node) } else { 0 };
                    column.set(node.id, raw);
                    sum += if column.is_in_sums() { raw * weight } else { 0 };
                }
            }
            put(&mut view.sums, node.id, sum);
        };
        match changed {
            Some(changed) => changed.for_each(|id| {
                row(self, cluster.node(id));
                self.update_greatest(NodeSet::word_of(id));
            }),
            None => {
                self.passing.clear();
                self.refusals.clear();
                self.unexplained.clear();
                let column = |score: &super::NodeScore<'_>| Column {
                    raw: vec![0; cluster.capacity()],
                    non_zero: 0,
                    normalize: score.normalize,
                };
                self.columns = scores.iter().map(|score| score.as_ref().map(column)).collect();
                self.sums = vec![0; cluster.capacity()];
                cluster.nodes().for_each(|node| row(self, node));
                self.greatest.clear();
                (0..self.passing.words().len()).for_each(|word| self.update_greatest(word));
            }
        }
        self.epochs = epochs;
        self.position = Some(cluster.log().position());
    }

    fn update_greatest(&mut self, word: usize) {
        if word >= self.greatest.len() {
            self.greatest.resize(word + 1, None);
        }
        self.greatest[word] = self.greatest_of(word, self.passing.word(word));
    }

    /// Returns the greatest sum of the nodes in a word of a set.
    fn greatest_of(&self, word: usize, bits: u64) -> Option<i64> {
        NodeSet::ids_in(word, bits).map(|id| self.sums[id.index()]).max()
    }

    /// Returns the node with the greatest sum in a set of nodes that pass; `random` breaks ties.
    pub fn best(&self, nodes: &NodeSet, random: u64) -> Option<NodeId> {
        let words = || nodes.words().iter().copied().enumerate().filter(|(_, bits)| *bits != 0);
        let greatest = |(word, bits): (usize, u64)| match bits == self.passing.word(word) {
            true => self.greatest[word],
            false => self.greatest_of(word, bits),
        };
        let best = words().filter_map(greatest).max()?;
        let winners = || {
            let words = words().filter(|word| greatest(*word) == Some(best));
            words
                .flat_map(|(word, bits)| NodeSet::ids_in(word, bits))
                .filter(|id| self.sums[id.index()] == best)
        };
        let count = winners().count() as u64;
        winners().nth(usize::try_from(random % count).unwrap_or_default())
    }

    /// Finds out why nodes do not pass for which nobody has asked.
    fn explain(&mut self, profile: &Profile, spec: &PodSpec, cluster: &Cluster) {
        if self.unexplained.is_empty() {
            return;
        }
        let plugins = profile.filter.iter().map(|index| profile.plugin(*index));
        let filters: Vec<_> =
            plugins.filter_map(|plugin| Some((plugin.name(), plugin.node_filter(spec, cluster)?))).collect();
        for id in std::mem::take(&mut self.unexplained).iter() {
            let node = cluster.node(id);
            if let Some((plugin, filter)) = filters.iter().find(|(_, filter)| !filter.passes(node)) {
                self.refusals.insert(id, filter.refusal(node).by(plugin));
            }
        }
    }
}

/// Sets an entry of a list by index of the node.
fn put(list: &mut Vec<i64>, id: NodeId, value: i64) {
    if id.index() >= list.len() {
        list.resize(id.index() + 1, 0);
    }
    list[id.index()] = value;
}
