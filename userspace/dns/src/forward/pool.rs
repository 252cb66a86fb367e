//! The upstreams of one rule: which is asked first, and which are down.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use tokio::time::Instant;
use tracing::debug;
use userspace_daemon::metrics::{Counter, Family, Histogram};

use super::exchange::{ExchangeError, Link, exchange};
use super::question::Question;
use super::reply::Reply;
use super::tls::{Tls, TlsSettings};
use crate::buckets::SECONDS;
use crate::limits;
use crate::wire;

/// The order in which upstreams are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Random,
    RoundRobin,
    Sequential,
}

/// Settings of a pool, as CoreDNS' plugin `forward` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    pub policy: Policy,
    pub force_tcp: bool,
    /// Failures in a row after which an upstream is asked last; 0 for never.
    pub max_fails: u32,
    /// Maximum number of questions under way; 0 for the limit of the server alone.
    pub max_concurrent: usize,
    /// TLS of the upstreams that are asked by it.
    pub tls: TlsSettings,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            force_tcp: false,
            max_fails: limits::MAX_FAILS,
            max_concurrent: 0,
            tls: TlsSettings::default(),
        }
    }
}

/// A server that questions are forwarded to.
#[derive(Debug)]
pub struct Upstream {
    pub address: SocketAddr,
    /// It is asked by TLS.
    pub tls: Option<Arc<Tls>>,
    fails: AtomicU32,
    failed: Mutex<Option<Instant>>,
    /// The time at which it was found not to repeat the case of questions.
    unlike: Mutex<Option<Instant>>,
    /// Questions that are sent to it come back to us.
    loops: AtomicBool,
    /// It was found out whether they do.
    checked: AtomicBool,
}

impl Upstream {
    pub fn new(address: SocketAddr, tls: Option<Arc<Tls>>) -> Arc<Self> {
        Arc::new(Self {
            address,
            tls,
            fails: AtomicU32::new(0),
            failed: Mutex::default(),
            unlike: Mutex::default(),
            loops: AtomicBool::new(false),
            checked: AtomicBool::new(false),
        })
    }

    /// Records that questions come back from it, or do so no longer. Returns the earlier state.
    pub fn set_loops(&self, loops: bool) -> bool {
        self.loops.swap(loops, Ordering::Relaxed)
    }

    pub fn loops(&self) -> bool {
        self.loops.load(Ordering::Relaxed)
    }

    /// Returns `true` until it is known whether questions come back, and while they do.
    pub fn needs_check(&self) -> bool {
        !self.checked.load(Ordering::Relaxed) || self.loops()
    }

    /// Records that it is known.
    pub fn checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if answers have to repeat the case of the question: unless it was found lately that they
    /// do not.
    fn repeats_case(&self, now: Instant) -> bool {
        let unlike = *self.unlike.lock().unwrap_or_else(PoisonError::into_inner);
        unlike.is_none_or(|at| now.saturating_duration_since(at) >= limits::LOWER_CASE)
    }

    fn set_unlike(&self, now: Instant) {
        *self.unlike.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn is_down(&self, max_fails: u32, now: Instant) -> bool {
        let failed = || *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        max_fails > 0
            && self.fails.load(Ordering::Relaxed) >= max_fails
            && failed().is_some_and(|at| now.saturating_duration_since(at) < limits::DOWN)
    }

    /// Records the outcome of a question. Returns `true` if the upstream has just gone down.
    fn record(&self, answered: bool, max_fails: u32, now: Instant) -> bool {
        if answered {
            self.fails.store(0, Ordering::Relaxed);
            return false;
        }
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.fails.fetch_add(1, Ordering::Relaxed).saturating_add(1) == max_fails
    }
}

/// Figures of all pools, under CoreDNS' names.
#[derive(Debug)]
pub struct ForwardMetrics {
    /// By upstream.
    pub requests: Family<1, Counter>,
    /// By upstream and response code.
    pub responses: Family<2, Counter>,
    /// By upstream and response code, in seconds.
    pub durations: Family<2, Histogram>,
    /// By upstream.
    pub went_down: Family<1, Counter>,
    pub all_down: Counter,
    pub rejected: Counter,
    /// Datagrams that were not the answer, by upstream: forged ones, and late ones.
    pub wrong: Family<1, Counter>,
}

impl Default for ForwardMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            responses: Family::default(),
            durations: Family::new(|| Histogram::new(&SECONDS)),
            went_down: Family::default(),
            all_down: Counter::default(),
            rejected: Counter::default(),
            wrong: Family::default(),
        }
    }
}

