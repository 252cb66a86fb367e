//! Counts of the requests of a client, and the times that they take.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use tokio::time::Instant;
use tower::Service;

use crate::around::around;

/// Upper bounds of the buckets of times in seconds, as in client-go.
const BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The code of a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Counts requests to one server. Clones share the counts.
#[derive(Clone)]
pub struct Requests {
    host: Arc<str>,
    /// Counts by method, of which there is a handful.
    counts: Arc<Mutex<BTreeMap<String, Counts>>>,
}

#[derive(Default)]
struct Counts {
    codes: BTreeMap<String, u64>,
    /// Counts of times by bucket, and of those above the last bound; not cumulative.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

/// The counts of one method.
pub struct Sample {
    pub host: String,
    pub method: String,
    /// Requests by status code.
    pub codes: BTreeMap<String, u64>,
    /// Bounds in seconds with the count of times up to each.
    pub rows: Vec<(f64, u64)>,
    pub count: u64,
    /// Sum of all times in seconds.
    pub sum: f64,
}

impl Requests {
    /// Returns counts of requests to the server `host`, as `HOST:PORT`.
    pub fn new(host: &str) -> Self {
        Self { host: host.into(), counts: Arc::default() }
    }

    /// Returns a client whose requests are counted.
    pub fn around(&self, client: Client) -> Client {
        let requests = self.clone();
        around(client, move |inner, request| {
            let (requests, method) = (requests.clone(), request.method().clone());
            async move { Ok(requests.count(method, inner.send(request)).await?) }
        })
    }

    /// Returns the counts by method.
    pub fn samples(&self) -> Vec<Sample> {
        let of = |(method, counts): (&String, &Counts)| {
            let cumulated = counts.buckets.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            });
            Sample {
                host: self.host.to_string(),
                method: method.clone(),
                codes: counts.codes.clone(),
                rows: BOUNDS.into_iter().zip(cumulated).collect(),
                count: counts.buckets.iter().sum(),
                sum: counts.sum.as_secs_f64(),
            }
        };
        self.lock().iter().map(of).collect()
    }

    /// Waits for the answer to a request, and counts both.
    async fn count<B, E>(
        self,
        method: Method,
        answer: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<B>, E> {
        let sent = Instant::now();
        let answer = answer.await;
        let code = answer.as_ref().map(Response::status);
        self.note(method.as_str(), code.as_ref().map_or(NO_ANSWER, StatusCode::as_str), sent.elapsed());
        answer
    }

    fn note(&self, method: &str, code: &str, time: Duration) {
        let mut counts = self.lock();
        let counts = entry(&mut counts, method);
        *entry(&mut counts.codes, code) += 1;
        let bucket = BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        if let Some(count) = counts.buckets.get_mut(bucket) {
            *count += 1;
        }
        counts.sum = counts.sum.saturating_add(time);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the value of a key, which is copied if it is new.
fn entry<'a, T: Default>(map: &'a mut BTreeMap<String, T>, key: &str) -> &'a mut T {
    if !map.contains_key(key) {
        map.insert(key.to_owned(), T::default());
    }
    map.get_mut(key).expect("it is there by now")
}

/// A service whose requests are counted.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    pub inner: S,
    pub requests: Requests,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Send + 'static, Future: Send + 'static>,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.method().clone();
        Box::pin(self.requests.clone().count(method, self.inner.call(request)))
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use tower::BoxError;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_method_and_code_with_their_times() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            match request.uri().path() {
                "/gone" => Err(BoxError::from("no route to host")),
                "/missing" => Ok(Response::builder().status(404).body(Body::empty()).unwrap()),
                _ => Ok(Response::new(Body::empty())),
            }
        });
        let requests = Requests::new("10.0.0.1:6443");
        let client = requests.around(Client::new(service, "ns"));
        for path in ["/a", "/b", "/missing", "/gone"] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(client.send(request).await.is_ok(), path != "/gone");
        }
        client.send(Request::post("/a").body(Body::empty()).unwrap()).await.unwrap();
        let [get, post] = requests.samples().try_into().unwrap_or_else(|_| panic!("two methods"));
        assert_eq!(
            (get.host.as_str(), get.method.as_str(), post.method.as_str()),
            ("10.0.0.1:6443", "GET", "POST")
        );
        let codes: Vec<_> = get.codes.iter().map(|(code, count)| (code.as_str(), *count)).collect();
        assert_eq!(codes, [("200", 2), ("404", 1), ("<error>", 1)]);
        assert_eq!((get.count, post.count, get.rows[1], get.rows[2]), (4, 1, (0.025, 0), (0.1, 4)));
        assert!((get.sum - 0.2).abs() < 0.01, "{}", get.sum);
    }
}
