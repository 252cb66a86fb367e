//! Runs the pod network, from the Node's podCIDR on.

use std::time::Duration;

use apiserver_client::cache::Selection;
use apiserver_client::{Cache, Informers, ObjectKey};
use apiserver_meta::ambient::Ambient;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::{Config, pod_ranges};
use crate::limits;
use crate::node::{NodeError, prepare, sweep};

/// Waits for the own Node's podCIDR and sets the machine up with it, and again if it changes. Releases
/// addresses of pods that vanished at intervals. Runs until shutdown. Pods with an address of an earlier
/// podCIDR keep it.
pub async fn run(config: Config, client: Client, ambient: Ambient, shutdown: CancellationToken) {
    let informers = Informers::new(client, ambient.clone(), shutdown.clone());
    let own = format!("metadata.name={}", config.node_name);
    let nodes = informers.select(Selection { fields: own, ..Selection::default() });
    run_with(config, nodes, ambient, shutdown).await;
}

/// Runs as [`run`] on a cache that is kept elsewhere and holds at least the own Node.
pub async fn run_with(config: Config, nodes: Cache<Node>, ambient: Ambient, shutdown: CancellationToken) {
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |_| notify.notify_one());
    let key = ObjectKey::new("", &config.node_name);
    let mut done: Vec<IpNetwork> = Vec::new();
    let mut pause = limits::MIN_RETRY;
    let mut sweep_due = Instant::now();
    loop {
        if sweep_due <= Instant::now() {
            sweep_due = Instant::now() + limits::SWEEP_PAUSE;
            free_vanished(&config, &ambient).await;
        }
        let result = match nodes.get(&key).map(|node| ranges_of(&node)) {
            Some(Ok(ranges)) if !ranges.is_empty() && ranges != done => {
                let prepared = prepare(&config, &ranges).await;
                prepared.map(|_| done = ranges)
            }
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        };
        let wait = match result {
            Ok(()) => {
                pause = limits::MIN_RETRY;
                None
            }
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "the pod network is not ready, trying again");
                let jitter = Duration::from_millis(ambient.random.next_u64() % 50);
                let wait = pause + jitter;
                pause = (pause * 2).min(limits::MAX_RETRY);
                Some(wait)
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = changed.notified() => debug!("the own Node changed"),
            () = tokio::time::sleep(wait.unwrap_or(limits::MAX_RETRY)), if wait.is_some() => {}
            () = tokio::time::sleep_until(sweep_due) => {}
        }
    }
}

async fn free_vanished(config: &Config, ambient: &Ambient) {
    match sweep(&config.state_dir, ambient.now().as_second()).await {
        Ok(freed) if freed.is_empty() => {}
        Ok(freed) => info!(?freed, "freed addresses of pods that vanished"),
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "cannot free addresses of vanished pods")
        }
    }
}

fn ranges_of(node: &Node) -> Result<Vec<IpNetwork>, NodeError> {
    let Some(spec) = &node.spec else { return Ok(Vec::new()) };
    let several = spec.pod_cidrs.clone().unwrap_or_default();
    let cidrs = if several.is_empty() { spec.pod_cidr.iter().cloned().collect() } else { several };
    Ok(pod_ranges(&cidrs)?)
}
