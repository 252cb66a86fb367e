//! The configuration of the proxy: kube-proxy's, checked, and Hawser's own settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::kube_proxy::{HEALTHZ_PORT, KubeProxyConfiguration, METRICS_PORT};
use crate::limits;

/// The prefix of the interfaces that Hawser's own pod network makes.
pub const OWN_PREFIX: &str = "hwp";

/// The settings that kube-proxy does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// `--external-ips`: serve `spec.externalIPs`.
    pub external_ips: bool,
    /// `--uplinks`: interfaces towards other hosts; empty to detect them.
    pub uplinks: Vec<String>,
    /// `--pod-interface-prefix`: prefixes of the names of pods' interfaces, besides those that
    /// `detectLocalMode` finds.
    pub pod_interface_prefixes: Vec<String>,
    /// `--service-cluster-ip-ranges`; empty to read them from the cluster.
    pub service_ranges: Vec<IpNetwork>,
    /// `--through-stack`; `None` to decide by the origin of the pods' interfaces.
    pub through_stack: Option<bool>,
    /// `--guard-node-ports`.
    pub guard_node_ports: bool,
    /// `--route-of-last-resort`.
    pub route_of_last_resort: bool,
    /// `--masquerade-pods`.
    pub masquerade_pods: bool,
    /// `--host-ports`.
    pub host_ports: bool,
    /// `--announce-load-balancers`, with the UDP port of `--load-balancer-peer-port`.
    pub announce: Option<u16>,
    /// `--network-policies`.
    pub network_policies: bool,
    /// `--pod-bandwidth`.
    pub pod_bandwidth: bool,
}

impl Default for Own {
    /// Returns the defaults of a process that may not touch the machine's routes.
    fn default() -> Self {
        Self {
            external_ips: false,
            uplinks: Vec::new(),
            pod_interface_prefixes: vec![OWN_PREFIX.to_owned()],
            service_ranges: Vec::new(),
            through_stack: None,
            guard_node_ports: true,
            route_of_last_resort: false,
            masquerade_pods: false,
            host_ports: false,
            announce: None,
            network_policies: false,
            pod_bandwidth: false,
        }
    }
}

/// Checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the own Node; not empty.
    pub node_name: String,
    /// The address of `/healthz` and `/livez`.
    pub healthz_bind_address: Option<SocketAddr>,
    /// The address of `/metrics` and `/proxyMode`.
    pub metrics_bind_address: Option<SocketAddr>,
    /// End the proxy if a port is taken; otherwise it works without the port and tries again.
    pub bind_address_hard_fail: bool,
    /// The node's primary address of its family, in place of the Node object's.
    pub primary_address: Option<IpAddr>,
    /// The way to find pods' interfaces, besides those of `pod_interface_prefixes`.
    pub detect_local: DetectLocal,
    /// The addresses that serve node ports.
    pub nodeport_addresses: NodePortAddresses,
    /// Traffic to cluster addresses always takes the node's address as its source.
    pub masquerade_all: bool,
    /// Serve `spec.externalIPs`.
    pub external_ips: bool,
    /// Names of the interfaces towards other hosts; empty to detect them.
    pub uplinks: Vec<String>,
    /// Prefixes of the names of pods' interfaces; none is empty.
    pub pod_interface_prefixes: Vec<String>,
    /// Ranges of services' addresses; empty to read them from the cluster.
    pub service_ranges: Vec<IpNetwork>,
    /// Send packets for pods through the network stack; `None` to do so if there are pods of other network
    /// plugins.
    pub through_stack: Option<bool>,
    /// Keep processes of the node from binding node ports in use.
    pub guard_node_ports: bool,
    /// Keep an unreachable route for the services' ranges.
    pub route_of_last_resort: bool,
    /// The ranges of the cluster's pods, if packets of pods that leave them are to take the node's address;
    /// else empty: another network plugin sees to it.
    pub masquerade: Vec<IpNetwork>,
    /// Serve `hostPort` of the node's own pods; else another network plugin sees to it.
    pub host_ports: bool,
    /// Announce addresses of load balancers, with pings between nodes on this UDP port.
    pub announce: Option<u16>,
    /// Enforce NetworkPolicies for the pods of this node.
    pub network_policies: bool,
    /// Limit the bandwidth of this node's pods by their annotations.
    pub pod_bandwidth: bool,
    /// Host and port of the API server, for metrics; empty if there is none.
    pub api_server: String,
    /// Interval between comparisons of the whole tables; at least a second.
    pub full_sync: Duration,
}