/// The upstreams of one rule.
pub struct Pool {
    pub settings: PoolSettings,
    pub upstreams: Vec<Arc<Upstream>>,
    next: AtomicUsize,
    under_way: AtomicUsize,
}

/// No upstream gave an answer.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("there is no upstream to ask")]
    NoUpstream,
    #[error("too many questions wait for upstreams")]
    Busy,
    #[error("no upstream answered")]
    Failed(#[source] ExchangeError),
    #[error("the question was given up")]
    Abandoned,
}

impl Pool {
    pub fn new(settings: PoolSettings, upstreams: Vec<Arc<Upstream>>) -> Self {
        Self { settings, upstreams, next: AtomicUsize::new(0), under_way: AtomicUsize::new(0) }
    }

    /// Asks upstreams until one answers, or the time is up. A failure of one is passed on if no other knows more.
    pub async fn ask(
        &self,
        question: &Question,
        ambient: &Ambient,
        metrics: &ForwardMetrics,
    ) -> Result<Reply, ForwardError> {
        let _turn = self.enter().ok_or_else(|| {
            metrics.rejected.add(1);
            ForwardError::Busy
        })?;
        let deadline = Instant::now() + limits::FORWARD;
        let order = self.order(ambient.random.next_u64() as usize, Instant::now(), metrics);
        let (mut failure, mut last) = (None, None);
        for (number, upstream) in order.iter().enumerate() {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            let is_last = number + 1 == order.len() && failure.is_none();
            let limit = if is_last { left } else { left.min(limits::ATTEMPT) };
            match self.attempt(upstream, question, limit, ambient, metrics).await {
                Ok(reply) if reply.is_failure() => failure = failure.or(Some(reply)),
                Ok(reply) => return Ok(reply),
                Err(error) => last = Some(error),
            }
        }
        if let Some(reply) = failure {
            return Ok(reply);
        }
        Err(last.map_or(ForwardError::NoUpstream, ForwardError::Failed))
    }

    async fn attempt(
        &self,
        upstream: &Upstream,
        question: &Question,
        limit: Duration,
        ambient: &Ambient,
        metrics: &ForwardMetrics,
    ) -> Result<Reply, ExchangeError> {
        let (to, began) = (upstream.address.to_string(), Instant::now());
        metrics.requests.get(&[&to]).value.add(1);
        let wrong = metrics.wrong.get(&[&to]);
        let link = Link {
            upstream: upstream.address,
            tcp: self.settings.force_tcp,
            tls: upstream.tls.as_deref(),
            mixed: upstream.tls.is_none() && upstream.repeats_case(began),
            wrong: &wrong.value,
        };
        let outcome = exchange(&link, question, &*ambient.random, limit).await;
        let now = Instant::now();
        if link.mixed && outcome.as_ref().is_ok_and(|reply| !reply.echoed) {
            debug!(upstream = to, "the upstream does not repeat the case of questions");
            upstream.set_unlike(now);
        }
        if upstream.record(outcome.is_ok(), self.settings.max_fails, now) {
            metrics.went_down.get(&[&to]).value.add(1);
            tracing::warn!(upstream = %upstream.address, "an upstream does not answer; others are asked first");
        }
        match &outcome {
            Ok(reply) => {
                let labels = [&*to, wire::code_name(reply.code)];
                metrics.responses.get(&labels).value.add(1);
                metrics.durations.get(&labels).value.observe((now - began).as_secs_f64());
            }
            Err(error) => debug!(%error, name = %question.name, "a question was not answered"),
        }
        outcome
    }

