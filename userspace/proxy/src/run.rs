//! Wiring: caches to tracker, tracker to worker, pages to listeners.

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver_client::events::Recorder;
use apiserver_client::{Cache, Informers};
use apiserver_meta::ambient::Ambient;
use futures::future::OptionFuture;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_daemon::{Handler, serve};
use userspace_dataplane::DataPlane;

use crate::Config;
use crate::announce::{self, Candidate};
use crate::bandwidth::PodWarnings;
use crate::caches::Caches;
use crate::change_tracker::ChangeTracker;
use crate::events;
use crate::exempt::Exemptions;
use crate::health::{HealthChecks, Report};
use crate::limits;
use crate::links::{self, Links};
use crate::local_server::LocalServer;
use crate::masquerade::Rules;
use crate::metrics::Metrics;
use crate::policy::PolicyObjects;
use crate::requests::Requests;
use crate::route;
use crate::serve::{Kind, Pages, Site};
use crate::service_ranges::ServiceRanges;
use crate::service_warnings::ServiceWarnings;
use crate::status::Status;
use crate::worker::Worker;

/// The component name in our Events.
const COMPONENT: &str = "hawser-proxy";

/// The listeners of the pages, bound by the caller so that tests use port 0, and what else serves in this process.
/// Pages without a listener are not served.
#[derive(Debug, Default)]
pub struct Listeners {
    pub healthz: Option<TcpListener>,
    pub metrics: Option<TcpListener>,
    /// If a listener is missing, the configuration's address is bound as soon as possible.
    pub later: bool,
    /// Serve the health check node ports of Services, on the addresses of node ports.
    pub health_checks: bool,
    pub local_server: Option<LocalServer>,
}

/// Runs the proxy until shutdown. The content of the data plane stays: the kernel goes on forwarding.
pub async fn run(
    config: Config,
    client: Client,
    data_plane: Box<dyn DataPlane + Send>,
    links: Box<dyn Links>,
    ambient: Ambient,
    listeners: Listeners,
    shutdown: CancellationToken,
) {
    let requests = Requests::to(&config.api_server);
    let client = requests.count(client);
    let informers = Informers::new(client.clone(), ambient.clone(), shutdown.clone());
    let mut caches = Caches::of(&informers, &config.node_name, config.host_ports || config.pod_bandwidth);
    if config.service_ranges.is_empty() {
        caches.service_ranges = ServiceRanges::watch(client.clone(), shutdown.clone());
    }
    caches.exempt = Exemptions::watch(client.clone(), &config.node_name, shutdown.clone());
    if !config.masquerade.is_empty() {
        caches.agent = Rules::watch(client.clone(), shutdown.clone());
    }
    if config.network_policies {
        caches.policies = Some(PolicyObjects::of(&informers));
    }
    let recorder = Recorder::new(client, ambient.clone(), COMPONENT, &config.node_name, shutdown.clone());
    let lists = caches.clone();
    let synced = async move { lists.synced().await };
    let nodes = config.announce.map(|_| informers.cache::<Candidate>());
    let say = (Metrics::new(&requests), Some(recorder), nodes);
    work(config, caches, Box::pin(synced), data_plane, links, ambient, listeners, shutdown, say).await;
}

/// Runs as [`run`] on caches that are kept elsewhere. Nothing is applied before `synced` is done. Without a
/// recorder no Events are written.
#[expect(clippy::too_many_arguments, reason = "each is a seam that tests and the simulation swap")]
pub async fn run_with(
    config: Config,
    caches: Caches,
    synced: futures::future::BoxFuture<'static, ()>,
    data_plane: Box<dyn DataPlane + Send>,
    links: Box<dyn Links>,
    ambient: Ambient,
    listeners: Listeners,
    recorder: Option<Recorder>,
    shutdown: CancellationToken,
) {
    let say = (Metrics::new(&Requests::to(&config.api_server)), recorder, None);
    work(config, caches, synced, data_plane, links, ambient, listeners, shutdown, say).await;
}

