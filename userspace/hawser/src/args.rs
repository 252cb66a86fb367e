//! What a person types. Flags are spelled as the Kubernetes component spells them where it has
//! them; every field is destructured where it is used, so that an unused flag is a warning.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnetwork::IpNetwork;
use kubelet_agent::Thresholds;

use crate::apiserver_args::{Apis, Serving, duration};
use crate::apiserver_keys::Keys;
use crate::probes::Probes;
use crate::proxy_args::{BPF_ROOT, ProxyRun, WITHOUT_A_MEANING};

/// What is logged unless told otherwise.
pub const DEFAULT_LOG: &str = "info";

#[derive(Parser)]
#[command(name = "hawser", version, about = "A networking-first Kubernetes node stack")]
pub struct Hawser {
    /// What is logged: `info`, or a filter such as `info,userspace_proxy=debug`
    #[arg(long, global = true, default_value = DEFAULT_LOG, env = "HAWSER_LOG")]
    pub log: String,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine, in one process
    Up(Box<Up>),
    /// Stop the pods of `up` and put the machine back as it was
    Down(Down),
    /// Run the API server
    Apiserver(Box<Apiserver>),
    /// Issue what a component on its own needs to reach the API server
    Credentials(Credentials),
    /// Take and restore snapshots of the embedded store, and check what is on disk
    Store(StoreCommand),
    /// Run the controllers
    Controllers(Controllers),
    /// Run the scheduler
    Scheduler(Scheduler),
    /// Run the node agent
    Kubelet(Box<Kubelet>),
    /// Run the service proxy in place of kube-proxy, or look into its live tables
    #[command(version, args_override_self = true, after_long_help = WITHOUT_A_MEANING)]
    Proxy(Box<Proxy>),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    Embedded,
    Etcd,
}

#[derive(Args)]
pub struct StoreArgs {
    /// Where objects are kept
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    pub store: StoreKind,
    /// Bytes of keys and values that the embedded store may hold, 150 more counted for each object; then only
    /// deletions, updates that do not grow, leases and heartbeats are accepted. 0 for the default of 2 GiB
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub quota_backend_bytes: u64,
    /// Time between compactions of the store; 0 if somebody else does it
    #[arg(long, default_value = "5m0s", value_parser = duration, value_name = "DURATION")]
    pub etcd_compaction_interval: Duration,
    #[command(flatten)]
    pub etcd: EtcdArgs,
}

#[derive(Args)]
pub struct EtcdArgs {
    /// Of etcd: URLs, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// Authority of etcd's certificates, for https URLs
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Certificate to show to etcd
    #[arg(long, requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// What all keys in etcd begin with
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
    /// Check checksums, revisions and objects. Ends with 0: sound, 1: cannot be checked, 3: damaged
    Verify(StoreVerify),
}

#[derive(Args)]
pub struct StoreSnapshot {
    /// The data directory of the API server
    #[arg(long)]
    pub data_dir: PathBuf,
    /// The file to write; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

#[derive(Args)]
pub struct StoreRestore {
    /// The snapshot
    #[arg(value_name = "FILE")]
    pub from: PathBuf,
    /// The data directory of the API server, running or not; made where it is missing
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Without a running server: by how much the revision is to be above all that were seen before.
    /// By 1 unless given, by 1,000,000,000 where nothing tells which were seen
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    pub bump_revision: Option<i64>,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["data_dir", "snapshot", "etcd_servers"]))]
pub struct StoreVerify {
    /// The data directory of the API server, running or not; it is only read
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// A snapshot
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Instead, every object in etcd
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Bits that tell the addresses of the smallest range for Services apart.
const LEAST_SERVICE_BITS: u8 = 3;

/// A range of addresses for Services; `10.96.0.1/16` is `10.96.0.0/16`.
fn service_range(text: &str) -> Result<IpNetwork, String> {
    let range: IpNetwork =
        text.parse().map_err(|error| format!("it is no range such as 10.96.0.0/16: {error}"))?;
    let bits = if range.is_ipv4() { 32 } else { 128 };
    if bits - range.prefix() < LEAST_SERVICE_BITS {
        return Err("it must have 8 addresses or more".to_owned());
    }
    IpNetwork::new(range.network(), range.prefix()).map_err(|error| error.to_string())
}

#[derive(Args)]
pub struct Networks {
    /// Addresses of Services; one range, or one of IPv4 and one of IPv6, separated by a comma: the
    /// first is the family that Services have by default
    #[arg(
        long = "service-cluster-ip-range",
        alias = "service-cidr",
        default_value = "10.96.0.0/16",
        value_delimiter = ',',
        value_parser = service_range
    )]
    pub service_cidrs: Vec<IpNetwork>,
    /// Addresses of pods; each node gets a /24 of it
    #[arg(long, default_value = "10.244.0.0/16")]
    pub cluster_cidr: IpNetwork,
}

