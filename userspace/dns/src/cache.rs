//! The cache of forwarded answers: positive and negative ones apart, so that a flood of made-up names does
//! not push out the names in use. Bounded by entries and bytes; the clock algorithm chooses what goes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use userspace_daemon::metrics::Counter;

use crate::forward::{Question, Reply};
use crate::limits;
use crate::name::NAME_LENGTH;

/// Number of parts with locks of their own.
const SHARDS: usize = 16;
/// Bytes that an entry takes beside its key and message.
const OVERHEAD: usize = 160;

/// Settings of a cache, as CoreDNS' plugin `cache` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    pub success: Lifetimes,
    pub denial: Lifetimes,
    pub prefetch: Option<Prefetch>,
    pub stale: Option<Stale>,
    /// Longest lifetime of failures; zero to cache none.
    pub failure_ttl: u32,
}

/// Capacity and bounds on lifetimes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    pub capacity: usize,
    pub max: u32,
    pub min: u32,
}

/// Renewal of popular answers shortly before they expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// Number of hits from which on an answer is popular.
    pub amount: u32,
    /// Longest time between two hits that count.
    pub duration: Duration,
    /// Rest of the lifetime, in percent, from which on the answer is renewed.
    pub percentage: u32,
}

/// Use of answers that have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Time after expiry.
    pub duration: Duration,
    /// Ask the upstream first, and use the old answer if that fails.
    pub verify: bool,
}

impl Default for CacheSettings {
    fn default() -> Self {
        let lifetimes = |max| Lifetimes { capacity: limits::CACHE_ENTRIES, max, min: limits::MIN_TTL };
        Self {
            success: lifetimes(limits::MAX_TTL),
            denial: lifetimes(limits::MAX_DENIAL_TTL),
            prefetch: None,
            stale: None,
            failure_ttl: limits::FAILURE_TTL,
        }
    }
}

/// The outcome of a look-up.
#[derive(Clone, Debug)]
pub struct Hit {
    pub reply: Arc<Reply>,
    /// Seconds for which the answer is valid, at most; zero for one that expired.
    pub left: u32,
    /// The answer is to be asked for again, for others.
    pub refresh: bool,
    /// The answer has expired, and is used only if the upstream fails.
    pub verify: bool,
}

/// Figures of a cache.
#[derive(Debug, Default)]
pub struct CacheMetrics {
    pub success_hits: Counter,
    pub denial_hits: Counter,
    pub misses: Counter,
    pub prefetches: Counter,
    pub stale: Counter,
    pub evictions: Counter,
}

/// The cache of one rule.
#[derive(Debug)]
pub struct Cache {
    pub settings: CacheSettings,
    pub metrics: CacheMetrics,
    hasher: RandomState,
    success: Vec<Mutex<Shard>>,
    denial: Vec<Mutex<Shard>>,
}

/// Name, type and wish for DNSSEC as bytes, without an allocation.
pub struct Key {
    bytes: [u8; NAME_LENGTH + 3],
    length: usize,
}

