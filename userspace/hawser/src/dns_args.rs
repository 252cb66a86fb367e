//! Flags of the cluster's DNS, of the server and of kubelets.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipnetwork::IpNetwork;
use kubelet_agent::ClusterDns;
use userspace_dns::name::Name;

/// The domain of the cluster, unless another is given.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// The place of the cluster's DNS Service in the range of Services, as kubeadm chooses it.
const PLACE: u32 = 10;

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
    /// Configuration in the form of CoreDNS' Corefile: the plugins kubernetes, hosts, forward, cache and
    /// loop. The default is kubeadm's configuration of CoreDNS
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

/// The cluster's DNS where all components are one process.
#[derive(Args)]
pub struct UpDns {
    #[command(flatten)]
    pub cluster: ClusterDnsArgs,
    #[command(flatten)]
    pub server: DnsServer,
    /// Run no DNS server; pods are given the servers of --cluster-dns, or the node's
    #[arg(long)]
    pub without_dns: bool,
}

/// The cluster's DNS on a node that joins.
#[derive(Args)]
pub struct JoinDns {
    #[command(flatten)]
    pub cluster: ClusterDnsArgs,
    #[command(flatten)]
    pub server: DnsServer,
    /// Run no DNS server; pods are answered by those of other nodes
    #[arg(long)]
    pub without_dns: bool,
}

fn domain(text: &str) -> Result<Name, String> {
    match Name::parse(text) {
        Ok(name) if name.depth() > 0 => Ok(name),
        Ok(_) => Err("the root (`.`) cannot be a cluster's domain".to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_tenth_address_of_each_range() {
        let of = |text: &str| address(text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(of("10.96.0.0/16").as_deref(), Some("10.96.0.10"));
        assert_eq!(of("fd00:96::/112").as_deref(), Some("fd00:96::a"));
        assert_eq!(of("10.96.0.0/29"), None);
    }
}
