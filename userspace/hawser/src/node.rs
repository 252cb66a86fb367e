//! The parts of a node: runtime, pod network, kubelet, proxy. They are the same in `up` and in the separate
//! components.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use apiserver_kinds::certificate::CertificateUser;
use apiserver_meta::ambient::Ambient;
use ipnetwork::IpNetwork;
use kube::Client;
use kubelet_agent::certificates::Serving;
use kubelet_agent::containerd::{Containerd, ContainerdConfig};
use kubelet_agent::images::Importer;
use kubelet_agent::{ClientAuthority, ClusterDns, LinuxMachine, OwnPods};
use kubelet_cri::CriRuntime;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use userspace_daemon::tls::CertificateAndKey;
use userspace_dataplane::{Cgroup, Limits, Missing, XdpMode};
use userspace_network::peers::PeerConfig;

use crate::data_dir::{DataDir, Made};
use crate::network_args::PodNetwork;
use crate::node_args::{Networks, NodeArgs, RuntimeArgs};
use crate::node_ips::{self, Defaults};
use crate::tasks::{Begun, Tasks};

/// The node as its components see it.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    /// Its addresses, the primary one first: one, or one of each family.
    pub ips: Vec<IpAddr>,
    pub cgroup_root: String,
}

impl Node {
    /// Builds the node from flags and asks the machine for what they leave open, in a cluster whose pods have addresses
    /// in these ranges.
    pub fn from_args(args: NodeArgs, pods: &[IpNetwork]) -> Result<Self> {
        let name = name(&args);
        let NodeArgs { node_name: _, node_ip, cgroup_root } = args;
        let cgroup_root = match Cgroup::find(None, &cgroup_root) {
            Ok(cgroup) => cgroup.name,
            // A kubelet needs no cgroup2; the data plane refuses by itself.
            Err(Missing::NoCgroup2) => cgroup_root,
            Err(refused) => return Err(refused).context("pods cannot be in that cgroup"),
        };
        let ips = node_ips::choose(node_ip.as_ref(), pods, &Defaults::find());
        for ip in ips.iter().filter(|ip| !node_ips::is_here(**ip)) {
            // It may come later, or a router in front of the machine may have it.
            tracing::warn!(%ip, "--node-ip is not an address of this machine: others may not reach it");
        }
        Ok(Self { name, ips, cgroup_root })
    }

    /// Returns the primary address.
    pub fn ip(&self) -> IpAddr {
        self.ips.first().copied().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// Returns the address at which pods reach the API server of this node by its Service, which has an address of
    /// the first of these ranges: one of the same family, or else the primary one.
    pub fn advertised(&self, services: &[IpNetwork]) -> IpAddr {
        let like = services.first().map(IpNetwork::is_ipv4);
        self.ips.iter().copied().find(|ip| Some(ip.is_ipv4()) == like).unwrap_or_else(|| self.ip())
    }

    /// Returns the address to listen on for a configured one: `0.0.0.0` stands for all of the node's addresses, as in
    /// Kubernetes.
    pub fn listening(&self, configured: SocketAddr) -> SocketAddr {
        if configured.ip() == Ipv4Addr::UNSPECIFIED {
            SocketAddr::new(node_ips::wildcard(&self.ips), configured.port())
        } else {
            configured
        }
    }

    /// Returns what a component makes on this machine, for `down` and `leave`.
    pub fn made(&self, bpf_root: Option<PathBuf>, runtime: &RuntimeArgs) -> Made {
        Made {
            node_name: self.name.clone(),
            bpf_root,
            cgroup_root: self.cgroup_root.clone(),
            runtime_endpoint: runtime.container_runtime_endpoint.clone(),
        }
    }
}

/// Returns the host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the node's name: that of the flags, or else the host's.
pub fn name(args: &NodeArgs) -> String {
    args.node_name.clone().unwrap_or_else(host_name).trim().to_lowercase()
}

/// Returns the machine's primary address of IPv4. Loopback if there is no route to others.
pub fn address() -> IpAddr {
    Defaults::find().ipv4.unwrap_or(Ipv4Addr::LOCALHOST).into()
}

/// The context that every component of the node gets.
pub struct Surroundings<'a> {
    pub ambient: &'a Ambient,
    pub stop: &'a CancellationToken,
}

/// Directories of a node below its root directory.
#[derive(Clone)]
pub struct Directories {
    root: PathBuf,
    cni_conf: PathBuf,
    cni_bin: PathBuf,
}

