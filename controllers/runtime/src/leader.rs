//! Leader election with a Lease, compatible with the components of Kubernetes.
//!
//! A process leads while the Lease names it and it has renewed the Lease within the deadline. Clocks of
//! different processes are never compared: a lease has expired when we have seen it unchanged for its
//! duration, measured on our own monotonic clock.

use std::future::Future;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
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
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Waits until this process leads, then runs `work` until it completes, until `shutdown`, or until the lease
/// is lost. In the last two cases the token given to `work` is cancelled and its completion is awaited. The
/// lease is released unless it was lost.
pub async fn lead<W>(
    election: LeaderElection,
    client: Client,
    ambient: Ambient,
    shutdown: CancellationToken,
    work: impl FnOnce(CancellationToken) -> W,
) -> Result<()>
where
    W: Future<Output = ()> + Send,
{
    let mut candidate = Candidate::new(election, client, ambient);
    if !candidate.acquire(&shutdown).await {
        return Ok(());
    }
    let lease = candidate.election.lease();
    info!(%lease, identity = %candidate.election.identity, "acquired the lease");
    let working = CancellationToken::new();
    let mut work = std::pin::pin!(work(working.clone()));
    let lost = tokio::select! {
        () = &mut work => false,
        () = shutdown.cancelled() => {
            working.cancel();
            work.await;
            false
        }
        () = candidate.renew() => {
            warn!(%lease, "the lease was not renewed in time");
            working.cancel();
            work.await;
            true
        }
    };
    if lost {
        return Err(Error::LeaseLost { lease });
    }
    candidate.release().await;
    Ok(())
}

struct Candidate {
    election: LeaderElection,
    api: Api<Lease>,
    ambient: Ambient,
    /// Spec that was last seen, and when it was first seen.
    seen: Option<(LeaseSpec, Instant)>,
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
        Self { election, api, ambient, seen: None }
    }

    /// Returns `true` once the lease is acquired, and `false` on shutdown.
    async fn acquire(&mut self, shutdown: &CancellationToken) -> bool {
        loop {
            match self.attempt().await {
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

    /// Renews the lease until that has failed for the whole deadline.
    async fn renew(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.election.retry_period).await;
            let deadline = renewed + self.election.renew_deadline;
            match tokio::time::timeout_at(deadline, self.attempt()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                // Another process holds the lease: nothing is left to renew.
                Ok(Ok(false)) if self.held_by_another() => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    debug!(
                        lease = self.election.lease(),
                        error = &error as &dyn std::error::Error,
                        "not renewed"
                    );
                }
                Err(_) => return,
            }
            if Instant::now() >= deadline {
                return;
            }
        }
    }

    fn held_by_another(&self) -> bool {
        self.seen.as_ref().is_some_and(|(spec, _)| {
            spec.holder_identity.as_deref().is_some_and(|h| !h.is_empty() && h != self.election.identity)
        })
    }

    /// Attempts once to acquire or renew the lease; returns whether we hold it.
    async fn attempt(&mut self) -> Result<bool> {
        let name = self.election.lease();
        let found = self.api.get_opt(&self.election.name).await.attempt(|| format!("get lease {name}"))?;
        let now = MicroTime(self.ambient.now());
        let Some(mut lease) = found else {
            return self.create(now).await;
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
                Ok(true)
            }
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error).attempt(|| format!("update lease {name}")),
        }
    }

    async fn create(&mut self, now: MicroTime) -> Result<bool> {
        let mut lease = Lease::default();
        lease.metadata.name = Some(self.election.name.clone());
        lease.metadata.namespace = Some(self.election.namespace.clone());
        let spec = held(&self.election, now.clone(), now, 0);
        lease.spec = Some(spec.clone());
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(_) => {
                self.seen = Some((spec, Instant::now()));
                Ok(true)
            }
            Err(error) if is_already_exists(&error) => Ok(false),
            Err(error) => Err(error).attempt(|| format!("create lease {}", self.election.lease())),
        }
    }

    /// Releases the lease, so that another process can take over immediately. Best effort: otherwise it
    /// expires.
    async fn release(&mut self) {
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
