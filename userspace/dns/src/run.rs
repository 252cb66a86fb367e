//! Wiring: caches to the zone, files to the rules, sockets to the engine.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::{Cache, Informers, ObjectKey, Projection};
use apiserver_meta::ambient::Ambient;
use ipnetwork::IpNetwork;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_daemon::metrics::Counter;

use crate::clients::{Clients, of_node};
use crate::cluster::{Settings, Slice, Zone};
use crate::corefile::{self, ClusterZone, Corefile, CorefileError};
use crate::engine::Engine;
use crate::index::{self, Caches};
use crate::limits;
use crate::listeners::{Listeners, Ports, candidates};
use crate::loops;
use crate::metrics::Metrics;
use crate::name::Name;
use crate::objects::Node;
use crate::peers;
use crate::registrar;
use crate::rights;
use crate::routes::Routes;
use crate::server::Readiness;
use crate::slices::{self, State};

/// Settings of the server of one node.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// The cluster's domain, unless the Corefile names it.
    pub domain: Name,
    /// Addresses of the cluster's DNS Service.
    pub servers: Vec<IpAddr>,
    /// The Corefile; without one the default is used.
    pub file: Option<PathBuf>,
    /// Addresses to listen on; those of the Node if empty.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// Port of probes and metrics; 0 for none.
    pub pages_port: u16,
    /// Number of sockets for datagrams on each address.
    pub sockets: usize,
    /// Ranges of pods and Services, whose addresses are answered beside those of the Nodes.
    pub networks: Vec<IpNetwork>,
    /// Write the EndpointSlices of other nodes' servers, which may not do so themselves.
    pub looks_after_others: bool,
}

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot read the configuration {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("cannot use the configuration{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Corefile {
        path: Option<PathBuf>,
        #[source]
        cause: CorefileError,
    },
    #[error(
        "the configuration has no `kubernetes` line: write `kubernetes cluster.local in-addr.arpa ip6.arpa`"
    )]
    NoCluster,
}

/// Reads a file up to a bound.
fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(limits::CONFIGURATION).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads the configuration. Returns it with its text and those of the files that it imports.
fn load(config: &Config) -> Result<(Corefile, ClusterZone, String), StartError> {
    let text = match &config.file {
        Some(path) => read(path).map_err(|cause| StartError::Read { path: path.clone(), cause })?,
        None => corefile::DEFAULT.to_owned(),
    };
    let directory = config.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    let loaded = Corefile::load(&text, directory, &read);
    let (corefile, text) =
        loaded.map_err(|cause| StartError::Corefile { path: config.file.clone(), cause })?;
    let mut cluster = corefile.cluster.clone().ok_or(StartError::NoCluster)?;
    if config.file.is_none() {
        cluster.domain = None;
    }
    Ok((corefile, cluster, text))
}

/// Checks the configuration without running anything.
pub fn check(config: &Config) -> Result<(), StartError> {
    load(config).map(drop)
}

/// The rules, and what they were made of.
struct Rules {
    config: Config,
    corefile: Corefile,
    cluster: ClusterZone,
    /// The text of the configuration and the resolvers' files that the rules follow from.
    seen: String,
    /// The addresses that the server listens on.
    own: BTreeSet<SocketAddr>,
}

impl Rules {
    fn build(&self, metrics: &Metrics, before: Option<&Routes>) -> Routes {
        let own = |address: SocketAddr| {
            self.own.contains(&address) || address.port() == 53 && self.config.servers.contains(&address.ip())
        };
        Routes::build(&self.corefile, &|path| read(path).unwrap_or_default(), &own, metrics, before)
    }

    /// Returns the content of all files that the rules follow from.
    fn files(&self, corefile: &Corefile, text: &str) -> String {
        let targets = corefile.rules.iter().flat_map(|rule| &rule.to);
        let files = targets.filter_map(|target| match target {
            corefile::Target::File(path) => Some(read(path).unwrap_or_default()),
            corefile::Target::Address(_) | corefile::Target::Tls(_) => None,
        });
        let hosts = corefile.hosts.iter().map(|hosts| read(&hosts.file).unwrap_or_default());
        let search = corefile.chains.iter().filter_map(|(_, chain)| chain.autopath.as_ref());
        let search = search.map(|autopath| read(&autopath.file()).unwrap_or_default());
        std::iter::once(text.to_owned())
            .chain(files)
            .chain(hosts)
            .chain(search)
            .collect::<Vec<_>>()
            .join("\0")
    }

