//! Decides how Events of `events.k8s.io` are written: the first of its kind as an object, and those that follow as the
//! series of this object, whose count is written when the series begins, from time to time, and when it ends.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use tokio::time::Instant;

use super::recent::Recent;
use crate::limits;

/// Fields of a reference, which has no order of its own.
type Fields = [Option<String>; 7];

/// All that the events of one series have in common. Their notes may differ: the first one stays.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    words: [Option<String>; 5],
    regarding: Fields,
    related: Option<Fields>,
}

impl Key {
    fn of(event: &Event) -> Self {
        let words = [
            &event.type_,
            &event.action,
            &event.reason,
            &event.reporting_controller,
            &event.reporting_instance,
        ];
        let regarding = event.regarding.as_ref().map(fields).unwrap_or_default();
        Self { words: words.map(Clone::clone), regarding, related: event.related.as_ref().map(fields) }
    }
}

fn fields(reference: &ObjectReference) -> Fields {
    let ObjectReference { api_version, field_path, kind, name, namespace, resource_version, uid } = reference;
    [api_version, field_path, kind, name, namespace, resource_version, uid].map(Clone::clone)
}

/// An event that is remembered.
struct Seen {
    event: Event,
    last: Instant,
}

impl Seen {
    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > limits::EVENT_SERIES_SILENCE
    }
}

/// Remembers events of late, and the series that go on.
pub(super) struct Series {
    /// Events that have happened once.
    single: Recent<Key, Seen>,
    /// Events with a series.
    running: Recent<Key, Seen>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            single: Recent::new(limits::EVENTS_REMEMBERED),
            running: Recent::new(limits::EVENT_SERIES_REMEMBERED),
        }
    }
}

impl Series {
    /// Takes in an event that has just happened; returns what is to be written for it: the event, a series that begins
    /// with it, nothing but a higher count in memory, and the last count of a series that is forgotten for another.
    pub fn record(&mut self, event: Event, now: Instant) -> Vec<Event> {
        let key = Key::of(&event);
        if let Some(running) = self.running.get(&key) {
            running.last = now;
            if let (Some(series), Some(time)) = (&mut running.event.series, event.event_time) {
                *series = EventSeries { count: series.count.saturating_add(1), last_observed_time: time };
            }
            return Vec::new();
        }
        if let (Some(mut first), Some(time)) = (self.single.remove(&key), event.event_time.clone()) {
            first.last = now;
            first.event.series = Some(EventSeries { count: 2, last_observed_time: time });
            let begun = first.event.clone();
            let forgotten = self.running.insert(key, first);
            return std::iter::once(begun).chain(forgotten.map(|seen| seen.event)).collect();
        }
        self.single.insert(key, Seen { event: event.clone(), last: now });
        vec![event]
    }

    /// Returns the series that have come to their end, which are to be written a last time, and forgets single events
    /// that are as old.
    pub fn ending(&mut self, now: Instant) -> Vec<Event> {
        let single = self.single.oldest_first().take_while(|(_, seen)| seen.is_silent(now));
        let old: Vec<Key> = single.map(|(key, _)| key.clone()).collect();
        for key in &old {
            self.single.remove(key);
        }
        let silent = self.running.oldest_first().map(|(_, seen)| seen).take_while(|seen| seen.is_silent(now));
        silent.map(|seen| seen.event.clone()).collect()
    }

    /// Forgets a series whose last count has been written, unless it has gone on since.
    pub fn ended(&mut self, event: &Event) {
        let key = Key::of(event);
        if self.running.peek(&key).is_some_and(|seen| seen.event.series == event.series) {
            self.running.remove(&key);
        }
    }

