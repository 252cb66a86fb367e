//! The cluster in one process, and the operations of tests on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use apiserver_auth::authentication::pki::Subject;
use apiserver_client::{Change, Informers};
use apiserver_meta::ambient::Ambient;
use apiserver_store::disk::Faults;
use apiserver_store::{Notice, Range, Store};
use futures::StreamExt;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api as KubeApi, Client};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use userspace_proxy::NodeView;

use crate::ambient::{SimClock, SimRandom, ambient};
use crate::control::{self, Api, DurableState, Process};
use crate::model::Model;
use crate::network::Network;
use crate::node::SimNode;

/// Simulated time between checks.
const STEP: Duration = Duration::from_millis(50);
/// Time without changes after which a cluster is at rest.
const REST: Duration = Duration::from_secs(3);
/// Time within which a new API server must be ready.
const API_START: Duration = Duration::from_secs(30);

/// One simulated cluster.
pub struct Simulation {
    pub seed: u64,
    /// Random numbers for the test's own choices.
    pub random: SimRandom,
    pub network: Network,
    pub nodes: BTreeMap<String, SimNode>,
    /// Client of an administrator.
    pub client: Client,
    ambient: Ambient,
    clock: SimClock,
    ground: DurableState,
    api: Option<Api>,
    observer: Option<Process>,
    controllers: Option<Process>,
    scheduler: Option<Process>,
    model: Arc<Mutex<Model>>,
    looked: Instant,
}

impl Simulation {
    /// Starts a control plane without nodes, and waits until it is ready.
    pub async fn new(seed: u64) -> Result<Self> {
        let clock = SimClock::start();
        // Separate sequences, so that an additional draw in one place does not affect the others.
        let ambient = ambient(&clock, SimRandom::new(seed ^ 0xa11));
        let network = Network::new(SimRandom::new(seed ^ 0x2e7));
        let ground = DurableState::new(seed ^ 0xd15c, &ambient)?;
        let client = network.client_as(Subject::admin().identity(), "sim", CancellationToken::new());
        let mut simulation = Self {
            seed,
            random: SimRandom::new(seed),
            network,
            nodes: BTreeMap::new(),
            client,
            ambient,
            clock,
            ground,
            api: None,
            observer: None,
            controllers: None,
            scheduler: None,
            model: Arc::default(),
            looked: Instant::now(),
        };
        simulation.start_api().await?;
        simulation.start_controllers()?;
        simulation.start_scheduler();
        simulation.watch_versions();
        Ok(simulation)
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the simulated time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.clock_time()
    }

    fn clock_time(&self) -> Duration {
        let began = apiserver_meta::ambient::Clock::now(&self.clock).as_millisecond() - 1_800_000_000_000;
        Duration::from_millis(u64::try_from(began).unwrap_or_default())
    }

    /// Adds a node and switches it on.
    pub fn add_node(&mut self, name: &str, with_proxy: bool) -> Result<()> {
        let number = u32::try_from(self.nodes.len())?;
        let mut node = SimNode::new(name, number, &self.clock);
        node.start_kubelet(&self.network, &self.ambient);
        if with_proxy {
            node.start_proxy(&self.network, &self.ambient)?;
        }
        self.nodes.insert(name.to_owned(), node);
        Ok(())
    }

    fn node(&mut self, name: &str) -> Result<&mut SimNode> {
        self.nodes.get_mut(name).with_context(|| format!("there is no node {name}"))
    }
}

/// Faults and repairs.
impl Simulation {
    async fn start_api(&mut self) -> Result<()> {
        let api = self.ground.start(&self.ambient).await?;
        let (at, seen) = (api.store.stats().revision, self.model().revision);
        ensure!(at >= seen, "the store came back at revision {at}, and {seen} had been seen");
        let (store, model) = (api.store.clone(), Arc::clone(&self.model));
        self.observer = Some(Process::start(|_| observe(store, model)));
        self.network.serve(api.server.service());
        let ready = tokio::time::timeout(API_START, api.server.ready()).await;
        ready.context("the apiserver is not ready in time")?;
        self.api = Some(api);
        Ok(())
    }

    /// Kills the API server; with `power_loss` during a disk operation, which loses what was not synced.
    pub async fn crash_api(&mut self, power_loss: bool) -> Result<()> {
        let Some(api) = self.api.take() else { return Ok(()) };
        self.model().disturb(if power_loss { "power loss" } else { "apiserver killed" });
        if power_loss {
            let crash_at = self.ground.disk.operations() + 1 + self.random.below(12);
            self.ground.disk.set_faults(Faults { crash_at: Some(crash_at), ..Faults::default() });
            for _ in 0..100 {
                if self.ground.disk.crashed() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.ground.disk.crash();
        } else {
            self.ground.disk.kill_process();
        }
        self.network.crash();
        api.server.stop();
        if let Some(observer) = self.observer.take() {
            observer.kill();
        }
        drop(api);
        // The rest of it finds the disk gone and ends.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if power_loss {
            self.ground.disk.restart();
        }
        Ok(())
    }