/// A way to tell pods' interfaces from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By routes or addresses in these ranges, at most one per family, or by well-known names.
    ClusterCidr(Vec<IpNetwork>),
    /// By routes or addresses in the pods' ranges of the own Node, or by well-known names.
    NodeCidr,
    /// The ports of this bridge.
    Bridge(String),
    /// By a prefix of the name.
    Prefix(String),
}

/// The addresses of the node that serve node ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The primary addresses of the Node object, one per family.
    pub primary: bool,
    /// Every address of the machine except loopback ones.
    pub all: bool,
    /// Loopback addresses, for the node's own processes: a pod's loopback is the pod's.
    pub localhost: bool,
    /// Addresses within these ranges.
    pub ranges: Vec<IpNetwork>,
}

/// A value cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{field}: {value:?} is not {expected}")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error("{field} must be given")]
    Missing { field: &'static str },
    #[error("{field} must be given with detectLocalMode {mode}")]
    Detect { field: &'static str, mode: &'static str },
}

fn wrong(field: &'static str, value: &str, expected: &'static str) -> ConfigError {
    ConfigError::Value { field, value: value.to_owned(), expected }
}

impl Config {
    /// The defaults for a node.
    ///
    /// # Errors
    /// The name is empty.
    pub fn for_node(node_name: &str) -> Result<Self, ConfigError> {
        let kube_proxy =
            KubeProxyConfiguration { hostname_override: node_name.to_owned(), ..Default::default() };
        Self::new(&kube_proxy, &Own::default())
    }

    /// Checks everything. Pages with an empty address are not served.
    ///
    /// # Errors
    /// Returns the first invalid value, by the name of its field.
    pub fn new(kube_proxy: &KubeProxyConfiguration, own: &Own) -> Result<Self, ConfigError> {
        let Own {
            external_ips,
            uplinks,
            pod_interface_prefixes,
            service_ranges,
            through_stack,
            guard_node_ports,
            route_of_last_resort,
            masquerade_pods,
            host_ports,
            announce,
            network_policies,
            pod_bandwidth,
        } = own;
        check_ranges(kube_proxy)?;
        // Kubernetes converts the host name to lower case for the Node's name.
        let node_name = kube_proxy.hostname_override.trim().to_lowercase();
        if node_name.is_empty() {
            return Err(ConfigError::Missing { field: "hostnameOverride" });
        }
        if pod_interface_prefixes.iter().any(String::is_empty) {
            return Err(wrong("--pod-interface-prefix", "", "the beginning of a name"));
        }
        let mode = Mode::parse(&kube_proxy.mode)?;
        let bind: IpAddr = kube_proxy
            .bind_address
            .parse()
            .map_err(|_| wrong("bindAddress", &kube_proxy.bind_address, "an IP address"))?;
        Ok(Self {
            node_name,
            healthz_bind_address: socket(
                "healthzBindAddress",
                &kube_proxy.healthz_bind_address,
                HEALTHZ_PORT,
            )?,
            metrics_bind_address: socket(
                "metricsBindAddress",
                &kube_proxy.metrics_bind_address,
                METRICS_PORT,
            )?,
            bind_address_hard_fail: kube_proxy.bind_address_hard_fail,
            primary_address: Some(bind).filter(|address| !address.is_unspecified()),
            detect_local: DetectLocal::of(kube_proxy)?,
            nodeport_addresses: NodePortAddresses::of(kube_proxy, mode)?,
            masquerade_all: match mode {
                Mode::IpTables | Mode::Ipvs => kube_proxy.iptables.masquerade_all,
                Mode::NfTables => kube_proxy.nftables.masquerade_all,
            },
            external_ips: *external_ips,
            uplinks: uplinks.clone(),
            pod_interface_prefixes: pod_interface_prefixes.clone(),
            service_ranges: service_ranges.clone(),
            through_stack: *through_stack,
            guard_node_ports: *guard_node_ports,
            route_of_last_resort: *route_of_last_resort,
            network_policies: *network_policies,
            pod_bandwidth: *pod_bandwidth,
            masquerade: masquerade(*masquerade_pods, &kube_proxy.cluster_cidr)?,
            host_ports: *host_ports,
            announce: *announce,
            api_server: String::new(),
            full_sync: limits::FULL_SYNC,
        })
    }
}

