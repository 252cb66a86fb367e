//! Decides how an event is written, so that a component in trouble fills neither the store nor the lists of users.
//!
//! ```text
//!  event ─▶ aggregate: many different messages of one reason become one event
//!        ─▶ repeat: what was written before is counted, not written again
//!        ─▶ limit: a source that reports too much about one object is cut off
//! ```
//!
//! The rules and their numbers are those of client-go.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EventSource, ObjectReference};
use tokio::time::Instant;

use super::recent::Recent;
use crate::limits;

/// Before the message of an event that stands for several.
const COMBINED: &str = "(combined from similar events): ";

/// The component and the object of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    component: String,
    host: String,
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

/// All that a source reports about an object, warnings apart from the rest.
type Stream = (Subject, bool);

/// Events of a stream with the same reason.
type Topic = (Stream, &'static str);

/// An event as it is counted: with the part of the object and its message, or without if it stands for several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(Topic, Option<(String, String)>);

/// An Event object that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub namespace: String,
    pub name: String,
    pub count: i32,
}

/// The way in which an event is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A new object with this message.
    Create { key: Key, message: String },
    /// One more of the object, whose count is already that of this event.
    Repeat { key: Key, written: Written, message: String },
    /// Not at all: the source has reported too much about the object.
    Drop,
}

/// Messages of one topic.
struct Similar {
    messages: BTreeSet<String>,
    last: Instant,
}

/// Events that a source may still report about an object.
struct Allowance {
    left: f64,
    at: Instant,
}

/// Remembers what was reported of late.
pub(super) struct Correlator {
    similar: Recent<Topic, Similar>,
    written: Recent<Key, Written>,
    allowances: Recent<Stream, Allowance>,
}

impl Default for Correlator {
    fn default() -> Self {
        Self {
            similar: Recent::new(limits::EVENTS_REMEMBERED),
            written: Recent::new(limits::EVENTS_REMEMBERED),
            allowances: Recent::new(limits::EVENTS_REMEMBERED),
        }
    }
}

