//! Back-off of failed pods: a node that refuses a pod would otherwise be given one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::limits::{FAILED_POD_BACKOFF, FAILED_POD_BACKOFF_MAX};
use crate::pods::until;

/// Delays between deletions of the failed pods of one DaemonSet, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    /// UID and observed generation of the DaemonSet: another template may not fail.
    of: (String, i64),
    nodes: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    last: Timestamp,
}

impl Entry {
    /// Returns `true` if no pod has failed for so long that the delay begins anew.
    fn is_over(&self, now: Timestamp) -> bool {
        since(self.last, now) > 2 * FAILED_POD_BACKOFF_MAX
    }
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    until(now, then)
}

impl Backoff {
    /// Forgets the delays if they are of another DaemonSet or generation, and those that are over.
    pub fn refresh(&mut self, uid: &str, generation: i64, now: Timestamp) {
        if self.of.0 != uid || self.of.1 != generation {
            *self = Self { of: (uid.to_owned(), generation), nodes: BTreeMap::new() };
        }
        self.nodes.retain(|_, entry| !entry.is_over(now));
    }

    /// Returns how long a failed pod on the node has to stay; `None` if it may be deleted now, after which the next
    /// one has to stay longer.
    pub fn hold(&mut self, node: &str, now: Timestamp) -> Option<Duration> {
        let Some(entry) = self.nodes.get_mut(node) else {
            self.nodes.insert(node.to_owned(), Entry { delay: FAILED_POD_BACKOFF, last: now });
            return None;
        };
        let left = entry.delay.saturating_sub(since(entry.last, now));
        if !left.is_zero() {
            return Some(left);
        }
        *entry = Entry { delay: (entry.delay * 2).min(FAILED_POD_BACKOFF_MAX), last: now };
        None
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn delays_double_up_to_the_maximum_per_node() {
        let mut backoff = Backoff::default();
        backoff.refresh("uid", 1, at(0));
        let mut now = at(0);
        let mut delays = Vec::new();
        for _ in 0..12 {
            assert_eq!(backoff.hold("n", now), None);
            let delay = backoff.hold("n", now).unwrap();
            delays.push(delay.as_secs());
            now += delay;
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert_eq!(backoff.hold("other", now), None);
    }

    #[test]
    fn delays_begin_anew_for_another_generation_or_after_a_long_time() {
        let mut backoff = Backoff::default();
        backoff.refresh("uid", 1, at(0));
        assert_eq!(backoff.hold("n", at(0)), None);
        backoff.refresh("uid", 1, at(0));
        assert_eq!(backoff.hold("n", at(0)), Some(Duration::from_secs(1)));
        backoff.refresh("uid", 2, at(0));
        assert_eq!(backoff.hold("n", at(0)), None);
        backoff.refresh("other", 2, at(0));
        assert!(backoff.is_empty());
        assert_eq!(backoff.hold("n", at(0)), None);
        backoff.refresh("other", 2, at(1800));
        assert!(!backoff.is_empty());
        backoff.refresh("other", 2, at(1801));
        assert!(backoff.is_empty());
    }
}
