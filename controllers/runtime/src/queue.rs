//! A queue of keys. Each key is queued at most once, and processed by at most one worker at a time.
//!
//! ```text
//!            add                     next                 Job dropped
//!  ───────────────────▶ ready ───────────────▶ running ───────────────▶ (gone)
//!  add_after, retry ▶ delayed ─due─▶ ready        │ added meanwhile: back to ready
//! ```
//!
//! Keys whose last attempt has failed have a line of their own, which moves slower than that of the others, and hold at
//! most half of the workers: however many objects are broken, and even if each attempt at them hangs, those that are not
//! do not wait for their retries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::durations::Durations;
use crate::limits::{
    COSTLY, FAILED_SHARE, FAILED_WORKERS, MAX_BACKOFF, MIN_BACKOFF, READY_ROOM, REST, UNSEEN_WRITE,
};

/// Exponential back-off: `min`, `2 min`, `4 min`, … up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { min: MIN_BACKOFF, max: MAX_BACKOFF }
    }
}

impl Backoff {
    /// Returns the delay after `failures` earlier failures.
    pub fn pause(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.min.saturating_mul(factor).min(self.max)
    }
}

/// Counters of a queue since its creation, and its current depth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueMetrics {
    /// Number of keys that became ready (adding a key that is already ready does not count).
    pub adds: u64,
    /// Number of calls of [`WorkQueue::retry`].
    pub retries: u64,
    /// Number of keys handed to workers.
    pub taken: u64,
    /// Number of keys that are ready.
    pub depth: usize,
    /// Number of delayed keys.
    pub delayed: usize,
    /// Number of keys being processed.
    pub running: usize,
    /// Number of those whose attempt before had failed.
    pub retrying: usize,
    /// Times that keys waited for a worker.
    pub waits: Durations,
    /// Times that keys were processed.
    pub work: Durations,
    /// Parts of these times in which the worker computed, and did not wait for answers.
    pub computing: Durations,
    /// Sum of the times for which the keys that are running have been processed.
    pub unfinished: Duration,
    /// The longest of these times.
    pub longest: Duration,
}

/// A queue of keys. Clones share it. Keys come out in the order in which they became ready, and those that have failed
/// after those that have not; but each [`FAILED_SHARE`]th that comes out is one that has failed, if there is one. Keys
/// that have failed hold at most half of the workers at a time, or one if there is but one worker.
///
/// It contains each distinct key at most a handful of times (ready, delayed, failed, running), so its memory
/// is bounded by the number of objects.
pub struct WorkQueue<K>(Arc<Shared<K>>);

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<K> {
    name: &'static str,
    backoff: Backoff,
    state: Mutex<State<K>>,
    /// Wakes one waiting worker; a worker that leaves further keys behind wakes the next.
    wake: Notify,
}

struct State<K> {
    /// Keys to hand out, oldest first: those that have not failed.
    ready: VecDeque<K>,
    /// Keys to hand out, oldest first: those that had failed when they were added.
    failed: VecDeque<K>,
    /// Keys that need to be processed, with the time since when: those that are ready, and those added while they were
    /// running.
    dirty: BTreeMap<K, Instant>,
    /// Keys that are processed, with the time since when.
    running: BTreeMap<K, Instant>,
    /// Those of them whose attempt before had failed. An attempt that hangs holds its worker, so that their number is
    /// bounded, not only their turns.
    retrying: BTreeSet<K>,
    /// Number of workers, once some are known.
    workers: usize,
    /// Keys by due time; the number keeps those with equal times in order of arrival.
    delayed: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    next_number: u64,
    failures: BTreeMap<K, u32>,
    /// Numbers of looks at caches that were behind.
    looks: BTreeMap<K, u32>,
    /// Keys that rest, with the times until which.
    rests: BTreeMap<K, Instant>,
    shut_down: bool,
    adds: u64,
    retries: u64,
    taken: u64,
    waits: Durations,
    work: Durations,
    computing: Durations,
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// Creates an empty queue. `name` is used in log messages.
    pub fn new(name: &'static str) -> Self {
        Self::with_backoff(name, Backoff::default())
    }

