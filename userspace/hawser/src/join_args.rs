//! The command lines of `token`, `join` and `leave`. Names and formats are kubeadm's.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use ipnetwork::IpNetwork;

use crate::apiserver_args::duration;
use crate::dns_args::JoinDns;
use crate::etcd_args::EtcdStart;
use crate::network_args::PodNetwork;
use crate::node_args::{NodeArgs, ProxyPorts, RuntimeArgs};
use crate::proxy_args::BPF_ROOT;

/// The group that `up` and kubeadm let join.
pub const DEFAULT_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

#[derive(Args)]
pub struct TokenCommand {
    #[command(subcommand)]
    pub action: TokenAction,
}

#[derive(Subcommand)]
pub enum TokenAction {
    /// Make a token and print it
    Create(TokenCreate),
    /// List the tokens of the cluster
    List(Administrator),
    /// Delete tokens; nobody can use them from then on
    Delete(TokenDelete),
}

/// The credentials of an administrator.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Administrator {
    /// The directory of `up` or of the API server, which has the administrator's kubeconfig
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// Kubeconfig of an administrator
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Args)]
pub struct TokenCreate {
    /// The token, `abcdef.0123456789abcdef`; a random one unless given
    pub token: Option<String>,
    /// Time after which the token ends; 0 for never [default: 24h0m0s, with --control-plane 2h0m0s]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub ttl: Option<Duration>,
    /// Let a machine join as a further control node, and print the whole command line: the keys of the cluster are
    /// stored for it, sealed with a key that is in that line alone, until the token ends. Needs --data-dir
    #[arg(long)]
    pub control_plane: bool,
    /// Description, shown by `hawser token list`
    #[arg(long, default_value = "")]
    pub description: String,
    /// Comma-separated uses of the token: signing, authentication
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication")]
    pub usages: Vec<String>,
    /// Comma-separated groups of those who use the token, each system:bootstrappers:NAME
    #[arg(long, value_delimiter = ',', default_values_t = [DEFAULT_GROUP.to_owned()])]
    pub groups: Vec<String>,
    /// Print the whole command line of `hawser join`
    #[arg(long)]
    pub print_join_command: bool,
    #[command(flatten)]
    pub administrator: Administrator,
}

#[derive(Args)]
pub struct TokenDelete {
    /// Tokens, or their first six characters
    #[arg(required = true, value_name = "TOKEN")]
    pub tokens: Vec<String>,
    #[command(flatten)]
    pub administrator: Administrator,
}

#[derive(Args)]
#[command(
    after_help = "On the machine of `hawser up`, `hawser token create --data-dir D --print-join-command` prints \
    the command line to use here. A machine that has joined needs `hawser join --data-dir D` alone."
)]
pub struct Join {
    /// The API server: ADDRESS:PORT
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,
    /// The token of `hawser token create`; not needed by a machine that has joined. Everybody on the machine can read
    /// command lines: see --token-file
    #[arg(long)]
    pub token: Option<String>,
    /// File with the token; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Hash of the public key of the cluster's authority, `sha256:…`; may be repeated
    #[arg(long, value_name = "HASH")]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// Join without verifying the cluster's authority: anyone who has had the token can pose as the cluster
    #[arg(long, conflicts_with = "discovery_token_ca_cert_hash")]
    pub discovery_token_unsafe_skip_ca_verification: bool,
    /// Make this machine a control node, with an API server, controllers and a scheduler of its own, as `hawser token
    /// create --control-plane` prints it
    #[arg(long, conflicts_with_all = ["service_cidrs", "cluster_cidrs"])]
    pub control_plane: bool,
    /// The key with which the cluster's keys are sealed for this machine
    #[arg(long, value_name = "KEY", requires = "control_plane")]
    pub certificate_key: Option<String>,
    /// File with that key
    #[arg(long, value_name = "FILE", requires = "control_plane", conflicts_with = "certificate_key")]
    pub certificate_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub etcd_start: EtcdStart,
    /// Directory of all state of the node
    #[arg(long, default_value = "/var/lib/hawser")]
    pub data_dir: PathBuf,
    /// Directory in which maps, programs and links are pinned
    #[arg(long, default_value = BPF_ROOT)]
    pub bpf_root: PathBuf,
    /// Addresses of Services, if the cluster does not tell them
    #[arg(long = "service-cluster-ip-range", value_delimiter = ',', value_name = "RANGES")]
    pub service_cidrs: Vec<IpNetwork>,
    /// Addresses of pods, if the cluster does not tell them
    #[arg(long = "cluster-cidr", value_delimiter = ',', value_name = "RANGES")]
    pub cluster_cidrs: Vec<IpNetwork>,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub pod_network: PodNetwork,
    #[command(flatten)]
    pub proxy: ProxyPorts,
    #[command(flatten)]
    pub dns: JoinDns,
}

#[derive(Args)]
pub struct Leave {
    /// The directory that `join` or `kubelet` was given
    #[arg(long, default_value = "/var/lib/hawser")]
    pub data_dir: PathBuf,
    /// Kubeconfig of an administrator, to delete the Node: nodes may not do that by themselves
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// First cordon the Node and evict its pods, as `kubectl drain --ignore-daemonsets` does
    #[arg(long)]
    pub drain: bool,
    /// Time after which pods that cannot be evicted stop the drain
    #[arg(long, default_value = "5m0s", value_parser = duration, value_name = "DURATION")]
    pub drain_timeout: Duration,
}
