//! The service proxy of a node: its configuration, and its start in two steps.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use ipnetwork::IpNetwork;
use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use userspace_dataplane::{Kernel, RootLock};
use userspace_network::peers::Mode;
use userspace_proxy::{KernelLinks, KubeProxyConfiguration, LocalServer, Own};

use crate::limits;
use crate::lock;
use crate::network_args::PodNetwork;
use crate::node::{Node, Surroundings};
use crate::node_args::{Networks, ProxyPorts};

/// Returns the configuration of the proxy of a cluster that `up` runs.
pub fn config(
    node: &Node,
    ports: &ProxyPorts,
    networks: &Networks,
    pods: &PodNetwork,
) -> Result<userspace_proxy::Config> {
    // Another network plugin masquerades, serves host ports and limits bandwidth itself.
    let own_network = pods.pod_network != Mode::None;
    let ProxyPorts {
        healthz_bind_address,
        metrics_bind_address,
        announce_load_balancers,
        load_balancer_peer_port,
    } = ports;
    let kube_proxy = KubeProxyConfiguration {
        hostname_override: node.name.clone(),
        healthz_bind_address: node.listening(*healthz_bind_address).to_string(),
        metrics_bind_address: node.listening(*metrics_bind_address).to_string(),
        bind_address_hard_fail: true,
        cluster_cidr: list(&networks.cluster_cidrs),
        ..KubeProxyConfiguration::default()
    };
    let own = Own {
        service_ranges: networks.service_cidrs.clone(),
        route_of_last_resort: true,
        masquerade_pods: own_network,
        host_ports: own_network,
        announce: announce_load_balancers.then_some(*load_balancer_peer_port),
        network_policies: own_network,
        pod_bandwidth: own_network,
        ..Own::default()
    };
    userspace_proxy::Config::new(&kube_proxy, &own).context("the proxy's configuration cannot be used")
}

/// Returns ranges as kube-proxy's configuration has them.
fn list(ranges: &[IpNetwork]) -> String {
    ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The open data plane and pages of the service proxy. While it exists, no other process can use the same
/// directory of pins.
pub struct OpenProxy {
    config: userspace_proxy::Config,
    listeners: userspace_proxy::Listeners,
    kernel: Kernel,
    lock: RootLock,
}

/// Opens the data plane and the pages of the proxy. The kernel takes long to verify the programs, so other
/// tasks run meanwhile.
pub async fn open(
    config: userspace_proxy::Config,
    data_plane: userspace_dataplane::Config,
    stop: CancellationToken,
) -> Result<OpenProxy> {
    let hard = config.bind_address_hard_fail;
    // The lock comes first: its holder may still have the ports, and is about to end.
    let lock = tokio::select! {
        lock = lock::take(&data_plane.bpf_root, limits::LOCK_WAIT) => lock?,
        () = stop.cancelled() => bail!("shut down while waiting for another proxy to end"),
    };
    let listeners = userspace_proxy::Listeners {
        healthz: page(config.healthz_bind_address, "healthz-bind-address", hard).await?,
        metrics: page(config.metrics_bind_address, "metrics-bind-address", hard).await?,
        later: !hard,
        health_checks: true,
        local_server: None,
    };
    let opening = tokio::task::spawn_blocking(|| Kernel::open(data_plane));
    let opened = opening.await.context("opening the data plane panicked")?;
    let kernel = opened.context("cannot open the data plane")?;
    Ok(OpenProxy { config, listeners, kernel, lock })
}

/// Runs the service proxy until shutdown. The tables that it has programmed remain. `dns` is the DNS server of
/// this process, if there is one, and what to cancel once queries are led elsewhere.
pub fn run(
    opened: OpenProxy,
    client: Client,
    dns: Option<(LocalServer, CancellationToken)>,
    around: &Surroundings<'_>,
) -> JoinHandle<()> {
    let OpenProxy { config, mut listeners, kernel, lock } = opened;
    let (ambient, stop) = (around.ambient.clone(), around.stop.clone());
    let (local_server, led_away) = dns.unzip();
    listeners.local_server = local_server;
    tokio::spawn(async move {
        let links = Box::new(KernelLinks::new());
        Box::pin(userspace_proxy::run(config, client, Box::new(kernel), links, ambient, listeners, stop))
            .await;
        if let Some(led_away) = led_away {
            led_away.cancel();
        }
        drop(lock);
    })
}

/// Binds a listener for pages. If that fails, the proxy tries again while it works, unless `hard` makes a
/// taken port an error.
async fn page(address: Option<SocketAddr>, flag: &str, hard: bool) -> Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    match listen(address, flag).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if hard => Err(error),
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), flag, "cannot listen yet, trying again");
            Ok(None)
        }
    }
}

async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: is the port taken? choose another --{flag}"))
}
