//! Starts all tasks of a kubelet.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use apiserver_client::{Informers, Recorder, cache::Selection};
use apiserver_meta::ambient::Ambient;
use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::Client;
use kubelet_cri::Runtime;
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use userspace_daemon::tls::TlsError;

use crate::{
    advertised::Advertised,
    agent::Agent,
    config::{Config, Listeners},
    limits, logs,
    machine::{Machine, MachineError, MachineInfo},
    manager,
    metrics::Metrics,
    node,
    objects::Objects,
    pleg,
    pod::sysctl::{Allowlist, PatternError},
    restrictions::Restrictions,
    server, storage,
};

/// A kubelet could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Neither the configuration nor the machine provides an address for the node.
    #[error("the node has no address: none is configured, and no interface has one")]
    NoAddress,
    /// The cgroups of the pods could not be created.
    #[error("cannot prepare the node")]
    Machine(#[from] MachineError),
    /// A pattern of allowed kernel parameters is invalid.
    #[error("cannot use --allowed-unsafe-sysctls")]
    Sysctls(#[from] PatternError),
    /// The certificates of the node's server cannot be used.
    #[error("cannot serve")]
    Server(#[from] TlsError),
}

/// Runs a kubelet until `shutdown`. Its pods keep running and are adopted by the next kubelet.
pub async fn run(
    config: Config,
    client: Client,
    runtime: Arc<dyn Runtime>,
    machine: Arc<dyn Machine>,
    ambient: Ambient,
    listeners: Listeners,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let info = machine.info();
    let host_ips: Vec<String> = node::addresses(&config, &info).iter().map(ToString::to_string).collect();
    if host_ips.is_empty() {
        return Err(RunError::NoAddress);
    }
    let sysctls = Allowlist::new(&info.kernel, &config.allowed_unsafe_sysctls)?;
    machine.set_up_root(&config.cgroup_root).await?;
    let informers = Informers::new(client.clone(), ambient.clone(), shutdown.clone());
    let nodes = informers.select::<Node>(with_node("metadata.name", &config.node_name));
    let pods = with_node("spec.nodeName", &config.node_name);
    let recorder =
        Recorder::new(client.clone(), ambient.clone(), "kubelet", &config.node_name, shutdown.clone());
    let agent = Arc::new(Agent {
        recorder,
        objects: Objects::new(client.clone(), ambient.clone(), shutdown.clone()),
        services: informers.cache::<Service>(),
        restrictions: Restrictions::of(&nodes),
        advertised: Advertised::of(&nodes),
        nodes,
        allocatable: node::capacity(&config, &info),
        host_ips,
        sysctls,
        starts: Semaphore::new(starts(&config, &info)),
        exec_probes: Semaphore::new(limits::EXEC_PROBES),
        removals: Semaphore::new(limits::LOCAL_VOLUME_REMOVALS),
        pulls: Mutex::default(),
        tracked_pods: Mutex::new(BTreeMap::new()),
        relist: Notify::new(),
        version: ArcSwap::default(),
        runtime_status: ArcSwap::default(),
        metrics: Metrics::new(),
        config,
        client,
        runtime,
        machine,
        ambient,
    });
    agent.show_pods();
    query_runtime(&agent).await;
    let mut tasks = JoinSet::new();
    let mut port = 0;
    if let Some(listener) = listeners.node {
        port = listener.local_addr().map_or(0, |address| address.port());
        let tls = server::tls(&agent.config, &agent.host_ips)?;
        tasks.spawn(server::serve(Arc::clone(&agent), listener, tls, shutdown.clone()));
    }
    if let Some(listener) = listeners.health {
        tasks.spawn(server::serve_health(Arc::clone(&agent), listener, shutdown.clone()));
    }
    tasks.spawn(follow_ranges(Arc::clone(&agent), shutdown.clone()));
    tasks.spawn(pleg::run(Arc::clone(&agent), shutdown.clone()));
    tasks.spawn(logs::run(Arc::clone(&agent), shutdown.clone()));
    tasks.spawn(storage::run(Arc::clone(&agent), shutdown.clone()));
    tasks.spawn(node::run(Arc::clone(&agent), port, shutdown.clone()));
    tasks.spawn(manager::run(agent, informers.select::<Pod>(pods), shutdown));
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// Selects the objects that have the node's name in a field.
fn with_node(field: &str, node: &str) -> Selection {
    Selection { fields: format!("{field}={node}"), ..Selection::default() }
}

/// Wakes all pods when the node's ranges of pods have changed, until shutdown.
async fn follow_ranges(agent: Arc<Agent>, shutdown: CancellationToken) {
    let mut ranges = agent.config.pod_ranges.clone();
    loop {
        let changed = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            changed = ranges.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        let all: Vec<_> = agent.tracked_pods().values().cloned().collect();
        all.iter().for_each(|tracked| tracked.change(|_| {}));
    }
}

/// Queries version and status of the runtime. If it does not answer it is asked again later.
async fn query_runtime(agent: &Agent) {
    if let Ok(version) = agent.runtime.version().await {
        agent.version.store(Arc::new(version));
    }
    if let Ok(status) = agent.runtime.status().await {
        agent.runtime_status.store(Arc::new(status));
    }
}

/// Returns how many sandboxes and containers may start at the same time.
fn starts(config: &Config, info: &MachineInfo) -> usize {
    let processors = usize::try_from(info.cpus).unwrap_or(1).max(1);
    if config.start_concurrency == 0 { 2 * processors } else { config.start_concurrency }
}