    /// Starts the API server again, if it is down.
    pub async fn restart_api(&mut self) -> Result<()> {
        if self.api.is_some() {
            return Ok(());
        }
        self.model().disturb("apiserver started");
        self.start_api().await
    }

    fn start_controllers(&mut self) -> Result<()> {
        self.controllers = Some(control::controllers(&self.network, &self.ambient)?);
        Ok(())
    }

    fn start_scheduler(&mut self) {
        self.scheduler = Some(control::scheduler(&self.network, &self.ambient));
    }

    /// Kills the controllers and starts them again.
    pub fn restart_controllers(&mut self) -> Result<()> {
        self.model().disturb("controllers killed");
        if let Some(process) = self.controllers.take() {
            process.kill();
        }
        self.start_controllers()
    }

    /// Kills the scheduler and starts it again.
    pub fn restart_scheduler(&mut self) {
        self.model().disturb("scheduler killed");
        if let Some(process) = self.scheduler.take() {
            process.kill();
        }
        self.start_scheduler();
    }

    /// Kills the kubelet of a node. Containers keep running.
    pub fn kill_kubelet(&mut self, name: &str) -> Result<()> {
        self.model().disturb(&format!("kubelet of {name} killed"));
        self.node(name)?.kill_kubelet();
        Ok(())
    }

    /// Kills the proxy of a node. Its tables stay.
    pub fn kill_proxy(&mut self, name: &str) -> Result<()> {
        self.model().disturb(&format!("proxy of {name} killed"));
        self.node(name)?.kill_proxy();
        Ok(())
    }

    /// Cuts the power of a node: everything on it is lost.
    pub fn kill_node(&mut self, name: &str) -> Result<()> {
        self.model().disturb(&format!("node {name} lost power"));
        self.node(name)?.power_off();
        Ok(())
    }

    /// Starts what is not running on a node.
    pub fn heal_node(&mut self, name: &str) -> Result<()> {
        let (network, ambient) = (self.network.clone(), self.ambient.clone());
        let node = self.node(name)?;
        if node.kubelet.is_none() {
            node.start_kubelet(&network, &ambient);
        }
        if node.proxy.is_none() {
            node.start_proxy(&network, &ambient)?;
        }
        self.model().disturb(&format!("node {name} healed"));
        Ok(())
    }

    /// Ends a running container of a node; returns false if there is none.
    pub async fn crash_container(&mut self, name: &str) -> Result<bool> {
        let containers = self.node(name)?.running_containers().await;
        let Some(id) = self.random.choose(&containers).cloned() else { return Ok(false) };
        self.model().disturb(&format!("container {id} on {name} crashed"));
        self.node(name)?.runtime.exit_container(&id, 1);
        Ok(true)
    }

    /// Makes `per_mille` of a thousand requests get no answer although they are carried out.
    pub fn lose_answers(&mut self, per_mille: u64) {
        self.model().disturb(&format!("{per_mille} in 1000 answers are lost"));
        self.network.lose_answers(per_mille);
    }

    /// Starts everything that was stopped.
    pub async fn heal(&mut self) -> Result<()> {
        self.lose_answers(0);
        self.restart_api().await?;
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().try_for_each(|name| self.heal_node(name))
    }
}

