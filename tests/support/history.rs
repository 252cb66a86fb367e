//! Histories of concurrent clients of a store, and a check whether they are linearizable: the search of Wing
//! and Gong for each key with Lowe's memoization, plus the order of revisions that all keys share. Included
//! by the tests of the store and the server.

use std::collections::{BTreeMap, BTreeSet};

/// A value and the revision at which it was written.
pub type Version = (String, i64);

/// Outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged, at this revision if the answer contains it.
    Done(Option<i64>),
    /// Refused; with the existing version if the answer contains it.
    Refused(Option<Option<Version>>),
    /// No answer: it may have happened, then or later.
    Unknown,
}

/// Operation of a client on a key. No value is written twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A write, applied if the key's revision is `expected` (0: it must not exist); without `value` a
    /// deletion.
    Write { expected: i64, value: Option<String>, outcome: Outcome },
    /// A read, at this revision if the answer contains it.
    Read { found: Option<Version>, revision: Option<i64> },
}

/// An action with the times of its call and its answer, by a clock that all clients share.
#[derive(Clone, Debug)]
pub struct Operation {
    pub key: String,
    pub called: u64,
    pub returned: u64,
    pub action: Action,
}

/// All keys at one revision.
#[derive(Clone, Debug)]
pub struct Listing {
    pub called: u64,
    pub returned: u64,
    pub revision: i64,
    pub found: BTreeMap<String, Version>,
}

/// Everything that was observed.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub listings: Vec<Listing>,
    /// Events of a watch by revision: the key, and its value unless it was deleted.
    pub events: BTreeMap<i64, (String, Option<String>)>,
    /// If set, every later revision has an event.
    pub gapless_after: Option<i64>,
}

impl History {
    /// Checks the history; an error says which rule is violated, and by what.
    pub fn check(&self) -> Result<(), String> {
        let revisions = self.revisions_of_values()?;
        self.check_events()?;
        self.check_order()?;
        let mut by_key: BTreeMap<&str, Vec<Operation>> = BTreeMap::new();
        for operation in &self.operations {
            by_key.entry(&operation.key).or_default().push(operation.clone());
        }
        // A list is a read of each key, including those that it does not contain.
        let keys: BTreeSet<String> = by_key.keys().map(|key| (*key).to_owned()).collect();
        for listing in &self.listings {
            if let Some(stranger) = listing.found.keys().find(|key| !keys.contains(*key)) {
                return Err(format!("a list has {stranger}, which nobody wrote"));
            }
            for (key, operations) in &mut by_key {
                let found = listing.found.get(*key).cloned();
                let action = Action::Read { found, revision: Some(listing.revision) };
                let (called, returned) = (listing.called, listing.returned);
                operations.push(Operation { key: (*key).to_owned(), called, returned, action });
            }
        }
        for (key, mut operations) in by_key {
            operations.sort_by_key(|operation| operation.called);
            if !is_linearizable(&operations, &revisions) {
                let told: Vec<String> = operations.iter().map(|o| format!("  {o:?}")).collect();
                return Err(format!("{key} has no order that explains it:\n{}", told.join("\n")));
            }
        }
        Ok(())
    }

    /// Returns the revision of each value, which must be the same wherever the value was seen, and of no
    /// other value.
    fn revisions_of_values(&self) -> Result<BTreeMap<String, i64>, String> {
        let mut seen: BTreeMap<String, i64> = BTreeMap::new();
        let mut note = |value: &str, revision: i64| match seen.insert(value.to_owned(), revision) {
            Some(other) if other != revision => {
                Err(format!("{value} was seen at revision {other} and at {revision}"))
            }
            _ => Ok(()),
        };
        for operation in &self.operations {
            match &operation.action {
                Action::Write { value: Some(value), outcome: Outcome::Done(Some(revision)), .. } => {
                    note(value, *revision)?;
                }
                Action::Write { outcome: Outcome::Refused(Some(Some((value, revision)))), .. }
                | Action::Read { found: Some((value, revision)), .. } => note(value, *revision)?,
                _ => {}
            }
        }
        for (value, revision) in self.listings.iter().flat_map(|listing| listing.found.values()) {
            note(value, *revision)?;
        }
        for (revision, (_, value)) in &self.events {
            value.as_ref().map_or(Ok(()), |value| note(value, *revision))?;
        }
        let mut owners = BTreeMap::new();
        for (value, revision) in &seen {
            if let Some(other) = owners.insert(*revision, value) {
                return Err(format!("revision {revision} is that of {other} and of {value}"));
            }
        }
        Ok(seen)
    }

