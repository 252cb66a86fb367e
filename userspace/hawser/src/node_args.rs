//! Flags that the command lines of several components share: the cluster's ranges, and those of a node.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipnetwork::IpNetwork;
use kubelet_agent::Thresholds;

/// The number of host bits in the smallest range for Services.
const LEAST_SERVICE_BITS: u8 = 3;

/// Parses a range of addresses for Services; `10.96.0.1/16` is read as `10.96.0.0/16`.
fn service_range(text: &str) -> Result<IpNetwork, String> {
    let range: IpNetwork =
        text.parse().map_err(|error| format!("it is no range such as 10.96.0.0/16: {error}"))?;
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
    /// The node's address; the source address of the default route unless given
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// The cgroup that contains the pods and the socket hooks; lets several nodes share one machine
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
}