#[derive(Args, Clone)]
pub struct NodeArgs {
    /// The node's name; the host's name unless given
    #[arg(long = "node-name", alias = "hostname-override")]
    pub node_name: Option<String>,
    /// The node's address; that of the default route unless given
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// The cgroup below which pods and socket hooks are, for several nodes on one machine
    #[arg(long, default_value = "/")]
    pub cgroup_root: String,
}

#[derive(Args)]
pub struct RuntimeArgs {
    /// CRI socket of a runtime that runs already; without it, a containerd of our own is run
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Image archives to import at start
    #[arg(long = "import", value_name = "FILE")]
    pub imports: Vec<PathBuf>,
    /// When the node is under pressure: memory.available and nodefs.available, with a quantity or N%
    #[arg(long, default_value = "memory.available<100Mi,nodefs.available<10%", value_parser = Thresholds::parse)]
    pub eviction_hard: Thresholds,
    /// Comma-separated sysctls that pods may set beside the safe ones, or patterns that end in `*`
    #[arg(long, value_delimiter = ',', value_name = "SYSCTLS")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Port of the node server; 0 for a free one
    #[arg(long, default_value_t = 10250)]
    pub kubelet_port: u16,
}

#[derive(Args)]
pub struct Up {
    /// Everything that the cluster keeps
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Port of the API, on all addresses; 0 for a free one
    #[arg(long, default_value_t = 6443)]
    pub api_port: u16,
    /// Where maps, programs and links are pinned
    #[arg(long, default_value = BPF_ROOT)]
    pub bpf_root: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub apis: Apis,
    #[command(flatten)]
    pub networks: Networks,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub proxy: ProxyPorts,
}

#[derive(Args)]
pub struct Down {
    /// The directory that `up` was given
    #[arg(long)]
    pub data_dir: PathBuf,
}

#[derive(Args)]
pub struct Apiserver {
    /// Certificates, kubeconfig and the embedded store
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Port; 0 for a free one
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

/// For whom credentials are.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComponentName {
    Admin,
    Controllers,
    Scheduler,
    Kubelet,
    Proxy,
}

#[derive(Args)]
pub struct Credentials {
    /// The data directory of the API server
    #[arg(long)]
    pub data_dir: PathBuf,
    #[arg(long, value_enum)]
    pub component: ComponentName,
    /// How the component reaches the API server: `https://ADDRESS:PORT`
    #[arg(long)]
    pub server: String,
    /// Of a kubelet
    #[arg(long, required_if_eq("component", "kubelet"))]
    pub node_name: Option<String>,
    /// Of a kubelet: where the API server reaches it
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// The directory to write to
    #[arg(long)]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct Controllers {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// The certificate authority that pods shall trust; that of the kubeconfig if not given
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// Port for /healthz, /livez and /readyz over TLS; 0 for none
    #[arg(long, default_value_t = 10257)]
    pub secure_port: u16,
    #[command(flatten)]
    pub probes: Probes,
    #[command(flatten)]
    pub networks: Networks,
}

#[derive(Args)]
pub struct Scheduler {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Pods with this schedulerName are placed
    #[arg(long, default_value = "default-scheduler")]
    pub scheduler_name: String,
    /// Port for /healthz, /livez and /readyz over TLS; 0 for none
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
    #[command(flatten)]
    pub probes: Probes,
}

