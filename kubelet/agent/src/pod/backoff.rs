//! Restart back-off of containers.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::limits::{BACKOFF_MAX, BACKOFF_MIN};

/// Restart delays of the containers of one pod. The first restart is immediate; then the delay doubles from
/// [`BACKOFF_MIN`] to [`BACKOFF_MAX`], and is reset after the container has run long enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    pause: Duration,
    updated: Timestamp,
}

impl Backoff {
    /// Returns when a container that ended at `finished` may be restarted; `None` means immediately.
    pub fn until(&self, key: &str, finished: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key)?;
        if expired(entry, finished) {
            return None;
        }
        let until = finished.checked_add(entry.pause).ok()?;
        (until > now).then_some(until)
    }

    /// Returns the current delay, for messages.
    pub fn pause(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(BACKOFF_MIN, |entry| entry.pause)
    }

    /// Records that the container that ended at `finished` is being restarted.
    pub fn restarted(&mut self, key: &str, finished: Timestamp) {
        let pause = match self.entries.get(key) {
            Some(entry) if !expired(entry, finished) => (entry.pause * 2).min(BACKOFF_MAX),
            _ => BACKOFF_MIN,
        };
        self.entries.insert(key.to_owned(), Entry { pause, updated: finished });
    }
}

/// Returns `true` if more than twice the maximum delay lies between the last two ends of a container, which
/// resets its back-off.
fn expired(entry: &Entry, finished: Timestamp) -> bool {
    finished.duration_since(entry.updated) > (BACKOFF_MAX * 2).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.until("c", at(0), at(0)), None, "the first restart is immediate");
        let mut finished = 0;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            backoff.restarted("c", at(finished));
            finished += 1;
            let until = backoff.until("c", at(finished), at(finished)).unwrap();
            pauses.push(until.as_second() - at(finished).as_second());
            finished += pauses.last().unwrap();
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_long_run_resets_the_back_off() {
        let mut backoff = Backoff::default();
        backoff.restarted("c", at(0));
        backoff.restarted("c", at(20));
        assert_eq!(backoff.until("c", at(700), at(700)), None);
        backoff.restarted("c", at(700));
        assert_eq!(backoff.pause("c"), BACKOFF_MIN);
    }

    #[test]
    fn a_delay_ends_and_does_not_affect_other_containers() {
        let mut backoff = Backoff::default();
        backoff.restarted("c", at(0));
        assert_eq!(backoff.until("c", at(5), at(14)), Some(at(15)));
        assert_eq!(backoff.until("c", at(5), at(15)), None);
        assert_eq!(backoff.until("d", at(5), at(6)), None);
    }
}
