//! `hawser dns`: the cluster's DNS server of a node, and the Service that leads to it.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use apiserver_client::connect;
use apiserver_meta::ambient::Ambient;
use clap::Args;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{Api, PostParams};
use kubelet_agent::ClusterDns;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_daemon::shutdown;
use userspace_dns::name::Name;
use userspace_dns::slices::{NAMESPACE, SERVICE};

use crate::apiserver::CLUSTER_DOMAIN;
use crate::args::Networks;
use crate::node;

/// The place of the cluster's DNS Service in the range of Services, as kubeadm chooses it.
const PLACE: u32 = 10;
/// The port of the Service.
const PORT: u16 = 53;

/// The cluster's DNS as pods see it; spelled as the kubelet's flags.
#[derive(Args, Clone)]
pub struct ClusterDnsArgs {
    /// Comma-separated addresses of the cluster's DNS servers, which pods are given
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster
    #[arg(long, default_value = CLUSTER_DOMAIN, value_parser = domain)]
    pub cluster_domain: Name,
}

/// Settings of the DNS server.
#[derive(Args, Clone)]
pub struct DnsServer {
    /// Configuration in the form of CoreDNS' Corefile: the plugins kubernetes, forward, cache and loop. Without
    /// it, as kubeadm configures CoreDNS
    #[arg(long = "dns-config", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Port of the DNS server on the node's address for pods, to which the cluster's DNS address leads
    #[arg(long = "dns-port", default_value_t = 1053)]
    pub port: u16,
    /// Port of the DNS server's /health, /ready and /metrics; 0 for none
    #[arg(long = "dns-metrics-port", default_value_t = 9153)]
    pub pages_port: u16,
    /// Comma-separated addresses to listen on instead of the node's address for pods
    #[arg(long = "dns-bind-address", value_delimiter = ',', value_name = "ADDRESSES")]
    pub addresses: Vec<IpAddr>,
}

/// The arguments of `hawser dns`.
#[derive(Args)]
pub struct Dns {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// The node's name; the host's name unless given
    #[arg(long = "node-name", alias = "hostname-override")]
    pub node_name: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterDnsArgs,
    #[command(flatten)]
    pub server: DnsServer,
    #[command(flatten)]
    pub networks: Networks,
}

fn domain(text: &str) -> Result<Name, String> {
    match Name::parse(text) {
        Ok(name) if name.depth() > 0 => Ok(name),
        Ok(_) => Err("the root is no domain of a cluster".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl ClusterDnsArgs {
    /// Returns the settings of pods.
    pub fn of_pods(&self) -> ClusterDns {
        let domain = self.cluster_domain.to_string();
        ClusterDns {
            servers: self.cluster_dns.iter().map(ToString::to_string).collect(),
            domain: domain.trim_end_matches('.').to_owned(),
        }
    }

    /// Fills in the addresses of the Service that `up` creates, unless others are given.
    pub fn or_of(mut self, service_cidrs: &[IpNetwork]) -> Self {
        if self.cluster_dns.is_empty() {
            self.cluster_dns = service_cidrs.iter().filter_map(|range| address(*range)).collect();
        }
        self
    }
}

/// Returns the address of the cluster's DNS Service in a range; `None` if the range is too small.
fn address(range: IpNetwork) -> Option<IpAddr> {
    let address = match range.network() {
        IpAddr::V4(first) => IpAddr::V4(u32::from(first).checked_add(PLACE)?.into()),
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(PLACE.into())?.into()),
    };
    range.contains(address).then_some(address)
}

/// Builds the server's configuration.
pub fn config(
    node_name: &str,
    cluster: &ClusterDnsArgs,
    server: &DnsServer,
    networks: &Networks,
) -> Result<userspace_dns::Config> {
    let DnsServer { file, port, pages_port, addresses } = server.clone();
    let ranges = networks.service_cidrs.iter().copied().chain([networks.cluster_cidr]);
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
    };
    userspace_dns::check(&config).context("the DNS server cannot be configured so: see --dns-config")?;
    Ok(config)
}

/// `hawser dns`.
pub async fn run(args: Dns) -> Result<()> {
    let Dns { kubeconfig, node_name, cluster, server, networks } = args;
    let stop = shutdown::on_signal()?;
    let name = node_name.unwrap_or_else(node::host_name).trim().to_lowercase();
    let cluster = cluster.or_of(&networks.service_cidrs);
    let config = config(&name, &cluster, &server, &networks)?;
    let client = connect(&kubeconfig, "kube-dns").await?;
    userspace_dns::run(config, client, Ambient::system(), stop).await.context("the DNS server cannot run")
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
    serde_json::from_value(object).context("the DNS Service is no Service")
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
            () = tokio::time::sleep(std::time::Duration::from_secs(2)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_tenth_address_of_each_range() {
        let of = |text: &str| address(text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(of("10.96.0.0/16").as_deref(), Some("10.96.0.10"));
        assert_eq!(of("fd00:96::/112").as_deref(), Some("fd00:96::a"));
        assert_eq!(of("10.96.0.0/29"), None);
        let ips = ["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()];
        let spec = service(&ips).unwrap().spec.unwrap();
        assert_eq!(spec.cluster_ips.unwrap(), ["10.96.0.10", "fd00:96::a"]);
        assert_eq!(spec.ip_family_policy.as_deref(), Some("RequireDualStack"));
        assert!(spec.selector.is_none());
    }
}