    /// Checks that the watch delivered everything that was acknowledged or read, without gaps.
    fn check_events(&self) -> Result<(), String> {
        let mut next = self.gapless_after;
        for revision in self.events.keys() {
            if let Some(expected) = next.replace(*revision).filter(|_| self.gapless_after.is_some())
                && *revision != expected + 1
            {
                return Err(format!("the watch went from revision {expected} to {revision}"));
            }
        }
        let last = self.events.keys().next_back().copied().unwrap_or(0);
        for operation in &self.operations {
            let Action::Write { value, outcome: Outcome::Done(Some(revision)), .. } = &operation.action
            else {
                continue;
            };
            let wanted = (operation.key.clone(), value.clone());
            if *revision <= last && self.events.get(revision) != Some(&wanted) {
                let event = self.events.get(revision);
                return Err(format!("{wanted:?} was acknowledged at {revision}, the watch had {event:?}"));
            }
        }
        if self.gapless_after.is_none() {
            return Ok(());
        }
        let mut listings: Vec<&Listing> = self.listings.iter().filter(|l| l.revision <= last).collect();
        listings.sort_by_key(|listing| listing.revision);
        let (mut state, mut events) = (BTreeMap::new(), self.events.iter().peekable());
        for listing in listings {
            while let Some((revision, (key, value))) = events.next_if(|(at, _)| **at <= listing.revision) {
                match value {
                    Some(value) => state.insert(key.clone(), (value.clone(), *revision)),
                    None => state.remove(key),
                };
            }
            if state != listing.found {
                let (at, found) = (listing.revision, &listing.found);
                return Err(format!("a list at revision {at} has {found:?}, the watch gave {state:?}"));
            }
        }
        Ok(())
    }

