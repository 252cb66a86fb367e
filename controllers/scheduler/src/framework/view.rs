//! Answers of plugins on each node for pods of one template, computed anew for nodes that have changed.

use std::collections::BTreeMap;

use super::plugin::{NodeFilter, Normalize};
use super::profile::Profile;
use crate::cluster::{Cluster, Node, NodeId, NodeSet, Position};
use crate::limits;
use crate::pod::{PodSpec, SpecId};

/// Cached views by template, those used last.
#[derive(Debug, Default)]
pub struct Views {
    /// By profile: its name, and its views. There are few.
    profiles: Vec<(String, BTreeMap<SpecId, View>)>,
    clock: u64,
}

/// The nodes as seen by pods of one template and profile.
#[derive(Debug, Default)]
pub(super) struct View {
    position: Option<Position>,
    epochs: Vec<u64>,
    /// Nodes that pass all node filters.
    pub passing: NodeSet,
    /// Raw scores, in the order of the profile's score plugins; `None` for plugins without node scores.
    pub columns: Vec<Option<Column>>,
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
        if id.index() >= self.raw.len() {
            self.raw.resize(id.index() + 1, 0);
        }
        let entry = &mut self.raw[id.index()];
        self.non_zero = self.non_zero + usize::from(score != 0) - usize::from(*entry != 0);
        *entry = score;
    }

    /// Replaces scores by the normalized ones of these nodes.
    pub fn score(&self, nodes: &[NodeId], scores: &mut [i64]) {
        if self.non_zero == 0 {
            scores.fill(0);
        } else {
            for (score, id) in scores.iter_mut().zip(nodes) {
                *score = self.raw[id.index()];
            }
        }
        self.normalize.apply(scores);
    }
}

impl Views {
    /// Returns the up-to-date view of a template.
    pub(super) fn refresh(&mut self, profile: &Profile, spec: &PodSpec, cluster: &Cluster) -> &View {
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
            for (column, score) in view.columns.iter_mut().zip(&scores) {
                if let (Some(column), Some(score)) = (column, score) {
                    // Nodes that do not pass are not scored.
                    column.set(node.id, if passes { (score.raw)(node) } else { 0 });
                }
            }
        };
        match changed {
            Some(changed) => changed.for_each(|id| row(self, cluster.node(id))),
            None => {
                self.passing.clear();
                let column = |score: &super::NodeScore<'_>| Column {
                    raw: vec![0; cluster.capacity()],
                    non_zero: 0,
                    normalize: score.normalize,
                };
                self.columns = scores.iter().map(|score| score.as_ref().map(column)).collect();
                cluster.nodes().for_each(|node| row(self, node));
            }
        }
        self.epochs = epochs;
        self.position = Some(cluster.log().position());
    }
}
