//! Flags, and the configuration that they make when they are right.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnetwork::IpNetwork;

/// How often the whole of the tables is compared with what they should hold, as a safety net
/// under the changes that are applied one by one.
const FULL_SYNC: Duration = Duration::from_secs(30 * 60);

/// kube-proxy's ports.
const HEALTHZ_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;

/// What the command line says, flag by flag, spelled as in Kubernetes. Empty means not given.
#[derive(Clone, Debug)]
pub struct Flags {
    /// `--hostname-override`: the name of the own Node.
    pub hostname_override: String,
    /// `--healthz-bind-address`; empty for none.
    pub healthz_bind_address: String,
    /// `--metrics-bind-address`; empty for none.
    pub metrics_bind_address: String,
    /// `--cluster-cidr`: one or two CIDRs, separated by commas.
    pub cluster_cidr: String,
    /// `--nodeport-addresses`: CIDRs, `primary`, `localhost` or `all`.
    pub nodeport_addresses: Vec<String>,
    /// `--external-ips`: serve `spec.externalIPs`.
    pub external_ips: bool,
    /// `--uplinks`: interfaces towards other hosts; empty to find them.
    pub uplinks: Vec<String>,
    /// `--pod-interface-prefix`: how the names of pods' interfaces begin.
    pub pod_interface_prefix: String,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            hostname_override: String::new(),
            healthz_bind_address: "0.0.0.0:10256".to_owned(),
            metrics_bind_address: "127.0.0.1:10249".to_owned(),
            cluster_cidr: String::new(),
            nodeport_addresses: Vec::new(),
            external_ips: false,
            uplinks: Vec::new(),
            pod_interface_prefix: "hwp".to_owned(),
        }
    }
}

/// Checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the own Node; not empty.
    pub node_name: String,
    /// Where `/healthz` and `/livez` are to listen.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Where `/metrics` and `/proxyMode` are to listen.
    pub metrics_bind_address: Option<SocketAddr>,
    /// The pods' addresses, at most one range a family. Known to the data plane's programs by
    /// the interface that traffic arrives on, so nothing is decided from it yet.
    pub cluster_cidrs: Vec<IpNetwork>,
    /// Which addresses answer on node ports.
    pub nodeport_addresses: NodePortAddresses,
    pub external_ips: bool,
    /// Names of the interfaces towards other hosts; empty to find them.
    pub uplinks: Vec<String>,
    /// Interfaces whose names begin so are pods'; not empty.
    pub pod_interface_prefix: String,
    /// Pause between comparisons of the whole tables; at least a second.
    pub full_sync: Duration,
}

/// Which of the node's addresses answer on node ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The addresses of the Node object.
    pub primary: bool,
    /// Every address of the machine but loopback ones.
    pub all: bool,
    /// Loopback addresses. Off unless asked for: a pod's own loopback has the same address.
    pub localhost: bool,
    /// Addresses within these ranges.
    pub ranges: Vec<IpNetwork>,
}

/// A flag's value cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("--{flag}: {value:?} is not {expected}")]
    Value { flag: &'static str, value: String, expected: &'static str },
    #[error("--{flag} must be given")]
    Missing { flag: &'static str },
}

impl Config {
    /// The defaults for a node.
    pub fn for_node(node_name: &str) -> Result<Self, ConfigError> {
        Self::from_flags(&Flags { hostname_override: node_name.to_owned(), ..Flags::default() })
    }

    /// Checks every flag.
    pub fn from_flags(flags: &Flags) -> Result<Self, ConfigError> {
        let Flags {
            hostname_override,
            healthz_bind_address,
            metrics_bind_address,
            cluster_cidr,
            nodeport_addresses,
            external_ips,
            uplinks,
            pod_interface_prefix,
        } = flags;
        if hostname_override.is_empty() {
            return Err(ConfigError::Missing { flag: "hostname-override" });
        }
        if pod_interface_prefix.is_empty() {
            return Err(ConfigError::Missing { flag: "pod-interface-prefix" });
        }
        Ok(Self {
            // Kubernetes lowers the host name when it becomes a Node's.
            node_name: hostname_override.trim().to_lowercase(),
            healthz_bind_address: socket("healthz-bind-address", healthz_bind_address, HEALTHZ_PORT)?,
            metrics_bind_address: socket("metrics-bind-address", metrics_bind_address, METRICS_PORT)?,
            cluster_cidrs: cluster_cidrs(cluster_cidr)?,
            nodeport_addresses: NodePortAddresses::parse(nodeport_addresses)?,
            external_ips: *external_ips,
            uplinks: uplinks.clone(),
            pod_interface_prefix: pod_interface_prefix.clone(),
            full_sync: FULL_SYNC,
        })
    }
}

