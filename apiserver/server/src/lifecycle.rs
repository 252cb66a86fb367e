//! Start, end and door of a [`Server`].

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};

use crate::body::Body;
use crate::chain;
use crate::context::OwnContexts;
use crate::maintain;
use crate::maintain::{OwnObjects, Settings, Upkeep, definitions};
use crate::server::Server;

impl Server {
    /// Returns the handles and settings of the background tasks.
    fn upkeep(self: &Arc<Self>) -> Upkeep {
        let config = self.config();
        Upkeep {
            own: OwnObjects::new(Arc::clone(self.objects()), OwnContexts::new(Arc::clone(self))),
            addresses: Arc::clone(self.addresses()),
            lifetime: Arc::clone(self.lifetime()),
            notifications: Arc::clone(self.notifications()),
            token_uses: self.access().authenticator().map(|authenticator| Arc::clone(authenticator.uses())),
            endpoint: Arc::clone(self.endpoint_turn()),
            settings: Settings {
                advertise: config.advertise,
                service_cidrs: config.service_cidrs.clone(),
                node_ports: config.node_ports.clone(),
                bootstrap_tokens: config.bootstrap_tokens,
                client_ca: config.client_ca.clone(),
                identity: config.identity.clone(),
                compaction_interval: config.compaction_interval,
            },
        }
    }

    /// Runs caches, bootstrap and upkeep on the current runtime until [`Server::stop`].
    pub fn start(self: &Arc<Self>) {
        let caches = Arc::clone(self.objects().caches());
        let shutdown = self.lifetime().shutdown().clone();
        tokio::spawn(async move { caches.run(shutdown).await });
        let upkeep = self.upkeep();
        tokio::spawn(definitions::run(upkeep.own.clone(), Arc::clone(&upkeep.lifetime)));
        tokio::spawn(maintain::run(upkeep));
    }

    /// Announces the end: the server reports that it is not ready, everything else continues. Withdraws the
    /// objects by which others know this server, and returns when that is done.
    pub async fn drain(self: &Arc<Self>) {
        self.lifetime().draining().cancel();
        maintain::withdraw(&self.upkeep()).await;
    }

    /// Ends watches and upkeep. Requests in flight are answered.
    pub fn stop(&self) {
        self.lifetime().stop();
    }

    /// New requests are refused, watches end after a whole event.
    pub fn refuse(&self) {
        self.lifetime().refuse();
    }

    /// Waits until the server has what a new cluster needs and answers readiness with yes.
    pub async fn ready(&self) {
        self.lifetime().ready().await;
    }

    /// Returns `true` if [`Server::ready`] would return at once.
    pub fn is_ready(&self) -> bool {
        self.lifetime().is_ready()
    }

    /// Returns the server as a service: for a listener, or for clients in the same process, who put an
    /// `Identity` into the request's extensions.
    pub fn service(self: &Arc<Self>) -> ApiService {
        ApiService(Arc::clone(self))
    }
}

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub struct ApiService(Arc<Server>);

impl tower::Service<Request<Body>> for ApiService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        // Requests wait for their turn in the chain, where their attributes are known.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = Arc::clone(&self.0);
        Box::pin(async move { Ok(chain::handle(server, request).await) })
    }
}
