//! Sets of nodes as bits.

use super::NodeId;

const BITS: usize = u64::BITS as usize;

/// A set of nodes, one bit a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    pub fn insert(&mut self, id: NodeId) {
        let (word, bit) = place(id);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    pub fn remove(&mut self, id: NodeId) {
        let (word, bit) = place(id);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
        }
    }

    /// Inserts or removes a node.
    pub fn set(&mut self, id: NodeId, is_in: bool) {
        if is_in { self.insert(id) } else { self.remove(id) }
    }

    pub fn contains(&self, id: NodeId) -> bool {
        let (word, bit) = place(id);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Removes what is not in `other`.
    pub fn intersect(&mut self, other: &Self) {
        self.words.truncate(other.words.len());
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Removes what is in `other`.
    pub fn subtract(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Removes the nodes for which `keep` returns `false`.
    pub fn retain(&mut self, mut keep: impl FnMut(NodeId) -> bool) {
        for (place, word) in self.words.iter_mut().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                if !keep(id(place, bit)) {
                    *word &= !(1 << bit);
                }
            }
        }
    }

    /// Returns the bits, 64 nodes a word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the bits of one word.
    pub fn word(&self, word: usize) -> u64 {
        self.words.get(word).copied().unwrap_or_default()
    }

    /// Returns the place of the word that a node is in.
    pub fn word_of(id: NodeId) -> usize {
        place(id).0
    }

    /// Returns the nodes in a word with these bits, ordered by id.
    pub fn ids_in(word: usize, bits: u64) -> impl Iterator<Item = NodeId> {
        let mut rest = bits;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(id(word, bit))
        })
    }

    /// Adds the nodes to a list, ordered by id.
    pub fn list_into(&self, list: &mut Vec<NodeId>) {
        list.reserve(self.len());
        for (place, word) in self.words.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                list.push(id(place, rest.trailing_zeros()));
                rest &= rest - 1;
            }
        }
    }

    /// Returns the nodes, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.words.iter().enumerate().flat_map(|(place, word)| Self::ids_in(place, *word))
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(ids: I) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

fn place(id: NodeId) -> (usize, u64) {
    (id.index() / BITS, 1 << (id.index() % BITS))
}

fn id(place: usize, bit: u32) -> NodeId {
    NodeId::new(place * BITS + bit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[usize]) -> NodeSet {
        ids.iter().map(|id| NodeId::new(*id)).collect()
    }

    fn ids(set: &NodeSet) -> Vec<usize> {
        set.iter().map(NodeId::index).collect()
    }

    #[test]
    fn sets_have_what_was_inserted_and_not_removed() {
        let mut nodes = set(&[0, 63, 64, 200]);
        nodes.remove(NodeId::new(64));
        nodes.remove(NodeId::new(1000));
        assert_eq!(ids(&nodes), [0, 63, 200]);
        let mut list = Vec::new();
        nodes.list_into(&mut list);
        assert_eq!((nodes.len(), list), (3, nodes.iter().collect()));
        assert!(nodes.contains(NodeId::new(200)) && !nodes.contains(NodeId::new(64)));
        nodes.retain(|id| id.index() != 63);
        assert_eq!(ids(&nodes), [0, 200]);
    }

    #[test]
    fn intersection_and_difference_take_sets_of_other_lengths() {
        let (mut a, b) = (set(&[1, 2, 300]), set(&[2, 5]));
        a.intersect(&b);
        assert_eq!(ids(&a), [2]);
        let mut c = set(&[2, 5, 300]);
        c.subtract(&b);
        assert_eq!(ids(&c), [300]);
    }
}