/// The mode of kube-proxy that is replaced: defaults differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    IpTables,
    Ipvs,
    NfTables,
}

impl Mode {
    fn parse(value: &str) -> Result<Self, ConfigError> {
        match value {
            "" | "iptables" => Ok(Self::IpTables),
            "ipvs" => Ok(Self::Ipvs),
            "nftables" => Ok(Self::NfTables),
            other => Err(wrong("mode", other, "iptables, ipvs, nftables, or empty")),
        }
    }
}

impl DetectLocal {
    fn of(kube_proxy: &KubeProxyConfiguration) -> Result<Self, ConfigError> {
        let named = |value: &String, field, mode| {
            if value.is_empty() { Err(ConfigError::Detect { field, mode }) } else { Ok(value.clone()) }
        };
        let by = &kube_proxy.detect_local;
        // Checked in every mode, as in kube-proxy.
        let ranges = cluster_cidrs(&kube_proxy.cluster_cidr)?;
        match kube_proxy.detect_local_mode.as_str() {
            "" | "ClusterCIDR" => Ok(Self::ClusterCidr(ranges)),
            "NodeCIDR" => Ok(Self::NodeCidr),
            "BridgeInterface" => {
                named(&by.bridge_interface, "detectLocal.bridgeInterface", "BridgeInterface")
                    .map(Self::Bridge)
            }
            "InterfaceNamePrefix" => {
                named(&by.interface_name_prefix, "detectLocal.interfaceNamePrefix", "InterfaceNamePrefix")
                    .map(Self::Prefix)
            }
            other => Err(wrong(
                "detectLocalMode",
                other,
                "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
            )),
        }
    }
}

impl NodePortAddresses {
    fn of(kube_proxy: &KubeProxyConfiguration, mode: Mode) -> Result<Self, ConfigError> {
        let mut parsed = Self::parse(&kube_proxy.node_port_addresses)?;
        if kube_proxy.node_port_addresses.is_empty() && mode == Mode::NfTables {
            return Ok(Self { primary: true, ..Self::default() });
        }
        if mode == Mode::IpTables && parsed.all {
            parsed.localhost |= kube_proxy.iptables.localhost_node_ports.unwrap_or(true);
        }
        Ok(parsed)
    }

    /// Parses CIDRs and the words `primary`, `localhost` and `all`; `all` if there are none. If there are
    /// CIDRs of one family only, all addresses of the other serve node ports.
    ///
    /// # Errors
    /// Fails on any other value.
    pub fn parse(values: &[String]) -> Result<Self, ConfigError> {
        let mut parsed = Self::default();
        for value in values.iter().flat_map(|value| value.split(',')).map(str::trim) {
            match value {
                "" => {}
                "primary" => parsed.primary = true,
                "localhost" => parsed.localhost = true,
                "all" => parsed.all = true,
                range => parsed.ranges.push(cidr("nodePortAddresses", range)?),
            }
        }
        if parsed == Self::default() {
            parsed.all = true;
        }
        Ok(parsed)
    }

    /// Returns `true` if node ports are served on loopback addresses, which every machine has.
    pub fn loopback(&self) -> bool {
        let all = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        self.localhost || self.ranges.iter().any(|range| all.iter().any(|one| range.contains(*one)))
    }

    /// Selects among the primary addresses, the Node object's and those of the machine's interfaces. The
    /// result is sorted and has no duplicates.
    pub fn choose(&self, primary: &[IpAddr], node: &[IpAddr], machine: &[IpAddr]) -> Vec<IpAddr> {
        let unlisted = |v4: bool| !self.ranges.is_empty() && !self.ranges.iter().any(|r| r.is_ipv4() == v4);
        let wanted = |address: &IpAddr| {
            let all = self.all || unlisted(address.is_ipv4());
            if address.is_loopback() {
                self.localhost || self.ranges.iter().any(|range| range.contains(*address))
            } else {
                all || self.ranges.iter().any(|range| range.contains(*address))
            }
        };
        let mut chosen: Vec<_> = primary.iter().filter(|_| self.primary).copied().collect();
        chosen.extend(node.iter().chain(machine).filter(|address| wanted(address)));
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }
}

