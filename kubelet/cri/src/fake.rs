//! A deterministic in-memory runtime for tests and for the simulation. It uses tokio's clock and is light
//! enough for hundreds of instances in one process. The behaviour of containers is scripted by image.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::watch, time::Instant};

use crate::{
    ContainerConfig, ContainerState, ContainerStatus, ContainerSummary, Credentials, ErrorKind, ExecOutput,
    Image, NamespaceMode, Resources, Result, Runtime, RuntimeCondition, RuntimeError, RuntimeStatus,
    SandboxConfig, SandboxState, SandboxStatus, SandboxSummary, StreamOptions, Version, labels,
};

/// General settings of the fake runtime.
#[derive(Clone)]
pub struct FakeOptions {
    /// First address and prefix length of the range of pod addresses. The network's own address and the first
    /// one after it are never assigned.
    pub pod_cidr: (Ipv4Addr, u8),
    /// Returns the time for timestamps in nanoseconds since 1970.
    pub clock: Arc<dyn Fn() -> i64 + Send + Sync>,
    /// Time to start a sandbox.
    pub sandbox_delay: Duration,
    /// Time to create and start a container.
    pub start_delay: Duration,
    /// Time to pull an image.
    pub pull_delay: Duration,
}

impl FakeOptions {
    /// Creates settings with delays as measured on a small machine, where a pod starts in about a tenth of a
    /// second.
    pub fn new(pod_cidr: (Ipv4Addr, u8), clock: Arc<dyn Fn() -> i64 + Send + Sync>) -> Self {
        Self {
            pod_cidr,
            clock,
            sandbox_delay: Duration::from_millis(55),
            start_delay: Duration::from_millis(40),
            pull_delay: Duration::from_millis(500),
        }
    }
}

/// Behaviour of the containers of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Time after the start at which the container ends on its own, and its exit code.
    pub exits: Option<(Duration, i32)>,
    /// Time after the start from which probes succeed.
    pub ready_after: Duration,
    /// If set, probes never succeed.
    pub never_ready: bool,
    /// Message with which starting fails.
    pub start_fails: Option<String>,
    /// Message with which pulling fails. Without it a pull succeeds.
    pub pull_fails: Option<String>,
    /// True if the image must be pulled first.
    pub absent: bool,
    /// Time to end after SIGTERM; beyond the grace period the container is killed.
    pub stop_takes: Duration,
    /// Time to reopen the log.
    pub reopen_takes: Duration,
}

/// The fake runtime. Cheap to clone; clones share all state.
#[derive(Clone)]
pub struct FakeRuntime(Arc<Shared>);

struct Shared {
    options: FakeOptions,
    state: Mutex<State>,
    hints: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    next_address: u32,
    /// The range of the addresses of new sandboxes, if it has been changed.
    pod_cidr: Option<(Ipv4Addr, u8)>,
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
    /// Behaviour by image.
    behaviours: BTreeMap<String, Behaviour>,
    pulled: BTreeSet<String>,
    /// Number of upcoming failures by call.
    failures: BTreeMap<&'static str, u32>,
    /// Readiness overrides by name of the pod.
    readiness: BTreeMap<String, bool>,
    /// Number of calls so far, by name.
    calls: BTreeMap<&'static str, u64>,
    down: bool,
}

struct Sandbox {
    summary: SandboxSummary,
    address: Option<Ipv4Addr>,
}

struct Container {
    status: ContainerStatus,
    sandbox_id: String,
    /// Time of the start on tokio's clock.
    started: Option<Instant>,
    behaviour: Behaviour,
    /// Size of the writable layer in bytes.
    written: u64,
    /// Number of times the log has been reopened.
    reopened: u64,
    /// Resources as created or last updated.
    resources: Resources,
}

impl FakeRuntime {
    /// Creates a runtime without pods.
    pub fn new(options: FakeOptions) -> Self {
        let state = State { next_address: 2, ..State::default() };
        Self(Arc::new(Shared { options, state: Mutex::new(state), hints: watch::Sender::new(0) }))
    }

