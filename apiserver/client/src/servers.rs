//! A client-side balancer: the API servers of a cluster, of which all clients of a process use one while it answers.
//!
//! A request whose connection fails goes to the next server. A server that is given up, because connections fail or it
//! does not answer [`watch_over`], loses its open requests too: a watch on a server that is cut off would stay silent for
//! minutes. A server that answers stays in use, whatever the cluster lists.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use futures::stream;
use http::uri::{Authority, Parts, Scheme};
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper_util::client::legacy;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};
use tracing::{info, warn};

use crate::limits;

/// The API servers that the clients of a process share. Clones share the state.
#[derive(Clone, Debug)]
pub struct Servers(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Never empty.
    all: Vec<Authority>,
    current: Current,
    /// Those that were listed last, for [`Servers::listed`].
    listed: watch::Sender<Vec<String>>,
}

/// The server in use.
#[derive(Clone, Debug)]
struct Current {
    server: Authority,
    /// Cancelled when the server is given up.
    lost: CancellationToken,
}

impl Current {
    fn new(server: Authority) -> Self {
        Self { server, lost: CancellationToken::new() }
    }
}

/// The server of a request was given up before it answered in full.
#[derive(Debug, thiserror::Error)]
#[error("the API server at {0} was given up")]
struct Lost(Authority);

impl Servers {
    /// Creates a balancer over the hosts of URLs, the first of which is used first. `None` if there is none.
    pub fn new(urls: &[String]) -> Option<Self> {
        let all = authorities(urls);
        let current = Current::new(all.first()?.clone());
        let listed = watch::Sender::new(texts(&all));
        Some(Self(Arc::new(Mutex::new(State { all, current, listed }))))
    }

    /// Returns the servers as they were listed last, each `HOST:PORT`, and changes of the list.
    pub fn listed(&self) -> watch::Receiver<Vec<String>> {
        self.state().listed.subscribe()
    }

    /// Replaces the servers. The one in use stays as long as it answers, also if it is not among them any more: a
    /// list may be wrong.
    pub fn replace(&self, urls: &[String]) {
        let mut all = authorities(urls);
        if all.is_empty() {
            return;
        }
        let mut state = self.state();
        let listed = texts(&all);
        state.listed.send_if_modified(|old| {
            let is_new = *old != listed;
            *old = listed;
            is_new
        });
        if !all.contains(&state.current.server) {
            info!(server = %state.current.server, "the API server in use is no longer listed");
            all.push(state.current.server.clone());
        }
        state.all = all;
    }

    /// Gives a server up, if it is in use and there is another one.
    fn give_up(&self, server: &Authority) {
        let mut state = self.state();
        if state.current.server != *server {
            return;
        }
        let at = state.all.iter().position(|one| one == server).unwrap_or_default();
        let next = state.all[(at + 1) % state.all.len()].clone();
        if next != *server {
            warn!(%server, %next, "the API server does not answer, using another one");
            state.change(next);
        }
    }

    fn current(&self) -> Current {
        self.state().current.clone()
    }

    /// Returns the server in use: `HOST:PORT`.
    pub fn in_use(&self) -> String {
        self.current().server.to_string()
    }

    fn len(&self) -> usize {
        self.state().all.len()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and each change is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn change(&mut self, to: Authority) {
        let old = std::mem::replace(&mut self.current, Current::new(to));
        old.lost.cancel();
    }
}

/// Returns the hosts and ports of URLs, each once.
fn authorities(urls: &[String]) -> Vec<Authority> {
    let mut all = Vec::new();
    for url in urls.iter().take(limits::SERVERS) {
        if let Some(authority) = url.parse::<Uri>().ok().and_then(|uri| uri.authority().cloned())
            && !all.contains(&authority)
        {
            all.push(authority);
        }
    }
    all
}

fn texts(authorities: &[Authority]) -> Vec<String> {
    authorities.iter().map(ToString::to_string).collect()
}

/// Checks the server in use again and again, until shutdown, and gives it up once it is not ready twice in a row: one
/// that has lost its store still accepts connections. `client` has to use the same servers.
pub async fn watch_over(servers: Servers, client: Client, stop: CancellationToken) {
    let mut failures = 0;
    let mut last = servers.current().server;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = sleep(limits::PROBE_INTERVAL) => {}
        }
        let server = servers.current().server;
        if server != last {
            (failures, last) = (0, server.clone());
        }
        let ready = timeout(limits::PROBE, is_ready(&client)).await.unwrap_or(false);
        failures = if ready { 0 } else { failures + 1 };
        if failures >= limits::PROBE_FAILURES {
            servers.give_up(&server);
            failures = 0;
        }
    }
}