impl Directories {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), cni_conf: root.join("cni/conf"), cni_bin: root.join("cni/bin") }
    }

    fn containerd(&self) -> PathBuf {
        self.root.join("containerd")
    }

    fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Returns the directory of the volumes that outlive their pods, which `down` keeps as it keeps the objects.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    pub fn network(&self) -> PathBuf {
        self.root.join("network")
    }

    /// Returns the configuration of our own containerd.
    ///
    /// # Errors
    /// Fails if containerd is not installed on this machine.
    pub fn containerd_config(&self) -> Result<ContainerdConfig> {
        let dir = self.containerd();
        Ok(ContainerdConfig {
            program: find("containerd")?,
            root: dir.join("root"),
            state: dir.join("state"),
            cni_bin_dir: self.cni_bin.clone(),
            cni_conf_dir: self.cni_conf.clone(),
            sandbox_image: kubelet_image::PAUSE_REFERENCE.to_owned(),
            log_file: dir.join("containerd.log"),
        })
    }

    pub fn machine(&self) -> Result<LinuxMachine> {
        let machine = LinuxMachine::new(&self.kubelet(), &self.logs());
        let machine = machine.and_then(|machine| machine.with_local_volumes(&self.volumes()));
        machine.context("cannot set up the kubelet's directories")
    }

    /// Removes the state of running pods and nothing else: their volumes, their logs, and the state of the
    /// runtime and the network.
    pub fn remove(&self) -> Vec<anyhow::Error> {
        [self.kubelet(), self.logs(), self.containerd(), self.network(), self.root.join("cni")]
            .iter()
            .filter(|dir| dir.exists())
            .filter_map(|dir| {
                let removed = kubelet_agent::machine::linux::remove_directory(dir);
                removed.with_context(|| format!("cannot remove {}", dir.display())).err()
            })
            .collect()
    }
}

/// Returns the directories below a data directory, and those for CNI that the flags name.
pub fn directories(data: &DataDir, network: &PodNetwork) -> Directories {
    let Directories { root, cni_conf, cni_bin } = Directories::new(data.path());
    Directories {
        root,
        cni_conf: network.cni_conf_dir.clone().unwrap_or(cni_conf),
        cni_bin: network.cni_bin_dir.clone().unwrap_or(cni_bin),
    }
}

/// Finds a program of the container runtime.
pub fn find(program: &str) -> Result<PathBuf> {
    find_program(program).with_context(|| {
        format!(
            "{program} is not installed: install containerd and runc from your distribution, or give a CRI \
             socket with --container-runtime-endpoint"
        )
    })
}

