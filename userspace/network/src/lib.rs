//! The pod network of one node, without a bridge or packet filter rules.
//!
//! ```text
//!   pod's namespace                      node
//!   eth0 10.244.0.5/32 ════ veth ════ hwp4f0c…      route 10.244.0.5/32 dev hwp4f0c… src 10.244.0.1
//!   default via 169.254.1.1 onlink       lo 10.244.0.1/32: the node's own address for pods
//!   169.254.1.1 is at hwp4f0c…'s MAC     unreachable SERVICE-CIDR: untranslated packets stay here
//! ```
//!
//! Each pod has a host route of its own and permanent neighbour entries at both ends, so that nothing is
//! broadcast and nothing is resolved. The plugin ([`cni`]) makes and removes the interfaces, [`node`] sets up
//! and restores the machine, [`run()`] waits for the Node's podCIDR. [`peers`] has the ways to the pods of other
//! nodes, [`wireguard`] the keys by which these are encrypted.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cni;
pub mod config;
pub mod ipam;
mod journal;
mod limits;
mod netlink;
pub mod netns;
pub mod node;
pub mod peers;
mod publish;
mod run;
mod sysctl;
pub mod wireguard;

pub use config::{Config, ConfigError};
pub use node::{NodeError, Prepared, RestoreErrors, prepare, reconcile, restore, retire, sweep};
pub use run::{Clients, run, run_with};

/// The prefix of the names of the host's ends of pods' interfaces.
pub const POD_INTERFACE_PREFIX: &str = "hwp";
/// The name of the plugin, in the CNI configuration and as the file name by which it is called.
pub const PLUGIN_NAME: &str = "hawser-cni";
/// The protocol number that marks routes as ours (`proto` in `ip route`).
pub const ROUTE_PROTOCOL: u8 = 143;
