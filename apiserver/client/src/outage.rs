//! Retry delays and log messages while an API server does not answer.

use std::time::Duration;

use apiserver_meta::error_chain;
use kube::runtime::watcher;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::limits;
use crate::source::Error;

/// Consecutive failures of lists and watches, without an answer in between.
pub(crate) struct Outage {
    /// Kind that is listed, in the plural.
    kind: String,
    /// Delay after the next failure.
    pause: Duration,
    /// Error and delay of the last warning.
    last_warning: Option<(String, Duration)>,
    /// Time of the last watch that had expired, and the delay after it.
    last_expiry: Option<(Instant, Duration)>,
}

impl Outage {
    pub fn new(kind: String) -> Self {
        Self { kind, pause: limits::MIN_RETRY, last_warning: None, last_expiry: None }
    }

    /// Records a failure; returns how long to wait. It is logged when the outage begins, when the error
    /// changes, and when the maximum delay is reached.
    pub fn record_failure(&mut self, error: &Error) -> Duration {
        // An expired watch is ordinary: a new list follows.
        if error.is_expired() {
            debug!(kind = self.kind, %error, "watch expired, listing again");
            return self.record_expiry();
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(limits::MAX_RETRY);
        let text = error_chain(error);
        let is_new = match &self.last_warning {
            Some((last_warning, at)) => {
                *last_warning != text || *at < limits::MAX_RETRY && pause == limits::MAX_RETRY
            }
            None => true,
        };
        if is_new {
            warn!(kind = self.kind, error = %text, ?pause, "list or watch failed, retrying");
            self.last_warning = Some((text, pause));
        } else {
            debug!(kind = self.kind, error = %text, ?pause, "list or watch is still failing");
        }
        pause
    }

    /// Returns how long to wait after a watch that had expired. The answers to the lists in between do not reset the
    /// delay: a server whose watches always expire would be asked for one list after the other.
    fn record_expiry(&mut self) -> Duration {
        let now = Instant::now();
        let pause = match self.last_expiry {
            Some((at, pause)) if now < at + pause + 2 * limits::MAX_RETRY => {
                (pause * 2).min(limits::MAX_RETRY)
            }
            _ => limits::MIN_RETRY,
        };
        self.last_expiry = Some((now, pause));
        pause
    }

    /// Records that the API server has answered.
    pub fn record_answer(&mut self) {
        self.pause = limits::MIN_RETRY;
        if self.last_warning.take().is_some() {
            info!(kind = self.kind, "list and watch recovered");
        }
    }
}

/// Returns `true` if the API server no longer knows the version from which a watch was to begin or to go on.
pub fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use apiserver_meta::ambient::Ambient;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::Informers;
    use crate::source::Verb;

    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a client of an API server that has one object and fails all requests except those with these
    /// numbers.
    fn server(
        answers: impl Fn(usize) -> bool + Clone + Send + 'static,
    ) -> (Client, Arc<Mutex<Vec<tokio::time::Instant>>>) {
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let writer = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let before = {
                let mut asked = lock(&writer);
                asked.push(tokio::time::Instant::now());
                asked.len() - 1
            };
            let query = request.uri().query().unwrap_or_default().to_owned();
            let answers = answers(before);
            async move {
                if !answers {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                if !query.contains("sendInitialEvents=true") {
                    std::future::pending::<()>().await;
                }
                let events = concat!(
                    r#"{"type": "ADDED", "object": {"metadata": {"name": "a", "namespace": "ns", "#,
                    r#""resourceVersion": "5"}}}"#,
                    "\n",
                    r#"{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7", "#,
                    r#""annotations": {"k8s.io/initial-events-end": "true"}}}}"#,
                );
                Ok(http::Response::new(kube::client::Body::from(events.as_bytes().to_vec())))
            }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_retried_with_growing_delays() {
        let (client, asked) = server(|_| false);
        let shutdown = CancellationToken::new();
        let informers = Informers::new(client, Ambient::system(), shutdown.clone());
        let cache = informers.cache::<ConfigMap>();
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(!cache.has_synced());
        shutdown.cancel();
        let asked = lock(&asked).clone();
        let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (n, pause) in pauses.iter().enumerate() {
            let least = (limits::MIN_RETRY * (1 << n.min(10))).min(limits::MAX_RETRY);
            let range = least..least + Duration::from_millis(100);
            assert!(range.contains(pause), "pause {n} of {pauses:?}");
        }
        assert!((25..32).contains(&pauses.len()), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_resets_the_delay() {
        let (client, asked) = server(|number| number == 9);
        let shutdown = CancellationToken::new();
        let cache = Informers::new(client, Ambient::system(), shutdown.clone()).cache::<ConfigMap>();
        cache.synced().await;
        assert_eq!(cache.len(), 1);
        tokio::time::sleep(limits::MAX_RETRY).await;
        // The watch brought all objects and ended, and the next one failed.
        let asked = lock(&asked).clone();
        assert!(asked[9] - asked[8] >= limits::MAX_RETRY && asked[10] == asked[9]);
        let pause = asked[11] - asked[10];
        assert!(pause >= limits::MIN_RETRY && pause < 2 * limits::MIN_RETRY, "{pause:?}");
        shutdown.cancel();
    }

    /// Requests: `true` for a watch, and the time.
    type Asked = Arc<Mutex<Vec<(bool, tokio::time::Instant)>>>;

    /// Returns a client of an API server that has a list, which it does not stream, and whose watches are answered with
    /// `code` and `body`.
    fn lister(code: u16, body: &'static str) -> (Client, Asked) {
        let asked = Asked::default();
        let writer = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (watch, streams) = (query.contains("watch=true"), query.contains("sendInitialEvents"));
            if !streams {
                lock(&writer).push((watch, tokio::time::Instant::now()));
            }
            let list = r#"{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []}"#;
            let (code, body) = match (streams, watch) {
                (true, _) => (422, ""),
                (false, true) => (code, body),
                (false, false) => (200, list),
            };
            let answer = http::Response::builder().status(code);
            let answer = answer.body(kube::client::Body::from(body.as_bytes().to_vec()));
            async move { answer }
        });
        (Client::new(service, "default"), asked)
    }

    const EXPIRED: &str = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
        "code": 410, "message": "too old resource version"}"#;

    #[tokio::test(start_paused = true)]
    async fn watches_that_end_at_once_or_have_expired_are_repeated_with_growing_delays() {
        let event = r#"{"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": "Expired", "code": 410, "message": "too old resource version"}}"#;
        let event: &'static str = Box::leak(event.replace('\n', " ").into_boxed_str());
        for (code, body, lists_again) in [(200, "", false), (410, EXPIRED, true), (200, event, true)] {
            let (client, asked) = lister(code, body);
            let shutdown = CancellationToken::new();
            let _cache = Informers::new(client, Ambient::system(), shutdown.clone()).cache::<ConfigMap>();
            tokio::time::sleep(Duration::from_mins(1)).await;
            shutdown.cancel();
            let asked = lock(&asked).clone();
            let watches: Vec<_> = asked.iter().filter(|(watch, _)| *watch).map(|(_, at)| *at).collect();
            assert!((12..20).contains(&watches.len()), "{code} {body}: {} watches", watches.len());
            let lists = asked.len() - watches.len();
            assert!(if lists_again { lists >= 12 } else { lists == 1 }, "{code} {body}: {lists} lists");
            let last = watches[watches.len() - 1] - watches[watches.len() - 2];
            assert!(last >= limits::MAX_RETRY, "{code} {body}: {last:?}");
        }
    }

    #[test]
    fn an_outage_is_logged_when_it_begins_when_it_changes_and_when_it_lasts() {
        let error = |text: &str| {
            let cause = kube::Error::Service(text.to_owned().into());
            Error::Unanswered { verb: Verb::List, cause }
        };
        let mut outage = Outage::new("configmaps".to_owned());
        let mut logged = Vec::new();
        let mut fail = |outage: &mut Outage, text: &str| {
            let before = outage.last_warning.clone();
            let pause = outage.record_failure(&error(text));
            if outage.last_warning != before {
                logged.push((text.to_owned(), pause));
            }
        };
        for _ in 0..20 {
            fail(&mut outage, "refused");
        }
        fail(&mut outage, "no route");
        fail(&mut outage, "no route");
        outage.record_answer();
        fail(&mut outage, "no route");
        let expected = [
            ("refused", limits::MIN_RETRY),
            ("refused", limits::MAX_RETRY),
            ("no route", limits::MAX_RETRY),
            ("no route", limits::MIN_RETRY),
        ];
        assert_eq!(logged, expected.map(|(text, pause)| (text.to_owned(), pause)));
    }
}