impl Key {
    pub fn new(question: &Question) -> Self {
        let (mut bytes, name) = ([0; NAME_LENGTH + 3], question.name.bytes());
        bytes[..2].copy_from_slice(&question.kind.to_be_bytes());
        bytes[2] = question.dnssec.into();
        bytes[3..3 + name.len()].copy_from_slice(name);
        Self { bytes, length: name.len() + 3 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Arc<[u8]>, usize>,
    entries: Vec<Entry>,
    /// Next entry that may go.
    hand: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    key: Arc<[u8]>,
    reply: Arc<Reply>,
    lifetime: u32,
    stored: Instant,
    /// It was used since the hand passed.
    used: bool,
    hits: u32,
    last_hit: Instant,
    /// A renewal is under way.
    renewing: bool,
    /// Failures in a row: of this entry if it is one itself, or of its renewals since it has expired.
    failures: u32,
    /// The time of the last one, and the time before which nobody is to ask again.
    failed: Option<(Instant, Instant)>,
}

impl Entry {
    fn new(key: &Key, reply: &Arc<Reply>, lifetime: u32, now: Instant) -> Self {
        Self {
            key: key.bytes().into(),
            reply: Arc::clone(reply),
            lifetime,
            stored: now,
            used: false,
            hits: 0,
            last_hit: now,
            renewing: false,
            failures: 0,
            failed: None,
        }
    }

    /// Counts a failure. Returns the seconds for which nobody is to ask again: more from failure to failure.
    fn fail(&mut self, longest: u32, now: Instant) -> u32 {
        let recent = |at| now.saturating_duration_since(at) < limits::FAILURE_MEMORY;
        let before = if self.failed.is_some_and(|(at, _)| recent(at)) { self.failures } else { 0 };
        self.failures = before.saturating_add(1);
        let pause = 1_u32.checked_shl(before).unwrap_or(longest).min(longest);
        self.failed = Some((now, now + Duration::from_secs(pause.into())));
        pause
    }

    /// Returns `true` while the entry may be served although it has expired.
    fn is_stale(&self, settings: &CacheSettings, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.stored);
        let lifetime = Duration::from_secs(self.lifetime.into());
        let window = settings.stale.map_or(Duration::ZERO, |stale| stale.duration);
        !self.reply.is_failure() && age < lifetime + window
    }

    fn size(&self) -> usize {
        self.key.len() + self.reply.message.len() + OVERHEAD
    }
}

impl Cache {
    pub fn new(settings: CacheSettings) -> Self {
        let shards = || (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            settings,
            metrics: CacheMetrics::default(),
            hasher: RandomState::new(),
            success: shards(),
            denial: shards(),
        }
    }

    /// Looks an answer up.
    pub fn get(&self, question: &Question, now: Instant) -> Option<Hit> {
        let key = Key::new(question);
        let at = self.shard(&key);
        for (shards, hits) in
            [(&self.success, &self.metrics.success_hits), (&self.denial, &self.metrics.denial_hits)]
        {
            if let Some(hit) = lock(&shards[at]).get(key.bytes(), &self.settings, now) {
                hits.add(1);
                if hit.left == 0 && !hit.verify {
                    self.metrics.stale.add(1);
                } else if hit.refresh {
                    self.metrics.prefetches.add(1);
                }
                return Some(hit);
            }
        }
        self.metrics.misses.add(1);
        None
    }

    /// Stores an answer, if it may be cached. Returns its lifetime in seconds.
    pub fn put(&self, question: &Question, reply: &Arc<Reply>, now: Instant) -> Option<u32> {
        let key = Key::new(question);
        if reply.is_failure() {
            return self.put_failure(&key, reply, now);
        }
        let at = self.shard(&key);
        let lifetime = self.lifetime(reply);
        let (here, there, lifetimes) = if reply.is_negative() {
            (&self.denial, &self.success, self.settings.denial)
        } else {
            (&self.success, &self.denial, self.settings.success)
        };
        lock(&there[at]).remove(key.bytes());
        if reply.message.len() > limits::CACHED_ANSWER {
            return Some(lifetime);
        }
        let entry = Entry::new(&key, reply, lifetime, now);
        let evicted = lock(&here[at]).put(entry, lifetimes.capacity.div_ceil(SHARDS));
        self.metrics.evictions.add(evicted);
        Some(lifetime)
    }

    /// Remembers a failure (RFC 9520): with an answer that may still be served although it has expired, or in its
    /// place. Returns the seconds for which nobody asks again.
    fn put_failure(&self, key: &Key, reply: &Arc<Reply>, now: Instant) -> Option<u32> {
        let (at, longest) = (self.shard(key), self.settings.failure_ttl);
        if longest == 0 {
            return None;
        }
        for shards in [&self.success, &self.denial] {
            let mut shard = lock(&shards[at]);
            let Some(entry) = shard.entry(key) else { continue };
            if entry.is_stale(&self.settings, now) {
                return Some(entry.fail(longest, now));
            }
        }
        let mut entry = Entry::new(key, reply, 0, now);
        let mut shard = lock(&self.denial[at]);
        if let Some(old) = shard.entry(key).filter(|old| old.reply.is_failure()) {
            (entry.failures, entry.failed) = (old.failures, old.failed);
        }
        entry.lifetime = entry.fail(longest, now);
        let lifetime = entry.lifetime;
        self.metrics.evictions.add(shard.put(entry, self.settings.denial.capacity.div_ceil(SHARDS)));
        Some(lifetime)
    }