    /// Reads all files again. Returns `true` if the rules have to be built anew.
    fn reread(&mut self, metrics: &Metrics) -> bool {
        match load(&self.config) {
            Ok((corefile, cluster, text)) => {
                let seen = self.files(&corefile, &text);
                if seen == self.seen {
                    return false;
                }
                if cluster.domain != self.cluster.domain
                    || (cluster.pods, cluster.ttl) != (self.cluster.pods, self.cluster.ttl)
                {
                    warn!(
                        "the domain, pods and ttl of the `kubernetes` line take effect with the next start"
                    );
                }
                (self.corefile, self.seen) = (corefile, seen);
                info!("the configuration has changed");
                count(&metrics.reloads)
            }
            Err(error) => {
                let text =
                    format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
                if text != self.seen {
                    warn!(error = text, "the changed configuration cannot be used; the old one stays");
                }
                metrics.failed_reloads.add(1);
                false
            }
        }
    }
}

fn count(counter: &Counter) -> bool {
    counter.add(1);
    true
}

/// The agreement with the node's proxy, if it runs in the same process: it leads queries to the server while that
/// serves, and the server answers until they are led elsewhere.
#[derive(Debug)]
pub struct Handover {
    /// Is told whether the server serves: it is ready and not about to end.
    pub serves: watch::Sender<bool>,
    /// The proxy has ended; before, it has led queries elsewhere.
    pub led_away: CancellationToken,
}

/// Runs the server until shutdown, and then until queries are led elsewhere; `handover` is given if the node's
/// proxy runs in this process.
pub async fn run(
    config: Config,
    client: Client,
    ambient: Ambient,
    stop: CancellationToken,
    handover: Option<Handover>,
) -> Result<(), StartError> {
    let (corefile, cluster, text) = load(&config)?;
    let metrics = Arc::new(Metrics::default());
    let mut rules = Rules {
        config: config.clone(),
        corefile,
        cluster: cluster.clone(),
        seen: String::new(),
        own: BTreeSet::new(),
    };
    rules.seen = rules.files(&rules.corefile, &text);
    let settings = Settings {
        domain: cluster.domain.unwrap_or(config.domain),
        ttl: cluster.ttl,
        pods: cluster.pods,
        servers: config.servers.clone(),
        networks: config.networks.clone(),
    };
    let routes = rules.build(&metrics, None);
    let engine = Arc::new(Engine::new(Zone::new(settings), routes, metrics, ambient.clone()));
    let informers = Informers::new(client.clone(), ambient, stop.clone());
    let nodes: Cache<Node> = informers.cache();
    let readiness = Arc::new(Readiness::default());
    let (state, told) = watch::channel(State::default());
    let state = Arc::new(state);
    let led_away = handover.map(|handover| {
        tokio::spawn(publish_serving(told.clone(), handover.serves));
        handover.led_away
    });
    let (slices, node) = (informers.cache::<Slice>(), Arc::<str>::from(&*config.node_name));
    let changed = own_changes(&slices, &config.node_name);
    let indexed = {
        let (readiness, state, engine) = (Arc::clone(&readiness), Arc::clone(&state), Arc::clone(&engine));
        let (client, stop) = (client.clone(), stop.clone());
        async move {
            let Some(rights) = rights::find(&client, cluster.pods, &stop).await else { return };
            let caches = Caches::of(&informers, rights);
            let ready = move || {
                readiness.set(true);
                state.send_modify(|state| state.ready = true);
            };
            index::run(engine, caches, stop, ready).await;
        }
    };
    tokio::spawn(indexed);
    // Answers go on for a moment after the shutdown has begun, while others learn of it.
    let end = CancellationToken::new();
    watch_others(&config, &client, &engine, (nodes.clone(), slices), &stop);
    let slices = tokio::spawn(slices::run(client, node, told, changed));
    let rules = Arc::new(Mutex::new(rules));
    tokio::spawn(follow_files(Arc::clone(&engine), Arc::clone(&rules), stop.clone()));
    let listeners = listen(&config, &engine, &readiness, nodes, &state, &rules, (&stop, &end)).await;
    drain(slices, led_away).await;
    end.cancel();
    listeners.end().await;
    Ok(())
}

/// Waits until others have been told of the end, and for what is under way then. Nothing that hangs keeps the
/// process.
async fn drain(slices: JoinHandle<bool>, led_away: Option<CancellationToken>) {
    let told = tokio::time::timeout(2 * limits::DRAIN, slices).await;
    let mut others_know = matches!(told, Ok(Ok(true)));
    if let Some(led_away) = led_away {
        others_know |= tokio::time::timeout(limits::DRAIN, led_away.cancelled()).await.is_ok();
    }
    if others_know {
        tokio::time::sleep(limits::DRAIN).await;
    }
}

