//! Flags of the pod network.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use userspace_network::ConfigError;
use userspace_network::peers::{
    DEFAULT_PORT, DEFAULT_VNI, DEFAULT_WIREGUARD_PORT, Encryption, Mode, WireGuard,
};
use userspace_network::wireguard::KEY_FILE;

/// The largest VXLAN network identifier.
const MAX_VNI: i64 = (1 << 24) - 1;

#[derive(Args, Clone)]
pub struct PodNetwork {
    /// Way to pods of other nodes: `auto` for routes to nodes on the same link and VXLAN to others, `routes` or
    /// `vxlan` for one of the two, `none` to leave the pod network to another CNI plugin
    #[arg(long, default_value_t = Mode::Auto, value_name = "WAY")]
    pub pod_network: Mode,
    /// VXLAN network identifier; the same on all nodes
    #[arg(long, default_value_t = DEFAULT_VNI, value_name = "VNI", value_parser = clap::value_parser!(u32).range(1..=MAX_VNI))]
    pub vxlan_vni: u32,
    /// UDP port of VXLAN; the same on all nodes, and open between them
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,
    /// Encryption of packets between pods of different nodes: `none` or `wireguard`, which sends all of them through
    /// VXLAN within WireGuard, and none in the clear; the same on all nodes
    #[arg(long, default_value_t = Encryption::None, value_name = "KIND")]
    pub pod_network_encryption: Encryption,
    /// UDP port of WireGuard on this node, open for the other nodes
    #[arg(long, default_value_t = DEFAULT_WIREGUARD_PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub wireguard_port: u16,
    /// Directory of CNI configurations of hawser's own containerd; below the root directory unless given.
    /// Other plugins write to `/etc/cni/net.d`
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins of hawser's own containerd; below the root directory unless given. Other
    /// plugins are in `/opt/cni/bin`
    #[arg(long, value_name = "DIR")]
    pub cni_bin_dir: Option<PathBuf>,
}

impl PodNetwork {
    /// Fails if this machine cannot encrypt packets although it should, before anything is made.
    pub fn check(&self) -> Result<()> {
        match self.pod_network_encryption {
            Encryption::None => Ok(()),
            Encryption::WireGuard => {
                if !self.pod_network.may_tunnel() {
                    return Err(ConfigError::Encryption(self.pod_network).into());
                }
                userspace_network::wireguard::check().context("cannot encrypt the pod network")
            }
        }
    }

    /// Returns the settings of WireGuard, whose key is below the state directory.
    pub fn wireguard(&self, state_dir: &Path) -> Option<WireGuard> {
        let settings = || WireGuard { port: self.wireguard_port, key_file: state_dir.join(KEY_FILE) };
        (self.pod_network_encryption == Encryption::WireGuard).then(settings)
    }
}
