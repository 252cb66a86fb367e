//! Refusals of Nodes, each of which is told once.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::plan::Refusal;
use crate::limits;

/// The Nodes that are refused at present.
#[derive(Default)]
pub(super) struct Reports(BTreeMap<String, Report>);

struct Report {
    refusal: Refusal,
    since: Instant,
    told: bool,
}

impl Report {
    /// Returns the time at which it is to be told.
    fn due(&self) -> Instant {
        if self.refusal.is_passing() { self.since + limits::KEY_GRACE } else { self.since }
    }
}

impl Reports {
    /// Sets the Nodes that are refused.
    pub fn set<'a>(&mut self, refused: impl Iterator<Item = (&'a String, &'a Refusal)>, now: Instant) {
        let mut before = std::mem::take(&mut self.0);
        self.0.extend(refused.map(|(name, refusal)| {
            let same = before.remove(name).filter(|known| known.refusal == *refusal);
            let report = same.unwrap_or_else(|| Report { refusal: refusal.clone(), since: now, told: false });
            (name.clone(), report)
        }));
    }

    /// Returns those that are to be told now.
    pub fn take(&mut self, now: Instant) -> Vec<(String, Refusal)> {
        let due = self.0.iter_mut().filter(|(_, report)| !report.told && report.due() <= now);
        due.map(|(name, report)| {
            report.told = true;
            (name.clone(), report.refusal.clone())
        })
        .collect()
    }

    /// Returns the time until the next is to be told.
    pub fn due(&self) -> Option<Duration> {
        let waiting = self.0.values().filter(|report| !report.told).map(Report::due);
        waiting.min().map(|due| due.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(told: Vec<(String, Refusal)>) -> Vec<String> {
        told.into_iter().map(|(name, _)| name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn reason_is_told_once_and_a_missing_key_if_it_stays_away() {
        let (mut reports, start) = (Reports::default(), Instant::now());
        let refused = |reason: &str, keyless: bool| {
            let mut all = BTreeMap::from([("a".to_owned(), Refusal::BadKey(reason.to_owned()))]);
            all.extend(keyless.then(|| ("b".to_owned(), Refusal::NoKey)));
            all
        };
        reports.set(refused("one", true).iter(), start);
        assert_eq!(names(reports.take(start)), ["a"]);
        assert_eq!(reports.due(), Some(limits::KEY_GRACE));
        let later = start + limits::KEY_GRACE;
        reports.set(refused("another", true).iter(), later);
        assert_eq!(names(reports.take(later)), ["a", "b"]);
        assert_eq!((names(reports.take(later)), reports.due()), (Vec::new(), None));
        // A key that came and went is waited for again.
        reports.set(refused("another", false).iter(), later);
        reports.set(refused("another", true).iter(), later);
        assert_eq!(names(reports.take(later)), Vec::<String>::new());
    }
}
