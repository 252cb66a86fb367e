//! Places where processes run: network namespaces and cgroups of a lab.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, setns};
use nix::unistd::Pid;
use tests_e2e::{Lab, output};

/// A network namespace, and a cgroup if it differs from that of this process.
#[derive(Clone)]
pub struct Place {
    pub namespace: PathBuf,
    pub cgroup: Option<PathBuf>,
}

impl Place {
    /// Returns the lab's node, in its cgroup.
    pub fn node(lab: &Lab) -> Self {
        Self { namespace: node_namespace(lab), cgroup: Some(lab.cgroup().to_path_buf()) }
    }

    /// Returns the lab's other host.
    pub fn client(lab: &Lab) -> Self {
        Self { namespace: client_namespace(lab), cgroup: None }
    }

    /// Returns a command for a program in this place.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        let join = if self.cgroup.is_some() { "echo $$ > \"$0\"/cgroup.procs && " } else { "" };
        command
            .arg("-c")
            .arg(format!("{join}net=$1 && shift && exec nsenter --net=\"$net\" \"$@\""))
            .arg(self.cgroup.as_deref().unwrap_or(Path::new("sh")))
            .arg(&self.namespace)
            .arg(program);
        command
    }

    /// Runs a command, whose words are split at spaces, until it ends.
    pub fn run(&self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let program = words.next().context("there is no command")?;
        output(self.command(program).args(words)).map(drop)
    }
}

/// Returns the path of the node's network namespace.
pub fn node_namespace(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/run/netns/{}n", lab.id))
}

/// Returns the path of the other host's network namespace.
pub fn client_namespace(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/run/netns/{}c", lab.id))
}

/// Runs a function on a thread in another network namespace, where interface indexes refer to its interfaces.
pub fn in_namespace<T: Send>(path: &Path, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            setns(namespace, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot enter {}", path.display()))?;
            work()
        });
        thread.join().map_err(|_| anyhow!("a thread in {} panicked", path.display()))?
    })
}

/// Returns the index of an interface in the namespace of this thread.
pub fn interface(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name).with_context(|| format!("there is no interface {name}"))
}

/// Pins this thread, and those that it starts later, to the first CPU that it may use.
pub fn one_processor() -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("cannot ask for the processors")?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.context("there is no processor")?).context("cannot choose a processor")?;
    sched_setaffinity(this, &one).context("cannot stay on one processor")
}

/// Two pods on a lab's node, a client and a server, each connected by a veth pair.
pub struct Pods {
    client: String,
    server: String,
}

impl Pods {
    /// Address of the client pod.
    pub const CLIENT: &'static str = "10.244.0.10";
    /// Addresses of the server pod, which stands for three.
    pub const SERVERS: [&'static str; 3] = ["10.244.0.11", "10.244.0.12", "10.244.0.13"];
    /// The node's ends of the pods' interfaces.
    pub const INTERFACES: [&'static str; 2] = ["poda", "podb"];
    const GATEWAY: &'static str = "10.244.0.1";

    pub fn new(lab: &Lab) -> Result<Self> {
        let pods = Self { client: format!("{}a", lab.id), server: format!("{}b", lab.id) };
        let node = Place::node(lab);
        node.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0")?;
        node.run(&format!("ip addr add {}/32 dev lo", Self::GATEWAY))?;
        let [client, server] = Self::INTERFACES;
        pod(&node, &pods.client, client, &[Self::CLIENT], Self::GATEWAY)?;
        pod(&node, &pods.server, server, &Self::SERVERS, Self::GATEWAY)?;
        Place::client(lab).run(&format!("ip route add 10.244.0.0/24 via {}", tests_e2e::lab::NODE_IP))?;
        Ok(pods)
    }

    /// Returns the path of the client's namespace.
    pub fn client(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.client)
    }

    /// Returns the path of the server's namespace.
    pub fn server(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.server)
    }
}

/// Makes the namespace of a pod, connected to the node by a veth pair with the given name on the node's side.
pub fn pod(node: &Place, namespace: &str, interface: &str, addresses: &[&str], gateway: &str) -> Result<()> {
    output(Command::new("ip").args(["netns", "add", namespace]))?;
    node.run(&format!("ip link add {interface} type veth peer name eth0 netns {namespace}"))?;
    node.run(&format!("ip link set {interface} up"))?;
    node.run(&format!("sysctl -qw net.ipv4.conf.{interface}.rp_filter=0"))?;
    let inside = |line: String| {
        output(Command::new("ip").args(["-n", namespace]).args(line.split_whitespace())).map(drop)
    };
    inside("link set lo up".to_owned())?;
    for address in addresses {
        inside(format!("addr add {address}/32 dev eth0"))?;
        node.run(&format!("ip route add {address}/32 dev {interface}"))?;
    }
    inside("link set eth0 up".to_owned())?;
    inside(format!("route add {gateway} dev eth0"))?;
    inside(format!("route add default via {gateway} src {}", addresses[0]))
}

impl Drop for Pods {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            // Fails if it was never created.
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}
