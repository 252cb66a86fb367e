//! A simulated node: a kubelet with the fake runtime, and a proxy with the fake data plane.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use apiserver_auth::authentication::pki::Component;
use apiserver_meta::ambient::Ambient;
use kubelet_agent::FakeMachine;
use kubelet_cri::fake::FakeOptions;
use kubelet_cri::{ContainerState, FakeRuntime, Runtime};
use userspace_dataplane::DataPlane;
use userspace_dataplane::Fake;
use userspace_dataplane::tables::{
    Applied, Backend, DataPlaneError, Frontend, Interface, NodeTables, ServiceTables, Tables,
};
use userspace_proxy::NoLinks;

use crate::ambient::SimClock;
use crate::control::Process;
use crate::network::Network;

/// The data plane of one node, as seen by its proxy and by the test. It outlives the proxy.
#[derive(Clone, Default)]
pub struct Plane(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    fake: Fake,
    /// Tables that the proxy last requested, by Service.
    asked: Tables,
}

impl Plane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates a new process that opens it: the maps exist, and nothing is remembered.
    fn reopen(&self) {
        let mut state = self.state();
        state.fake = std::mem::take(&mut state.fake).restarted();
    }

    /// Returns the contents of the maps for the requested frontends.
    pub fn backends(&self) -> Vec<(String, Backend)> {
        let state = self.state();
        let frontends =
            state.asked.iter().flat_map(|(name, tables)| tables.frontends.iter().map(move |f| (name, f)));
        frontends
            .flat_map(|(name, frontend)| {
                let backends = state.fake.backends(&frontend.key).unwrap_or_default();
                backends.into_iter().map(move |backend| (name.clone(), backend))
            })
            .collect()
    }

    /// Returns how the maps differ from `expected`; empty if they do not.
    pub fn differences(&self, expected: &Tables) -> Vec<String> {
        let state = self.state();
        let wanted: Vec<&Frontend> = expected.values().flat_map(|tables| &tables.frontends).collect();
        let mut found = Vec::new();
        if state.fake.frontends() != wanted.len() {
            found.push(format!(
                "{} frontends in the maps, {} expected",
                state.fake.frontends(),
                wanted.len()
            ));
        }
        for frontend in wanted {
            let backends = state.fake.backends(&frontend.key);
            if backends.as_ref() != Some(&frontend.backends) {
                let key = frontend.key;
                found.push(format!("{key:?}: {backends:?} in the maps, {:?} expected", frontend.backends));
            }
        }
        found
    }
}

impl DataPlane for Plane {
    fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError> {
        let mut state = self.state();
        state.asked.clone_from(desired);
        state.fake.apply_full(desired)
    }

    fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError> {
        let mut state = self.state();
        match desired {
            Some(tables) => drop(state.asked.insert(service.to_owned(), tables.clone())),
            None => drop(state.asked.remove(service)),
        }
        state.fake.apply_service(service, desired)
    }

    fn set_node(&mut self, node: &NodeTables) -> Result<(), DataPlaneError> {
        self.state().fake.set_node(node)
    }

    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError> {
        self.state().fake.set_interfaces(interfaces)
    }
}

/// A node and the components on it.
pub struct SimNode {
    pub name: String,
    number: u32,
    /// Number of boots.
    boots: u32,
    pub runtime: FakeRuntime,
    pub machine: FakeMachine,
    pub plane: Plane,
    pub kubelet: Option<Process>,
    pub proxy: Option<Process>,
    clock: SimClock,
}

impl SimNode {
    /// Creates node number `number`, from 0 to 32767, switched off.
    pub fn new(name: &str, number: u32, clock: &SimClock) -> Self {
        let (runtime, machine) = hardware(name, number, clock);
        Self {
            name: name.to_owned(),
            number,
            boots: 0,
            runtime,
            machine,
            plane: Plane::default(),
            kubelet: None,
            proxy: None,
            clock: clock.clone(),
        }
    }

    pub fn is_off(&self) -> bool {
        self.kubelet.is_none() && self.proxy.is_none()
    }

    /// Cuts the power: processes, containers and kernel state are lost.
    pub fn power_off(&mut self) {
        self.kill_kubelet();
        self.kill_proxy();
        self.boots += 1;
        (self.runtime, self.machine) = hardware(&self.name, self.number, &self.clock);
        self.plane = Plane::default();
    }

    pub fn kill_kubelet(&mut self) {
        if let Some(process) = self.kubelet.take() {
            process.kill();
        }
    }

    pub fn kill_proxy(&mut self) {
        if let Some(process) = self.proxy.take() {
            process.kill();
        }
    }

    pub fn start_kubelet(&mut self, network: &Network, ambient: &Ambient) {
        let runtime: Arc<dyn Runtime> = Arc::new(self.runtime.clone());
        let machine = Arc::new(self.machine.clone());
        let config = kubelet_agent::Config::new(&self.name);
        let (network, ambient, name) = (network.clone(), ambient.clone(), self.name.clone());
        self.kubelet = Some(Process::start(|life| async move {
            let client = network.client(Component::Node(&name), life.clone());
            let listeners = kubelet_agent::Listeners::default();
            let run = kubelet_agent::run(config, client, runtime, machine, ambient, listeners, life);
            if let Err(error) = Box::pin(run).await {
                tracing::error!(%error, name, "a kubelet ended");
            }
        }));
    }

    pub fn start_proxy(&mut self, network: &Network, ambient: &Ambient) -> Result<()> {
        self.plane.reopen();
        let config = userspace_proxy::Config::for_node(&self.name)
            .with_context(|| format!("{} is no name for a node", self.name))?;
        let (network, ambient, plane) = (network.clone(), ambient.clone(), self.plane.clone());
        self.proxy = Some(Process::start(|life| async move {
            let client = network.client(Component::Proxy, life.clone());
            let listeners = userspace_proxy::Listeners::default();
            let links = Box::new(NoLinks);
            Box::pin(userspace_proxy::run(config, client, Box::new(plane), links, ambient, listeners, life))
                .await;
        }));
        Ok(())
    }

    /// Returns the sorted ids of the running containers.
    pub async fn running_containers(&self) -> Vec<String> {
        let all = self.runtime.list_containers(None).await.unwrap_or_default();
        all.into_iter().filter(|c| c.state == ContainerState::Running).map(|c| c.id).collect()
    }
}

/// Returns an empty runtime and its machine. Each node has a /24 of pod addresses.
fn hardware(name: &str, number: u32, clock: &SimClock) -> (FakeRuntime, FakeMachine) {
    let pods = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 0)) + number * 256);
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + number);
    let clock = clock.clone();
    let runtime = FakeRuntime::new(FakeOptions::new((pods, 24), Arc::new(move || clock.nanoseconds())));
    let machine = FakeMachine::new(runtime.clone(), name, IpAddr::V4(address));
    (runtime, machine)
}
