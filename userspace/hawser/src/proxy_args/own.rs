//! Flags that kube-proxy does not have.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnetwork::IpNetwork;
use userspace_dataplane::{Limits, XdpMode};
use userspace_proxy::Own;

use super::flags::go_bool;

/// The default directory of pins.
pub const BPF_ROOT: &str = "/sys/fs/bpf/hawser";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Xdp {
    /// The driver if the interface has a device, otherwise no XDP, only tcx
    #[default]
    Auto,
    Off,
    /// The network stack, on any interface
    Generic,
    /// The driver or nothing; on a veth, whose driver needs a prepared peer, the network stack
    Native,
    /// The driver, on a veth too: its peer must have XDP or NAPI, or packets are lost
    ForceNative,
}

impl From<Xdp> for XdpMode {
    fn from(mode: Xdp) -> Self {
        match mode {
            Xdp::Auto => Self::Auto,
            Xdp::Off => Self::Off,
            Xdp::Generic => Self::Generic,
            Xdp::Native => Self::Native,
            Xdp::ForceNative => Self::ForceNative,
        }
    }
}

/// The flags that kube-proxy does not have.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Flags of Hawser")]
pub struct OwnFlags {
    /// Directory on a BPF file system in which maps, programs and links are pinned
    #[arg(long, value_name = "DIR", default_value = BPF_ROOT, env = "HAWSER_BPF_ROOT")]
    pub bpf_root: PathBuf,
    /// Mount point of the node's cgroup2 hierarchy; detected unless given
    #[arg(long, value_name = "DIR")]
    pub cgroup_mount: Option<PathBuf>,
    /// The cgroup whose sockets are balanced, as its name in the cgroup2 hierarchy or as its directory there
    #[arg(long, value_name = "CGROUP", default_value = "/")]
    pub cgroup_root: String,
    /// Interfaces towards other hosts; detected by their addresses unless given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub uplinks: Vec<String>,
    /// Prefixes of the names of pods' interfaces, besides those that --detect-local-mode finds
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',', default_value = userspace_proxy::OWN_PREFIX)]
    pub pod_interface_prefix: Vec<String>,
    /// Serve spec.externalIPs. Everybody who may write Services can then claim any address
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub external_ips: bool,
    /// Ranges of services' addresses; the cluster's ServiceCIDR objects unless given
    #[arg(
        long,
        value_name = "CIDRS",
        alias = "service-cluster-ip-range",
        alias = "service-cidr",
        value_delimiter = ','
    )]
    pub service_cluster_ip_ranges: Vec<IpNetwork>,
    /// Keep an unreachable route for those ranges, so that no untranslated packet leaves the node
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "true")]
    pub route_of_last_resort: bool,
    /// Send packets for pods through the network stack, where packet filters of others see them; by default
    /// only if a pod's interface is not Hawser's
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool)]
    pub through_stack: Option<bool>,
    /// Keep the node's own processes from binding node ports in use
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "true")]
    pub guard_node_ports: bool,
    /// Give packets of pods that leave the cluster the node's address, as ip-masq-agent does and by its
    /// ConfigMap. Takes --cluster-cidr; for a pod network that does not do so itself
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub masquerade_pods: bool,
    /// Serve hostPort of this node's pods, as the CNI plugin portmap does; for a pod network without it
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub host_ports: bool,
    /// Announce load balancer addresses that `hawser controllers --load-balancer-ranges` assigned: one live node
    /// for each answers ARP and NDP. Needs the right to list Nodes
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub announce_load_balancers: bool,
    /// UDP port at which nodes that announce ask each other whether they live; the same on all nodes, and open
    /// between them
    #[arg(long, value_name = "PORT", default_value_t = userspace_proxy::ANNOUNCE_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub load_balancer_peer_port: u16,
    /// Enforce NetworkPolicies for the pods of this node; for a pod network that does not do so itself
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub network_policies: bool,
    /// Limit the bandwidth of this node's pods by their annotations kubernetes.io/ingress-bandwidth and
    /// kubernetes.io/egress-bandwidth, as the CNI plugin bandwidth does; for a pod network without it
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub pod_bandwidth: bool,
    /// Way to attach XDP to uplinks
    #[arg(long, value_enum, default_value_t)]
    pub xdp_mode: Xdp,
    /// Let XDP send a packet out of another uplink than it came from; every driver has to support it
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", value_parser = go_bool, default_value = "false")]
    pub xdp_redirect: bool,
}

