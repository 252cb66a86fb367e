//! Flags of the etcd that runs on this machine.

use clap::Args;

#[derive(Args, Clone, Default)]
pub struct EtcdStart {
    /// Run a member of etcd on this machine, by the program `etcd` in PATH, and keep it running. Clients and members
    /// need certificates of an authority that nothing else uses
    #[arg(long)]
    pub etcd_start: bool,
    /// Port of that etcd for clients, on the node's address and on the loopback address
    #[arg(long, default_value_t = 2379, value_name = "PORT")]
    pub etcd_client_port: u16,
    /// Port of that etcd for other members, on the node's address
    #[arg(long, default_value_t = 2380, value_name = "PORT")]
    pub etcd_peer_port: u16,
}
