//! The number of events that a component may write about one object, as in client-go: a burst, and then one at times.
//! A workload with thousands of pods would otherwise write an event for each of them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::limits::{EVENT_BURST, EVENT_REFILL, EVENTS_REMEMBERED};

/// Component, host, and the uid, namespace and name of the object.
pub(crate) type Subject = (String, String, [String; 3]);

/// Events that may still be written.
#[derive(Clone, Copy, Debug)]
struct Left {
    count: u32,
    /// Time up to which the count has been refilled.
    refilled: Timestamp,
}

/// The allowances of all objects that events were written about.
#[derive(Default)]
pub(crate) struct Allowances(BTreeMap<Subject, Left>);

impl Allowances {
    /// Returns `true` if another event of this subject may be written at this time, and counts it.
    pub fn take(&mut self, subject: Subject, now: Timestamp) -> bool {
        if self.0.len() >= EVENTS_REMEMBERED && !self.0.contains_key(&subject) {
            self.0.clear();
        }
        let left = self.0.entry(subject).or_insert(Left { count: EVENT_BURST, refilled: now });
        let passed = now.as_second().saturating_sub(left.refilled.as_second());
        let refills = u32::try_from(passed.max(0) / EVENT_REFILL.as_secs()).unwrap_or(u32::MAX);
        if refills > 0 {
            left.count = left.count.saturating_add(refills).min(EVENT_BURST);
            left.refilled = now;
        }
        let may = left.count > 0;
        left.count = left.count.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str) -> Subject {
        ("c".to_owned(), String::new(), [String::new(), "ns".to_owned(), name.to_owned()])
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn object_gets_a_burst_of_events_and_then_one_for_each_refill() {
        let mut allowances = Allowances::default();
        let mut taken =
            |name: &str, second| (0..100).filter(|_| allowances.take(subject(name), at(second))).count();
        assert_eq!((taken("a", 0), taken("a", 299), taken("b", 299)), (25, 0, 25));
        assert_eq!((taken("a", 300), taken("a", 900)), (1, 2));
        assert_eq!(taken("a", 1_000_000), 25, "no more than a burst");
        assert_eq!(taken("a", 0), 0, "a clock that was set back refills nothing");
    }

    #[test]
    fn allowances_that_are_remembered_are_bounded() {
        let mut allowances = Allowances::default();
        for i in 0..=EVENTS_REMEMBERED {
            assert!(allowances.take(subject(&i.to_string()), at(0)));
        }
        assert_eq!(allowances.0.len(), 1);
    }
}
