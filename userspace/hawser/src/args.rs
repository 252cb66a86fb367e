//! The command line. Flags are spelled as in the corresponding Kubernetes component; every field is
//! destructured where it is used, so that an unused flag is a warning.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::apiserver_args::{Apis, Serving, duration};
use crate::apiserver_keys::Keys;
use crate::controllers_args::{Manager, ManagerFlags, hidden_flags};
use crate::dns_args::{ClusterDnsArgs, DnsServer, UpDns};
use crate::etcd_args::EtcdStart;
use crate::join_args;
use crate::network_args::PodNetwork;
use crate::node_args::{LoadBalancers, Networks, NodeArgs, ProxyPorts, RuntimeArgs};
use crate::node_ips::NodeIps;
use crate::probes::Probes;
use crate::proxy_args::{BPF_ROOT, ProxyRun, WITHOUT_A_MEANING};
use crate::scheduler_args::{self, SchedulerFlags};

/// The default log filter.
pub const DEFAULT_LOG: &str = "info";

#[derive(Parser)]
#[command(name = "hawser", version, about = "A networking-first Kubernetes node stack")]
pub struct Hawser {
    /// Log filter: `info`, or per module, such as `info,userspace_proxy=debug`
    #[arg(long, global = true, default_value = DEFAULT_LOG, env = "HAWSER_LOG")]
    pub log: String,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine, in one process
    Up(Box<Up>),
    /// Stop the pods of `up` and restore the machine
    Down(Down),
    /// Make, list and delete the tokens with which machines join
    Token(join_args::TokenCommand),
    /// Make this machine a node of a cluster, and run its components
    Join(Box<join_args::Join>),
    /// Take this machine out of its cluster and restore it
    Leave(join_args::Leave),
    /// Run the API server
    Apiserver(Box<Apiserver>),
    /// Issue the files that a component outside of `up` needs to reach the API server
    Credentials(Credentials),
    /// Take and restore snapshots of the embedded store, and check what is on disk
    Store(StoreCommand),
    /// Run the controllers
    #[command(args_override_self = true, after_long_help = hidden_flags::<Manager>())]
    Controllers(Box<Controllers>),
    /// Run the scheduler
    #[command(args_override_self = true, after_long_help = hidden_flags::<scheduler_args::Scheduler>())]
    Scheduler(Box<Scheduler>),
    /// Run the node agent
    Kubelet(Box<Kubelet>),
    /// Run the service proxy in place of kube-proxy, or look into its live tables
    #[command(version, args_override_self = true, after_long_help = WITHOUT_A_MEANING)]
    Proxy(Box<Proxy>),
    /// Run the cluster's DNS server on a node
    Dns(Box<Dns>),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    Embedded,
    Etcd,
}

#[derive(Args)]
pub struct StoreArgs {
    /// Kind of the store that holds the objects
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    pub store: StoreKind,
    /// Maximum number of bytes of keys and values in the embedded store, each object counting 150 more; above
    /// it, only deletions, updates that do not grow, leases and heartbeats are accepted. 0 for the default of
    /// 2 GiB
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub quota_backend_bytes: u64,
    /// Interval between compactions of the store; 0 if another component compacts it
    #[arg(long, default_value = "5m0s", value_parser = duration, value_name = "DURATION")]
    pub etcd_compaction_interval: Duration,
    #[command(flatten)]
    pub etcd: EtcdArgs,
}

#[derive(Args, Clone)]
pub struct EtcdArgs {
    /// Comma-separated URLs of the etcd members
    #[arg(long, value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// Certificate authority of etcd's serving certificates, for https URLs
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key of the client certificate for etcd
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Prefix of all keys in etcd
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
}

#[derive(Args)]
pub struct StoreCommand {
    #[command(subcommand)]
    pub action: StoreAction,
}

#[derive(Subcommand)]
pub enum StoreAction {
    /// Write the present state to a file, beside a running server or without one
    Snapshot(StoreSnapshot),
    /// Put a snapshot back, into a running server as changes, or into a directory that is not in use
    Restore(StoreRestore),
    /// Check checksums, revisions and objects. Exits with 0 if they are sound, 1 if they cannot be checked, 3
    /// if they are damaged
    Verify(StoreVerify),
}