    /// Returns the resources last set on a container; `None` if there is no such container.
    pub fn resources(&self, id: &str) -> Option<Resources> {
        self.state().containers.get(id).map(|container| container.resources)
    }

    /// Changes the range of the addresses of new sandboxes, as a network plugin does whose configuration changes.
    pub fn set_pod_cidr(&self, pod_cidr: (Ipv4Addr, u8)) {
        self.state().pod_cidr = Some(pod_cidr);
    }

    /// Sets the behaviour of containers of an image that start from now on.
    pub fn set_behaviour(&self, image: &str, behaviour: Behaviour) {
        self.state().behaviours.insert(image.to_owned(), behaviour);
    }

    /// Makes the next `times` calls with this name (such as `RunPodSandbox`) fail.
    pub fn fail_next(&self, call: &'static str, times: u32) {
        self.state().failures.insert(call, times);
    }

    /// Makes the runtime unavailable, or available again. Containers keep running.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
        self.0.hint();
    }

    /// Overrides whether the containers of a pod answer probes.
    pub fn set_ready(&self, pod_name: &str, ready: bool) {
        self.state().readiness.insert(pod_name.to_owned(), ready);
    }

    /// Ends a running container immediately.
    pub fn exit_container(&self, id: &str, code: i32) {
        self.0.exit(id, code);
    }

    /// Sets the size of a container's writable layer.
    pub fn set_written(&self, id: &str, bytes: u64) {
        if let Some(container) = self.state().containers.get_mut(id) {
            container.written = bytes;
        }
    }

    /// Returns how many times the log of a container has been reopened.
    pub fn reopened(&self, id: &str) -> u64 {
        self.state().containers.get(id).map_or(0, |container| container.reopened)
    }

    /// Returns how many times a call has been made.
    pub fn calls(&self, call: &'static str) -> u64 {
        self.state().calls.get(call).copied().unwrap_or_default()
    }

    /// Returns `true` if the pod at an address currently answers probes.
    pub fn answers(&self, address: IpAddr) -> bool {
        let state = self.state();
        let Some((id, sandbox)) =
            state.sandboxes.iter().find(|(_, sandbox)| sandbox.address.map(IpAddr::V4) == Some(address))
        else {
            return false;
        };
        let mut running = state.containers.values().filter(|container| {
            container.sandbox_id == *id && container.status.state == ContainerState::Running
        });
        running.any(|container| state.container_answers(container, &sandbox.summary.name))
    }

    /// Returns `true` if a container currently answers probes.
    pub fn container_answers(&self, id: &str) -> bool {
        let state = self.state();
        let Some(container) = state.containers.get(id) else { return false };
        let Some(sandbox) = state.sandboxes.get(&container.sandbox_id) else { return false };
        container.status.state == ContainerState::Running
            && state.container_answers(container, &sandbox.summary.name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state()
    }

    /// Counts a call and fails it if a failure is scheduled.
    fn enter(&self, call: &'static str) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        *state.calls.entry(call).or_default() += 1;
        if state.down {
            return Err(RuntimeError::new(call, ErrorKind::Unavailable, "the runtime is down"));
        }
        if let Some(left) = state.failures.get_mut(call).filter(|left| **left > 0) {
            *left -= 1;
            return Err(RuntimeError::new(call, ErrorKind::Failed, "asked to fail"));
        }
        Ok(state)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hint(&self) {
        self.hints.send_modify(|count| *count += 1);
    }

    fn now(&self) -> i64 {
        (self.options.clock)()
    }

    fn exit(&self, id: &str, code: i32) {
        let now = self.now();
        if let Some(container) = self.state().containers.get_mut(id) {
            container.exit(now, code);
        }
        self.hint();
    }
}

impl State {
    fn container_answers(&self, container: &Container, pod: &str) -> bool {
        if let Some(ready) = self.readiness.get(pod) {
            return *ready;
        }
        let behaviour = &container.behaviour;
        !behaviour.never_ready && container.started.is_some_and(|at| at.elapsed() >= behaviour.ready_after)
    }

    fn id(&mut self, kind: &str) -> String {
        self.next_id += 1;
        format!("{kind}{:016x}", self.next_id)
    }

    /// Returns the next free address after the last one assigned, so that addresses are not reused soon.
    fn address(&mut self, (first, prefix): (Ipv4Addr, u8)) -> Option<Ipv4Addr> {
        let size = 1u32.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(u32::MAX);
        let used: BTreeSet<Ipv4Addr> =
            self.sandboxes.values().filter_map(|sandbox| sandbox.address).collect();
        for _ in 0..size {
            let offset = self.next_address;
            self.next_address = if offset + 2 >= size { 2 } else { offset + 1 };
            let address = Ipv4Addr::from(u32::from(first).wrapping_add(offset));
            if offset < size && !used.contains(&address) {
                return Some(address);
            }
        }
        None
    }
}

impl Container {
    fn exit(&mut self, now: i64, code: i32) {
        if self.status.state == ContainerState::Running {
            self.status.state = ContainerState::Exited;
            self.status.finished_at = now;
            self.status.exit_code = code;
            self.status.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        }
    }

    fn summary(&self) -> ContainerSummary {
        ContainerSummary {
            id: self.status.id.clone(),
            sandbox_id: self.sandbox_id.clone(),
            name: self.status.name.clone(),
            attempt: self.status.attempt,
            image: self.status.image.clone(),
            state: self.status.state,
            created_at: self.status.created_at,
            labels: self.status.labels.clone(),
            annotations: self.status.annotations.clone(),
        }
    }
}

/// Ends the container after a delay, unless it is gone by then.
async fn exit_later(shared: Weak<Shared>, id: String, after: Duration, code: i32) {
    tokio::time::sleep(after).await;
    if let Some(shared) = shared.upgrade() {
        shared.exit(&id, code);
    }
}

fn not_found(call: &'static str, id: &str) -> RuntimeError {
    RuntimeError::new(call, ErrorKind::NotFound, format_args!("{id} does not exist"))
}

fn of_pod(labels: &BTreeMap<String, String>, pod_uid: Option<&str>) -> bool {
    pod_uid.is_none_or(|uid| labels.get(labels::POD_UID).is_some_and(|label| label == uid))
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<Version> {
        drop(self.enter("Version")?);
        Ok(Version { name: "fake".to_owned(), version: "1".to_owned(), api: "v1".to_owned() })
    }

    async fn status(&self) -> Result<RuntimeStatus> {
        drop(self.enter("Status")?);
        let holds = |kind: &str| RuntimeCondition {
            kind: kind.to_owned(),
            holds: true,
            reason: String::new(),
            message: String::new(),
        };
        let conditions = vec![holds("RuntimeReady"), holds("NetworkReady")];
        Ok(RuntimeStatus { conditions, ..RuntimeStatus::default() })
    }

    async fn run_pod_sandbox(&self, config: &SandboxConfig) -> Result<String> {
        drop(self.enter("RunPodSandbox")?);
        tokio::time::sleep(self.0.options.sandbox_delay).await;
        let mut state = self.state();
        let address = if config.namespaces.network == NamespaceMode::Node {
            None
        } else {
            let range = state.pod_cidr.unwrap_or(self.0.options.pod_cidr);
            let address = state.address(range);
            Some(address.ok_or_else(|| {
                RuntimeError::new("RunPodSandbox", ErrorKind::Failed, "no address is left in the pods' range")
            })?)
        };
        let id = state.id("sandbox");
        let summary = SandboxSummary {
            id: id.clone(),
            name: config.name.clone(),
            namespace: config.namespace.clone(),
            uid: config.uid.clone(),
            attempt: config.attempt,
            state: SandboxState::Ready,
            created_at: self.0.now(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        };
        state.sandboxes.insert(id.clone(), Sandbox { summary, address });
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.enter("StopPodSandbox")?;
        let now = self.0.now();
        if let Some(sandbox) = state.sandboxes.get_mut(id) {
            sandbox.summary.state = SandboxState::NotReady;
            sandbox.address = None;
        }
        for container in state.containers.values_mut().filter(|container| container.sandbox_id == id) {
            container.exit(now, 137);
        }
        drop(state);
        self.0.hint();
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.enter("RemovePodSandbox")?;
        state.sandboxes.remove(id);
        state.containers.retain(|_, container| container.sandbox_id != id);
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<SandboxStatus> {
        let state = self.enter("PodSandboxStatus")?;
        let sandbox = state.sandboxes.get(id).ok_or_else(|| not_found("PodSandboxStatus", id))?;
        let ips = sandbox.address.iter().map(ToString::to_string).collect();
        Ok(SandboxStatus { summary: sandbox.summary.clone(), ips })
    }

    async fn list_pod_sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<SandboxSummary>> {
        let state = self.enter("ListPodSandbox")?;
        let all = state.sandboxes.values().map(|sandbox| &sandbox.summary);
        Ok(all.filter(|summary| of_pod(&summary.labels, pod_uid)).cloned().collect())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        _sandbox: &SandboxConfig,
    ) -> Result<String> {
        let mut state = self.enter("CreateContainer")?;
        let ready = state.sandboxes.get(sandbox_id).map(|sandbox| sandbox.summary.state);
        if ready != Some(SandboxState::Ready) {
            return Err(not_found("CreateContainer", sandbox_id));
        }
        let id = state.id("container");
        // Images are used by id but scripted by name.
        let name = config.image.strip_prefix("sha256:").unwrap_or(&config.image);
        let behaviour = state.behaviours.get(name).cloned().unwrap_or_default();
        let status = ContainerStatus {
            id: id.clone(),
            sandbox_id: sandbox_id.to_owned(),
            name: config.name.clone(),
            attempt: config.attempt,
            state: ContainerState::Created,
            created_at: self.0.now(),
            image: name.to_owned(),
            image_ref: format!("sha256:{name}"),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            ..ContainerStatus::default()
        };
        let container = Container {
            status,
            sandbox_id: sandbox_id.to_owned(),
            started: None,
            behaviour,
            written: 0,
            reopened: 0,
            resources: config.resources,
        };
        state.containers.insert(id.clone(), container);
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        drop(self.enter("StartContainer")?);
        tokio::time::sleep(self.0.options.start_delay).await;
        let now = self.0.now();
        let mut state = self.state();
        let container = state.containers.get_mut(id).ok_or_else(|| not_found("StartContainer", id))?;
        if let Some(message) = container.behaviour.start_fails.clone() {
            container.status.state = ContainerState::Exited;
            container.status.exit_code = 128;
            container.status.reason = "StartError".to_owned();
            container.status.message.clone_from(&message);
            container.status.finished_at = now;
            return Err(RuntimeError::new("StartContainer", ErrorKind::Failed, message));
        }
        container.status.state = ContainerState::Running;
        container.status.started_at = now;
        container.started = Some(Instant::now());
        if let Some((after, code)) = container.behaviour.exits {
            tokio::spawn(exit_later(Arc::downgrade(&self.0), id.to_owned(), after, code));
        }
        drop(state);
        self.0.hint();
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let takes = {
            let state = self.enter("StopContainer")?;
            let running = state.containers.get(id).filter(|c| c.status.state == ContainerState::Running);
            let Some(container) = running else { return Ok(()) };
            container.behaviour.stop_takes
        };
        tokio::time::sleep(takes.min(grace)).await;
        self.0.exit(id, if takes > grace { 137 } else { 0 });
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.enter("RemoveContainer")?.containers.remove(id);
        Ok(())
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let state = self.enter("ContainerStatus")?;
        let container = state.containers.get(id).ok_or_else(|| not_found("ContainerStatus", id))?;
        Ok(container.status.clone())
    }

    async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<ContainerSummary>> {
        let state = self.enter("ListContainers")?;
        let of_pod = state.containers.values().filter(|container| of_pod(&container.status.labels, pod_uid));
        Ok(of_pod.map(Container::summary).collect())
    }

    async fn writable_layers(&self, pod_uid: Option<&str>) -> Result<BTreeMap<String, u64>> {
        let state = self.enter("ListContainerStats")?;
        let all = state.containers.values().filter(|container| of_pod(&container.status.labels, pod_uid));
        Ok(all.map(|container| (container.status.id.clone(), container.written)).collect())
    }

    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()> {
        let mut state = self.enter("UpdateContainerResources")?;
        let container = state.containers.get_mut(id);
        container.ok_or_else(|| not_found("UpdateContainerResources", id))?.resources = *resources;
        Ok(())
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let missing = || not_found("ReopenContainerLog", id);
        let takes = {
            let state = self.enter("ReopenContainerLog")?;
            state.containers.get(id).ok_or_else(missing)?.behaviour.reopen_takes
        };
        tokio::time::sleep(takes).await;
        self.state().containers.get_mut(id).ok_or_else(missing)?.reopened += 1;
        Ok(())
    }

    /// Succeeds if the container answers probes; otherwise the exit code is 1.
    async fn exec_sync(&self, id: &str, _command: &[String], _timeout: Duration) -> Result<ExecOutput> {
        if self
            .enter("ExecSync")?
            .containers
            .get(id)
            .is_none_or(|c| c.status.state != ContainerState::Running)
        {
            return Err(not_found("ExecSync", id));
        }
        let exit_code = i32::from(!self.container_answers(id));
        Ok(ExecOutput { exit_code, ..ExecOutput::default() })
    }

    async fn exec(&self, _id: &str, _command: &[String], _options: StreamOptions) -> Result<String> {
        Err(RuntimeError::new("Exec", ErrorKind::Unimplemented, "the fake has no streams"))
    }

    async fn attach(&self, _id: &str, _options: StreamOptions) -> Result<String> {
        Err(RuntimeError::new("Attach", ErrorKind::Unimplemented, "the fake has no streams"))
    }

    async fn port_forward(&self, _sandbox_id: &str, _ports: &[i32]) -> Result<String> {
        Err(RuntimeError::new("PortForward", ErrorKind::Unimplemented, "the fake has no streams"))
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        let state = self.enter("ListImages")?;
        Ok(state.pulled.iter().map(|name| fake_image(name)).collect())
    }

    async fn image_status(&self, image: &str) -> Result<Option<Image>> {
        let state = self.enter("ImageStatus")?;
        let absent = state.behaviours.get(image).is_some_and(|b| b.absent) && !state.pulled.contains(image);
        Ok((!absent).then(|| fake_image(image)))
    }

    async fn pull_image(&self, image: &str, _credentials: Option<&Credentials>) -> Result<String> {
        drop(self.enter("PullImage")?);
        tokio::time::sleep(self.0.options.pull_delay).await;
        let mut state = self.state();
        if let Some(message) = state.behaviours.get(image).and_then(|b| b.pull_fails.clone()) {
            return Err(RuntimeError::new("PullImage", ErrorKind::Failed, message));
        }
        state.pulled.insert(image.to_owned());
        Ok(format!("sha256:{image}"))
    }

    async fn remove_image(&self, image: &str) -> Result<()> {
        self.enter("RemoveImage")?.pulled.remove(image);
        Ok(())
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.0.hints.subscribe()
    }
}

fn fake_image(name: &str) -> Image {
    Image { id: format!("sha256:{name}"), tags: vec![name.to_owned()], size: 1 << 20, ..Image::default() }
}

#[cfg(test)]
mod tests;