async fn is_ready(client: &Client) -> bool {
    let request = Request::get("/readyz").body(Body::empty());
    let Ok(request) = request else { return false };
    // A server that refuses to tell lives.
    client.send(request).await.is_ok_and(|answer| !answer.status().is_server_error())
}

/// Sends each request to the server in use.
#[derive(Clone, Debug)]
pub(crate) struct Balanced<S> {
    pub servers: Servers,
    pub inner: S,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl<S, B> Service<Request<Body>> for Balanced<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = legacy::Error> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body_util::BodyExt<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { servers, inner } = self.clone();
        Box::pin(send(servers, inner, request))
    }
}

async fn send<S, B>(servers: Servers, mut inner: S, request: Request<Body>) -> Result<Answer, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>, Error = legacy::Error>,
    B: http_body_util::BodyExt<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let mut next = Some(request);
    let mut attempts = servers.len();
    while let Some(mut request) = next.take() {
        let current = servers.current();
        attempts = attempts.saturating_sub(1);
        // The body of an upload cannot be sent twice.
        let again = (attempts > 0).then(|| copy(&request)).flatten();
        *request.uri_mut() = directed(request.uri(), &current.server);
        let outcome = tokio::select! {
            outcome = inner.call(request) => outcome,
            () = current.lost.cancelled() => return Err(Lost(current.server).into()),
        };
        match outcome {
            Ok(response) => return Ok(response.map(|body| while_not_lost(body, current))),
            Err(error) => {
                if !error.is_connect() {
                    return Err(error.into());
                }
                servers.give_up(&current.server);
                next = again;
                if next.is_none() {
                    return Err(error.into());
                }
            }
        }
    }
    unreachable!("the last attempt returns")
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Returns a URL with the host and port of a server.
fn directed(uri: &Uri, server: &Authority) -> Uri {
    let mut parts: Parts = uri.clone().into_parts();
    parts.scheme.get_or_insert(Scheme::HTTPS);
    parts.authority = Some(server.clone());
    parts.path_and_query.get_or_insert(http::uri::PathAndQuery::from_static("/"));
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// Returns a body that ends with an error once its server is given up.
fn while_not_lost<B>(body: B, current: Current) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: http_body_util::BodyExt<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let Current { server, lost } = current;
    let mut frames = BodyStream::new(body);
    let mut lost = Box::pin(lost.cancelled_owned());
    let mut over = false;
    let frames = stream::poll_fn(move |context| {
        if over {
            return Poll::Ready(None);
        }
        match Pin::new(&mut frames).poll_next(context) {
            Poll::Ready(Some(frame)) => Poll::Ready(Some(frame.map_err(Into::into))),
            Poll::Ready(None) => {
                over = true;
                Poll::Ready(None)
            }
            Poll::Pending => lost.as_mut().poll(context).map(|()| {
                over = true;
                Some(Err(BoxError::from(Lost(server.clone()))))
            }),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn urls(hosts: &[&str]) -> Vec<String> {
        hosts.iter().map(|host| format!("https://{host}:6443")).collect()
    }

    #[test]
    fn server_in_use_stays_until_it_is_given_up() {
        assert!(Servers::new(&[]).is_none());
        let servers = Servers::new(&urls(&["a", "b", "a"])).unwrap();
        assert_eq!((servers.in_use().as_str(), servers.len()), ("a:6443", 2));
        let first = servers.current();
        servers.replace(&urls(&["c", "a"]));
        assert!(servers.in_use() == "a:6443" && !first.lost.is_cancelled());
        // A list without it may be wrong: it answers.
        servers.replace(&urls(&["b", "c"]));
        assert!(servers.in_use() == "a:6443" && !first.lost.is_cancelled());
        servers.give_up(&first.server);
        assert!(servers.in_use() == "b:6443" && first.lost.is_cancelled());
        servers.replace(&urls(&["b", "c"]));
        assert_eq!(servers.len(), 2, "it is gone once another one is in use");
        // An empty list is no reason to have none.
        servers.replace(&[]);
        assert_eq!(servers.in_use(), "b:6443");
    }

    #[test]
    fn list_of_servers_is_that_of_the_cluster_without_one_that_is_only_in_use() {
        let servers = Servers::new(&urls(&["a", "b"])).unwrap();
        let mut listed = servers.listed();
        assert_eq!(*listed.borrow_and_update(), ["a:6443", "b:6443"]);
        servers.replace(&urls(&["a", "b"]));
        assert!(!listed.has_changed().unwrap(), "nothing new");
        servers.replace(&urls(&["b", "c"]));
        assert_eq!(*listed.borrow_and_update(), ["b:6443", "c:6443"]);
        servers.replace(&[]);
        assert!(!listed.has_changed().unwrap());
    }

    #[test]
    fn server_is_given_up_once_for_all_who_fail_at_it() {
        let servers = Servers::new(&urls(&["a", "b", "c"])).unwrap();
        let a = servers.current().server;
        servers.give_up(&a);
        servers.give_up(&a);
        assert_eq!(servers.in_use(), "b:6443");
        servers.give_up(&servers.current().server);
        servers.give_up(&servers.current().server);
        assert_eq!(servers.in_use(), "a:6443");
        let only = Servers::new(&urls(&["a"])).unwrap();
        let current = only.current();
        only.give_up(&current.server);
        assert!(!current.lost.is_cancelled(), "there is no other one");
    }

    /// Returns a client whose server answers with a status, or not at all.
    fn answering(status: Option<u16>) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let Some(status) = status else { return std::future::pending().await };
            let mut answer = Response::new(Full::new(Bytes::new()));
            *answer.status_mut() = status.try_into()?;
            Ok::<_, BoxError>(answer)
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_not_ready_twice_is_given_up_and_one_that_refuses_to_tell_is_not() {
        for (status, stays) in [(None, false), (Some(500), false), (Some(200), true), (Some(401), true)] {
            let servers = Servers::new(&urls(&["a", "b"])).unwrap();
            let (stop, began) = (CancellationToken::new(), tokio::time::Instant::now());
            let watching = tokio::spawn(watch_over(servers.clone(), answering(status), stop.clone()));
            let lost = servers.current().lost;
            let given_up = timeout(std::time::Duration::from_secs(60), lost.cancelled()).await.is_ok();
            assert_eq!(given_up, !stays, "{status:?}");
            assert!(stays || began.elapsed() <= 2 * (limits::PROBE_INTERVAL + limits::PROBE), "{status:?}");
            stop.cancel();
            watching.await.unwrap();
        }
    }

    #[test]
    fn requests_are_directed_with_path_and_query() {
        let uri: Uri = "https://first:6443/prefix/api/v1/pods?watch=1".parse().unwrap();
        let to = "[2001:db8::1]:6443".parse().unwrap();
        assert_eq!(directed(&uri, &to), "https://[2001:db8::1]:6443/prefix/api/v1/pods?watch=1");
        assert_eq!(directed(&"/".parse().unwrap(), &to), "https://[2001:db8::1]:6443/");
    }

    #[tokio::test]
    async fn body_of_a_server_that_is_given_up_ends_with_an_error() {
        let current = Current::new("a:6443".parse().unwrap());
        let whole = while_not_lost(Full::new(Bytes::from_static(b"whole")), current.clone());
        current.lost.cancel();
        // Bytes that have arrived are delivered.
        assert_eq!(whole.collect().await.unwrap().to_bytes(), "whole");
        let endless = StreamBody::new(stream::pending::<Result<_, std::io::Error>>());
        let error = while_not_lost(endless, current).collect().await.unwrap_err();
        assert!(error.to_string().contains("a:6443 was given up"), "{error}");
    }
}