#[derive(Args)]
pub struct StoreSnapshot {
    /// The data directory of the API server
    #[arg(long)]
    pub data_dir: PathBuf,
    /// The file to write; it appears complete or not at all
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

#[derive(Args)]
pub struct StoreRestore {
    /// The snapshot to restore
    #[arg(value_name = "FILE")]
    pub from: PathBuf,
    /// The data directory of the API server, running or not; created if missing
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Without a running server, the number by which the new revision exceeds all that clients have seen. 1
    /// by default, or 1,000,000,000 if it is not known which they have seen
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    pub bump_revision: Option<i64>,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["data_dir", "snapshot", "etcd_servers"]))]
pub struct StoreVerify {
    /// The data directory of the API server, running or not; it is opened for reading only
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// The snapshot to check
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Check every object in etcd instead
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Up {
    /// Directory of all state of the cluster
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Port of the API, on all addresses; 0 for a free one
    #[arg(long, default_value_t = 6443)]
    pub api_port: u16,
    /// Directory in which maps, programs and links are pinned
    #[arg(long, default_value = BPF_ROOT)]
    pub bpf_root: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub etcd_start: EtcdStart,
    #[command(flatten)]
    pub apis: Apis,
    /// Validity of the certificates that are signed for those who request them
    #[arg(long, default_value = "8760h0m0s", value_parser = duration, value_name = "DURATION")]
    pub cluster_signing_duration: Duration,
    #[command(flatten)]
    pub networks: Networks,
    #[command(flatten)]
    pub load_balancers: LoadBalancers,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub pod_network: PodNetwork,
    #[command(flatten)]
    pub proxy: ProxyPorts,
    #[command(flatten)]
    pub dns: UpDns,
}

#[derive(Args)]
pub struct Down {
    /// The directory that `up` was given
    #[arg(long)]
    pub data_dir: PathBuf,
}

#[derive(Args)]
pub struct Apiserver {
    /// Directory of certificates, kubeconfig and embedded store
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Port of the API; 0 for a free one
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind_address: IpAddr,
    /// Address that the Service `kubernetes` leads to
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub networks: Networks,
    #[command(flatten)]
    pub serving: Serving,
    #[command(flatten)]
    pub keys: Keys,
}

/// The component that credentials are issued for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComponentName {
    Admin,
    Controllers,
    Scheduler,
    Kubelet,
    Proxy,
    Dns,
}

#[derive(Args)]
pub struct Credentials {
    /// The data directory of the API server
    #[arg(long)]
    pub data_dir: PathBuf,
    #[arg(long, value_enum)]
    pub component: ComponentName,
    /// The URL at which the component reaches the API server: `https://ADDRESS:PORT`
    #[arg(long)]
    pub server: String,
    /// The node's name, for a kubelet
    #[arg(long, required_if_eq("component", "kubelet"))]
    pub node_name: Option<String>,
    /// The addresses at which the API server reaches the node, for a kubelet: one, or one of IPv4 and one of IPv6,
    /// separated by a comma
    #[arg(long, value_name = "IPS")]
    pub node_ip: Option<NodeIps>,
    /// The directory to write to
    #[arg(long)]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct Controllers {
    /// A KubeControllerManagerConfiguration of kubecontrollermanager.config.k8s.io/v1alpha1; flags win over its fields
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub flags: ManagerFlags,
    /// Port for /healthz, /livez, /readyz, /metrics and /configz over TLS; 0 for none
    #[arg(long, default_value_t = 10257)]
    pub secure_port: u16,
    #[command(flatten)]
    pub probes: Probes,
    #[command(flatten)]
    pub load_balancers: LoadBalancers,
}

#[derive(Args)]
pub struct Scheduler {
    /// A KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1; the flags of the election win over its fields
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// schedulerName of the pods to schedule, instead of the profiles of a file
    #[arg(long, default_value = "default-scheduler", conflicts_with = "config")]
    pub scheduler_name: String,
    #[command(flatten)]
    pub flags: SchedulerFlags,
    /// Port for /healthz, /livez, /readyz, /metrics and /configz over TLS; 0 for none
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
    #[command(flatten)]
    pub probes: Probes,
}

#[derive(Args)]
pub struct Kubelet {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Directory of volumes, logs, and the state of the runtime and the pod network
    #[arg(long = "root-dir", alias = "data-dir")]
    pub root_dir: PathBuf,
    /// Certificate authority of the node server's clients
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Serving certificate of the node server; self-signed unless given
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Credentials of a user that may list all Nodes, such as those of `hawser proxy`, for the ways to pods of
    /// other nodes; a kubelet may read its own Node alone. --kubeconfig unless given
    #[arg(long, value_name = "FILE")]
    pub pod_network_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub networks: Networks,
    #[command(flatten)]
    pub pod_network: PodNetwork,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub cluster_dns: ClusterDnsArgs,
}