impl NodePortAddresses {
    fn parse(values: &[String]) -> Result<Self, ConfigError> {
        let mut parsed = Self::default();
        for value in values.iter().flat_map(|value| value.split(',')).map(str::trim) {
            match value {
                "" => {}
                "primary" => parsed.primary = true,
                "localhost" => parsed.localhost = true,
                "all" => parsed.all = true,
                range => parsed.ranges.push(cidr("nodeport-addresses", range)?),
            }
        }
        if parsed == Self::default() {
            parsed.all = true;
        }
        Ok(parsed)
    }

    /// Chooses among the Node object's addresses and those of the machine's interfaces. Sorted,
    /// each once.
    pub fn choose(&self, node: &[IpAddr], machine: &[IpAddr]) -> Vec<IpAddr> {
        let wanted = |address: &IpAddr| {
            let loopback = address.is_loopback();
            (self.all && !loopback)
                || (self.localhost && loopback)
                || self.ranges.iter().any(|range| range.contains(*address))
        };
        let mut chosen: Vec<_> = node.iter().filter(|_| self.primary).copied().collect();
        chosen.extend(node.iter().chain(machine).filter(|address| wanted(address)));
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }
}

/// An address and port, or an address alone, which takes the default port.
fn socket(flag: &'static str, value: &str, port: u16) -> Result<Option<SocketAddr>, ConfigError> {
    let text = value.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let alone = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, port));
    let wrong = |_| ConfigError::Value { flag, value: value.to_owned(), expected: "an address and port" };
    alone.or_else(|_| text.parse()).map(Some).map_err(wrong)
}

fn cidr(flag: &'static str, value: &str) -> Result<IpNetwork, ConfigError> {
    let wrong = || ConfigError::Value { flag, value: value.to_owned(), expected: "a CIDR" };
    // An address alone would parse as a range of one; Kubernetes refuses it.
    if !value.contains('/') {
        return Err(wrong());
    }
    value.parse().map_err(|_| wrong())
}

fn cluster_cidrs(value: &str) -> Result<Vec<IpNetwork>, ConfigError> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let cidrs = parts.map(|part| cidr("cluster-cidr", part)).collect::<Result<Vec<_>, _>>()?;
    let one_a_family = match cidrs.as_slice() {
        [] | [_] => true,
        [first, second] => first.is_ipv4() != second.is_ipv4(),
        _ => false,
    };
    if !one_a_family {
        return Err(ConfigError::Value {
            flag: "cluster-cidr",
            value: value.to_owned(),
            expected: "one CIDR, or one of each family",
        });
    }
    Ok(cidrs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    fn with(change: impl FnOnce(&mut Flags)) -> Result<Config, ConfigError> {
        let mut flags = Flags { hostname_override: "Node-A".to_owned(), ..Flags::default() };
        change(&mut flags);
        Config::from_flags(&flags)
    }

    #[test]
    fn the_defaults_are_kube_proxys() {
        let config = with(|_| {}).unwrap();
        assert_eq!(config.node_name, "node-a");
        assert_eq!(config.healthz_bind_address, Some("0.0.0.0:10256".parse().unwrap()));
        assert_eq!(config.metrics_bind_address, Some("127.0.0.1:10249".parse().unwrap()));
        assert!(config.nodeport_addresses.all);
        assert!(!config.external_ips);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_flag() {
        let error = with(|flags| flags.cluster_cidr = "10.0.0.0/8,10.1.0.0/16".to_owned()).unwrap_err();
        assert!(error.to_string().starts_with("--cluster-cidr: "), "{error}");
        let error = with(|flags| flags.nodeport_addresses = vec!["10.0.0.1".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "--nodeport-addresses: \"10.0.0.1\" is not a CIDR");
        let error = with(|flags| flags.healthz_bind_address = "here".to_owned()).unwrap_err();
        assert_eq!(error.to_string(), "--healthz-bind-address: \"here\" is not an address and port");
        let error = with(|flags| flags.hostname_override.clear()).unwrap_err();
        assert_eq!(error, ConfigError::Missing { flag: "hostname-override" });
    }

    #[test]
    fn node_port_addresses_are_chosen_by_kind_and_range() {
        let (node, machine) = (ips(&["192.0.2.1"]), ips(&["127.0.0.1", "192.0.2.1", "198.51.100.7"]));
        let choose = |values: &[&str]| {
            let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
            NodePortAddresses::parse(&values).unwrap().choose(&node, &machine)
        };
        assert_eq!(choose(&[]), ips(&["192.0.2.1", "198.51.100.7"]));
        assert_eq!(choose(&["primary"]), ips(&["192.0.2.1"]));
        assert_eq!(choose(&["localhost,198.51.100.0/24"]), ips(&["127.0.0.1", "198.51.100.7"]));
    }
}
