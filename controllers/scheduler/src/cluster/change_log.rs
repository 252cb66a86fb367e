//! Log of the nodes that have changed, in order, so that what is cached of nodes is refreshed for those alone.

use std::collections::VecDeque;

use super::NodeId;
use crate::limits;

/// A position in the [`ChangeLog`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

/// The latest changes of nodes and of what runs on them.
#[derive(Debug, Default)]
pub struct ChangeLog {
    entries: VecDeque<NodeId>,
    /// Position of the first entry.
    first: u64,
}

impl ChangeLog {
    pub fn push(&mut self, id: NodeId) {
        self.entries.push_back(id);
        if self.entries.len() > limits::CHANGES {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Returns the position after the last change.
    pub fn position(&self) -> Position {
        Position(self.first + self.entries.len() as u64)
    }

    /// Returns the nodes that have changed since a position, or `None` if that is no longer known.
    pub fn since(&self, position: Position) -> Option<impl Iterator<Item = NodeId> + '_> {
        let skipped = position.0.checked_sub(self.first)?;
        Some(self.entries.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(log: &ChangeLog, position: Position) -> Option<Vec<usize>> {
        log.since(position).map(|ids| ids.map(NodeId::index).collect())
    }

    #[test]
    fn changes_since_a_position_are_known_until_too_many_have_followed() {
        let mut log = ChangeLog::default();
        log.push(NodeId::new(1));
        let position = log.position();
        assert_eq!(since(&log, position), Some(vec![]));
        log.push(NodeId::new(2));
        log.push(NodeId::new(2));
        assert_eq!(since(&log, position), Some(vec![2, 2]));
        for _ in 0..limits::CHANGES {
            log.push(NodeId::new(3));
        }
        assert_eq!(since(&log, position), None);
        assert_eq!(since(&log, log.position()), Some(vec![]));
    }
}
