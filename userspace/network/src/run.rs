//! Runs the pod network, from the Node's podCIDR on.

use std::time::Duration;

use apiserver_client::cache::Selection;
use apiserver_client::{Cache, Informers, ObjectKey};
use apiserver_meta::ambient::Ambient;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::{Config, pod_ranges};
use crate::limits;
use crate::node::{NodeError, prepare, retire, sweep, withdraw_conflist};
use crate::peers::{Mode, follow};
use crate::publish::{Key, publish};

/// The API clients of the pod network.
#[derive(Clone)]
pub struct Clients {
    /// May read the own Node, and write its annotations.
    pub own: Client,
    /// May list and watch all Nodes, and write events.
    pub nodes: Client,
}

/// Waits for the own Node's podCIDR and sets the machine up with it, and again if it changes; keeps routes to
/// the pods of all other nodes. Releases addresses of pods that vanished at intervals. Runs until shutdown.
/// `ranges` shows the podCIDRs that the machine is set up with: new pods have addresses of these.
/// Pods with an address of an earlier podCIDR keep it; the node's own goes once there are none. With the mode `none`,
/// it removes its configuration of the runtime and its routes, and does nothing else.
pub async fn run(
    config: Config,
    clients: Clients,
    ranges: watch::Sender<Vec<IpNetwork>>,
    ambient: Ambient,
    shutdown: CancellationToken,
) {
    let (mut peers, name) = (config.peers.clone(), config.node_name.clone());
    peers.state_dir = Some(config.state_dir.clone());
    let none = peers.mode == Mode::None;
    let (sender, published) = watch::channel(None);
    let key = Key { encrypted: peers.encryption.is_some(), published };
    let follow = follow(peers, name.clone(), (clients.nodes, sender), ambient.clone(), shutdown.clone());
    if none {
        if let Err(error) = withdraw_conflist(&config) {
            warn!(error = &error as &dyn std::error::Error, "cannot leave the field to another CNI plugin");
        }
        follow.await;
        return shutdown.cancelled().await;
    }
    let informers = Informers::new(clients.own.clone(), ambient.clone(), shutdown.clone());
    let own = format!("metadata.name={}", config.node_name);
    let nodes = informers.select(Selection { fields: own, ..Selection::default() });
    let own = (clients.own, nodes.clone());
    let publish = publish(&name, own, key, &ambient, &shutdown);
    tokio::join!(run_with(config, nodes, ranges, ambient.clone(), shutdown.clone()), follow, publish);
}

/// Sets up the machine as [`run`] does, by a cache that is kept elsewhere and holds at least the own Node.
pub async fn run_with(
    config: Config,
    nodes: Cache<Node>,
    shown: watch::Sender<Vec<IpNetwork>>,
    ambient: Ambient,
    shutdown: CancellationToken,
) {
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |_| notify.notify_one());
    let key = ObjectKey::new("", &config.node_name);
    let mut done: Vec<IpNetwork> = Vec::new();
    let mut pause = limits::MIN_RETRY;
    let mut sweep_due = Instant::now();
    loop {
        if sweep_due <= Instant::now() {
            free_vanished(&config, &ambient).await;
            sweep_due = Instant::now() + leave_former(&config, &done).await;
        }
        let result = match nodes.get(&key).map(|node| ranges_of(&node)) {
            Some(Ok(ranges)) if !ranges.is_empty() && ranges != done => {
                let prepared = prepare(&config, &ranges).await;
                if prepared.is_ok() {
                    sweep_due = sweep_due.min(Instant::now() + leave_former(&config, &ranges).await);
                }
                prepared.map(|_| {
                    shown.send_replace(ranges.clone());
                    done = ranges;
                })
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

/// Removes the node's addresses of earlier podCIDRs unless pods need them; `ranges` is empty as long as the present ones
/// are not known. Returns the time after which to look again.
async fn leave_former(config: &Config, ranges: &[IpNetwork]) -> Duration {
    if ranges.is_empty() {
        return limits::SWEEP_PAUSE;
    }
    match retire(config, ranges).await {
        Ok(left) if left.is_empty() => limits::SWEEP_PAUSE,
        Ok(_) => limits::FORMER_PAUSE,
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "cannot remove addresses of earlier podCIDRs");
            limits::SWEEP_PAUSE
        }
    }
}

fn ranges_of(node: &Node) -> Result<Vec<IpNetwork>, NodeError> {
    let Some(spec) = &node.spec else { return Ok(Vec::new()) };
    let several = spec.pod_cidrs.clone().unwrap_or_default();
    let cidrs = if several.is_empty() { spec.pod_cidr.iter().cloned().collect() } else { several };
    Ok(pod_ranges(&cidrs)?)
}