/// Parses an address and port, or an address alone, which gets the default port.
fn socket(field: &'static str, value: &str, port: u16) -> Result<Option<SocketAddr>, ConfigError> {
    let text = value.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let alone = bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, port));
    let wrong = |_| wrong(field, value, "an address and port");
    alone.or_else(|_| text.parse()).map(Some).map_err(wrong)
}

fn cidr(field: &'static str, value: &str) -> Result<IpNetwork, ConfigError> {
    // A plain address would parse as a range of one; Kubernetes refuses it.
    if !value.contains('/') {
        return Err(wrong(field, value, "a CIDR"));
    }
    value.parse().map_err(|_| wrong(field, value, "a CIDR"))
}

fn cluster_cidrs(value: &str) -> Result<Vec<IpNetwork>, ConfigError> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let cidrs = parts.map(|part| cidr("clusterCIDR", part)).collect::<Result<Vec<_>, _>>()?;
    let one_a_family = match cidrs.as_slice() {
        [] | [_] => true,
        [first, second] => first.is_ipv4() != second.is_ipv4(),
        _ => false,
    };
    if one_a_family { Ok(cidrs) } else { Err(wrong("clusterCIDR", value, "one CIDR, or one of each family")) }
}

/// Returns the ranges of the cluster's pods if their packets are to be masqueraded.
fn masquerade(wanted: bool, cluster_cidr: &str) -> Result<Vec<IpNetwork>, ConfigError> {
    if !wanted {
        return Ok(Vec::new());
    }
    let ranges = cluster_cidrs(cluster_cidr)?;
    if ranges.is_empty() {
        return Err(wrong(
            "--masquerade-pods",
            "true",
            "possible without clusterCIDR, the range of all pods",
        ));
    }
    let whole = |range: &IpNetwork| IpNetwork::new(range.network(), range.prefix()).ok();
    Ok(ranges.iter().filter_map(whole).collect())
}