    /// Allows another renewal of an entry, after one that did not replace it.
    pub fn renewal_ended(&self, question: &Question) {
        let key = Key::new(question);
        let at = self.shard(&key);
        for shards in [&self.success, &self.denial] {
            if let Some(entry) = lock(&shards[at]).entry(&key) {
                entry.renewing = false;
            }
        }
    }

    /// Returns the numbers of positive and of negative entries.
    pub fn len(&self) -> (usize, usize) {
        let count = |shards: &[Mutex<Shard>]| shards.iter().map(|shard| lock(shard).entries.len()).sum();
        (count(&self.success), count(&self.denial))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    fn lifetime(&self, reply: &Reply) -> u32 {
        let negative = reply.is_negative();
        let lifetimes = if negative { self.settings.denial } else { self.settings.success };
        reply.ttl.unwrap_or(0).max(lifetimes.min).min(lifetimes.max)
    }

    fn shard(&self, key: &Key) -> usize {
        self.hasher.hash_one(key.bytes()) as usize % SHARDS
    }
}

impl Shard {
    fn get(&mut self, key: &[u8], settings: &CacheSettings, now: Instant) -> Option<Hit> {
        let slot = *self.slots.get(key)?;
        let entry = &mut self.entries[slot];
        let age = now.saturating_duration_since(entry.stored);
        let lifetime = Duration::from_secs(entry.lifetime.into());
        let failed = entry.failed.is_some_and(|(_, until)| now < until);
        let (mut left, mut refresh, mut verify) = (lifetime.saturating_sub(age), false, false);
        if left.is_zero() {
            let stale = settings.stale.filter(|_| entry.is_stale(settings, now))?;
            verify = stale.verify && !failed;
            refresh = !stale.verify;
            left = Duration::ZERO;
        } else if let Some(prefetch) = settings.prefetch {
            let recent = now.saturating_duration_since(entry.last_hit) <= prefetch.duration;
            entry.hits = if recent { entry.hits.saturating_add(1) } else { 1 };
            refresh = entry.hits >= prefetch.amount
                && left.as_millis() * 100 <= lifetime.as_millis() * u128::from(prefetch.percentage);
        }
        entry.last_hit = now;
        entry.used = true;
        refresh &= !entry.renewing && !failed;
        entry.renewing |= refresh;
        let left = left.as_millis().div_ceil(1000) as u32;
        Some(Hit { reply: Arc::clone(&entry.reply), left, refresh, verify })
    }

    fn entry(&mut self, key: &Key) -> Option<&mut Entry> {
        let slot = *self.slots.get(key.bytes())?;
        Some(&mut self.entries[slot])
    }

    /// Stores an entry and returns the number of those that had to go.
    fn put(&mut self, entry: Entry, capacity: usize) -> u64 {
        self.remove(&entry.key);
        let budget = limits::CACHE_BYTES / SHARDS;
        let mut evicted = 0;
        while !self.entries.is_empty()
            && (self.entries.len() >= capacity.max(1) || self.bytes + entry.size() > budget)
        {
            self.evict();
            evicted += 1;
        }
        self.bytes += entry.size();
        self.slots.insert(Arc::clone(&entry.key), self.entries.len());
        self.entries.push(entry);
        evicted
    }