/// Finds a program in `PATH` or in the directories of system programs.
pub fn find_program(program: &str) -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "where programs are is said there alone")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Starts the container runtime, or connects to it, as [`runtime`] does, while other components start.
pub fn begin_runtime(
    directories: &Directories,
    args: &Arc<RuntimeArgs>,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Begun<Arc<CriRuntime>> {
    let (directories, args, stop) = (directories.clone(), Arc::clone(args), stop.clone());
    tasks.begin(async move { runtime(&directories, &args, &stop).await })
}

/// Returns the container runtime: our own containerd, kept running until shutdown, or the given one.
pub async fn runtime(
    directories: &Directories,
    args: &RuntimeArgs,
    stop: &CancellationToken,
) -> Result<Arc<CriRuntime>> {
    let (socket, runtime, notes) = match &args.container_runtime_endpoint {
        Some(endpoint) => {
            let socket = PathBuf::from(endpoint.trim_start_matches("unix://"));
            let runtime = CriRuntime::connect(&socket)
                .await
                .with_context(|| format!("cannot use the container runtime at {}", socket.display()))?;
            // Images that were imported into a foreign containerd may be gone the next time.
            (socket, Arc::new(runtime), None)
        }
        None => {
            let config = directories.containerd_config()?;
            let (socket, notes) = (config.socket(), config.root.join("imported"));
            let containerd = Containerd::start(config).await.context("cannot run containerd")?;
            let (runtime, stop) = (containerd.runtime(), stop.clone());
            tokio::spawn(async move { containerd.supervise(stop).await });
            (socket, runtime, Some(notes))
        }
    };
    if notes.is_some() || !args.imports.is_empty() {
        let scratch = directories.root.join("imported");
        let importer =
            Importer { ctr: find("ctr")?, socket, state: notes.unwrap_or_else(|| scratch.clone()) };
        import(&importer, &directories.root, args).await?;
    }
    Ok(runtime)
}

async fn import(importer: &Importer, dir: &Path, args: &RuntimeArgs) -> Result<()> {
    importer.import_pause(dir).await.context("cannot import the pause image")?;
    for archive in &args.imports {
        importer
            .import(archive)
            .await
            .with_context(|| format!("cannot import the image archive {}", archive.display()))?;
    }
    Ok(())
}

/// Keeps the pod network configured until shutdown. With `await_policies` a proxy of this process enforces
/// policies, and pods wait for them.
pub fn network(
    node: &Node,
    directories: &Directories,
    (args, networks, await_policies): (&PodNetwork, &Networks, bool),
    clients: userspace_network::Clients,
    around: &Surroundings<'_>,
) -> Result<RunningNetwork> {
    let Surroundings { ambient, stop } = around;
    let PodNetwork {
        pod_network,
        vxlan_vni,
        vxlan_port,
        pod_network_encryption: _,
        wireguard_port: _,
        cni_conf_dir: _,
        cni_bin_dir: _,
    } = args;
    let config = userspace_network::Config {
        node_name: node.name.clone(),
        state_dir: directories.network(),
        conf_dir: directories.cni_conf.clone(),
        bin_dir: directories.cni_bin.clone(),
        plugin: std::env::current_exe().context("cannot find this program's own file")?,
        // The proxy itself keeps untranslated packets on the node.
        service_cidrs: Vec::new(),
        mtu: None,
        await_policies,
        peers: PeerConfig {
            mode: *pod_network,
            cluster_cidrs: networks.cluster_cidrs.clone(),
            service_cidrs: networks.service_cidrs.clone(),
            node_ips: node.ips.clone(),
            vni: *vxlan_vni,
            port: *vxlan_port,
            state_dir: None,
            encryption: args.wireguard(&directories.network()),
        },
    };
    config.validate().context("the pod network's configuration cannot be used")?;
    let (shown, ranges) = watch::channel(Vec::new());
    let run = userspace_network::run(config, clients, shown, (*ambient).clone(), (*stop).clone());
    Ok(RunningNetwork { ended: tokio::spawn(run), ranges })
}

/// A pod network that runs until shutdown.
pub struct RunningNetwork {
    pub ended: JoinHandle<()>,
    /// The ranges that pods have addresses of; empty until the machine is set up, and with another network plugin.
    pub ranges: watch::Receiver<Vec<IpNetwork>>,
}

/// TLS settings of the kubelet's server: its certificate and the clients that it accepts.
pub struct KubeletTls {
    pub serving: Option<CertificateAndKey>,
    /// The certificate of a node that replaces it by itself.
    pub rotated: Option<Serving>,
    pub client_ca: Option<String>,
}

/// A kubelet that runs until shutdown.
pub struct RunningKubelet {
    pub ended: JoinHandle<Result<()>>,
    /// The port of its server.
    pub port: u16,
    /// Its pods.
    pub pods: OwnPods,
}

/// Runs the kubelet until shutdown.
#[expect(clippy::too_many_arguments, reason = "the parts of a node that are made before its kubelet")]
pub async fn kubelet(
    node: &Node,
    directories: &Directories,
    args: &RuntimeArgs,
    tls: KubeletTls,
    cluster_dns: ClusterDns,
    pod_ranges: watch::Receiver<Vec<IpNetwork>>,
    runtime: Arc<CriRuntime>,
    client: Client,
    around: &Surroundings<'_>,
) -> Result<RunningKubelet> {
    let (ambient, stop) = (around.ambient.clone(), around.stop.clone());
    let address = node.listening(SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.kubelet_port)));
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address} for the node server: choose another --kubelet-port")
    })?;
    let port = listener.local_addr().context("the listener of the node server has no address")?.port();
    let pods = OwnPods::default();
    let identify = |der: &[u8]| CertificateUser::read(der).ok().map(Into::into);
    let config = kubelet_agent::Config {
        node_ips: node.ips.clone(),
        cgroup_root: node.cgroup_root.clone(),
        cluster_dns,
        allowed_unsafe_sysctls: args.allowed_unsafe_sysctls.clone(),
        eviction_hard: args.eviction_hard,
        serving: tls.serving,
        rotated_serving: tls.rotated,
        client_authority: tls.client_ca.map(|pem| ClientAuthority { pem, identify }),
        own_pods: pods.clone(),
        pod_ranges,
        ..kubelet_agent::Config::new(&node.name)
    };
    let machine = Arc::new(directories.machine()?);
    let listeners = kubelet_agent::Listeners { node: Some(listener), health: None };
    let run = kubelet_agent::run(config, client, runtime, machine, ambient, listeners, stop);
    let ended = tokio::spawn(async move { Box::pin(run).await.context("the kubelet cannot run") });
    Ok(RunningKubelet { ended, port, pods })
}