/// Sizes of maps, where the defaults do not fit. An existing map keeps its size until `--cleanup`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Map sizes in elements (existing maps keep theirs until --cleanup)")]
pub struct Sizes {
    /// Maximum number of services
    #[arg(long, value_name = "COUNT")]
    pub max_services: Option<u32>,
    /// Maximum number of addresses and ports of services, per family: two per service port
    #[arg(long, value_name = "COUNT")]
    pub max_frontends: Option<u32>,
    /// Maximum number of backends per family, over all distinct lists
    #[arg(long, value_name = "COUNT")]
    pub max_backends: Option<u32>,
    /// Maximum number of elements of look-up tables for consistent hashing, four entries each
    #[arg(long, value_name = "COUNT")]
    pub max_lookup_tables: Option<u32>,
    /// Maximum number of flows per family, two per connection that packets make; rounded up to a power of two
    #[arg(long, value_name = "COUNT")]
    pub max_flows: Option<u32>,
    /// Maximum number of IPv6 flows, if it differs
    #[arg(long, value_name = "COUNT")]
    pub max_flows_ipv6: Option<u32>,
    /// Maximum number of connected sockets
    #[arg(long, value_name = "COUNT")]
    pub max_sockets: Option<u32>,
    /// Maximum number of clients with an affinity
    #[arg(long, value_name = "COUNT")]
    pub max_affinity: Option<u32>,
    /// Maximum number of source ranges, per family
    #[arg(long, value_name = "COUNT")]
    pub max_source_ranges: Option<u32>,
    /// Maximum number of datagrams whose fragments are in transit
    #[arg(long, value_name = "COUNT")]
    pub max_fragments: Option<u32>,
    /// Maximum number of network namespaces whose sockets are left alone
    #[arg(long, value_name = "COUNT")]
    pub max_exempt: Option<u32>,
}

impl Sizes {
    pub fn limits(&self) -> Limits {
        let Self {
            max_services,
            max_frontends,
            max_backends,
            max_lookup_tables,
            max_flows,
            max_flows_ipv6,
            max_sockets,
            max_affinity,
            max_source_ranges,
            max_fragments,
            max_exempt,
        } = *self;
        let default = Limits::default();
        let flows =
            |given: Option<u32>, default| given.map_or(default, |n| n.clamp(8, 1 << 31).next_power_of_two());
        let some = |given: Option<u32>, default: u32| given.unwrap_or(default).max(1);
        Limits {
            services: some(max_services, default.services),
            frontends: some(max_frontends, default.frontends),
            backends: some(max_backends, default.backends),
            luts: some(max_lookup_tables, default.luts),
            flows4: flows(max_flows, default.flows4),
            flows6: flows(max_flows_ipv6.or(max_flows), default.flows6),
            sockets: some(max_sockets, default.sockets),
            affinity: some(max_affinity, default.affinity),
            source_ranges: some(max_source_ranges, default.source_ranges),
            fragments: some(max_fragments, default.fragments),
            exempt: some(max_exempt, default.exempt),
        }
    }
}

impl OwnFlags {
    pub fn own(&self) -> Own {
        Own {
            external_ips: self.external_ips,
            uplinks: self.uplinks.clone(),
            pod_interface_prefixes: self.pod_interface_prefix.clone(),
            service_ranges: self.service_cluster_ip_ranges.clone(),
            through_stack: self.through_stack,
            guard_node_ports: self.guard_node_ports,
            route_of_last_resort: self.route_of_last_resort,
            masquerade_pods: self.masquerade_pods,
            host_ports: self.host_ports,
            announce: self.announce_load_balancers.then_some(self.load_balancer_peer_port),
            network_policies: self.network_policies,
            pod_bandwidth: self.pod_bandwidth,
        }
    }
}