/// Waiting and checking.
impl Simulation {
    /// Lets simulated time pass, and checks the invariants.
    pub async fn pass(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + STEP)).await;
            self.check_invariants()?;
        }
        Ok(())
    }

    /// Waits until a condition holds, for at most `bound` of simulated time.
    pub async fn until(
        &mut self,
        what: &str,
        bound: Duration,
        holds: impl Fn(&Model) -> bool,
    ) -> Result<Duration> {
        let start = Instant::now();
        loop {
            self.check_invariants()?;
            if holds(&self.model()) {
                return Ok(start.elapsed());
            }
            if start.elapsed() >= bound {
                bail!("after {bound:?} still not: {what}");
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Waits until nothing changes any more, and checks the consistency of the whole cluster.
    pub async fn rest(&mut self, bound: Duration) -> Result<()> {
        let since = Instant::now();
        self.until("at rest", bound, |model| model.changed.elapsed() >= REST && since.elapsed() >= REST)
            .await?;
        self.check_rest().await
    }

    fn check_invariants(&mut self) -> Result<()> {
        let gone = {
            let mut model = self.model();
            model.check_lasting();
            if let Some(first) = model.violations.first() {
                bail!("a promise was broken: {first}");
            }
            model.long_gone()
        };
        if self.looked.elapsed() < Duration::from_secs(1) || gone.is_empty() {
            return Ok(());
        }
        self.looked = Instant::now();
        for node in self.nodes.values().filter(|node| node.proxy.is_some()) {
            for (service, backend) in node.plane.backends() {
                ensure!(
                    !gone.contains(&backend.address),
                    "on {} Service {service} leads to {}, whose pod is gone",
                    node.name,
                    backend.address
                );
            }
        }
        Ok(())
    }

    /// Returns all objects of a kind as they are in the store.
    pub async fn stored<K: DeserializeOwned>(&self, plural: &str) -> Result<Vec<K>> {
        let api = self.api.as_ref().context("the apiserver is down")?;
        let range = Range { prefix: format!("/registry/{plural}/"), ..Range::default() };
        let page = api.store.list(range).await.with_context(|| format!("cannot list {plural}"))?;
        let each = page.kvs.iter().map(|kv| {
            serde_json::from_slice(&kv.value).with_context(|| format!("{} cannot be decoded", kv.key))
        });
        each.collect()
    }

    /// Checks the invariants of a cluster at rest.
    async fn check_rest(&self) -> Result<()> {
        self.check_tables().await?;
        self.check_lists().await
    }

    /// Checks that every Service leads to its ready pods: in the slices, and in the tables of every node with
    /// a running proxy.
    pub async fn check_tables(&self) -> Result<()> {
        let services: Vec<v1::Service> = self.stored("services/specs").await?;
        let slices: Vec<EndpointSlice> = self.stored("endpointslices").await?;
        let nodes: Vec<v1::Node> = self.stored("minions").await?;
        for service in &services {
            self.check_slices(service, &slices)?;
        }
        for node in &nodes {
            let view = NodeView::of(node);
            let Some(simulated) = self.nodes.get(&view.name).filter(|node| node.proxy.is_some()) else {
                continue;
            };
            let context = userspace_proxy::Context { node: view, ..Default::default() };
            let expected = userspace_proxy::compile(&services, &slices, &context);
            let differences = simulated.plane.differences(&expected);
            ensure!(differences.is_empty(), "tables of {}: {}", simulated.name, differences.join("; "));
        }
        Ok(())
    }

    fn check_slices(&self, service: &v1::Service, slices: &[EndpointSlice]) -> Result<()> {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let Some(app) = selector.and_then(|selector| selector.get("app")) else { return Ok(()) };
        let model = self.model();
        let ready: BTreeSet<IpAddr> = model
            .ready_pods()
            .filter(|(_, pod)| pod.app == *app)
            .filter_map(|(_, pod)| pod.address)
            .collect();
        let label = "kubernetes.io/service-name";
        let of_service = slices.iter().filter(|slice| {
            slice.metadata.labels.as_ref().and_then(|labels| labels.get(label)).is_some_and(|of| of == name)
        });
        let listed: Vec<IpAddr> = of_service
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true))
            .flat_map(|endpoint| &endpoint.addresses)
            .filter_map(|address| address.parse().ok())
            .collect();
        let each_once: BTreeSet<IpAddr> = listed.iter().copied().collect();
        ensure!(listed.len() == each_once.len(), "the slices of {name} name an address twice: {listed:?}");
        ensure!(each_once == ready, "the slices of {name} say {each_once:?}, ready are {ready:?}");
        Ok(())
    }

    /// Checks that the API and the store have the same content.
    async fn check_lists(&self) -> Result<()> {
        let pods = KubeApi::<v1::Pod>::all(self.client.clone()).list(&Default::default()).await?;
        let listed: BTreeMap<String, i64> = pods
            .items
            .iter()
            .map(|pod| {
                let meta = &pod.metadata;
                let key = |text: &Option<String>| text.clone().unwrap_or_default();
                let version = key(&meta.resource_version).parse().unwrap_or_default();
                (format!("/registry/pods/{}/{}", key(&meta.namespace), key(&meta.name)), version)
            })
            .collect();
        let model = self.model();
        let stored: BTreeMap<String, i64> = model
            .keys
            .range("/registry/pods/".to_owned().."/registry/pods0".to_owned())
            .map(|(key, revision)| (key.clone(), *revision))
            .collect();
        ensure!(listed == stored, "the API lists {listed:?}, the store has {stored:?}");
        Ok(())
    }

    /// Watches pods as any client does, and checks that an object never goes back to an older version.
    fn watch_versions(&self) {
        let informers = Informers::new(self.client.clone(), self.ambient.clone(), CancellationToken::new());
        let model = Arc::clone(&self.model);
        informers.cache::<v1::Pod>().on_change(move |change| {
            let Change::Applied { old: Some(old), new } = change else { return };
            let version = |pod: &v1::Pod| -> i64 {
                pod.metadata
                    .resource_version
                    .as_deref()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or_default()
            };
            if version(new) < version(old) {
                let text = format!("pod {} went from {} to {}", change.key(), version(old), version(new));
                model.lock().unwrap_or_else(PoisonError::into_inner).violation(text);
            }
        });
    }
}

/// Passes every change of the store to the model.
async fn observe(store: apiserver_store::embedded::Embedded, model: Arc<Mutex<Model>>) {
    let from = model.lock().unwrap_or_else(PoisonError::into_inner).revision + 1;
    let mut watch = match store.watch("/", from).await {
        Ok(watch) => watch,
        Err(error) => {
            let text = format!("the store cannot be watched from {from}: {error}");
            return model.lock().unwrap_or_else(PoisonError::into_inner).violation(text);
        }
    };
    // A store that ends is reported where it was ended.
    while let Some(Ok(notice)) = watch.next().await {
        if let Notice::Events(events) = notice {
            let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
            events.iter().for_each(|event| model.take(event));
        }
    }
}
