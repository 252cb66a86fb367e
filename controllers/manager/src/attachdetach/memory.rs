//! The memory between two decisions about a volume: since when something has been waited for, and what was told. It is
//! lost with the process, after which the times begin anew.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::plan::{Place, View};

/// Something that a volume waits for on a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Attach,
    Detach,
}

/// Memory of one volume on one node.
#[derive(Default)]
struct Memory {
    waits: Option<(Wait, Instant)>,
    /// True if its pods were told that other nodes have the volume.
    is_told: bool,
    /// Version of the attachment that was asked for last, until the cache shows it.
    created: Option<u64>,
}

impl Memory {
    fn update(&mut self, view: &View, place: &mut Place, now: Instant) {
        let wait = match (view.is_wanted(place), place.is_taken()) {
            (true, _) => (place.attachment.is_some() && !place.is_attached()).then_some(Wait::Attach),
            (false, true) => Some(Wait::Detach),
            (false, false) => None,
        };
        self.waits = wait.map(|wait| match self.waits {
            Some((before, since)) if before == wait => (wait, since),
            _ => (wait, now),
        });
        place.waiting = self.waits.map(|(_, since)| now.duration_since(since)).unwrap_or_default();
    }
}

/// The memory of all volumes, by volume and node.
#[derive(Default)]
pub(super) struct Memories(Mutex<BTreeMap<String, BTreeMap<String, Memory>>>);

impl Memories {
    /// Sets the times of the places of a volume, and forgets other places. `is_shown` tells if the cache shows a
    /// version of an attachment.
    pub fn recall(&self, view: &mut View, now: Instant, is_shown: impl Fn(u64) -> bool) {
        let mut all = self.lock();
        let memories = all.entry(view.unique.clone()).or_default();
        let mut places = std::mem::take(&mut view.places);
        for (node, place) in &mut places {
            memories.entry(node.clone()).or_default().update(view, place, now);
        }
        view.places = places;
        memories.retain(|node, memory| {
            memory.created = memory.created.filter(|version| !is_shown(*version));
            memory.created.is_some() || view.places.contains_key(node)
        });
        if memories.is_empty() {
            all.remove(&view.unique);
        }
    }

    /// Begins a wait anew, as its end was reported.
    pub fn restart(&self, unique: &str, node: &str, now: Instant) {
        self.with(unique, node, |memory| memory.waits = memory.waits.map(|(wait, _)| (wait, now)));
    }

    /// Notes whether other nodes have the volume; returns `true` if the pods are to be told that they do.
    pub fn is_news(&self, unique: &str, node: &str, is_blocked: bool) -> bool {
        let mut is_news = false;
        self.with(unique, node, |memory| {
            is_news = is_blocked && !memory.is_told;
            memory.is_told = is_blocked;
        });
        is_news
    }

    /// Notes that an attachment was created, in this version.
    pub fn created(&self, unique: &str, node: &str, version: u64) {
        self.with(unique, node, |memory| memory.created = Some(version));
    }

    /// Notes that an attachment that the cache did not show does not exist.
    pub fn is_gone(&self, unique: &str, node: &str) {
        self.with(unique, node, |memory| memory.created = None);
    }

    /// Returns the nodes, other than `node`, whose attachment was created and has never been shown.
    pub fn unseen(&self, unique: &str, node: &str) -> Vec<String> {
        let all = self.lock();
        let memories = all.get(unique).into_iter().flatten();
        let unseen = memories.filter(|(other, memory)| *other != node && memory.created.is_some());
        unseen.map(|(other, _)| other.clone()).collect()
    }

    fn with(&self, unique: &str, node: &str, change: impl FnOnce(&mut Memory)) {
        if let Some(memory) = self.lock().get_mut(unique).and_then(|nodes| nodes.get_mut(node)) {
            change(memory);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, Memory>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