#[derive(Args)]
pub struct Dns {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// The node's name; the host's name unless given
    #[arg(long = "node-name", alias = "hostname-override")]
    pub node_name: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterDnsArgs,
    #[command(flatten)]
    pub server: DnsServer,
    #[command(flatten)]
    pub networks: Networks,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Proxy {
    #[command(subcommand)]
    pub look: Option<Look>,
    #[command(flatten)]
    pub run: ProxyRun,
}

/// A view of the live tables.
#[derive(Subcommand)]
pub enum Look {
    /// Frontends with the backends that they lead to
    Services(RowArgs),
    /// Backends by service
    Backends(RowArgs),
    /// Tracked connections; sorted if there are at most 10,000
    Connections(ConnectionArgs),
    /// Show step by step which table decides the fate of a packet or a connection
    Explain(ExplainArgs),
    /// Live rates and round-trip times by service, drops by reason, and the fill level of the maps
    Top(TopArgs),
    /// Packets that were dropped or refused, and entries that were evicted, one by one
    Events(EventArgs),
    /// Trace the programs on the packets and system calls of one flow, step by step, live
    Trace(TraceArgs),
}

#[derive(Args)]
pub struct LookArgs {
    /// Directory in which maps are pinned
    #[arg(long, default_value = BPF_ROOT, env = "HAWSER_BPF_ROOT")]
    pub bpf_root: PathBuf,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RowArgs {
    /// Only this service: NAMESPACE/NAME, or a NAME in any namespace
    #[arg(long)]
    pub service: Option<String>,
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Args)]
pub struct ConnectionArgs {
    /// Only connections with this address at one of their ends
    #[arg(long)]
    pub address: Option<IpAddr>,
    #[command(flatten)]
    pub rows: RowArgs,
}

#[derive(Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub struct ExplainArgs {
    /// `[PROTOCOL] [SOURCE] DESTINATION`, each end as ADDRESS:PORT. The protocol is tcp, udp or sctp, tcp by
    /// default. Without a source, the flow is a connection of a local socket
    #[arg(required = true, num_args = 1.., value_name = "FLOW")]
    pub flow: Vec<String>,
    /// Origin of the packet: a pod's interface, a socket of the host, or an uplink
    #[arg(long, value_enum)]
    pub from: Option<From>,
    #[command(flatten)]
    pub look: LookArgs,
}

/// The end of the output of `hawser proxy explain --help`.
const EXPLAIN_EXAMPLES: &str = "\
Examples:
  A connection of a process on the node:
    hawser proxy explain 10.96.0.1:443
  A packet of a pod:
    hawser proxy explain udp 10.244.0.5:40000 10.96.0.10:53
  An IPv6 packet that arrives on an uplink:
    hawser proxy explain --from uplink '[2001:db8::9]:40000' '[2001:db8::1]:30080'
  Quote a flow with an arrow, since a shell takes `>` for a redirection:
    hawser proxy explain 'tcp 10.244.0.5:40000 -> 10.96.0.1:443'";

/// The origin of a packet or a connection.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum From {
    Pod,
    Host,
    Uplink,
}

#[derive(Args)]
pub struct TopArgs {
    /// Seconds between two frames
    #[arg(long, default_value_t = 1.0)]
    pub interval: f64,
    /// Print a single frame, over one interval
    #[arg(long)]
    pub once: bool,
    /// Maximum number of services in a frame, the busiest first
    #[arg(long, default_value_t = 20)]
    pub lines: usize,
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Args)]
pub struct EventArgs {
    /// Keep printing events as they happen
    #[arg(long, short)]
    pub follow: bool,
    /// Only this service: NAMESPACE/NAME, or a NAME in any namespace
    #[arg(long)]
    pub service: Option<String>,
    /// Only this kind, such as `refused`
    #[arg(long)]
    pub kind: Option<String>,
    /// Address of the agent's metrics
    #[arg(long, default_value = "127.0.0.1:10249")]
    pub metrics_address: std::net::SocketAddr,
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub struct TraceArgs {
    /// `[PROTOCOL] [SOURCE] DESTINATION`, as the client sees them. The protocol is tcp, udp or sctp, tcp by
    /// default. The source is `*`, ADDRESS or ADDRESS:PORT, any by default
    #[arg(required = true, num_args = 1.., value_name = "FLOW")]
    pub flow: Vec<String>,
    /// End after this number of decisions on packets or system calls
    #[arg(long)]
    pub count: Option<u64>,
    /// End after this number of seconds, or earlier with Ctrl-C
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub duration: u64,
    #[command(flatten)]
    pub look: LookArgs,
}

/// The end of the output of `hawser proxy trace --help`.
const TRACE_EXAMPLES: &str = "\
Examples:
  All connections to a service:
    hawser proxy trace tcp '*' 10.96.0.1:443
  Those of one pod, and a single connection:
    hawser proxy trace 10.244.0.5 10.96.0.1:443
    hawser proxy trace tcp 10.244.0.5:41234 10.96.0.1:443
  The next ten decisions, as JSON:
    hawser proxy trace udp 10.96.0.10:53 --count 10 --json
During the trace the node runs a copy of the programs with the same decisions, which logs the flow.
If this command is killed, the proxy restores its programs within seconds.";

/// Returns `true` if the service is the one that was named, in full or without its namespace.
fn is_named(service: &str, wanted: &str) -> bool {
    service == wanted || service.split_once('/').is_some_and(|(_, name)| name == wanted)
}

impl RowArgs {
    /// Returns `true` if the service was asked for.
    pub fn wants(&self, service: &str) -> bool {
        self.service.as_ref().is_none_or(|wanted| is_named(service, wanted))
    }
}

impl EventArgs {
    /// Returns `true` if the event was asked for.
    pub fn wants(&self, row: &userspace_dataplane::inspect::EventRow) -> bool {
        let service = row.service.as_deref().unwrap_or_default();
        self.service.as_ref().is_none_or(|wanted| is_named(service, wanted))
            && self.kind.as_ref().is_none_or(|wanted| row.kind == *wanted)
    }
}