/// Publishes to the proxy of this process whether the server serves, until it is about to end.
async fn publish_serving(mut state: watch::Receiver<State>, serves: watch::Sender<bool>) {
    let serving = |state: &State| state.ready && !state.ending && !state.addresses.is_empty();
    loop {
        let (now, ending) = {
            let state = state.borrow_and_update();
            (serving(&state), state.ending)
        };
        serves.send_if_modified(|before| std::mem::replace(before, now) != now);
        if ending || state.changed().await.is_err() {
            return;
        }
    }
}

/// Watches the servers of other nodes, in the background.
fn watch_others(
    config: &Config,
    client: &Client,
    engine: &Arc<Engine>,
    (nodes, slices): (Cache<Node>, Cache<Slice>),
    stop: &CancellationToken,
) {
    let own = Arc::<str>::from(&*config.node_name);
    let (peers, others) = (slices.clone(), (nodes, slices));
    tokio::spawn(peers::run(client.clone(), Arc::clone(engine), peers, Arc::clone(&own), stop.clone()));
    if config.looks_after_others {
        let own = (own, config.port);
        tokio::spawn(registrar::run(client.clone(), Arc::clone(engine), others, own, stop.clone()));
    }
}

/// Returns a channel that tells changes of the own slices.
fn own_changes(cache: &Cache<Slice>, node: &str) -> watch::Receiver<()> {
    let own = [true, false].map(|is_v4| slices::name(node, is_v4));
    let (sender, receiver) = watch::channel(());
    cache.on_change(move |change| {
        let (namespace, name) = change.object().names();
        if namespace == slices::NAMESPACE && own.iter().any(|own| own == name) {
            sender.send_replace(());
        }
    });
    receiver
}

/// Opens and closes sockets as the Node says, until shutdown. Returns those that are open then.
async fn listen(
    config: &Config,
    engine: &Arc<Engine>,
    readiness: &Arc<Readiness>,
    nodes: Cache<Node>,
    state: &watch::Sender<State>,
    rules: &Mutex<Rules>,
    (stop, end): (&CancellationToken, &CancellationToken),
) -> Listeners {
    let ports = Ports { dns: config.port, pages: config.pages_port, sockets: config.sockets };
    let mut listeners = Listeners::new(Arc::clone(engine), Arc::clone(readiness), ports, end.clone());
    let (changed, mut changes) = watch::channel(());
    nodes.on_change(move |_| changed.send_replace(()));
    let own = ObjectKey::new("", &config.node_name);
    while !stop.is_cancelled() {
        let node = nodes.get(&own);
        engine.clients.store(Arc::new(clients(config, &nodes)));
        let wanted = candidates(node.as_deref(), &config.addresses);
        let open = listeners.reconcile(&wanted).await;
        let is_best = wanted.iter().all(|family| open.iter().any(|address| family[0] == address.ip()));
        let uid = node.map(|node| node.uid.to_string()).unwrap_or_default();
        state.send_if_modified(|state| {
            let before = state.clone();
            (state.addresses, state.node_uid) = (open.clone(), uid);
            state.metrics = (config.pages_port != 0).then_some(config.pages_port);
            *state != before
        });
        let open: BTreeSet<SocketAddr> = open.into_iter().collect();
        let rebuilt = {
            let mut rules = rules.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = std::mem::replace(&mut rules.own, open.clone()) != open;
            changed.then(|| rules.build(&engine.metrics, Some(&engine.routes.load())))
        };
        if let Some(routes) = rebuilt {
            engine.routes.store(Arc::new(routes));
        }
        let pause = if is_best && !wanted.is_empty() { limits::SLICE_CHECK } else { limits::BIND };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Ok(()) = changes.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    state.send_modify(|state| state.ending = true);
    readiness.set(false);
    listeners
}

/// Returns the clients that are answered: pods and nodes, and what the configuration adds.
fn clients(config: &Config, nodes: &Cache<Node>) -> Clients {
    let nodes = nodes.list();
    let of_node = |node: &Arc<Node>| of_node(&node.pod_ranges, &node.addresses, &config.networks);
    Clients::new(config.networks.iter().copied().chain(nodes.iter().flat_map(of_node)))
}

/// Follows the configuration and the node's resolvers, and finds upstreams that lead back to us.
async fn follow_files(engine: Arc<Engine>, rules: Arc<Mutex<Rules>>, stop: CancellationToken) {
    let lock = || rules.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let (find_loops, rebuilt) = {
            let mut rules = lock();
            let changed = rules.reread(&engine.metrics);
            let routes = changed.then(|| rules.build(&engine.metrics, Some(&engine.routes.load())));
            (rules.corefile.find_loops && !rules.own.is_empty(), routes)
        };
        if let Some(routes) = rebuilt {
            engine.routes.store(Arc::new(routes));
        }
        if find_loops {
            loops::find(&engine).await;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(limits::REREAD) => {}
        }
    }
}
