//! The checked configuration of the node's network.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ipnetwork::IpNetwork;

use crate::limits;

/// The MTU if there is no interface to take it from.
pub(crate) const DEFAULT_MTU: u32 = 1500;
/// The default VXLAN network identifier. Flannel uses 1, Calico 4096.
pub const DEFAULT_VNI: u32 = 4145;
/// The default UDP port of WireGuard. Flannel and Calico use 51820, Cilium 51871.
pub const DEFAULT_WIREGUARD_PORT: u16 = 14790;
/// The default UDP port of VXLAN. Flannel and Cilium use 8472, Calico and most switches 4789.
pub const DEFAULT_PORT: u16 = 14789;

/// The way in which packets reach pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A route to nodes that are reached without a gateway, VXLAN to others.
    #[default]
    Auto,
    /// Routes only; the network behind gateways must know the way.
    Routes,
    /// VXLAN only.
    Vxlan,
    /// Neither: another CNI plugin provides the pod network.
    None,
}

/// The text is not a mode.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pod network: give auto, routes, vxlan or none")]
pub struct ModeError(String);

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text {
            "auto" => Ok(Self::Auto),
            "routes" => Ok(Self::Routes),
            "vxlan" => Ok(Self::Vxlan),
            "none" => Ok(Self::None),
            _ => Err(ModeError(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Routes => "routes",
            Self::Vxlan => "vxlan",
            Self::None => "none",
        })
    }
}

impl Mode {
    /// Returns `true` if packets to some nodes may need room for a tunnel's headers.
    pub fn may_tunnel(self) -> bool {
        matches!(self, Self::Auto | Self::Vxlan)
    }
}

/// The encryption of packets to pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    #[default]
    None,
    WireGuard,
}

/// The text is not a kind of encryption.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an encryption of the pod network: give none or wireguard")]
pub struct EncryptionError(String);

impl FromStr for Encryption {
    type Err = EncryptionError;

    fn from_str(text: &str) -> Result<Self, EncryptionError> {
        match text {
            "none" => Ok(Self::None),
            "wireguard" => Ok(Self::WireGuard),
            _ => Err(EncryptionError(text.to_owned())),
        }
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::WireGuard => "wireguard",
        })
    }
}

/// The settings of WireGuard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuard {
    /// The UDP port of this node.
    pub port: u16,
    /// The file with the private key, which is made if it is missing.
    pub key_file: PathBuf,
}

/// Returns the MTU of the WireGuard device over an interface with this MTU. WireGuard adds a header of 16 bytes, an
/// authentication of 16, UDP's 8, and the outer IP header. VXLAN within has to have room for the smallest packets of
/// IPv6: if the interface has none, outer packets are fragmented.
pub(crate) fn wireguard_mtu(outer: u32, outer_ipv4: bool) -> u32 {
    let least = limits::MIN_MTU + tunnel_overhead(false);
    outer.saturating_sub(if outer_ipv4 { 60 } else { 80 }).clamp(least, limits::MAX_MTU)
}

/// Bytes that VXLAN adds to a packet: Ethernet 14, VXLAN 8, UDP 8, and the outer IP header.
pub fn tunnel_overhead(outer_ipv4: bool) -> u32 {
    if outer_ipv4 { 50 } else { 70 }
}

/// The settings of the pod network between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub mode: Mode,
    /// The ranges from which nodes' podCIDRs are taken; nothing outside is ever routed.
    pub cluster_cidrs: Vec<IpNetwork>,
    /// The ranges of Services, which no node may claim.
    pub service_cidrs: Vec<IpNetwork>,
    /// The own Node's addresses.
    pub node_ips: Vec<IpAddr>,
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port of VXLAN.
    pub port: u16,
    /// Directory in which the node records the addresses that it gave the loopback interface; without it, all that are
    /// there count as a user's.
    pub state_dir: Option<PathBuf>,
    /// If set, packets to pods of other nodes are encrypted, and others are not sent.
    pub encryption: Option<WireGuard>,
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            node_ips: Vec::new(),
            vni: DEFAULT_VNI,
            port: DEFAULT_PORT,
            state_dir: None,
            encryption: None,
        }
    }
}