#[expect(clippy::too_many_arguments, reason = "those of `run_with`, and what only `run` has a client for")]
async fn work(
    config: Config,
    caches: Caches,
    synced: futures::future::BoxFuture<'static, ()>,
    data_plane: Box<dyn DataPlane + Send>,
    links: Box<dyn Links>,
    ambient: Ambient,
    listeners: Listeners,
    shutdown: CancellationToken,
    (metrics, recorder, nodes): (Metrics, Option<Recorder>, Option<Cache<Candidate>>),
) {
    let (status, metrics) = (Arc::new(Status::default()), Arc::new(metrics));
    let pages = Pages {
        status: Arc::clone(&status),
        metrics: Arc::clone(&metrics),
        events: Arc::default(),
        ambient: ambient.clone(),
    };
    let Listeners { healthz, metrics: metrics_listener, later, health_checks, local_server } = listeners;
    for (listener, address, kind) in [
        (healthz, config.healthz_bind_address, Kind::Health),
        (metrics_listener, config.metrics_bind_address, Kind::Metrics),
    ] {
        let (handler, shutdown) = (Site { pages: pages.clone(), kind }.handler(), shutdown.clone());
        match (listener, address.filter(|_| later)) {
            (Some(listener), _) => drop(tokio::spawn(serve(listener, None, handler, shutdown))),
            (None, Some(address)) => drop(tokio::spawn(serve_later(address, handler, shutdown))),
            (None, None) => {}
        }
    }
    if let Some(observer) = data_plane.observer() {
        metrics.counters.observe(observer.clone());
        tokio::spawn(events::follow(observer, pages.events, ambient.clone(), shutdown.clone()));
    }
    let health = Arc::new(HealthChecks::new(Arc::clone(&status), Arc::clone(&metrics), ambient.clone()));
    if health_checks {
        tokio::spawn(Arc::clone(&health).run(shutdown.clone()));
    }
    let (tell, alone) = watch::channel(None);
    let routes = config.route_of_last_resort.then(|| {
        let ranges = match config.service_ranges.as_slice() {
            [] => caches.service_ranges.clone(),
            fixed => ServiceRanges::fixed(fixed),
        };
        tokio::spawn(route::run(ranges, alone, shutdown.clone()))
    });
    let tracker = Arc::new(ChangeTracker::default());
    subscribe(&caches, &tracker, &shutdown);
    let links = links::watch_list(links, ambient.clone(), shutdown.clone());
    let announcer = config.announce.zip(nodes).map(|(port, nodes)| {
        let (config, caches, tracker) = (config.clone(), caches.clone(), Arc::clone(&tracker));
        let (links, status, recorder) = (links.clone(), Arc::clone(&status), recorder.clone());
        let sources = announce::Sources { config, caches, nodes, tracker, links, status, recorder };
        tokio::spawn(announce::run(port, sources, ambient.clone(), shutdown.clone()))
    });
    let (service_warnings, pod_warnings) =
        (ServiceWarnings::new(recorder.clone()), PodWarnings::new(recorder));
    let report = Report { status, metrics, health, service_warnings, pod_warnings };
    let worker = Worker::new(config, caches, tracker, data_plane, ambient, report, tell);
    worker.run(synced, links, local_server, shutdown).await;
    if let Some(Err(error)) = OptionFuture::from(announcer).await {
        warn!(%error, "the announcer of load balancer addresses failed");
    }
    // A caller that waits for the end of the proxy may remove what it made: nothing must be made after that.
    if let Some(Err(error)) = OptionFuture::from(routes).await {
        warn!(%error, "the task of the route of last resort failed");
    }
}

/// Serves pages on an address that was taken, once it is free.
async fn serve_later(address: SocketAddr, handler: Handler, shutdown: CancellationToken) {
    let listener = loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(limits::BIND_PAUSE) => {}
        }
        if let Ok(listener) = TcpListener::bind(address).await {
            break listener;
        }
    };
    info!(%address, "the address is free now");
    serve(listener, None, handler, shutdown).await;
}

fn subscribe(caches: &Caches, tracker: &Arc<ChangeTracker>, shutdown: &CancellationToken) {
    let to = Arc::clone(tracker);
    caches.services.on_change(move |change| to.service(change));
    let to = Arc::clone(tracker);
    caches.slices.on_change(move |change| to.slice(change));
    let to = Arc::clone(tracker);
    caches.nodes.on_change(move |change| to.node(change));
    if let Some(pods) = &caches.pods {
        let to = Arc::clone(tracker);
        pods.on_change(move |change| to.pod(change));
    }
    if let Some(objects) = &caches.policies {
        let to = Arc::clone(tracker);
        objects.on_change(move || to.policies());
        // Also where there is no object at all.
        let (to, objects, ends) = (Arc::clone(tracker), objects.clone(), shutdown.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = ends.cancelled() => {}
                () = objects.synced() => to.policies(),
            }
        });
    }
    let (to, mut ranges, ends) = (Arc::downgrade(tracker), caches.service_ranges.clone(), shutdown.clone());
    let (mut exempt, mut agent) = (caches.exempt.clone(), caches.agent.clone());
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = ends.cancelled() => return,
                () = ranges.changed() => {}
                () = exempt.changed() => {}
                () = agent.changed() => {}
            }
            let Some(tracker) = to.upgrade() else { return };
            tracker.node_tables();
        }
    });
}
