//! Replaces the node's certificates in time, without a restart.

use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use arc_swap::ArcSwap;
use jiff::Timestamp;
use kube::Client;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use userspace_daemon::tls::CertificateAndKey;

use super::file::PairFile;
use super::request::{Wanted, obtain};
use super::{ReadValidity, Validity};
use crate::limits;

/// The client of the API that shows the newest certificate. Clones share it.
///
/// When it is replaced, requests in progress end on their old connections and new ones open new connections.
#[derive(Clone)]
pub struct Clients(Arc<ArcSwap<Client>>);

impl Clients {
    pub fn new(first: Client) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(first)))
    }

    /// Uses `next` for all requests from now on.
    pub fn replace(&self, next: Client) {
        self.0.store(Arc::new(next));
    }

    /// Returns a client that follows the replacements.
    pub fn client(&self) -> Client {
        let current = Arc::clone(&self.0);
        let service = tower::service_fn(move |request| {
            let client = current.load_full();
            async move { client.send(request).await }
        });
        Client::new(service, "default")
    }
}

/// One certificate of the node, and what to do to replace it.
pub struct Rotation {
    pub client: Client,
    pub node: String,
    pub wanted: Wanted,
    pub file: PairFile,
    pub read_validity: ReadValidity,
    pub ambient: Ambient,
}

impl Rotation {
    /// Obtains the certificate if it is missing, replaces it in time until shutdown, and calls `changed` after
    /// each replacement.
    pub async fn run<F: Future<Output = ()>>(
        self,
        changed: impl Fn(CertificateAndKey) -> F,
        shutdown: CancellationToken,
    ) {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = self.work(changed) => {}
        }
    }

    async fn work<F: Future<Output = ()>>(&self, changed: impl Fn(CertificateAndKey) -> F) {
        let mut failures = 0;
        loop {
            let left = self.time_left();
            if !left.is_zero() {
                // The clock of the machine may be set meanwhile.
                sleep(left.min(limits::CERTIFICATE_CHECK)).await;
                continue;
            }
            match self.replace().await {
                Ok(pair) => {
                    failures = 0;
                    info!(certificate = self.what(), "replaced a certificate");
                    changed(pair).await;
                    // Whatever its times are, the next one is not requested at once.
                    sleep(limits::CERTIFICATE_RETRY).await;
                }
                Err(problem) => {
                    failures += 1;
                    self.report(&problem);
                    sleep(retry(failures, self.ambient.random.next_u64())).await;
                }
            }
        }
    }

    fn what(&self) -> &'static str {
        match self.wanted {
            Wanted::Client => "client",
            Wanted::Serving(_) => "serving",
        }
    }

    /// Returns the time until the certificate is to be replaced.
    fn time_left(&self) -> Duration {
        let pair = self.file.read().ok().flatten();
        let Some(validity) = pair.and_then(|pair| (self.read_validity)(&pair.certificate)) else {
            return Duration::ZERO;
        };
        let received = self.file.written().unwrap_or(validity.not_before);
        // The same moment each time that it is computed for one certificate.
        let due = renew_at(validity, received, fraction(validity, &self.node));
        Duration::try_from(due.duration_since(self.ambient.now())).unwrap_or_default()
    }

    async fn replace(&self) -> Result<CertificateAndKey, Problem> {
        let pair = obtain(&self.client, &self.node, &self.wanted).await.map_err(Problem::Request)?;
        let validity = (self.read_validity)(&pair.certificate).ok_or(Problem::Unreadable)?;
        check_clock(validity, self.ambient.now())?;
        self.file.write(&pair).map_err(Problem::File)?;
        Ok(pair)
    }

    fn report(&self, problem: &Problem) {
        let cause = problem as &dyn std::error::Error;
        // By a clock that is wrong, nothing can be said of the certificate in use.
        if matches!(problem, Problem::Clock { .. }) {
            error!(certificate = self.what(), error = cause, "cannot replace a certificate, trying again");
            return;
        }
        let ends = self.file.read().ok().flatten().and_then(|pair| (self.read_validity)(&pair.certificate));
        if ends.is_some_and(|validity| validity.not_after <= self.ambient.now()) {
            let what = self.what();
            error!(
                error = cause,
                "the node's {what} certificate has expired and cannot be replaced: join again with a token"
            );
        } else {
            warn!(certificate = self.what(), error = cause, "cannot replace a certificate, trying again");
        }
    }
}

/// Reason for which a certificate was not replaced.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("no certificate was issued")]
    Request(#[source] super::RequestError),
    #[error("the new certificate cannot be read")]
    Unreadable,
    #[error(
        "the certificate that was just signed is valid from {} to {}, and this machine's clock says {now}: set it, for \
         example with `timedatectl set-ntp true`",
        validity.not_before,
        validity.not_after
    )]
    Clock { validity: Validity, now: Timestamp },
    #[error("cannot write the certificate")]
    File(#[source] std::io::Error),
}