impl PeerConfig {
    /// Returns the own addresses for the outside of the tunnel, the best first. Both ends of a tunnel have to be of one
    /// family, and nodes list their addresses in any order: IPv4 goes first on all of them.
    pub(crate) fn outer_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let of_family = |ipv4: bool| self.node_ips.iter().copied().filter(move |ip| ip.is_ipv4() == ipv4);
        of_family(true).chain(of_family(false))
    }
}

/// The node's network. All paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The own Node.
    pub node_name: String,
    /// The directory that records addresses in use and the previous state of the machine.
    pub state_dir: PathBuf,
    /// The directory of the runtime's CNI configurations.
    pub conf_dir: PathBuf,
    /// The directory of the runtime's CNI plugins.
    pub bin_dir: PathBuf,
    /// The executable that acts as the plugin when it is called by its name.
    pub plugin: PathBuf,
    /// The addresses of Services: packets that were not translated must not leave the node.
    pub service_cidrs: Vec<IpNetwork>,
    /// MTU of pods' interfaces; `None` for that of the interface with the node's address, less the headers of
    /// the tunnel if packets to other nodes may take it.
    pub mtu: Option<u32>,
    /// A pod's interface counts as made when the proxy has the pod's network policies in force.
    pub await_policies: bool,
    /// The ways to pods of other nodes.
    pub peers: PeerConfig,
}

/// The configuration cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{what} must be an absolute path, not {}", path.display())]
    Relative { what: &'static str, path: PathBuf },
    #[error("the MTU {0} is not within {least} and {most}", least = limits::MIN_MTU, most = limits::MAX_MTU)]
    Mtu(u32),
    #[error("--pod-network-encryption=wireguard needs --pod-network=auto or vxlan, not {0}")]
    Encryption(Mode),
    #[error("the node name is empty")]
    NoName,
    #[error("{range} cannot be used as the range of pods: {reason}")]
    PodRange { range: String, reason: &'static str },
}

impl Config {
    /// Fails if the configuration cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.node_name.is_empty() {
            return Err(ConfigError::NoName);
        }
        let paths = [
            ("the state directory", &self.state_dir),
            ("the CNI configuration directory", &self.conf_dir),
            ("the CNI plugin directory", &self.bin_dir),
            ("the plugin", &self.plugin),
        ];
        for (what, path) in paths {
            if !path.is_absolute() {
                return Err(ConfigError::Relative { what, path: path.clone() });
            }
        }
        if self.peers.encryption.is_some() && !self.peers.mode.may_tunnel() {
            return Err(ConfigError::Encryption(self.peers.mode));
        }
        self.mtu.map_or(Ok(()), check_mtu)
    }
}

/// Fails on an MTU that no interface or not every protocol can use.
pub fn check_mtu(mtu: u32) -> Result<(), ConfigError> {
    if (limits::MIN_MTU..=limits::MAX_MTU).contains(&mtu) { Ok(()) } else { Err(ConfigError::Mtu(mtu)) }
}

