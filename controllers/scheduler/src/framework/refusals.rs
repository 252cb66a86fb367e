//! The refusals of many nodes, of which most are one of a few.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plugin::Refusal;
use crate::cluster::NodeId;

/// The refusal of each node; equal ones are stored once.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// By index of the node: the place in `distinct`, plus 1. Nodes that were not refused have 0, or are beyond the end.
    of: Vec<u32>,
    distinct: Vec<Distinct>,
    places: BTreeMap<Arc<Refusal>, u32>,
    /// Entries of `distinct` that no node has.
    free: Vec<u32>,
    /// Number of nodes that were refused.
    nodes: usize,
}

#[derive(Clone, Debug)]
struct Distinct {
    refusal: Arc<Refusal>,
    /// Number of nodes with the refusal.
    nodes: usize,
}

impl Refusals {
    /// Sets the refusal of a node.
    pub fn insert(&mut self, id: NodeId, refusal: Refusal) {
        self.remove(id);
        let place = self.place(refusal);
        if id.index() >= self.of.len() {
            self.of.resize(id.index() + 1, 0);
        }
        self.of[id.index()] = place + 1;
        self.distinct[place as usize].nodes += 1;
        self.nodes += 1;
    }

    /// Removes the refusal of a node, if it has one.
    pub fn remove(&mut self, id: NodeId) {
        let Some(of) = self.of.get_mut(id.index()) else { return };
        let Some(place) = std::mem::take(of).checked_sub(1) else { return };
        self.nodes -= 1;
        let distinct = &mut self.distinct[place as usize];
        distinct.nodes -= 1;
        if distinct.nodes == 0 {
            self.places.remove(&distinct.refusal);
            self.free.push(place);
        }
    }

    /// Returns the place of a refusal, which is made if there is none.
    fn place(&mut self, refusal: Refusal) -> u32 {
        if let Some(place) = self.places.get(&refusal) {
            return *place;
        }
        let refusal = Arc::new(refusal);
        let distinct = Distinct { refusal: Arc::clone(&refusal), nodes: 0 };
        let place = if let Some(place) = self.free.pop() {
            self.distinct[place as usize] = distinct;
            place
        } else {
            self.distinct.push(distinct);
            u32::try_from(self.distinct.len() - 1).expect("a cluster has fewer than 2^32 nodes")
        };
        self.places.insert(refusal, place);
        place
    }

    /// Returns the refusal of a node.
    pub fn get(&self, id: NodeId) -> Option<&Refusal> {
        let place = self.of.get(id.index())?.checked_sub(1)?;
        Some(&self.distinct[place as usize].refusal)
    }

    /// Returns the number of nodes that were refused.
    pub fn len(&self) -> usize {
        self.nodes
    }

    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the nodes that were refused, in order, with their refusals.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Refusal)> {
        let ids = (0..self.of.len()).map(NodeId::new);
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Returns each refusal once, with the number of nodes that have it.
    pub fn distinct(&self) -> impl Iterator<Item = (&Refusal, usize)> {
        let used = self.distinct.iter().filter(|distinct| distinct.nodes > 0);
        used.map(|distinct| (&*distinct.refusal, distinct.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_refusals_are_one_and_unused_ones_are_gone() {
        let refusal = |reason: &str| Refusal::unschedulable(reason).by("Test");
        let mut all = Refusals::default();
        for (id, reason) in [(0, "a"), (70, "b"), (2, "a")] {
            all.insert(NodeId::new(id), refusal(reason));
        }
        all.insert(NodeId::new(70), refusal("c"));
        all.remove(NodeId::new(1000));
        assert_eq!((all.len(), all.get(NodeId::new(1))), (3, None));
        assert_eq!(all.get(NodeId::new(70)), Some(&refusal("c")));
        let nodes: Vec<_> = all.iter().map(|(id, why)| (id.index(), why.message())).collect();
        assert_eq!(nodes, [(0, "a".to_owned()), (2, "a".to_owned()), (70, "c".to_owned())]);
        assert_eq!(all.distinct().collect::<Vec<_>>(), [(&refusal("a"), 2), (&refusal("c"), 1)]);
        [0, 2, 70].into_iter().for_each(|id| all.remove(NodeId::new(id)));
        assert!(all.is_empty() && all.distinct().next().is_none());
    }
}
