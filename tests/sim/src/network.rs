//! The transport between components and API server: in process, with delays, lost answers and broken
//! connections.

use std::future::Future;
use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use apiserver_auth::authentication::pki::{Component, Subject};
use apiserver_client::{HttpBody, user_agent};
use apiserver_meta::identity::Identity;
use apiserver_server::ApiService;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use kube::Client;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::{BoxError, Service};

use crate::ambient::SimRandom;

/// All connections of the cluster. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
    random: SimRandom,
}

struct State {
    /// The running server, and the token that is cancelled when it ends.
    server: Option<(ApiService, CancellationToken)>,
    /// Maximum time until a request arrives, in milliseconds.
    delay: u64,
    /// Number of requests per thousand that are carried out without an answer.
    lost_answers: u64,
}

impl Network {
    /// Creates a network without a server.
    pub fn new(random: SimRandom) -> Self {
        let state = State { server: None, delay: 3, lost_answers: 0 };
        Self { state: Arc::new(Mutex::new(state)), random }
    }

    /// Accepts connections from now on.
    pub fn serve(&self, server: ApiService) {
        self.state().server = Some((server, CancellationToken::new()));
    }

    /// Removes the server: its connections break, and requests in flight stop.
    pub fn crash(&self) {
        if let Some((_, alive)) = self.state().server.take() {
            alive.cancel();
        }
    }

    /// Makes `per_mille` of a thousand requests get no answer although they are carried out.
    pub fn lose_answers(&self, per_mille: u64) {
        self.state().lost_answers = per_mille;
    }

    /// Returns a client of `component`, whose connections break when `process` ends.
    pub fn client(&self, component: Component<'_>, process: CancellationToken) -> Client {
        let identity = Subject::component(component).identity();
        self.client_as(identity, component.program(), process)
    }

    /// Returns a client of any identity, with the name of a program.
    pub fn client_as(&self, identity: Identity, program: &str, process: CancellationToken) -> Client {
        let connection = Connection { network: self.clone(), identity, agent: user_agent(program), process };
        Client::new(connection, "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides how a request is handled: by which server, with what delay, and whether the answer arrives.
    fn route(&self) -> Option<(ApiService, CancellationToken, Duration, bool)> {
        let state = self.state();
        let (server, alive) = state.server.clone()?;
        let delay = Duration::from_millis(self.random.below(state.delay + 1));
        let arrives = state.lost_answers == 0 || self.random.below(1000) >= state.lost_answers;
        Some((server, alive, delay, arrives))
    }
}

/// The transport below the `kube::Client` of one process.
struct Connection {
    network: Network,
    identity: Identity,
    agent: Option<HeaderValue>,
    process: CancellationToken,
}

impl Service<Request<kube::client::Body>> for Connection {
    type Response = Response<HttpBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<HttpBody>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(self.identity.clone());
        if let Some(agent) = &self.agent {
            parts.headers.insert(USER_AGENT, agent.clone());
        }
        let request = Request::from_parts(parts, body.map_err(BoxError::from).boxed_unsync());
        Box::pin(exchange(self.network.clone(), request, self.process.clone()))
    }
}

async fn exchange(
    network: Network,
    request: Request<HttpBody>,
    process: CancellationToken,
) -> Result<Response<HttpBody>, BoxError> {
    let Some((server, alive, delay, arrives)) = network.route() else {
        return Err(Error::from(ErrorKind::ConnectionRefused).into());
    };
    tokio::time::sleep(delay).await;
    // The server continues even if the client disconnects.
    let handling = tokio::spawn(handle(server, request, alive.clone()));
    let answer = tokio::select! {
        biased;
        () = process.cancelled() => return Err(broken()),
        answer = handling => answer,
    };
    match answer {
        Ok(Some(response)) if arrives => {
            Ok(response.map(|body| BreakableBody::new(body, [alive, process]).boxed_unsync()))
        }
        _ => Err(broken()),
    }
}

async fn handle(
    mut server: ApiService,
    request: Request<HttpBody>,
    alive: CancellationToken,
) -> Option<Response<HttpBody>> {
    tokio::select! {
        biased;
        () = alive.cancelled() => None,
        answer = server.call(request) => answer.ok(),
    }
}

fn broken() -> BoxError {
    Error::from(ErrorKind::ConnectionReset).into()
}

/// A body that breaks off when either end is gone.
struct BreakableBody {
    body: HttpBody,
    ends: [Pin<Box<WaitForCancellationFutureOwned>>; 2],
}

impl BreakableBody {
    fn new(body: HttpBody, ends: [CancellationToken; 2]) -> Self {
        Self { body, ends: ends.map(|end| Box::pin(end.cancelled_owned())) }
    }
}

impl Body for BreakableBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        for end in &mut self.ends {
            if end.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(Err(broken())));
            }
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}