/// Keeps tunnels to API servers (`HOST:PORT`) until shutdown, by which those reach the kubelet and its pods that cannot
/// dial the node. `renewed` changes when the certificate in the kubeconfig was replaced.
pub fn tunnels(
    node: &Node,
    kubelet: &RunningKubelet,
    kubeconfig: PathBuf,
    (servers, renewed): (watch::Receiver<Vec<String>>, watch::Receiver<()>),
    around: &Surroundings<'_>,
) -> JoinHandle<()> {
    let (node, ambient) = (node.name.clone(), around.ambient.clone());
    let (port, pods) = (kubelet.port, kubelet.pods.clone());
    let tunnels = kubelet_agent::Tunnels { node, port, pods, kubeconfig, servers, renewed, ambient };
    tokio::spawn(tunnels.run(around.stop.clone()))
}

/// Returns the node that flags describe, and its data plane. Both look up `--cgroup-root` itself: the name that the node
/// found would be taken for a directory of the machine if there is one of that path.
pub fn plan(
    args: NodeArgs,
    pods: &[IpNetwork],
    bpf_root: &Path,
) -> Result<(Node, userspace_dataplane::Config)> {
    let data_plane = data_plane(None, &args.cgroup_root, bpf_root)?;
    Ok((Node::from_args(args, pods)?, data_plane))
}

/// Returns the data plane. The socket hooks are attached below `cgroup_mount`, which is detected unless
/// given.
pub fn data_plane(
    cgroup_mount: Option<&Path>,
    cgroup_root: &str,
    bpf_root: &Path,
) -> Result<userspace_dataplane::Config> {
    let cgroup = Cgroup::find(cgroup_mount, cgroup_root).context("the data plane cannot work here")?;
    Ok(userspace_dataplane::Config {
        bpf_root: bpf_root.to_path_buf(),
        cgroup: cgroup.directory,
        limits: Limits::default(),
        xdp: XdpMode::Auto,
        xdp_redirect: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ips: &[&str]) -> Node {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Node { name: "a".to_owned(), ips, cgroup_root: "/".to_owned() }
    }

    #[test]
    fn directory_that_is_no_cgroup_is_refused_by_the_node_and_its_data_plane() {
        let directory = tempfile::tempdir().unwrap();
        let cgroup_root = directory.path().display().to_string();
        let data_plane = data_plane(None, &cgroup_root, Path::new("/sys/fs/bpf/hawser")).map(drop);
        let args = NodeArgs { node_name: None, node_ip: None, cgroup_root: cgroup_root.clone() };
        for refused in [data_plane, Node::from_args(args, &[]).map(drop)] {
            let said = format!("{:#}", refused.unwrap_err());
            assert!(said.contains(&cgroup_root) && said.contains("not below the cgroup2 mount"), "{said}");
        }
    }

    #[test]
    fn node_and_data_plane_have_one_cgroup_though_a_directory_has_its_name() {
        // A directory of every machine, on another file system.
        let args = NodeArgs { node_name: None, node_ip: None, cgroup_root: "etc".to_owned() };
        let (node, data_plane) = plan(args, &[], Path::new("/sys/fs/bpf/hawser")).unwrap();
        assert_eq!(node.cgroup_root, "/etc");
        assert!(
            data_plane.cgroup.ends_with("etc") && data_plane.cgroup != Path::new("/etc"),
            "{:?}",
            data_plane.cgroup
        );
    }

    #[test]
    fn api_server_is_advertised_in_the_primary_family_of_services() {
        let services = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let both = node(&["192.0.2.1", "2001:db8::1"]);
        for (node, ranges, expected) in [
            (&both, &["10.96.0.0/16"][..], "192.0.2.1"),
            (&both, &["fd00:96::/112", "10.96.0.0/16"], "2001:db8::1"),
            (&node(&["192.0.2.1"]), &["fd00:96::/112"], "192.0.2.1"),
            (&both, &[], "192.0.2.1"),
        ] {
            assert_eq!(node.advertised(&services(ranges)).to_string(), expected, "{ranges:?}");
        }
    }

    #[test]
    fn all_addresses_include_those_of_ipv6_where_the_node_has_one() {
        let listening =
            |ips: &[&str], configured: &str| node(ips).listening(configured.parse().unwrap()).to_string();
        let both = &["192.0.2.1", "2001:db8::1"];
        assert_eq!(listening(both, "0.0.0.0:10256"), "[::]:10256");
        assert_eq!(listening(&["192.0.2.1"], "0.0.0.0:10256"), "0.0.0.0:10256");
        assert_eq!(listening(both, "127.0.0.1:10249"), "127.0.0.1:10249");
    }
}
