//! Flags that the command lines of several components share: the cluster's ranges, and those of a node.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{ArgAction, Args};
use controllers_manager::AddressRange;
use ipnetwork::IpNetwork;
use kubelet_agent::Thresholds;

use crate::node_ips::NodeIps;

/// The number of host bits in the smallest range for Services.
const LEAST_SERVICE_BITS: u8 = 3;

/// Parses a range of addresses for Services; `10.96.0.1/16` is read as `10.96.0.0/16`.
fn service_range(text: &str) -> Result<IpNetwork, String> {
    let range: IpNetwork =
        text.parse().map_err(|error| format!("not a range such as 10.96.0.0/16: {error}"))?;
    let bits = if range.is_ipv4() { 32 } else { 128 };
    if bits - range.prefix() < LEAST_SERVICE_BITS {
        return Err("it must have 8 addresses or more".to_owned());
    }
    IpNetwork::new(range.network(), range.prefix()).map_err(|error| error.to_string())
}

#[derive(Args, Clone)]
pub struct Networks {
    /// Addresses of Services: one range, or one of IPv4 and one of IPv6, separated by a comma. The first is
    /// the default family of Services
    #[arg(
        long = "service-cluster-ip-range",
        alias = "service-cidr",
        default_value = "10.96.0.0/16",
        value_delimiter = ',',
        value_parser = service_range
    )]
    pub service_cidrs: Vec<IpNetwork>,
    /// Addresses of pods: one range, or one of IPv4 and one of IPv6, separated by a comma. Each node gets a /24
    /// of IPv4 and a /64 of IPv6
    #[arg(
        long = "cluster-cidr",
        default_value = "10.244.0.0/16",
        value_delimiter = ',',
        value_name = "CIDRS"
    )]
    pub cluster_cidrs: Vec<IpNetwork>,
}

#[derive(Args, Clone)]
pub struct NodeArgs {
    /// The node's name; the host's name unless given
    #[arg(long = "node-name", alias = "hostname-override")]
    pub node_name: Option<String>,
    /// The node's address, or one of IPv4 and one of IPv6, separated by a comma, the primary one first. Unless given,
    /// the source addresses of the default routes, of each family that pods have, in the order of --cluster-cidr;
    /// 0.0.0.0 or :: chooses the family of the primary one
    #[arg(long, value_name = "IPS")]
    pub node_ip: Option<NodeIps>,
    /// The cgroup that contains the pods and the socket hooks, as its name in the cgroup2 hierarchy or as its directory
    /// there; lets several nodes share one machine
    #[arg(long, default_value = "/")]
    pub cgroup_root: String,
}

#[derive(Args)]
pub struct RuntimeArgs {
    /// CRI socket of a runtime that is already running; without it, hawser runs its own containerd
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Image archives to import at the start
    #[arg(long = "import", value_name = "FILE")]
    pub imports: Vec<PathBuf>,
    /// Thresholds of node pressure: memory.available and nodefs.available, with a quantity or N%
    #[arg(long, default_value = "memory.available<100Mi,nodefs.available<10%", value_parser = Thresholds::parse)]
    pub eviction_hard: Thresholds,
    /// Comma-separated sysctls that pods may set besides the safe ones, or patterns that end in `*`
    #[arg(long, value_delimiter = ',', value_name = "SYSCTLS")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Port of the node server; 0 for a free one
    #[arg(long, default_value_t = 10250)]
    pub kubelet_port: u16,
}

#[derive(Args, Clone)]
pub struct ProxyPorts {
    /// Address of `/healthz` and `/livez` of the proxy
    #[arg(long, default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: std::net::SocketAddr,
    /// Address of `/metrics` of the proxy
    #[arg(long, default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: std::net::SocketAddr,
    /// Announce load balancer addresses of the cluster: one live node for each answers ARP and NDP
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", default_value_t = true, action = ArgAction::Set)]
    pub announce_load_balancers: bool,
    /// UDP port at which nodes that announce ask each other whether they live; the same on all nodes, and open
    /// between them
    #[arg(long, value_name = "PORT", default_value_t = userspace_proxy::ANNOUNCE_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub load_balancer_peer_port: u16,
}

/// The addresses that the controllers give to Services of type LoadBalancer.
#[derive(Args, Clone)]
pub struct LoadBalancers {
    /// Comma-separated addresses for Services of type LoadBalancer: CIDRs, and ranges such as
    /// 192.0.2.200-192.0.2.250, of either family. Without them, such Services get no address from Hawser
    #[arg(long, value_delimiter = ',', value_name = "RANGES")]
    pub load_balancer_ranges: Vec<AddressRange>,
    /// Also serve Services without a loadBalancerClass, and not only those of class hawser.dev/load-balancer: set
    /// it to false beside a cloud's controller
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", default_value_t = true, action = ArgAction::Set)]
    pub load_balancer_classless: bool,
}

impl LoadBalancers {
    /// Refuses ranges that overlap with those of the cluster.
    pub fn check(&self, networks: &Networks) -> Result<()> {
        let Networks { service_cidrs, cluster_cidrs } = networks;
        let flags = [("--service-cluster-ip-range", service_cidrs), ("--cluster-cidr", cluster_cidrs)];
        for (flag, cidr) in flags.iter().flat_map(|(flag, cidrs)| cidrs.iter().map(move |cidr| (flag, cidr)))
        {
            if let Some(range) = self.load_balancer_ranges.iter().find(|range| range.overlaps(*cidr)) {
                bail!(
                    "--load-balancer-ranges {range} and {flag} {cidr} overlap: give addresses of their own"
                );
            }
        }
        Ok(())
    }
}