    /// Checks that a call never returns an older revision than answers before it.
    fn check_order(&self) -> Result<(), String> {
        // For each moment, the newest revision that any client had seen. Answers sort before calls.
        let mut moments: Vec<(u64, bool, i64, bool)> = Vec::new();
        let mut note = |called: u64, returned: u64, revision: i64, wrote: bool| {
            moments.push((returned, false, revision, wrote));
            moments.push((called, true, revision, wrote));
        };
        for operation in &self.operations {
            match &operation.action {
                Action::Write { outcome: Outcome::Done(Some(revision)), .. } => {
                    note(operation.called, operation.returned, *revision, true);
                }
                Action::Read { revision: Some(revision), .. } => {
                    note(operation.called, operation.returned, *revision, false);
                }
                _ => {}
            }
        }
        for listing in &self.listings {
            note(listing.called, listing.returned, listing.revision, false);
        }
        moments.sort_unstable();
        let mut newest = 0;
        for (at, is_call, revision, wrote) in moments {
            if !is_call {
                newest = newest.max(revision);
            } else if revision < newest || wrote && revision == newest {
                return Err(format!(
                    "at {at} revision {newest} had been seen, what began then has {revision}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns `true` if the operations on one key, ordered by call, are linearizable.
fn is_linearizable(operations: &[Operation], revisions: &BTreeMap<String, i64>) -> bool {
    let mut tried = BTreeSet::new();
    let mut open = vec![(vec![0_u64; operations.len().div_ceil(64)], None::<String>)];
    while let Some((done, state)) = open.pop() {
        let is_done = |index: usize| done[index / 64] & (1 << (index % 64)) != 0;
        let left = || (0..operations.len()).filter(|index| !is_done(*index));
        // An unanswered operation need not have happened.
        if left().all(|index| operations[index].is_unanswered()) {
            return true;
        }
        let mut deadline = u64::MAX;
        for index in left() {
            let operation = &operations[index];
            if operation.called > deadline {
                break;
            }
            if !operation.is_unanswered() {
                deadline = deadline.min(operation.returned);
            }
            let Some(after) = operation.apply(state.as_deref(), revisions) else { continue };
            let mut next = done.clone();
            next[index / 64] |= 1 << (index % 64);
            if tried.insert((next.clone(), after.clone())) {
                open.push((next, after));
            }
        }
    }
    false
}

impl Operation {
    fn is_unanswered(&self) -> bool {
        matches!(self.action, Action::Write { outcome: Outcome::Unknown, .. })
    }

    /// Returns the state after the operation, or `None` if it is impossible in this state.
    fn apply(&self, state: Option<&str>, revisions: &BTreeMap<String, i64>) -> Option<Option<String>> {
        // A value that nobody saw has a revision that nobody can expect.
        let current = state.map(|value| revisions.get(value).copied().unwrap_or(-1));
        let is = |version: &Option<Version>| match (version, state) {
            (Some((value, revision)), Some(state)) => value == state && current == Some(*revision),
            (None, None) => true,
            _ => false,
        };
        match &self.action {
            Action::Read { found, .. } => is(found).then(|| state.map(str::to_owned)),
            Action::Write { expected, value, outcome } => {
                let matches = current.unwrap_or(0) == *expected;
                match outcome {
                    Outcome::Done(_) | Outcome::Unknown => matches.then(|| value.clone()),
                    Outcome::Refused(found) => {
                        let explained = !matches && found.as_ref().is_none_or(is);
                        explained.then(|| state.map(str::to_owned))
                    }
                }
            }
        }
    }
}

mod checked {
    use super::*;

    fn write(called: u64, returned: u64, expected: i64, value: &str, outcome: Outcome) -> Operation {
        let value = (!value.is_empty()).then(|| value.to_owned());
        let action = Action::Write { expected, value, outcome };
        Operation { key: "/a".to_owned(), called, returned, action }
    }

    fn read(called: u64, returned: u64, found: Option<(&str, i64)>, revision: i64) -> Operation {
        let found = found.map(|(value, at)| (value.to_owned(), at));
        let action = Action::Read { found, revision: Some(revision) };
        Operation { key: "/a".to_owned(), called, returned, action }
    }

    fn done(revision: i64) -> Outcome {
        Outcome::Done(Some(revision))
    }

    fn events(events: &[(i64, &str)]) -> BTreeMap<i64, (String, Option<String>)> {
        let value = |value: &str| (!value.is_empty()).then(|| value.to_owned());
        events.iter().map(|(at, text)| (*at, ("/a".to_owned(), value(text)))).collect()
    }

    fn linearizable() -> History {
        let operations = vec![
            write(1, 4, 0, "x", done(2)),
            read(2, 3, None, 1),
            read(5, 6, Some(("x", 2)), 2),
            write(7, 10, 2, "y", done(3)),
            write(8, 11, 2, "z", Outcome::Refused(Some(Some(("y".to_owned(), 3))))),
            write(12, 13, 3, "", Outcome::Unknown),
            read(14, 15, Some(("y", 3)), 3),
            read(16, 17, None, 4),
            write(18, 19, 0, "w", done(5)),
        ];
        let listings = vec![Listing {
            called: 20,
            returned: 21,
            revision: 5,
            found: [("/a".to_owned(), ("w".to_owned(), 5))].into(),
        }];
        let events = events(&[(2, "x"), (3, "y"), (4, ""), (5, "w")]);
        History { operations, listings, events, gapless_after: Some(1) }
    }

    #[test]
    fn a_linearizable_history_is_accepted() {
        linearizable().check().unwrap();
    }

    #[test]
    fn planted_violations_are_refused() {
        type Plant = fn(&mut History);
        let plants: [(&str, Plant); 12] = [
            ("a stale read", |h| h.operations[6] = read(14, 15, Some(("x", 2)), 3)),
            ("a read of what was not there yet", |h| h.operations[1] = read(2, 3, Some(("y", 3)), 3)),
            ("a lost write", |h| h.operations.push(read(22, 23, None, 5))),
            ("two winners", |h| h.operations[4] = write(8, 11, 2, "z", done(6))),
            ("a refusal without a reason", |h| {
                h.operations.push(write(22, 23, 5, "v", Outcome::Refused(Some(Some(("w".to_owned(), 5))))));
            }),
            ("a revision that went back", |h| h.operations.push(read(22, 23, Some(("w", 5)), 4))),
            ("a revision given twice", |h| h.operations.push(write(22, 23, 5, "v", done(5)))),
            ("a value at two revisions", |h| h.operations[2] = read(5, 6, Some(("x", 3)), 3)),
            ("an event left out", |h| drop(h.events.remove(&3))),
            ("an event of another value", |h| {
                drop(h.events.insert(3, ("/a".to_owned(), Some("v".to_owned()))))
            }),
            ("a list that misses a key", |h| h.listings[0].found.clear()),
            ("a deletion that nobody asked for", |h| {
                h.operations.truncate(4);
                h.listings.clear();
                h.operations.push(read(14, 15, None, 3));
            }),
        ];
        for (what, plant) in plants {
            let mut history = linearizable();
            plant(&mut history);
            assert!(history.check().is_err(), "{what} was accepted");
        }
    }
}
