//! Leader election with a Lease, compatible with the components of Kubernetes.
//!
//! A process leads while the Lease names it and it has renewed the Lease within the deadline. Clocks of
//! different processes are never compared: a lease has expired when we have seen it unchanged for its
//! duration, measured on our own monotonic clock.
//!
//! ```text
//!  acquire ─▶ work, behind a fence ─────────────────────────▶ release
//!              renewal, a task and a client of its own ─ lost ─▶ fence closed, work cancelled
//! ```

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::Fence;
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::error::{Attempt, Error, Result, is_already_exists, is_conflict};
use crate::limits;

/// Lease to hold, identity, and times (see [`limits`] for their defaults).
#[derive(Clone, Debug)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    /// Identity, unique among the contenders: `host_uid`.
    pub identity: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    pub lane: Lane,
    pub status: LeaderStatus,
}

/// The client with which the lease is renewed, if it is not that of the work: one with connections of its own is not
/// delayed by what the work sends.
#[derive(Clone, Default)]
pub struct Lane(pub Option<Client>);

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lane")
    }
}

/// The time of the last renewal, while this process leads, for pages and metrics. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LeaderStatus(Arc<Mutex<Option<Instant>>>);

impl LeaderStatus {
    /// Returns `true` while this process holds the lease.
    pub fn is_leading(&self) -> bool {
        self.renewed().is_some()
    }

    /// Returns the time since the last renewal of the lease that this process holds.
    pub fn since_renewal(&self) -> Option<Duration> {
        self.renewed().map(|at| at.elapsed())
    }

    fn renewed(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the time of the last renewal; `None` if this process does not hold the lease.
    pub fn set(&self, renewed: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
    }
}

/// The right to work, as long as it lasts.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Cancelled when the work has to end.
    pub stop: CancellationToken,
    /// Open as long as the lease is held for certain. All writes go through it.
    pub fence: Fence,
}

impl From<CancellationToken> for Leadership {
    /// Returns the right of a process without an election.
    fn from(stop: CancellationToken) -> Self {
        Self { stop, fence: Fence::open() }
    }
}

impl LeaderElection {
    /// Creates an election for the lease `name` in `kube-system`, with the times of Kubernetes (15, 10 and 2
    /// s).
    pub fn new(name: &str, identity: &str) -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration: limits::LEASE_DURATION,
            renew_deadline: limits::RENEW_DEADLINE,
            retry_period: limits::RETRY_PERIOD,
            lane: Lane::default(),
            status: LeaderStatus::default(),
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Waits until this process leads, then runs `work` until it completes, until `shutdown`, or until the lease
/// is lost. In the last two cases the token given to `work` is cancelled and its completion is awaited. The
/// lease is released unless it was lost, once the work has ended: the next leader never overlaps with it.
///
/// # Errors
///
/// Fails if the lease was lost. The fence is closed from the time on at which it may have been.
pub async fn lead<W>(
    election: LeaderElection,
    client: Client,
    ambient: Ambient,
    shutdown: CancellationToken,
    work: impl FnOnce(Leadership) -> W,
) -> Result<()>
where
    W: Future<Output = ()> + Send,
{
    let client = election.lane.0.clone().unwrap_or(client);
    let mut candidate = Candidate::new(election, client, ambient);
    if !candidate.acquire(&shutdown).await {
        return Ok(());
    }
    let (lease, status) = (candidate.election.lease(), candidate.election.status.clone());
    info!(%lease, identity = %candidate.election.identity, "acquired the lease");
    let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
    let fence = Fence::until(candidate.renewed + candidate.election.renew_deadline);
    status.set(Some(candidate.renewed));
    // A task of its own: whatever the work does between two of its awaits, the renewal is not delayed. It ends with
    // this future, too.
    let mut renewal = JoinSet::new();
    renewal.spawn(candidate.renew(fence.clone(), stop.clone(), ended.clone()));
    let mut work = std::pin::pin!(work(Leadership { stop: stop.clone(), fence: fence.clone() }));
    tokio::select! {
        biased;
        () = stop.cancelled() => work.await,
        () = &mut work => {}
        () = shutdown.cancelled() => {
            stop.cancel();
            work.await;
        }
    }
    ended.cancel();
    let held = renewal.join_next().await.and_then(std::result::Result::ok).flatten();
    fence.close();
    status.set(None);
    match held {
        Some(mut candidate) => {
            candidate.release().await;
            Ok(())
        }
        None => Err(Error::LeaseLost { lease }),
    }
}

struct Candidate {
    election: LeaderElection,
    api: Api<Lease>,
    ambient: Ambient,
    /// Spec that was last seen, and when it was first seen.
    seen: Option<(LeaseSpec, Instant)>,
    /// Time before the request of the last renewal. Until then the lease was ours for certain; the duration of the
    /// lease begins no earlier for others.
    renewed: Instant,
}

/// Next step with a lease.
#[derive(Debug, PartialEq)]
enum Step {
    /// Another process holds the lease, and it has not expired.
    Wait,
    /// Write this spec over the one that was seen.
    Write(LeaseSpec),
}

impl Candidate {
    fn new(election: LeaderElection, client: Client, ambient: Ambient) -> Self {
        let api = Api::namespaced(client, &election.namespace);
        Self { election, api, ambient, seen: None, renewed: Instant::now() }
    }

