//! Bad days of the API server, as data: which requests fail, in which way, and when.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_client::transport::retries;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Method, Request, Response, request};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::api::{Answer, FakeApi, Target, target, whole};

/// Outcome of a request in place of its answer, and of watches that are open when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// Code, reason and message. Open watches go on.
    Refused(u16, &'static str, &'static str),
    /// 429, with the seconds of `Retry-After`. Open watches go on.
    Busy(Option<u64>),
    /// Nothing until the fault is over; then the connection breaks, also that of a watch.
    Silence,
    /// Nothing for so many seconds; then 504, as from a server that limits the time of requests. Open watches go on.
    Hangs(u64),
    /// The connection breaks at once, also that of a watch.
    Broken,
    /// The request is carried out, and the connection breaks before its answer; also that of a watch.
    AnswerLost,
    /// The request is carried out when the fault is over. A watch tells nothing until then.
    Late,
    /// Nothing, and no error: only for watches, which end like that at once.
    Ended,
}

/// A fault. The fields select its requests.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Verbs as in roles; all if empty.
    pub verbs: &'static [&'static str],
    /// Plurals, with or without a subresource as in `pods/status`; all and discovery if empty.
    pub resources: &'static [&'static str],
    /// Beginning of the name of the object, which may be generated; for `deletecollection`, of the namespace.
    pub names: &'static str,
    /// One of so many such requests fails.
    pub one_of: usize,
    pub failure: Failure,
    /// Seconds since the beginning of the [`Line`].
    pub seconds: Range<u64>,
}

impl Fault {
    /// Returns the fault that meets all requests.
    pub fn of(failure: Failure, seconds: Range<u64>) -> Self {
        Self { verbs: &[], resources: &[], names: "", one_of: 1, failure, seconds }
    }

    fn selects(&self, asked: &Asked) -> bool {
        let any =
            |list: &[&str], is: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|one| is(one));
        any(self.verbs, &|verb| verb == asked.verb)
            && any(self.resources, &|one| one == asked.resource || one == asked.plural())
            && asked.name.starts_with(self.names)
    }
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Time since the beginning of the [`Line`].
    pub at: Duration,
    pub verb: &'static str,
    /// Plural and subresource; empty for discovery.
    pub resource: String,
    /// Name of the object, or the beginning of one that is generated; the path for discovery.
    pub name: String,
}

impl Asked {
    fn new(at: Duration, parts: &request::Parts, body: &[u8]) -> Self {
        let path = parts.uri.path().trim_matches('/');
        let watches = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
        let depth = path.split('/').count();
        if depth < if path.starts_with("apis") { 4 } else { 3 } {
            return Self { at, verb: "get", resource: String::new(), name: path.to_owned() };
        }
        let Target { plural, namespace, mut name, subresource } = target(path);
        let verb = match parts.method {
            Method::GET if watches => "watch",
            Method::GET if name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            _ => "delete",
        };
        if verb == "create" && name.is_empty() {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            let meta = &body["metadata"];
            name = meta["name"].as_str().or(meta["generateName"].as_str()).unwrap_or_default().to_owned();
        } else if verb == "deletecollection" {
            name = namespace;
        }
        let resource = if subresource.is_empty() { plural } else { format!("{plural}/{subresource}") };
        Self { at, verb, resource, name }
    }

    /// Returns `true` if the request may change something. Events do not count.
    pub fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch") && self.plural() != "events"
    }

    pub fn plural(&self) -> &str {
        self.resource.split('/').next().unwrap_or_default()
    }
}

/// The way of requests to the API server, with its faults. Clones share it.
#[derive(Clone)]
pub struct Line {
    api: FakeApi,
    start: Instant,
    faults: Arc<Vec<Fault>>,
    /// Time that each request takes, but for watches.
    latency: Duration,
    /// Requests that each fault has met.
    met: Arc<Mutex<Vec<usize>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// Time that a request takes that fails.
const REFUSAL: Duration = Duration::from_millis(5);

type Stream = UnsyncBoxBody<Bytes, BoxError>;

impl Line {
    pub fn new(api: &FakeApi, faults: Vec<Fault>) -> Self {
        let met = Arc::new(Mutex::new(vec![0; faults.len()]));
        let (start, faults) = (Instant::now(), Arc::new(faults));
        Self { api: api.clone(), start, faults, latency: Duration::ZERO, met, asked: Arc::default() }
    }

    pub fn with_latency(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    /// Returns a client as that of `hawser up`, which repeats nothing by itself.
    pub fn client(&self) -> Client {
        let line = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| line.clone().serve(request));
        Client::new(service, "default")
    }

    /// Returns a client as one of a kubeconfig, which repeats what was answered with 429, 503 or 504.
    pub fn retrying_client(&self) -> Client {
        let line = self.clone();
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new(retries()))
            .service(tower::service_fn(move |request: Request<Body>| line.clone().serve(request)));
        Client::new(service, "default")
    }