/// Refuses a new certificate that is not valid by the clock of this machine: it would be replaced again and again.
fn check_clock(validity: Validity, now: Timestamp) -> Result<(), Problem> {
    if now < validity.not_before || now >= validity.not_after {
        return Err(Problem::Clock { validity, now });
    }
    Ok(())
}

/// Returns the moment at which to replace a certificate: after 70 to 90 % of its life, which began when it was
/// received, or with its validity if that is later. `random` chooses the moment, so that the nodes of a cluster
/// do not come at once.
pub fn renew_at(validity: Validity, received: Timestamp, random: u64) -> Timestamp {
    let from = received.clamp(validity.not_before, validity.not_after);
    let life = validity.not_after.as_millisecond() - from.as_millisecond();
    let percent = i64::try_from(random % 2001).unwrap_or_default();
    // 70.00 % to 90.00 %; lives are some years at most.
    let share = life / 10_000 * (7000 + percent) + life % 10_000 * (7000 + percent) / 10_000;
    Timestamp::from_millisecond(from.as_millisecond() + share).unwrap_or(validity.not_after)
}

/// Returns a number that is the same for each look at one certificate of one node.
fn fraction(validity: Validity, node: &str) -> u64 {
    apiserver_meta::fnv::fnv1a_64(format!("{node} {}", validity.not_after).into_bytes())
}

/// Returns the pause before the next attempt, twice as long each time.
fn retry(failures: u32, random: u64) -> Duration {
    let pause = limits::CERTIFICATE_RETRY * 2u32.saturating_pow(failures.min(16).saturating_sub(1));
    let pause = pause.min(limits::CERTIFICATE_RETRY_MAX);
    // Up to a half more, so that nodes that failed together do not come back together.
    pause + pause.mul_f64((random % 512) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn certificates_are_replaced_between_70_and_90_percent_of_their_life() {
        let validity =
            Validity { not_before: at("2026-01-01T00:00:00Z"), not_after: at("2026-01-01T10:00:00Z") };
        let due = |received: &str, random| renew_at(validity, at(received), random);
        assert_eq!(due("2026-01-01T00:00:00Z", 0), at("2026-01-01T07:00:00Z"));
        assert_eq!(due("2026-01-01T00:00:00Z", 2000), at("2026-01-01T09:00:00Z"));
        // Short certificates begin long before they are received.
        assert_eq!(due("2026-01-01T09:50:00Z", 0), at("2026-01-01T09:57:00Z"));
        // The clock was wrong then.
        assert_eq!(due("2020-01-01T00:00:00Z", 0), at("2026-01-01T07:00:00Z"));
        assert_eq!(due("2030-01-01T00:00:00Z", 0), validity.not_after);
        for random in 0..10_000 {
            let moment = due("2026-01-01T00:00:00Z", random * 7919);
            assert!(moment >= at("2026-01-01T07:00:00Z") && moment <= at("2026-01-01T09:00:00Z"));
        }
    }

    #[test]
    fn nodes_do_not_come_at_once() {
        let validity =
            Validity { not_before: at("2026-01-01T00:00:00Z"), not_after: at("2027-01-01T00:00:00Z") };
        let due = |node: &str| renew_at(validity, validity.not_before, fraction(validity, node));
        let moments: std::collections::BTreeSet<Timestamp> =
            (0..100).map(|n| due(&format!("node-{n}"))).collect();
        assert!(moments.len() > 90, "{}", moments.len());
        assert_eq!(due("a"), due("a"));
    }

    #[tokio::test]
    async fn requests_after_a_replacement_use_the_new_certificate() {
        let named = |name: &'static str| {
            let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
                let answer = http_body_util::Full::new(bytes::Bytes::from(name));
                Ok::<_, std::convert::Infallible>(http::Response::new(answer))
            });
            Client::new(service, "default")
        };
        let clients = Clients::new(named("old"));
        let client = clients.client();
        let ask = || client.request_text(http::Request::get("/version").body(Vec::new()).unwrap());
        assert_eq!(ask().await.unwrap(), "old");
        clients.replace(named("new"));
        assert_eq!(ask().await.unwrap(), "new");
    }

    #[test]
    fn pauses_after_failures_grow_to_a_bound() {
        assert_eq!(retry(1, 0), limits::CERTIFICATE_RETRY);
        assert_eq!(retry(3, 0), limits::CERTIFICATE_RETRY * 4);
        assert_eq!(retry(1000, 0), limits::CERTIFICATE_RETRY_MAX);
        assert!(retry(1000, u64::MAX) <= limits::CERTIFICATE_RETRY_MAX.mul_f64(1.5));
    }
}
