//! `hawser dns`: the cluster's DNS server of a node, and the Service that leads to it.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use apiserver_client::{ObjectKey, connect};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{Api, PostParams};
use kubelet_agent::ClusterDns;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_daemon::shutdown;
use userspace_dns::Handover;
use userspace_dns::slices::{NAMESPACE, SERVICE};
use userspace_proxy::LocalServer;

use crate::args::Dns;
use crate::dns_args::{ClusterDnsArgs, DnsServer, JoinDns, UpDns};
use crate::limits;
use crate::node;
use crate::node_args::Networks;

/// The name of the server towards the API server.
pub const PROGRAM: &str = "kube-dns";
/// The port of the Service.
const PORT: u16 = 53;

/// Builds the server's configuration.
fn config(
    node_name: &str,
    cluster: &ClusterDnsArgs,
    server: &DnsServer,
    networks: &Networks,
    looks_after_others: bool,
) -> Result<userspace_dns::Config> {
    let DnsServer { file, port, pages_port, addresses } = server.clone();
    let ranges = networks.service_cidrs.iter().chain(&networks.cluster_cidrs).copied();
    let config = userspace_dns::Config {
        node_name: node_name.to_owned(),
        domain: cluster.cluster_domain,
        servers: cluster.cluster_dns.clone(),
        file,
        addresses,
        port,
        pages_port,
        sockets: std::thread::available_parallelism().map_or(1, usize::from),
        networks: ranges.collect(),
        looks_after_others,
    };
    userspace_dns::check(&config).context("the DNS server cannot be configured so: see --dns-config")?;
    Ok(config)
}

/// Returns what pods are told of the cluster's DNS, and the configuration of its server unless there is none.
pub fn plan(
    args: UpDns,
    node_name: &str,
    networks: &Networks,
) -> Result<(ClusterDns, Option<userspace_dns::Config>)> {
    let UpDns { cluster, server, without_dns } = args;
    if without_dns {
        return Ok((cluster.of_pods(), None));
    }
    let cluster = cluster.or_of(&networks.service_cidrs);
    // The nodes that join may not write EndpointSlices.
    Ok((cluster.of_pods(), Some(config(node_name, &cluster, &server, networks, true)?)))
}

/// Does the same for a node that joins, whose pods ask the servers of other nodes if it has none.
pub fn plan_member(
    args: JoinDns,
    node_name: &str,
    networks: &Networks,
) -> Result<(ClusterDns, Option<userspace_dns::Config>)> {
    let JoinDns { cluster, server, without_dns } = args;
    let cluster = cluster.or_of(&networks.service_cidrs);
    let own = (!without_dns).then(|| config(node_name, &cluster, &server, networks, false)).transpose()?;
    Ok((cluster.of_pods(), own))
}

/// `hawser dns`.
pub async fn run(args: Dns) -> Result<()> {
    let Dns { kubeconfig, node_name, cluster, server, networks } = args;
    let stop = shutdown::on_signal()?;
    let name = node_name.unwrap_or_else(node::host_name).trim().to_lowercase();
    let cluster = cluster.or_of(&networks.service_cidrs);
    let config = config(&name, &cluster, &server, &networks, false)?;
    let client = connect(&kubeconfig, PROGRAM).await?;
    let run = userspace_dns::run(config, client, Ambient::system(), stop, None);
    run.await.context("the DNS server cannot run")
}

/// Returns the two ends between the DNS server and the proxy of one process.
pub fn handover() -> (Handover, LocalServer) {
    let (sender, serves) = watch::channel(false);
    let service = ObjectKey::new(NAMESPACE, SERVICE);
    (Handover { serves: sender, led_away: CancellationToken::new() }, LocalServer { service, serves })
}

/// Creates the cluster's DNS Service if there is none, and tells if the one that is there has other
/// addresses.
async fn ensure_service(client: Client, addresses: &[IpAddr]) -> Result<()> {
    let api: Api<Service> = Api::namespaced(client, NAMESPACE);
    let asked = api.get_opt(SERVICE).await;
    if let Some(there) = asked.with_context(|| format!("cannot get the Service {NAMESPACE}/{SERVICE}"))? {
        let has = there.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
        let missing: Vec<_> = addresses.iter().filter(|ip| !has.contains(&ip.to_string())).collect();
        if !missing.is_empty() {
            bail!(
                "the Service {NAMESPACE}/{SERVICE} has the addresses {has:?}, and pods are told {addresses:?}: give \
                 --cluster-dns {}",
                has.join(",")
            );
        }
        return Ok(());
    }
    let made = api.create(&PostParams::default(), &service(addresses)?).await;
    made.with_context(|| format!("cannot create the Service {NAMESPACE}/{SERVICE} with {addresses:?}"))?;
    info!(?addresses, "created the cluster's DNS Service");
    Ok(())
}

/// Returns the cluster's DNS Service. It has no selector: the servers write their own EndpointSlices.
fn service(addresses: &[IpAddr]) -> Result<Service> {
    let families: Vec<&str> = addresses.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    let port =
        |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "protocol": protocol});
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": NAMESPACE, "name": SERVICE,
            "labels": {
                "k8s-app": SERVICE,
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
        },
        "spec": {
            "clusterIP": addresses.first(), "clusterIPs": addresses, "ipFamilies": families,
            "ipFamilyPolicy": policy, "type": "ClusterIP",
            "trafficDistribution": "PreferSameNode",
            "ports": [port("dns", PORT, "UDP"), port("dns-tcp", PORT, "TCP"), port("metrics", 9153, "TCP")],
        },
    });
    serde_json::from_value(object).context("cannot read the DNS Service")
}

/// Keeps trying to create the Service until it is there or `stop`: the API may be busy with its start.
pub async fn ensure(client: Client, addresses: Vec<IpAddr>, stop: CancellationToken) {
    if addresses.is_empty() {
        return;
    }
    let mut told = String::new();
    loop {
        let Err(error) = ensure_service(client.clone(), &addresses).await else { return };
        let error = format!("{error:#}");
        if error != told {
            warn!(error, "pods cannot ask the cluster's DNS server yet; trying again");
            told = error;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(limits::DNS_SERVICE_RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_addresses_of_both_families() {
        let ips = ["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()];
        let spec = service(&ips).unwrap().spec.unwrap();
        assert_eq!(spec.cluster_ips.unwrap(), ["10.96.0.10", "fd00:96::a"]);
        assert_eq!(spec.ip_family_policy.as_deref(), Some("RequireDualStack"));
        assert!(spec.selector.is_none());
    }
}
