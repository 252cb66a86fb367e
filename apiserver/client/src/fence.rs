//! A fence around the writes of a leader: once its lease may have ended, no request that changes anything is sent.

use std::sync::{Arc, Mutex, PoisonError};

use http::Method;
use kube::Client;
use tokio::time::Instant;

use crate::around::around;

/// The time until which a leader may write. Clones share it.
///
/// It is asked before each request, and not only when the loss of the lease is noticed: a process that was stopped and
/// goes on does so in all of its tasks at once.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug)]
enum State {
    /// There is no election.
    Open,
    Until(Instant),
    /// The lease is lost, and no renewal makes it good.
    Closed,
}

/// A request was not sent.
#[derive(Debug, thiserror::Error)]
#[error("request not sent: this process no longer holds the leader election lease")]
pub struct Fenced;

impl Fence {
    /// Returns a fence that is always open, for a process without an election.
    pub fn open() -> Self {
        Self(Arc::new(Mutex::new(State::Open)))
    }

    /// Returns a fence that is open until a time.
    pub fn until(end: Instant) -> Self {
        Self(Arc::new(Mutex::new(State::Until(end))))
    }

    /// Leaves it open until a later time, unless it is closed.
    pub fn extend(&self, end: Instant) {
        let mut state = self.lock();
        if let State::Until(until) = &mut *state {
            *until = end.max(*until);
        }
    }

    /// Closes it for ever.
    pub fn close(&self) {
        *self.lock() = State::Closed;
    }

    /// Returns `true` if a leader may write now.
    pub fn is_open(&self) -> bool {
        match *self.lock() {
            State::Open => true,
            State::Until(end) => Instant::now() < end,
            State::Closed => false,
        }
    }

    /// Returns a client whose requests pass only while the fence is open; reads always pass.
    pub fn around(&self, client: Client) -> Client {
        let fence = self.clone();
        around(client, move |inner, request| {
            let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
            let passes = reads || fence.is_open();
            async move { if passes { Ok(inner.send(request).await?) } else { Err(Fenced.into()) } }
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use tower::BoxError;

    use super::*;

    fn counting() -> (Client, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let body = http_body_util::Full::new(bytes::Bytes::from_static(b"{}"));
            async move { Ok::<_, BoxError>(Response::new(body)) }
        });
        (Client::new(service, "ns"), count)
    }

    async fn send(client: &Client, method: Method) -> bool {
        let request = Request::builder().method(method).uri("/api/v1/pods").body(Vec::new()).unwrap();
        client.request_text(request).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn only_reads_pass_once_the_time_is_over_or_the_fence_closed() {
        let (client, count) = counting();
        let fence = Fence::until(Instant::now() + Duration::from_secs(10));
        let fenced = fence.around(client);
        assert_eq!(fenced.default_namespace(), "ns");
        assert!(send(&fenced, Method::POST).await && send(&fenced, Method::GET).await);
        tokio::time::advance(Duration::from_secs(10)).await;
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(!send(&fenced, method).await);
        }
        assert!(send(&fenced, Method::GET).await);
        assert_eq!(count.load(Ordering::Relaxed), 3);
        fence.extend(Instant::now() + Duration::from_secs(5));
        fence.extend(Instant::now() + Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(send(&fenced, Method::POST).await, "it never ends earlier than it was extended to");
        fence.close();
        fence.extend(Instant::now() + Duration::from_secs(60));
        assert!(!send(&fenced, Method::POST).await);
        assert!(send(&Fence::open().around(counting().0), Method::POST).await);
    }

    #[tokio::test]
    async fn error_says_why_nothing_was_sent() {
        let fence = Fence::open();
        fence.close();
        let request = Request::delete("/api/v1/pods").body(Vec::new()).unwrap();
        let error = fence.around(counting().0).request_text(request).await.unwrap_err();
        assert!(
            apiserver_meta::error_chain(&error).contains("no longer holds the leader election lease"),
            "{error:?}"
        );
    }
}