    pub fn with_backoff(name: &'static str, backoff: Backoff) -> Self {
        let state = State {
            ready: VecDeque::new(),
            failed: VecDeque::new(),
            dirty: BTreeMap::new(),
            running: BTreeMap::new(),
            retrying: BTreeSet::new(),
            workers: 0,
            delayed: BTreeMap::new(),
            due: BTreeMap::new(),
            next_number: 0,
            failures: BTreeMap::new(),
            looks: BTreeMap::new(),
            rests: BTreeMap::new(),
            shut_down: false,
            adds: 0,
            retries: 0,
            taken: 0,
            waits: Durations::default(),
            work: Durations::default(),
            computing: Durations::default(),
        };
        Self(Arc::new(Shared { name, backoff, state: Mutex::new(state), wake: Notify::new() }))
    }

    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Notes that there are so many workers more. Without any, as in tests, all keys may be retried at the same time.
    pub fn add_workers(&self, workers: usize) {
        self.lock().workers += workers;
    }

    /// Adds a key. Never blocks, so watch handlers may call it.
    pub fn add(&self, key: K) {
        let woken = self.lock().add(key, Instant::now());
        if woken {
            self.0.wake.notify_one();
        }
    }

    /// Adds a key after `delay`. If an earlier time is already set for the key, that is kept.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay;
        if self.lock().delay(key, at) {
            // A waiting worker may be sleeping until a later time.
            self.0.wake.notify_one();
        }
    }

    /// Adds a key again after its processing failed, after a delay that doubles with each retry that fails, and returns
    /// the delay. Failures of attempts that events have caused before the next retry is due do not count: in a minute of
    /// failures with many events, the delay grows to about a minute, and not to [`MAX_BACKOFF`].
    pub fn retry(&self, key: K) -> Duration {
        let pause = {
            let mut state = self.lock();
            state.retries += 1;
            let failures = state.failures.get(&key).copied().unwrap_or(0);
            let is_due_later = state.due.get(&key).is_some_and(|(due, _)| *due > Instant::now());
            let is_early = failures > 0 && is_due_later;
            let failures = if is_early { failures } else { failures.saturating_add(1) };
            state.failures.insert(key.clone(), failures);
            self.0.backoff.pause(failures - 1)
        };
        self.add_after(key, pause);
        pause
    }

    /// Adds a key again whose cache is behind, after a delay that doubles each time up to [`UNSEEN_WRITE`].
    pub fn look_again(&self, key: K) {
        let pause = {
            let mut state = self.lock();
            let looks = state.looks.entry(key.clone()).or_insert(0);
            let pause = self.0.backoff.pause(*looks).min(UNSEEN_WRITE);
            *looks = looks.saturating_add(1);
            pause
        };
        self.add_after(key, pause);
    }

    /// Resets the back-off of a key after success, or if a retry is pointless.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        state.failures.remove(key);
        state.looks.remove(key);
    }

    /// Returns the number of consecutive failures of a key.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Waits for a key. It counts as running until the job is dropped; if it is added in the meantime, it is
    /// returned again afterwards. Returns `None` once the queue is shut down.
    pub async fn next(&self) -> Option<Job<K>> {
        loop {
            let earliest = {
                let mut state = self.lock();
                if state.shut_down {
                    // Other waiting workers must notice the shutdown as well.
                    self.0.wake.notify_one();
                    return None;
                }
                let now = Instant::now();
                state.promote(now);
                if let Some(key) = state.take(now) {
                    if state.depth() > 0 || !state.delayed.is_empty() {
                        self.0.wake.notify_one();
                    }
                    return Some(Job { key, queue: self.clone(), computing: Duration::ZERO });
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            let notified = self.0.wake.notified();
            match earliest {
                Some(at) => {
                    tokio::select! {
                        () = notified => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => notified.await,
            }
        }
    }

    /// Accepts no more keys and ends all waits.
    pub fn shut_down(&self) {
        self.lock().shut_down = true;
        self.0.wake.notify_one();
    }

    pub fn metrics(&self) -> QueueMetrics {
        let (state, now) = (self.lock(), Instant::now());
        let ages = || state.running.values().map(|since| now.saturating_duration_since(*since));
        QueueMetrics {
            adds: state.adds,
            retries: state.retries,
            taken: state.taken,
            depth: state.depth(),
            delayed: state.delayed.len(),
            running: state.running.len(),
            retrying: state.retrying.len(),
            waits: state.waits.clone(),
            work: state.work.clone(),
            computing: state.computing.clone(),
            unfinished: ages().sum(),
            longest: ages().max().unwrap_or_default(),
        }
    }

    /// Returns `true` if no key is ready, delayed or running.
    pub fn is_idle(&self) -> bool {
        let metrics = self.metrics();
        metrics.depth + metrics.delayed + metrics.running == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> State<K> {
    /// Returns `true` if a worker should be woken.
    fn add(&mut self, key: K, now: Instant) -> bool {
        if self.shut_down || self.dirty.contains_key(&key) {
            return false;
        }
        if let Some(until) = self.rests.get(&key).copied().filter(|until| *until > now) {
            return self.delay(key, until);
        }
        self.dirty.insert(key.clone(), now);
        self.adds += 1;
        if self.running.contains_key(&key) {
            return false;
        }
        self.push(key);
        true
    }

    fn push(&mut self, key: K) {
        let line = if self.failures.contains_key(&key) { &mut self.failed } else { &mut self.ready };
        line.push_back(key);
    }

    /// Returns the number of keys that are ready.
    fn depth(&self) -> usize {
        self.ready.len() + self.failed.len()
    }

    /// Returns `true` if this is now the earliest due time.
    fn delay(&mut self, key: K, at: Instant) -> bool {
        if self.shut_down {
            return false;
        }
        if let Some(known) = self.due.get(&key).copied() {
            if known.0 <= at {
                return false;
            }
            self.delayed.remove(&known);
        }
        let slot = (at, self.next_number);
        self.next_number += 1;
        self.due.insert(key.clone(), slot);
        self.delayed.insert(slot, key);
        self.delayed.keys().next() == Some(&slot)
    }

    /// Moves keys that are due to the ready keys.
    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key, now);
        }
    }

    /// Returns `true` if a further key that has failed may be taken.
    fn may_retry(&self) -> bool {
        self.workers == 0 || self.retrying.len() < (self.workers / FAILED_WORKERS).max(1)
    }

    /// Takes the next key of the line whose turn it is, or else of the other.
    fn pop(&mut self) -> Option<K> {
        let is_their_turn = (self.taken + 1).is_multiple_of(FAILED_SHARE);
        let failed = self.may_retry() && (is_their_turn || self.ready.is_empty());
        let failed = failed.then(|| self.failed.pop_front()).flatten();
        if let Some(key) = &failed {
            self.retrying.insert(key.clone());
        }
        failed.or_else(|| self.ready.pop_front())
    }

    fn take(&mut self, now: Instant) -> Option<K> {
        let key = self.pop()?;
        for keys in [&mut self.ready, &mut self.failed] {
            if keys.is_empty() && keys.capacity() > READY_ROOM {
                // Most queues never again need the room that a burst took.
                *keys = VecDeque::new();
            }
        }
        if let Some(since) = self.dirty.remove(&key) {
            self.waits.observe(now.saturating_duration_since(since));
        }
        self.running.insert(key.clone(), now);
        self.taken += 1;
        Some(key)
    }

    /// Returns `true` if a worker should be woken.
    fn done(&mut self, key: &K, computing: Duration, now: Instant) -> bool {
        let since = self.running.remove(key).unwrap_or(now);
        self.work.observe(now.saturating_duration_since(since));
        self.computing.observe(computing);
        // Another key that has failed may have waited for its end.
        let makes_room = self.retrying.remove(key) && !self.failed.is_empty();
        let until = since + computing * REST;
        let rests = computing >= COSTLY && until > now;
        if rests {
            self.rests.retain(|_, until| *until > now);
            self.rests.insert(key.clone(), until);
        }
        if !self.dirty.contains_key(key) || self.shut_down {
            return makes_room;
        }
        if rests {
            self.dirty.remove(key);
            return self.delay(key.clone(), until) || makes_room;
        }
        self.push(key.clone());
        true
    }
}

/// A key that is being processed. Dropping it ends the processing, even if the worker is cancelled.
pub struct Job<K: Ord + Clone> {
    key: K,
    queue: WorkQueue<K>,
    computing: Duration,
}

impl<K: Ord + Clone> Job<K> {
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Notes the time for which the worker computed, without the time in which it waited for answers.
    pub fn computed(&mut self, time: Duration) {
        self.computing = time;
    }
}

impl<K: Ord + Clone> Drop for Job<K> {
    fn drop(&mut self) {
        let woken = self.queue.lock().done(&self.key, self.computing, Instant::now());
        if woken {
            self.queue.0.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