#[derive(Args)]
pub struct Kubelet {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Volumes, logs, the runtime and the pod network's state
    #[arg(long = "root-dir", alias = "data-dir")]
    pub root_dir: PathBuf,
    /// Clients of the node server show a certificate of this authority
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Serving certificate of the node server; self-signed unless given
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

#[derive(Args)]
pub struct ProxyPorts {
    /// Where `/healthz` and `/livez` of the proxy are
    #[arg(long, default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: std::net::SocketAddr,
    /// Where its `/metrics` are
    #[arg(long, default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: std::net::SocketAddr,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Proxy {
    #[command(subcommand)]
    pub look: Option<Look>,
    #[command(flatten)]
    pub run: ProxyRun,
}

/// Which of the live tables.
#[derive(Subcommand)]
pub enum Look {
    /// Frontends with what they lead to
    Services(RowArgs),
    /// Backends by service
    Backends(RowArgs),
    /// Tracked connections; sorted where there are no more than 10,000
    Connections(ConnectionArgs),
    /// Which table decides what for a packet or a connection, step by step
    Explain(ExplainArgs),
    /// Live rates and round-trip times by service, drops by reason, and how full the maps are
    Top(TopArgs),
    /// What was dropped, refused or had to give way, packet by packet
    Events(EventArgs),
    /// What the programs do with the packets and system calls of one flow, step by step, as it happens
    Trace(TraceArgs),
}

#[derive(Args)]
pub struct LookArgs {
    /// Where maps are pinned
    #[arg(long, default_value = BPF_ROOT, env = "HAWSER_BPF_ROOT")]
    pub bpf_root: PathBuf,
    /// JSON lines instead of text
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
    /// `[PROTOCOL] [SOURCE] DESTINATION`, each end as ADDRESS:PORT. The protocol is tcp, udp or
    /// sctp; without one it is tcp. Without a source it is a connection of a local socket
    #[arg(required = true, num_args = 1.., value_name = "FLOW")]
    pub flow: Vec<String>,
    /// Where the packet comes from: a pod's interface, a socket of the host, or an uplink
    #[arg(long, value_enum)]
    pub from: Option<From>,
    #[command(flatten)]
    pub look: LookArgs,
}

/// What `hawser proxy explain --help` ends with.
const EXPLAIN_EXAMPLES: &str = "\
Examples:
  What does a process of the node get when it connects?
    hawser proxy explain 10.96.0.1:443
  What becomes of a packet of a pod?
    hawser proxy explain udp 10.244.0.5:40000 10.96.0.10:53
  What becomes of one that comes in at an uplink, of IPv6?
    hawser proxy explain --from uplink '[2001:db8::9]:40000' '[2001:db8::1]:30080'
  With an arrow the flow has to be in quotes: a shell takes `>` for a file.
    hawser proxy explain 'tcp 10.244.0.5:40000 -> 10.96.0.1:443'";

/// Where a packet or a connection begins.
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
    /// One frame, over one interval
    #[arg(long)]
    pub once: bool,
    /// Services in a frame, the busiest first
    #[arg(long, default_value_t = 20)]
    pub lines: usize,
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Args)]
pub struct EventArgs {
    /// Go on as more happens
    #[arg(long, short)]
    pub follow: bool,
    /// Only this service: NAMESPACE/NAME, or a NAME in any namespace
    #[arg(long)]
    pub service: Option<String>,
    /// Only this kind, such as `refused`
    #[arg(long)]
    pub kind: Option<String>,
    /// Where the agent serves its metrics
    #[arg(long, default_value = "127.0.0.1:10249")]
    pub metrics_address: std::net::SocketAddr,
    #[command(flatten)]
    pub look: LookArgs,
}

#[derive(Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub struct TraceArgs {
    /// `[PROTOCOL] [SOURCE] DESTINATION`, as the client has them. The protocol is tcp, udp or sctp;
    /// without one it is tcp. The source is `*`, ADDRESS or ADDRESS:PORT; without one it is any
    #[arg(required = true, num_args = 1.., value_name = "FLOW")]
    pub flow: Vec<String>,
    /// Ends after so many decisions on packets or system calls
    #[arg(long)]
    pub count: Option<u64>,
    /// Ends after so many seconds; Ctrl-C ends it before
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub duration: u64,
    #[command(flatten)]
    pub look: LookArgs,
}

/// What `hawser proxy trace --help` ends with.
const TRACE_EXAMPLES: &str = "\
Examples:
  What becomes of the connections to a service, whoever makes them?
    hawser proxy trace tcp '*' 10.96.0.1:443
  What becomes of those of one pod, and of one connection?
    hawser proxy trace 10.244.0.5 10.96.0.1:443
    hawser proxy trace tcp 10.244.0.5:41234 10.96.0.1:443
  The next ten decisions, as JSON:
    hawser proxy trace udp 10.96.0.10:53 --count 10 --json
For the time of the trace the node runs a copy of the programs that decides as they do and logs the flow.
If this command is killed, the proxy puts its programs back within seconds.";

/// The service is the one that was named, in full or without its namespace.
fn is_named(service: &str, wanted: &str) -> bool {
    service == wanted || service.split_once('/').is_some_and(|(_, name)| name == wanted)
}

impl RowArgs {
    /// The service is one that was asked for.
    pub fn wants(&self, service: &str) -> bool {
        self.service.as_ref().is_none_or(|wanted| is_named(service, wanted))
    }
}

impl EventArgs {
    /// The event is one that was asked for.
    pub fn wants(&self, row: &userspace_dataplane::inspect::EventRow) -> bool {
        let service = row.service.as_deref().unwrap_or_default();
        self.service.as_ref().is_none_or(|wanted| is_named(service, wanted))
            && self.kind.as_ref().is_none_or(|wanted| row.kind == *wanted)
    }
}