    /// Returns `true` once the lease is acquired, and `false` on shutdown.
    async fn acquire(&mut self, shutdown: &CancellationToken) -> bool {
        loop {
            match self.attempt_in_time().await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    debug!(
                        lease = self.election.lease(),
                        error = &error as &dyn std::error::Error,
                        "cannot acquire the lease"
                    );
                }
            }
            // Jitter keeps contenders from colliding repeatedly.
            let period = self.election.retry_period;
            let jitter = period.mul_f64((self.ambient.random.next_u64() % 1000) as f64 / 1000.0 * 1.2);
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = tokio::time::sleep(period + jitter) => {}
            }
        }
    }

    /// Renews the lease until `ended`, and returns the candidate, which then still holds it. Returns `None` if the lease
    /// could not be renewed within the deadline or is held by another: the fence is closed and the work stopped first.
    async fn renew(
        mut self,
        fence: Fence,
        stop: CancellationToken,
        ended: CancellationToken,
    ) -> Option<Self> {
        loop {
            let deadline = self.renewed + self.election.renew_deadline;
            let next = (Instant::now() + self.election.retry_period).min(deadline);
            tokio::select! {
                biased;
                () = ended.cancelled() => return Some(self),
                () = tokio::time::sleep_until(next) => {}
            }
            let renewed = tokio::time::timeout_at(deadline, self.attempt_in_time()).await;
            let lost = match renewed {
                Ok(Ok(true)) => {
                    fence.extend(self.renewed + self.election.renew_deadline);
                    self.election.status.set(Some(self.renewed));
                    false
                }
                // Another process holds the lease: nothing is left to renew.
                Ok(Ok(false)) => self.held_by_another(),
                Ok(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    debug!(lease = self.election.lease(), error, "not renewed");
                    false
                }
                Err(_) => true,
            };
            if lost || Instant::now() >= self.renewed + self.election.renew_deadline {
                fence.close();
                stop.cancel();
                warn!(lease = self.election.lease(), "lost the lease");
                return None;
            }
        }
    }

    fn held_by_another(&self) -> bool {
        self.seen.as_ref().is_some_and(|(spec, _)| {
            spec.holder_identity.as_deref().is_some_and(|h| !h.is_empty() && h != self.election.identity)
        })
    }

    /// Attempts once, for no longer than half of the deadline: a request without an answer is followed by another one.
    async fn attempt_in_time(&mut self) -> Result<bool> {
        let lease = self.election.lease();
        let longest = self.election.renew_deadline / 2;
        match tokio::time::timeout(longest, self.attempt()).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unusable {
                object: format!("lease {lease}"),
                problem: "the API server did not answer in time".to_owned(),
            }),
        }
    }

    /// Attempts once to acquire or renew the lease; returns whether we hold it.
    async fn attempt(&mut self) -> Result<bool> {
        let name = self.election.lease();
        let asked = Instant::now();
        let found = self.api.get_opt(&self.election.name).await.attempt(|| format!("get lease {name}"))?;
        let now = MicroTime(self.ambient.now());
        let Some(mut lease) = found else {
            return self.create(now, asked).await;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != spec) {
            self.seen = Some((spec.clone(), Instant::now()));
        }
        let since = self.seen.as_ref().map_or(Duration::ZERO, |(_, at)| at.elapsed());
        let Step::Write(wanted) = step(&self.election, &spec, since, now) else { return Ok(false) };
        lease.spec = Some(wanted.clone());
        match self.api.replace(&self.election.name, &PostParams::default(), &lease).await {
            Ok(_) => {
                self.seen = Some((wanted, Instant::now()));
                self.renewed = asked;
                Ok(true)
            }
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error).attempt(|| format!("update lease {name}")),
        }
    }

    async fn create(&mut self, now: MicroTime, asked: Instant) -> Result<bool> {
        let mut lease = Lease::default();
        lease.metadata.name = Some(self.election.name.clone());
        lease.metadata.namespace = Some(self.election.namespace.clone());
        let spec = held(&self.election, now.clone(), now, 0);
        lease.spec = Some(spec.clone());
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(_) => {
                self.seen = Some((spec, Instant::now()));
                self.renewed = asked;
                Ok(true)
            }
            Err(error) if is_already_exists(&error) => Ok(false),
            Err(error) => Err(error).attempt(|| format!("create lease {}", self.election.lease())),
        }
    }

    /// Releases the lease, so that another process can take over immediately. Best effort: otherwise it
    /// expires.
    async fn release(&mut self) {
        let longest = self.election.renew_deadline;
        if tokio::time::timeout(longest, self.give_up()).await.is_err() {
            debug!(lease = self.election.lease(), "cannot release the lease: no answer");
        }
    }

    async fn give_up(&mut self) {
        let Ok(Some(mut lease)) = self.api.get_opt(&self.election.name).await else { return };
        let Some(spec) = lease.spec.as_mut() else { return };
        if spec.holder_identity.as_deref() != Some(self.election.identity.as_str()) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(self.ambient.now()));
        if let Err(error) = self.api.replace(&self.election.name, &PostParams::default(), &lease).await {
            debug!(lease = self.election.lease(), %error, "cannot release the lease");
        }
    }
}