    fn evict(&mut self) {
        loop {
            self.hand %= self.entries.len();
            let entry = &mut self.entries[self.hand];
            if !std::mem::take(&mut entry.used) {
                let key = Arc::clone(&entry.key);
                self.remove(&key);
                // The last entry has taken this place, and would be the next to go.
                self.hand += 1;
                return;
            }
            self.hand += 1;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let Some(slot) = self.slots.remove(key) else { return };
        let entry = self.entries.swap_remove(slot);
        self.bytes -= entry.size();
        if let Some(moved) = self.entries.get(slot) {
            self.slots.insert(Arc::clone(&moved.key), slot);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use crate::wire;

    fn reply(code: u8, ttl: Option<u32>, answers: u16) -> Arc<Reply> {
        let message = vec![0; 100].into_boxed_slice();
        Arc::new(Reply {
            message,
            counts: [answers, 0, 0],
            code,
            authentic: false,
            echoed: true,
            empty: answers == 0,
            ttl,
        })
    }

    /// The question for the addresses of a name.
    fn name(number: usize) -> Question {
        let name = Name::parse(&format!("n{number}.example.org")).unwrap();
        Question { name, kind: wire::A, dnssec: false }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn answers_expire_within_the_bounds_on_their_lifetime() {
        let cache = Cache::new(CacheSettings::default());
        let now = Instant::now();
        let cases = [
            (0, Some(30), 1, 30),
            (0, Some(0), 1, 5),
            (0, Some(9_000), 1, 3_600),
            (3, Some(9_000), 0, 1_800),
            (3, None, 0, 5),
            (2, None, 0, 1),
            (wire::REFUSED, None, 0, 1),
        ];
        for (number, (code, ttl, answers, expected)) in cases.into_iter().enumerate() {
            cache.put(&name(number), &reply(code, ttl, answers), now);
            let left = |at| cache.get(&name(number), at).map(|hit| hit.left);
            assert_eq!(left(now), Some(expected), "{number}");
            assert_eq!(left(now + seconds(1)), Some(expected - 1).filter(|left| *left > 0));
            assert_eq!(left(now + seconds(u64::from(expected))), None);
            assert!(cache.get(&Question { kind: wire::AAAA, ..name(number) }, now).is_none());
            assert!(cache.get(&Question { dnssec: true, ..name(number) }, now).is_none());
        }
        assert_eq!(cache.len(), (3, 4));
    }

    #[test]
    fn a_newer_answer_of_the_other_sort_takes_the_place() {
        let cache = Cache::new(CacheSettings::default());
        let now = Instant::now();
        cache.put(&name(1), &reply(3, Some(60), 0), now);
        cache.put(&name(1), &reply(0, Some(60), 1), now);
        assert_eq!(cache.len(), (1, 0));
        cache.put(&name(1), &reply(3, Some(60), 0), now);
        assert_eq!(cache.len(), (0, 1));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let lifetimes = Lifetimes { capacity: 64, max: 3_600, min: 5 };
        let cache = Cache::new(CacheSettings { success: lifetimes, ..CacheSettings::default() });
        let now = Instant::now();
        for number in 0..1_000 {
            cache.put(&name(number), &reply(0, Some(60), 1), now);
            assert!(number < 3 || cache.get(&name(0), now).is_some(), "{number}");
        }
        assert!(cache.len().0 <= 64, "{:?}", cache.len());
        for number in 0..100 {
            let big = Reply { message: vec![0; 8_000].into(), ..Reply::clone(&reply(0, Some(60), 1)) };
            cache.put(&Question { kind: wire::AAAA, ..name(number) }, &Arc::new(big), now);
        }
        let bytes: usize = cache.success.iter().map(|shard| lock(shard).bytes).sum();
        assert!(bytes <= limits::CACHE_BYTES);
        let huge = Reply { message: vec![0; 9_000].into(), ..Reply::clone(&reply(0, Some(60), 1)) };
        cache.put(&name(5_000), &Arc::new(huge), now);
        assert!(cache.get(&name(5_000), now).is_none());
        assert!(cache.metrics.evictions.value() > 900);
    }

    #[test]
    fn popular_answers_are_renewed_once_before_they_expire() {
        let prefetch = Prefetch { amount: 2, duration: seconds(60), percentage: 10 };
        let cache = Cache::new(CacheSettings { prefetch: Some(prefetch), ..CacheSettings::default() });
        let now = Instant::now();
        cache.put(&name(1), &reply(0, Some(100), 1), now);
        let refresh = |after| cache.get(&name(1), now + seconds(after)).unwrap().refresh;
        assert!(!refresh(40) && !refresh(50), "it has long to live");
        assert!(refresh(91), "it is popular and about to expire");
        assert!(!refresh(92), "a renewal is under way");
        cache.renewal_ended(&name(1));
        assert!(refresh(93));
        cache.put(&name(1), &reply(0, Some(100), 1), now + seconds(93));
        assert!(!refresh(95));
    }

    #[test]
    fn expired_answers_are_served_if_configured() {
        for verify in [false, true] {
            let stale = Stale { duration: seconds(600), verify };
            let cache = Cache::new(CacheSettings { stale: Some(stale), ..CacheSettings::default() });
            let now = Instant::now();
            cache.put(&name(1), &reply(0, Some(10), 1), now);
            let hit = cache.get(&name(1), now + seconds(11)).unwrap();
            assert_eq!((hit.left, hit.refresh, hit.verify), (0, !verify, verify));
            // A failure of the upstream does not replace the old answer.
            cache.put(&name(1), &reply(2, None, 0), now + seconds(11));
            assert!(!cache.get(&name(1), now + seconds(12)).unwrap().reply.is_negative());
            assert!(cache.get(&name(1), now + seconds(620)).is_none());
        }
    }
    #[test]
    fn failures_are_remembered_longer_from_one_to_the_next() {
        let cache = Cache::new(CacheSettings::default());
        let (mut now, failure) = (Instant::now(), Arc::new(Reply::failure(&name(1))));
        for expected in [1, 2, 4, 5, 5] {
            assert_eq!(cache.put(&name(1), &failure, now), Some(expected));
            let hit = cache.get(&name(1), now).unwrap();
            assert_eq!((hit.left, hit.reply.code), (expected, wire::SERVER_FAILURE));
            now += seconds(expected.into());
            assert!(cache.get(&name(1), now).is_none());
        }
        now += limits::FAILURE_MEMORY;
        assert_eq!(cache.put(&name(1), &failure, now), Some(1), "it is forgotten");
        cache.put(&name(1), &reply(0, Some(60), 1), now);
        assert_eq!(cache.put(&name(1), &reply(wire::REFUSED, None, 0), now + seconds(60)), Some(1));
        let never = Cache::new(CacheSettings { failure_ttl: 0, ..CacheSettings::default() });
        assert_eq!(never.put(&name(1), &failure, now), None);
        assert!(never.get(&name(1), now).is_none());
    }

    #[test]
    fn a_failure_makes_an_expired_answer_served_at_once_and_is_never_served_after_its_time() {
        for (verify, code) in [(false, 0), (true, 0), (true, wire::NAME_ERROR)] {
            let stale = Stale { duration: seconds(600), verify };
            let cache = Cache::new(CacheSettings { stale: Some(stale), ..CacheSettings::default() });
            let (now, failure) = (Instant::now(), Arc::new(Reply::failure(&name(1))));
            cache.put(&name(1), &reply(code, Some(10), u16::from(code == 0)), now);
            cache.put(&name(1), &failure, now + seconds(11));
            let hit = |at| cache.get(&name(1), now + seconds(at)).unwrap();
            let before = hit(11);
            assert_eq!(
                (before.reply.code, before.left, before.refresh, before.verify),
                (code, 0, false, false)
            );
            assert_eq!((hit(12).refresh, hit(12).verify), (!verify, verify), "it is time to ask again");
            cache.put(&name(2), &failure, now);
            assert!(cache.get(&name(2), now + seconds(1)).is_none());
        }
    }
}