/// Checks values that have a range, whether or not they have an effect here: what kube-proxy refuses is
/// refused.
fn check_ranges(kube_proxy: &KubeProxyConfiguration) -> Result<(), ConfigError> {
    let within = |field, value: Option<i32>, range: std::ops::RangeInclusive<i32>, expected| match value {
        Some(value) if !range.contains(&value) => Err(wrong(field, &value.to_string(), expected)),
        _ => Ok(()),
    };
    let bit = "within 0 and 31";
    within("iptables.masqueradeBit", kube_proxy.iptables.masquerade_bit, 0..=31, bit)?;
    within("nftables.masqueradeBit", kube_proxy.nftables.masquerade_bit, 0..=31, bit)?;
    within("oomScoreAdj", kube_proxy.oom_score_adj, -1000..=1000, "within -1000 and 1000")?;
    within("conntrack.maxPerCore", kube_proxy.conntrack.max_per_core, 0..=i32::MAX, "0 or more")?;
    within("conntrack.min", kube_proxy.conntrack.min, 0..=i32::MAX, "0 or more")?;
    within("clientConnection.burst", Some(kube_proxy.client_connection.burst), 0..=i32::MAX, "0 or more")?;
    for (field, period) in [
        ("conntrack.tcpEstablishedTimeout", kube_proxy.conntrack.tcp_established_timeout),
        ("conntrack.tcpCloseWaitTimeout", kube_proxy.conntrack.tcp_close_wait_timeout),
        ("conntrack.udpTimeout", Some(kube_proxy.conntrack.udp_timeout)),
        ("conntrack.udpStreamTimeout", Some(kube_proxy.conntrack.udp_stream_timeout)),
        ("iptables.syncPeriod", Some(kube_proxy.iptables.sync_period)),
        ("iptables.minSyncPeriod", Some(kube_proxy.iptables.min_sync_period)),
        ("ipvs.syncPeriod", Some(kube_proxy.ipvs.sync_period)),
        ("ipvs.minSyncPeriod", Some(kube_proxy.ipvs.min_sync_period)),
        ("nftables.syncPeriod", Some(kube_proxy.nftables.sync_period)),
        ("nftables.minSyncPeriod", Some(kube_proxy.nftables.min_sync_period)),
        ("configSyncPeriod", Some(kube_proxy.config_sync_period)),
    ] {
        if let Some(below) = period.filter(|period| period.duration().is_none()) {
            return Err(wrong(field, &below.to_string(), "a duration of 0s or more"));
        }
    }
    for range in &kube_proxy.ipvs.exclude_cidrs {
        cidr("ipvs.excludeCIDRs", range)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver_meta::period::Period;

    fn ips(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    fn with(change: impl FnOnce(&mut KubeProxyConfiguration)) -> Result<Config, ConfigError> {
        let mut kube_proxy =
            KubeProxyConfiguration { hostname_override: " Node-A".to_owned(), ..Default::default() };
        change(&mut kube_proxy);
        Config::new(&kube_proxy, &Own::default())
    }

    #[test]
    fn the_defaults_are_kube_proxys() {
        let config = with(|_| {}).unwrap();
        assert_eq!(config.node_name, "node-a");
        assert_eq!(config.healthz_bind_address, Some("0.0.0.0:10256".parse().unwrap()));
        assert_eq!(config.metrics_bind_address, Some("127.0.0.1:10249".parse().unwrap()));
        assert_eq!(config.detect_local, DetectLocal::ClusterCidr(Vec::new()));
        assert!(config.nodeport_addresses.all && config.nodeport_addresses.localhost);
        assert!(!config.external_ips && !config.masquerade_all && !config.bind_address_hard_fail);
    }

    #[test]
    fn errors_name_their_field() {
        let said = |change: fn(&mut KubeProxyConfiguration)| with(change).unwrap_err().to_string();
        let text = said(|kube_proxy| kube_proxy.cluster_cidr = "10.0.0.0/8,10.1.0.0/16".to_owned());
        assert!(text.starts_with("clusterCIDR: "), "{text}");
        let text = said(|kube_proxy| kube_proxy.node_port_addresses = vec!["10.0.0.1".to_owned()]);
        assert_eq!(text, "nodePortAddresses: \"10.0.0.1\" is not a CIDR");
        let text = said(|kube_proxy| kube_proxy.healthz_bind_address = "here".to_owned());
        assert_eq!(text, "healthzBindAddress: \"here\" is not an address and port");
        let text = said(|kube_proxy| kube_proxy.hostname_override.clear());
        assert_eq!(text, "hostnameOverride must be given");
        let text = said(|kube_proxy| kube_proxy.mode = "userspace".to_owned());
        assert!(text.starts_with("mode: \"userspace\" is not"), "{text}");
        let text = said(|kube_proxy| kube_proxy.oom_score_adj = Some(-2000));
        assert_eq!(text, "oomScoreAdj: \"-2000\" is not within -1000 and 1000");
        let text = said(|kube_proxy| kube_proxy.config_sync_period = Period::seconds(-1));
        assert_eq!(text, "configSyncPeriod: \"-1s\" is not a duration of 0s or more");
        let text = said(|kube_proxy| kube_proxy.detect_local_mode = "BridgeInterface".to_owned());
        assert_eq!(text, "detectLocal.bridgeInterface must be given with detectLocalMode BridgeInterface");
    }

    #[test]
    fn pods_are_masqueraded_when_asked_to_outside_of_the_clusters_range() {
        let masquerade = |cluster_cidr: &str, masquerade_pods: bool| {
            let kube_proxy = KubeProxyConfiguration {
                hostname_override: "a".to_owned(),
                cluster_cidr: cluster_cidr.to_owned(),
                ..Default::default()
            };
            Config::new(&kube_proxy, &Own { masquerade_pods, ..Own::default() })
                .map(|config| config.masquerade)
        };
        assert_eq!(masquerade("10.1.0.0/16", false), Ok(Vec::new()));
        let ranges = vec!["10.1.0.0/16".parse().unwrap(), "fd01::/48".parse().unwrap()];
        assert_eq!(masquerade("10.1.2.3/16,fd01::/48", true), Ok(ranges));
        let error = masquerade("", true).unwrap_err().to_string();
        assert!(
            error.starts_with("--masquerade-pods: \"true\" is not possible without clusterCIDR"),
            "{error}"
        );
    }

    #[test]
    fn each_way_to_detect_pods_is_read() {
        let detect = |mode: &str| {
            with(|kube_proxy| {
                kube_proxy.detect_local_mode = mode.to_owned();
                kube_proxy.detect_local.bridge_interface = "cni7".to_owned();
                kube_proxy.detect_local.interface_name_prefix = "pod".to_owned();
                kube_proxy.cluster_cidr = "10.1.0.0/16,fd01::/48".to_owned();
            })
            .unwrap()
            .detect_local
        };
        let ranges = vec!["10.1.0.0/16".parse().unwrap(), "fd01::/48".parse().unwrap()];
        assert_eq!(detect("ClusterCIDR"), DetectLocal::ClusterCidr(ranges));
        assert_eq!(detect("NodeCIDR"), DetectLocal::NodeCidr);
        assert_eq!(detect("BridgeInterface"), DetectLocal::Bridge("cni7".to_owned()));
        assert_eq!(detect("InterfaceNamePrefix"), DetectLocal::Prefix("pod".to_owned()));
    }

    #[test]
    fn defaults_of_node_ports_follow_the_mode_that_is_replaced() {
        let mode = |mode: &str| with(|kube_proxy| kube_proxy.mode = mode.to_owned()).unwrap();
        let primary = NodePortAddresses { primary: true, ..NodePortAddresses::default() };
        assert_eq!(mode("nftables").nodeport_addresses, primary);
        let all = NodePortAddresses { all: true, ..NodePortAddresses::default() };
        assert_eq!(mode("ipvs").nodeport_addresses, all);
        let closed = with(|kube_proxy| kube_proxy.iptables.localhost_node_ports = Some(false)).unwrap();
        assert_eq!(closed.nodeport_addresses, all);
        // kube-proxy's other modes serve no node ports on loopback unless told so.
        assert!(mode("").nodeport_addresses.loopback() && !closed.nodeport_addresses.loopback());
        assert!(
            !mode("nftables").nodeport_addresses.loopback() && !mode("ipvs").nodeport_addresses.loopback()
        );
        let named = |range: &str| NodePortAddresses::parse(&[range.to_owned()]).unwrap().loopback();
        assert!(named("127.0.0.0/8") && named("::/0") && named("localhost") && !named("192.0.2.0/24"));
        let masquerade = |mode: &str, iptables, nftables| {
            let config = with(|kube_proxy| {
                kube_proxy.mode = mode.to_owned();
                kube_proxy.iptables.masquerade_all = iptables;
                kube_proxy.nftables.masquerade_all = nftables;
            });
            config.unwrap().masquerade_all
        };
        assert!(masquerade("ipvs", true, false) && masquerade("nftables", false, true));
        assert!(!masquerade("", false, true) && !masquerade("nftables", true, false));
    }

    #[test]
    fn node_port_addresses_are_chosen_by_kind_and_range() {
        let node = ips(&["192.0.2.1", "192.0.2.2"]);
        let machine = ips(&["127.0.0.1", "192.0.2.1", "198.51.100.7", "2001:db8::1", "::1"]);
        let choose = |values: &[&str]| {
            let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
            NodePortAddresses::parse(&values).unwrap().choose(&node[..1], &node, &machine)
        };
        assert_eq!(choose(&[]), ips(&["192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1"]));
        assert_eq!(choose(&["primary"]), ips(&["192.0.2.1"]));
        assert_eq!(choose(&["primary", "localhost"]), ips(&["127.0.0.1", "192.0.2.1", "::1"]));
        // A family without a CIDR serves on all addresses.
        let both = ips(&["127.0.0.1", "198.51.100.7", "::1", "2001:db8::1"]);
        assert_eq!(choose(&["localhost,198.51.100.0/24"]), both);
        let ranges = ["127.0.0.0/8", "198.51.100.0/24", "fd00::/8"];
        assert_eq!(choose(&ranges), ips(&["127.0.0.1", "198.51.100.7"]));
    }

    #[test]
    fn the_bind_address_overrides_the_primary_one() {
        let bound = |address: &str| with(|kube_proxy| kube_proxy.bind_address = address.to_owned());
        assert_eq!(bound("0.0.0.0").unwrap().primary_address, None);
        assert_eq!(bound("192.0.2.9").unwrap().primary_address, Some("192.0.2.9".parse().unwrap()));
        assert!(bound("eth0").is_err());
    }
}
