//! A proxy on hand-fed caches, with the in-memory data plane behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_client::events::Recorder;
use apiserver_meta::ambient::Ambient;
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{
    Applied, Bandwidths, Checkup, DataPlaneError, FrontendKey, Interface, NodeTables, Protocol, Reconciled,
    Scope, ServiceTables, Tables, XdpRow,
};
use userspace_dataplane::{Fake, Resolution};
use userspace_proxy::links::{LinkError, NextLinks};
use userspace_proxy::{Caches, Config, Link, Links, Listeners, run_with};

/// The data plane, shared with the test.
#[derive(Clone, Default)]
pub struct Plane(pub Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    pub fake: Fake,
    /// The applied tables, by Service.
    pub tables: Tables,
    /// Calls in order: `full`, or the name of a Service.
    pub calls: Vec<String>,
    /// An address; after each change of one Service it is recorded whether the address belonged to one.
    pub watched: Option<IpAddr>,
    pub was_served: Vec<bool>,
    /// Services whose applies fail; `full` for those of everything.
    pub broken: BTreeSet<String>,
    /// The faults that a check of the data path finds. There are checks only if there is an observer.
    pub faults: Vec<String>,
    pub observer: Option<Inspector>,
    /// The result of a check of the data path for sockets whose backend went.
    pub reconciled: Reconciled,
}

impl State {
    fn call(&mut self, what: &str) -> Result<(), DataPlaneError> {
        self.calls.push(what.to_owned());
        if self.broken.contains(what) {
            let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            return Err(DataPlaneError::Kernel {
                attempted: format!("apply {what}"),
                cause: Box::new(cause),
            });
        }
        Ok(())
    }
}

impl DataPlane for Plane {
    fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError> {
        let mut state = self.0.lock().unwrap();
        state.call("full")?;
        state.tables.clone_from(desired);
        state.fake.apply_full(desired)
    }

    fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError> {
        let mut state = self.0.lock().unwrap();
        state.call(service)?;
        match desired {
            Some(tables) => drop(state.tables.insert(service.to_owned(), tables.clone())),
            None => drop(state.tables.remove(service)),
        }
        let applied = state.fake.apply_service(service, desired);
        if let Some(address) = state.watched {
            let resolution = state.fake.resolve(address, 80, Protocol::Tcp, Scope::Internal, 0);
            state.was_served.push(resolution != Resolution::NotAService);
        }
        applied
    }

    fn set_node(&mut self, node: &NodeTables) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().fake.set_node(node)
    }

    fn set_bandwidths(&mut self, limits: &Bandwidths) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().fake.set_bandwidths(limits)
    }

    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError> {
        self.0.lock().unwrap().fake.set_interfaces(interfaces)
    }

    fn check(&mut self) -> Result<Checkup, DataPlaneError> {
        let mut state = self.0.lock().unwrap();
        let native = XdpRow { mode: "native", reason: None };
        let looks = std::mem::take(&mut state.reconciled.looks);
        let reconciled = Reconciled { looks, ..state.reconciled.clone() };
        Ok(Checkup { faults: state.faults.clone(), xdp: [("eth0".to_owned(), native)].into(), reconciled })
    }

    fn adopted_services(&self) -> usize {
        self.0.lock().unwrap().tables.len()
    }

    fn observer(&self) -> Option<Inspector> {
        self.0.lock().unwrap().observer.clone()
    }
}

/// Interfaces that the test sets.
pub struct SaidLinks(mpsc::UnboundedReceiver<Vec<Link>>);

impl Links for SaidLinks {
    fn next(&mut self) -> NextLinks<'_> {
        Box::pin(async {
            match self.0.recv().await {
                Some(links) => Ok(links),
                None => std::future::pending::<Result<Vec<Link>, LinkError>>().await,
            }
        })
    }
}

/// A running proxy.
pub struct Proxy {
    pub caches: Caches,
    pub plane: Plane,
    pub links: mpsc::UnboundedSender<Vec<Link>>,
    synced: Option<oneshot::Sender<()>>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts the proxy of node `here`; its first lists have not arrived.
    pub fn start(config: Config, plane: Plane, listeners: Listeners) -> Self {
        Self::start_with(config, plane, listeners, |_| {})
    }

    /// Starts a proxy as [`Proxy::start`] does, with other caches.
    pub fn start_with(
        config: Config,
        plane: Plane,
        listeners: Listeners,
        change: impl FnOnce(&mut Caches),
    ) -> Self {
        Self::start_recording(config, plane, listeners, change, None)
    }

    /// Starts a proxy as [`Proxy::start_with`] does, with Events.
    pub fn start_recording(
        config: Config,
        plane: Plane,
        listeners: Listeners,
        change: impl FnOnce(&mut Caches),
        recorder: Option<Recorder>,
    ) -> Self {
        let mut caches = Caches {
            services: Default::default(),
            slices: Default::default(),
            nodes: Default::default(),
            pods: None,
            service_ranges: Default::default(),
            exempt: Default::default(),
            agent: Default::default(),
            policies: None,
        };
        change(&mut caches);
        let (synced, lists) = oneshot::channel();
        let (links, said) = mpsc::unbounded_channel();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(run_with(
            config,
            caches.clone(),
            lists.map(drop).boxed(),
            Box::new(plane.clone()),
            Box::new(SaidLinks(said)),
            Ambient::system(),
            listeners,
            recorder,
            shutdown.clone(),
        ));
        Self { caches, plane, links, synced: Some(synced), shutdown, task }
    }

    /// Lets the first lists arrive.
    pub async fn sync(&mut self) {
        self.synced.take().unwrap().send(()).unwrap();
        run_tasks().await;
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.plane.0.lock().unwrap().calls)
    }

    pub fn tables(&self) -> Tables {
        self.plane.0.lock().unwrap().tables.clone()
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

/// Asserts that the fake's tables are equal to these.
pub fn assert_in_tables(state: &State, expected: &Tables) {
    let frontends: BTreeMap<FrontendKey, _> =
        expected.values().flat_map(|tables| &tables.frontends).map(|one| (one.key, one)).collect();
    assert_eq!(state.fake.frontends(), frontends.len());
    for (key, frontend) in frontends {
        assert_eq!(state.fake.backends(&key).as_ref(), Some(&frontend.backends), "{key:?}");
    }
}

/// Lets every task run until all wait; no time passes for them.
pub async fn run_tasks() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    run_tasks().await;
}

/// Requests a page; returns code, head and body.
pub async fn page(address: std::net::SocketAddr, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

/// Parses an object from YAML.
pub fn object<T: serde::de::DeserializeOwned>(yaml: &str) -> T {
    serde_saphyr::from_str(yaml).unwrap()
}

/// Returns a Service `default/NAME` with one port.
pub fn service(name: &str, ip: &str) -> k8s_openapi::api::core::v1::Service {
    object(&format!(
        "metadata: {{namespace: default, name: {name}, creationTimestamp: '2026-01-01T00:00:00Z'}}\n\
         spec: {{clusterIP: {ip}, clusterIPs: [{ip}], ports: [{{port: 80}}]}}"
    ))
}

/// Returns a slice of a Service with ready endpoints on port 8080.
pub fn slice(service: &str, addresses: &[&str]) -> k8s_openapi::api::discovery::v1::EndpointSlice {
    let endpoints: Vec<_> = addresses.iter().map(|ip| format!("{{addresses: [{ip}]}}")).collect();
    object(&format!(
        "metadata: {{namespace: default, name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{}]",
        endpoints.join(", ")
    ))
}