fn held(election: &LeaderElection, acquired: MicroTime, now: MicroTime, transitions: i32) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(election.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: Some(acquired),
        renew_time: Some(now),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

/// Decides the next step. `unchanged_for` is the time for which the lease has been seen to be exactly `spec`.
fn step(election: &LeaderElection, spec: &LeaseSpec, unchanged_for: Duration, now: MicroTime) -> Step {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let transitions = spec.lease_transitions.unwrap_or(0);
    if holder == election.identity {
        let acquired = spec.acquire_time.clone().unwrap_or_else(|| now.clone());
        return Step::Write(held(election, acquired, now, transitions));
    }
    let lasts = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
    if holder.is_empty() || unchanged_for >= lasts.unwrap_or(election.lease_duration) {
        return Step::Write(held(election, now.clone(), now, transitions.saturating_add(1)));
    }
    Step::Wait
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn at(second: i64) -> MicroTime {
        MicroTime(Timestamp::from_second(second).unwrap())
    }

    fn holder(name: &str, transitions: i32) -> LeaseSpec {
        held(&LeaderElection::new("test", name), at(100), at(200), transitions)
    }

    #[test]
    fn our_own_lease_is_renewed_and_keeps_its_acquire_time() {
        let election = LeaderElection::new("test", "us");
        let Step::Write(spec) = step(&election, &holder("us", 3), Duration::ZERO, at(210)) else { panic!() };
        assert_eq!(spec.acquire_time, Some(at(100)));
        assert_eq!(spec.renew_time, Some(at(210)));
        assert_eq!(spec.lease_transitions, Some(3));
    }

    #[test]
    fn a_lease_of_another_is_taken_only_after_it_was_unchanged_for_its_duration() {
        let election = LeaderElection::new("test", "us");
        let theirs = holder("they", 3);
        // The other clock may be years off; only the time on our own clock counts.
        assert_eq!(step(&election, &theirs, Duration::from_secs(14), at(99_999)), Step::Wait);
        let Step::Write(spec) = step(&election, &theirs, Duration::from_secs(15), at(215)) else { panic!() };
        assert_eq!(spec.holder_identity.as_deref(), Some("us"));
        assert_eq!(spec.acquire_time, Some(at(215)));
        assert_eq!(spec.lease_transitions, Some(4));
    }

    #[test]
    fn a_released_lease_is_taken_immediately() {
        let election = LeaderElection::new("test", "us");
        assert!(matches!(step(&election, &holder("", 1), Duration::ZERO, at(1)), Step::Write(_)));
    }
}