    /// Returns the requests that were sent in these seconds.
    pub fn asked(&self, seconds: Range<u64>) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap();
        let within = |one: &&Asked| seconds.contains(&one.at.as_secs());
        asked.iter().filter(within).cloned().collect()
    }

    /// Waits until a second since the beginning.
    pub async fn until(&self, second: u64) {
        tokio::time::sleep_until(self.start + Duration::from_secs(second)).await;
    }

    /// Returns the second since the beginning at a time.
    pub fn second(&self, at: Instant) -> u64 {
        (at - self.start).as_secs()
    }

    fn times(&self, fault: &Fault) -> (Instant, Instant) {
        let at = |second| self.start + Duration::from_secs(second);
        (at(fault.seconds.start), at(fault.seconds.end))
    }

    /// Returns the fault that a request meets now, and its end.
    fn fault(&self, asked: &Asked) -> Option<(Failure, Instant)> {
        let now = Instant::now();
        let mut met = self.met.lock().unwrap();
        for (fault, met) in self.faults.iter().zip(met.iter_mut()) {
            let (begin, end) = self.times(fault);
            if begin <= now && now < end && fault.selects(asked) {
                *met += 1;
                if met.is_multiple_of(fault.one_of) {
                    return Some((fault.failure, end));
                }
            }
        }
        None
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Stream>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let asked = Asked::new(self.start.elapsed(), &parts, &body);
        self.asked.lock().unwrap().push(asked.clone());
        if asked.verb != "watch" && !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        let request = Request::from_parts(parts, Body::from(body.to_vec()));
        let Some((failure, end)) = self.fault(&asked) else {
            return Ok(self.pass(&asked, request).await);
        };
        // A reader that asks again at once must not stop the virtual time.
        tokio::time::sleep(REFUSAL).await;
        match failure {
            Failure::Refused(code, reason, message) => Ok(erased(refusal(code, reason, message))),
            Failure::Busy(seconds) => {
                let mut answer = erased(refusal(429, "TooManyRequests", "too many requests"));
                if let Some(seconds) = seconds {
                    answer.headers_mut().insert("retry-after", HeaderValue::from(seconds));
                }
                Ok(answer)
            }
            Failure::Silence => {
                tokio::time::sleep_until(end).await;
                Err(broken())
            }
            Failure::Hangs(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(erased(refusal(504, "Timeout", "request did not complete within the allotted timeout")))
            }
            Failure::Broken => Err(broken()),
            Failure::AnswerLost => {
                self.api.answer(request).await;
                Err(broken())
            }
            Failure::Late => {
                tokio::time::sleep_until(end).await;
                Ok(self.pass(&asked, request).await)
            }
            Failure::Ended => {
                assert_eq!(asked.verb, "watch");
                Ok(Response::new(http_body_util::Empty::new().map_err(BoxError::from).boxed_unsync()))
            }
        }
    }

    async fn pass(&self, asked: &Asked, request: Request<Body>) -> Response<Stream> {
        let answer = self.api.answer(request).await;
        if asked.verb == "watch" { self.interrupted(asked, answer) } else { erased(answer) }
    }

    /// Returns a watch that the coming faults interrupt.
    fn interrupted(&self, asked: &Asked, answer: Answer) -> Response<Stream> {
        let now = Instant::now();
        let coming = self.faults.iter().filter(|fault| fault.selects(asked) && fault.one_of == 1);
        let breaks = |fault: &&Fault| {
            !matches!(fault.failure, Failure::Refused(..) | Failure::Busy(_) | Failure::Hangs(_))
        };
        let coming: VecDeque<_> = coming
            .filter(breaks)
            .map(|fault| (self.times(fault), fault.failure))
            .filter(|((begin, _), _)| *begin > now)
            .collect();
        answer.map(|body| {
            let frames = stream::unfold(Some((body, coming)), |state| async move {
                let (mut body, mut coming) = state?;
                loop {
                    let begin = coming.front().map(|((begin, _), _)| *begin);
                    let fault = async {
                        match begin {
                            Some(begin) => tokio::time::sleep_until(begin).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        () = fault => {}
                        frame = body.frame() => {
                            let frame = frame?.map_err(BoxError::from);
                            return Some((frame, Some((body, coming))));
                        }
                    }
                    let ((_, end), failure) = coming.pop_front()?;
                    match failure {
                        Failure::Silence => tokio::time::sleep_until(end).await,
                        Failure::Late => {
                            tokio::time::sleep_until(end).await;
                            continue;
                        }
                        Failure::Ended => return None,
                        _ => {}
                    }
                    return Some((Err(broken()), None));
                }
            });
            StreamBody::new(frames.boxed()).boxed_unsync()
        })
    }
}

fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message});
    whole(code, &status)
}

fn erased(answer: Answer) -> Response<Stream> {
    answer.map(|body| body.map_err(|never: Infallible| match never {}).boxed_unsync())
}

fn broken() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}