/// Parses the podCIDRs of a Node: at most one per family, each with room for the node and a pod.
pub fn pod_ranges(cidrs: &[String]) -> Result<Vec<IpNetwork>, ConfigError> {
    let wrong = |range: &str, reason| ConfigError::PodRange { range: range.to_owned(), reason };
    let mut ranges: Vec<IpNetwork> = Vec::new();
    for cidr in cidrs {
        let range: IpNetwork = cidr.parse().map_err(|_| wrong(cidr, "it is not a CIDR"))?;
        check_pod_range(range)?;
        if ranges.iter().any(|known| known.is_ipv4() == range.is_ipv4()) {
            return Err(wrong(cidr, "there is already one of its family"));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

/// Fails on a range that is too small.
pub fn check_pod_range(range: IpNetwork) -> Result<(), ConfigError> {
    let bits = if range.is_ipv4() { 32 } else { 128 };
    if bits - range.prefix() < 2 {
        let reason = "it has no room for the node's address and a pod's";
        return Err(ConfigError::PodRange { range: range.to_string(), reason });
    }
    Ok(())
}

/// Returns the node's own address in a range: the first after the network's.
pub fn host_address(range: IpNetwork) -> IpAddr {
    nth_address(range, 1)
}

/// Returns the address `n` places after the network's; `n` must be within the range.
pub(crate) fn nth_address(range: IpNetwork, n: u32) -> IpAddr {
    match range.network() {
        IpAddr::V4(first) => IpAddr::V4(first.to_bits().wrapping_add(n).into()),
        IpAddr::V6(first) => IpAddr::V6(first.to_bits().wrapping_add(u128::from(n)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            node_name: "a".to_owned(),
            state_dir: "/s".into(),
            conf_dir: "/c".into(),
            bin_dir: "/b".into(),
            plugin: "/p".into(),
            service_cidrs: Vec::new(),
            mtu: None,
            await_policies: false,
            peers: PeerConfig::default(),
        }
    }

    #[test]
    fn relative_paths_and_odd_mtus_are_refused() {
        assert_eq!(config().validate(), Ok(()));
        let error = Config { bin_dir: "bin".into(), ..config() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "the CNI plugin directory must be an absolute path, not bin");
        assert_eq!(Config { mtu: Some(100), ..config() }.validate(), Err(ConfigError::Mtu(100)));
        assert_eq!(Config { mtu: Some(9000), ..config() }.validate(), Ok(()));
    }

    #[test]
    fn encryption_needs_the_tunnel() {
        let encryption = Some(WireGuard { port: 1, key_file: "/k".into() });
        let with = |mode| PeerConfig { mode, encryption: encryption.clone(), ..PeerConfig::default() };
        let valid = |mode| Config { peers: with(mode), ..config() }.validate();
        assert_eq!((valid(Mode::Auto), valid(Mode::Vxlan)), (Ok(()), Ok(())));
        let refused = valid(Mode::Routes).unwrap_err().to_string();
        assert_eq!(
            refused,
            "--pod-network-encryption=wireguard needs --pod-network=auto or vxlan, not routes"
        );
        assert_eq!(valid(Mode::None), Err(ConfigError::Encryption(Mode::None)));
    }

    #[test]
    fn wireguard_leaves_room_for_its_headers_and_for_ipv6_within() {
        assert_eq!((wireguard_mtu(1500, true), wireguard_mtu(1500, false)), (1440, 1420));
        assert_eq!((wireguard_mtu(9000, true), wireguard_mtu(65_535, true)), (8940, 65_475));
        assert_eq!((wireguard_mtu(1400, true), wireguard_mtu(0, false)), (1350, 1350));
    }

    #[test]
    fn pod_ranges_are_one_a_family_with_room() {
        let ranges = |cidrs: &[&str]| {
            let cidrs: Vec<_> = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
            pod_ranges(&cidrs).map_err(|error| error.to_string())
        };
        let two = ranges(&["10.244.3.0/24", "fd00:3::/64"]).unwrap();
        let hosts: Vec<_> = two.iter().map(|range| host_address(*range).to_string()).collect();
        assert_eq!(hosts, ["10.244.3.1", "fd00:3::1"]);
        assert!(ranges(&["10.244.3.0/24", "10.245.0.0/24"]).unwrap_err().contains("already one"));
        assert!(ranges(&["10.244.3.0/31"]).unwrap_err().contains("no room"));
        assert!(ranges(&["here"]).unwrap_err().contains("not a CIDR"));
    }
}