    /// Returns the upstreams in the order in which to ask them: those that are down last, those that lead
    /// back to us not at all.
    fn order(&self, random: usize, now: Instant, metrics: &ForwardMetrics) -> Vec<&Arc<Upstream>> {
        let count = self.upstreams.len().max(1);
        let start = match self.settings.policy {
            Policy::Random => random % count,
            Policy::RoundRobin => self.next.fetch_add(1, Ordering::Relaxed) % count,
            Policy::Sequential => 0,
        };
        let (before, after) = self.upstreams.split_at(start.min(self.upstreams.len()));
        let usable = after.iter().chain(before).filter(|upstream| !upstream.loops());
        let down = |upstream: &&Arc<Upstream>| upstream.is_down(self.settings.max_fails, now);
        let (last, mut first): (Vec<_>, Vec<_>) = usable.partition(down);
        if first.is_empty() && !last.is_empty() {
            metrics.all_down.add(1);
        }
        first.extend(last);
        first
    }

    fn enter(&self) -> Option<Turn<'_>> {
        let limit = match self.settings.max_concurrent {
            0 => limits::WAITING,
            limit => limit.min(limits::WAITING),
        };
        let turn = Turn(&self.under_way);
        (self.under_way.fetch_add(1, Ordering::Relaxed) < limit).then_some(turn)
    }
}

/// A question under way.
struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(policy: Policy) -> Pool {
        let upstreams = (1..=3).map(|last| Upstream::new(([192, 0, 2, last], 53).into(), None)).collect();
        Pool::new(PoolSettings { policy, ..PoolSettings::default() }, upstreams)
    }

    fn order(pool: &Pool, random: usize, now: Instant) -> Vec<u8> {
        let order = pool.order(random, now, &ForwardMetrics::default());
        order
            .iter()
            .map(|upstream| match upstream.address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            })
            .collect()
    }

    #[test]
    fn policies_choose_the_first_upstream() {
        let now = Instant::now();
        assert_eq!(order(&pool(Policy::Sequential), 5, now), [1, 2, 3]);
        assert_eq!(order(&pool(Policy::Random), 5, now), [3, 1, 2]);
        let robin = pool(Policy::RoundRobin);
        assert_eq!([order(&robin, 0, now)[0], order(&robin, 0, now)[0], order(&robin, 0, now)[0]], [1, 2, 3]);
        assert!(order(&Pool::new(PoolSettings::default(), Vec::new()), 7, now).is_empty());
    }

    #[test]
    fn upstreams_that_fail_come_last_for_a_while_and_those_that_loop_never() {
        let (pool, now) = (pool(Policy::Sequential), Instant::now());
        let first = &pool.upstreams[0];
        assert!(!first.record(false, 2, now));
        assert_eq!(order(&pool, 0, now), [1, 2, 3], "once is not enough");
        assert!(first.record(false, 2, now));
        assert!(!first.record(false, 2, now), "it is down already");
        assert_eq!(order(&pool, 0, now), [2, 3, 1]);
        assert_eq!(order(&pool, 0, now + limits::DOWN), [1, 2, 3], "it is tried again");
        first.record(true, 2, now);
        assert_eq!(order(&pool, 0, now), [1, 2, 3]);
        pool.upstreams[1].set_loops(true);
        assert_eq!(order(&pool, 0, now), [1, 3]);
    }

    #[test]
    fn questions_under_way_are_bounded() {
        let settings = PoolSettings { max_concurrent: 2, ..PoolSettings::default() };
        let pool = Pool::new(settings, Vec::new());
        let held = (pool.enter(), pool.enter());
        assert!(held.0.is_some() && held.1.is_some() && pool.enter().is_none());
        drop(held);
        assert!(pool.enter().is_some());
        assert_eq!(pool.under_way.load(Ordering::Relaxed), 0);
    }
}