impl Correlator {
    /// Decides on an event that `source` reports.
    pub fn step(
        &mut self,
        source: &EventSource,
        about: &ObjectReference,
        (warning, reason): (bool, &'static str),
        message: String,
        now: Instant,
    ) -> Step {
        let stream = (subject(source, about), warning);
        let part = about.field_path.clone().unwrap_or_default();
        let (key, message) = self.aggregate((stream.clone(), reason), part, message, now);
        let counted = self.written.get(&key).map(|written| {
            written.count = written.count.saturating_add(1);
            written.clone()
        });
        if !self.allow(stream, now) {
            return Step::Drop;
        }
        match counted {
            Some(written) => Step::Repeat { key, written, message },
            None => Step::Create { key, message },
        }
    }

    /// Notes the object that was created for an event.
    pub fn created(&mut self, key: Key, written: Written) {
        self.written.insert(key, written);
    }

    /// Forgets an object that is gone.
    pub fn gone(&mut self, key: &Key) {
        self.written.remove(key);
    }

    /// Returns the key and the message of the event: its own, or those that it has with others.
    fn aggregate(&mut self, topic: Topic, part: String, message: String, now: Instant) -> (Key, String) {
        let known = self
            .similar
            .get(&topic)
            .filter(|similar| now.saturating_duration_since(similar.last) <= limits::EVENT_SIMILAR_PERIOD);
        let Some(similar) = known else {
            let messages = BTreeSet::from([message.clone()]);
            self.similar.insert(topic.clone(), Similar { messages, last: now });
            return (Key(topic, Some((part, message.clone()))), message);
        };
        similar.last = now;
        similar.messages.insert(message.clone());
        if similar.messages.len() < limits::EVENT_SIMILAR {
            return (Key(topic, Some((part, message.clone()))), message);
        }
        // The set never grows, and the first messages keep events of their own.
        similar.messages.remove(&message);
        (Key(topic, None), format!("{COMBINED}{message}"))
    }

    /// Takes one from the allowance of a stream; returns `false` if there is none left.
    fn allow(&mut self, stream: Stream, now: Instant) -> bool {
        let full = f64::from(limits::EVENT_BURST);
        let Some(allowance) = self.allowances.get(&stream) else {
            self.allowances.insert(stream, Allowance { left: full - 1.0, at: now });
            return true;
        };
        let passed = now.saturating_duration_since(allowance.at).as_secs_f64();
        allowance.at = now;
        allowance.left = (allowance.left + passed / limits::EVENT_REFILL.as_secs_f64()).min(full);
        let allowed = allowance.left >= 1.0;
        if allowed {
            allowance.left -= 1.0;
        }
        allowed
    }
}

fn subject(source: &EventSource, about: &ObjectReference) -> Subject {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Subject {
        component: text(&source.component),
        host: text(&source.host),
        api_version: text(&about.api_version),
        kind: text(&about.kind),
        namespace: text(&about.namespace),
        name: text(&about.name),
        uid: text(&about.uid),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Test {
        correlator: Correlator,
        now: Instant,
        made: usize,
    }

    impl Test {
        fn new() -> Self {
            Self { correlator: Correlator::default(), now: Instant::now(), made: 0 }
        }

        /// Reports an event, and what becomes of it: the name and the count of its object, and its message.
        fn report(
            &mut self,
            component: &str,
            uid: &str,
            reason: &'static str,
            message: &str,
        ) -> Option<String> {
            let source = EventSource { component: Some(component.to_owned()), host: None };
            let about = ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() };
            match self.correlator.step(&source, &about, (false, reason), message.to_owned(), self.now) {
                Step::Create { key, message } => {
                    self.made += 1;
                    let name = format!("e{}", self.made);
                    let written = Written { namespace: "ns".to_owned(), name: name.clone(), count: 1 };
                    self.correlator.created(key, written);
                    Some(format!("{name} 1 {message}"))
                }
                Step::Repeat { written, message, .. } => {
                    Some(format!("{} {} {message}", written.name, written.count))
                }
                Step::Drop => None,
            }
        }

        fn pass(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }
    }

    #[test]
    fn repetitions_are_counted_by_source_object_reason_and_message() {
        let mut test = Test::new();
        for (component, uid, reason, message, expected) in [
            ("a", "1", "X", "one", "e1 1 one"),
            ("a", "1", "X", "one", "e1 2 one"),
            ("a", "1", "X", "two", "e2 1 two"),
            ("a", "1", "Y", "one", "e3 1 one"),
            ("a", "2", "X", "one", "e4 1 one"),
            ("b", "1", "X", "one", "e5 1 one"),
            ("a", "1", "X", "one", "e1 3 one"),
        ] {
            assert_eq!(test.report(component, uid, reason, message).as_deref(), Some(expected));
        }
    }

    #[test]
    fn tenth_message_of_a_reason_within_ten_minutes_is_combined_with_those_that_follow() {
        let mut test = Test::new();
        for number in 1..10 {
            let expected = format!("e{number} 1 m{number}");
            assert_eq!(test.report("a", "1", "X", &format!("m{number}")), Some(expected));
        }
        let combined = |count: i32, message: &str| {
            Some(format!("e10 {count} (combined from similar events): {message}"))
        };
        assert_eq!(test.report("a", "1", "X", "m10"), combined(1, "m10"));
        test.pass(600);
        assert_eq!(test.report("a", "1", "X", "m11"), combined(2, "m11"));
        assert_eq!(test.report("a", "1", "X", "m11"), combined(3, "m11"));
        assert_eq!(test.report("a", "1", "X", "m1").as_deref(), Some("e1 2 m1"));
        // Another reason, object or source is not combined.
        assert_eq!(test.report("a", "1", "Y", "m12").as_deref(), Some("e11 1 m12"));
        assert_eq!(test.report("a", "2", "X", "m12").as_deref(), Some("e12 1 m12"));
        // After a silence of more than ten minutes each is an event of its own again.
        test.pass(601);
        assert_eq!(test.report("a", "1", "X", "m13").as_deref(), Some("e13 1 m13"));
    }

    #[test]
    fn source_is_cut_off_after_25_events_about_an_object_and_gets_one_more_each_five_minutes() {
        let mut test = Test::new();
        let mut reported = 0;
        for _ in 0..100 {
            reported += usize::from(test.report("a", "1", "X", "same").is_some());
        }
        assert_eq!(reported, 25);
        assert!(test.report("a", "1", "Y", "other").is_none(), "other reasons count as well");
        assert!(test.report("a", "2", "X", "same").is_some());
        assert!(test.report("b", "1", "X", "same").is_some());
        test.pass(299);
        assert!(test.report("a", "1", "X", "same").is_none());
        test.pass(1);
        // Dropped repetitions are counted.
        assert_eq!(test.report("a", "1", "X", "same").as_deref(), Some("e1 102 same"));
        assert!(test.report("a", "1", "X", "same").is_none());
        test.pass(100 * 300);
        let after = (0..100).filter(|_| test.report("a", "1", "Z", "more").is_some()).count();
        assert_eq!(after, 25, "the allowance never exceeds its size");
    }

    #[test]
    fn objects_that_are_gone_are_written_anew() {
        let mut test = Test::new();
        test.report("a", "1", "X", "one");
        let (source, about) = (
            EventSource { component: Some("a".to_owned()), host: None },
            ObjectReference { uid: Some("1".to_owned()), ..ObjectReference::default() },
        );
        let step = test.correlator.step(&source, &about, (false, "X"), "one".to_owned(), test.now);
        let Step::Repeat { key, .. } = step else { panic!("{step:?}") };
        test.correlator.gone(&key);
        assert_eq!(test.report("a", "1", "X", "one").as_deref(), Some("e2 1 one"));
    }
}