    /// Returns all series that go on, so that their objects are not deleted for their age.
    pub fn running(&self) -> Vec<Event> {
        self.running.oldest_first().map(|(_, seen)| seen.event.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    struct Test {
        series: Series,
        start: Instant,
        second: u64,
    }

    impl Test {
        fn new() -> Self {
            Self { series: Series::default(), start: Instant::now(), second: 0 }
        }

        fn now(&self) -> Instant {
            self.start + Duration::from_secs(self.second)
        }

        /// Reports an event of now about an object in a version; returns what is written for it.
        fn report(&mut self, name: &str, version: &str, note: &str) -> Vec<String> {
            self.record(Event { note: Some(note.to_owned()), ..event(name, version) })
        }

        fn record(&mut self, event: Event) -> Vec<String> {
            let time = Timestamp::from_second(i64::try_from(self.second).unwrap()).unwrap();
            let event = Event { event_time: Some(MicroTime(time)), ..event };
            let written = self.series.record(event, self.now());
            written.iter().map(shown).collect()
        }

        /// Returns the series that end now, and whose last counts are written.
        fn end(&mut self) -> Vec<String> {
            let ending = self.series.ending(self.now());
            for event in &ending {
                self.series.ended(event);
            }
            ending.iter().map(shown).collect()
        }
    }

    fn event(name: &str, version: &str) -> Event {
        let set = |text: &str| Some(text.to_owned());
        Event {
            type_: set("Warning"),
            reason: set("FailedScheduling"),
            action: set("Scheduling"),
            reporting_controller: set("default-scheduler"),
            reporting_instance: set("default-scheduler-a"),
            regarding: Some(about(name, version)),
            ..Event::default()
        }
    }

    fn about(name: &str, version: &str) -> ObjectReference {
        let (name, resource_version) = (Some(name.to_owned()), Some(version.to_owned()));
        ObjectReference { name, resource_version, ..ObjectReference::default() }
    }

    /// Returns object and note of an event, and count and last time of its series.
    fn shown(event: &Event) -> String {
        let name = event.regarding.as_ref().and_then(|about| about.name.clone()).unwrap_or_default();
        let series = event
            .series
            .as_ref()
            .map(|series| format!(" x{} until {}", series.count, series.last_observed_time.0.as_second()));
        format!("{name}: {}{}", event.note.as_deref().unwrap_or_default(), series.unwrap_or_default())
    }

    #[test]
    fn series_begins_with_the_second_event_and_is_only_counted_from_the_third() {
        let mut test = Test::new();
        assert_eq!(test.report("p", "1", "no room"), ["p: no room"]);
        test.second = 5;
        assert_eq!(test.report("p", "1", "no room yet"), ["p: no room x2 until 5"], "the first note stays");
        for second in 6..10 {
            test.second = second;
            assert_eq!(test.report("p", "1", "no room"), [""; 0]);
        }
        let running: Vec<String> = test.series.running().iter().map(shown).collect();
        assert_eq!(running, ["p: no room x6 until 9"]);
    }

    #[test]
    fn events_of_different_kinds_or_versions_of_an_object_make_no_series() {
        let base = || event("p", "1");
        let set = |text: &str| Some(text.to_owned());
        let mut test = Test::new();
        for other in [
            base(),
            event("q", "1"),
            event("p", "2"),
            Event { type_: set("Normal"), ..base() },
            Event { reason: set("Preempted"), ..base() },
            Event { action: set("Binding"), ..base() },
            Event { reporting_controller: set("second"), ..base() },
            Event { reporting_instance: set("default-scheduler-b"), ..base() },
            Event { related: Some(about("q", "1")), ..base() },
            Event { related: Some(about("r", "1")), ..base() },
        ] {
            let written = test.record(other);
            assert!(written.len() == 1 && !written[0].contains(" x"), "{written:?}");
        }
        assert_eq!(test.series.running().len(), 0);
    }

    #[test]
    fn series_ends_after_six_minutes_of_silence_with_its_last_count() {
        let mut test = Test::new();
        for second in [0, 1, 2] {
            test.second = second;
            test.report("p", "1", "no");
        }
        test.report("q", "1", "no");
        test.second = 362;
        assert_eq!(test.end(), [""; 0]);
        test.second = 363;
        assert_eq!(test.end(), ["p: no x3 until 2"]);
        assert_eq!(test.end(), [""; 0]);
        // Neither is remembered: the next ones are objects of their own.
        assert_eq!(test.report("p", "1", "again"), ["p: again"]);
        assert_eq!(test.report("q", "1", "again"), ["q: again"]);
    }

    #[test]
    fn series_that_goes_on_while_its_end_is_written_does_not_end() {
        let mut test = Test::new();
        for _ in 0..2 {
            test.report("p", "1", "no");
        }
        test.second = 400;
        let ending = test.series.ending(test.now());
        assert_eq!(ending.iter().map(shown).collect::<Vec<_>>(), ["p: no x2 until 0"]);
        assert_eq!(test.report("p", "1", "no"), [""; 0]);
        test.series.ended(&ending[0]);
        assert_eq!(test.series.running().iter().map(shown).collect::<Vec<_>>(), ["p: no x3 until 400"]);
    }

    #[test]
    fn series_beyond_the_bound_end_early() {
        let mut test = Test::new();
        let names: Vec<String> =
            (0..=limits::EVENT_SERIES_REMEMBERED).map(|number| format!("p{number}")).collect();
        for name in &names {
            test.report(name, "1", "no");
        }
        let (last, others) = names.split_last().unwrap();
        for name in others {
            assert_eq!(test.report(name, "1", "no").len(), 1);
            assert_eq!(test.report(name, "1", "no").len(), 0);
        }
        assert_eq!(
            test.report(last, "1", "no"),
            [format!("{last}: no x2 until 0"), "p0: no x3 until 0".into()]
        );
        assert_eq!(test.series.running().len(), limits::EVENT_SERIES_REMEMBERED);
    }
}
