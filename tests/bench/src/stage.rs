//! Who balances, each in network namespaces and a cgroup of its own.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use tests_e2e::{Lab, output};
use userspace_dataplane::tables::{
    Backend, DataPlane, Frontend, FrontendKey, Protocol, Scope, ServiceTables, Tables,
};
use userspace_dataplane::{Config, Kernel, Limits, XdpMode, remove};

use crate::peers::{self, Service};

/// Who balances.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Nobody: the same work without a service.
    Limit,
    Hawser,
    Iptables,
    Nftables,
}

pub const SUBJECTS: [Subject; 4] = [Subject::Limit, Subject::Hawser, Subject::Iptables, Subject::Nftables];

impl Subject {
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Hawser => "hawser",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// Measures subject after subject, `rounds` times; gives what each subject's turns gave. Each
/// round begins with another subject, so that none always follows the same one.
pub fn in_turn<S, T>(
    subjects: &[S],
    rounds: usize,
    mut measure: impl FnMut(&S) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let i = (turn + round) % subjects.len();
            results[i].push(measure(&subjects[i])?);
        }
    }
    Ok(results)
}

/// A subject whose clients and backends are local sockets.
pub struct Stage {
    pub subject: Subject,
    lab: Lab,
    /// Where clients connect to: the last service, the only one that leads anywhere, or its
    /// backends directly.
    targets: Vec<String>,
    backends: Vec<String>,
}

impl Stage {
    pub fn new(subject: Subject, services: &[Service]) -> Result<Self> {
        let last = services.last().context("there is no service")?;
        let backends = last.backends.clone();
        let targets = match subject {
            Subject::Limit => backends.clone(),
            _ => vec![format!("{}:{}", last.vip, last.port)],
        };
        let stage = Self { subject, lab: Lab::new()?, targets, backends };
        for backend in &stage.backends {
            let address = backend.split(':').next().unwrap_or_default();
            on_node(&stage.lab, &format!("ip addr add {address}/32 dev lo"))?;
        }
        // Services need a route, whoever translates.
        on_node(&stage.lab, "ip route add default dev uplink")?;
        if subject == Subject::Hawser {
            in_namespace(&node_namespace(&stage.lab), || {
                open(&stage.lab, XdpMode::Off)?
                    .apply_full(&tables(services))
                    .context("cannot program the tables")
            })?;
        }
        load_rules(subject, &stage.lab, services)?;
        Ok(stage)
    }

    /// Has a worker do `work` for so long, in the subject's namespace and cgroup; gives the
    /// numbers that it prints.
    pub fn work(&self, work: &str, seconds: f64) -> Result<Vec<f64>> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut worker: Command = self.lab.on_node(program);
        worker.arg("--worker").arg(work).arg(self.targets.join(",")).arg(self.backends.join(","));
        let text = output(worker.arg(seconds.to_string()))
            .with_context(|| format!("{work} through {} failed", self.subject.name()))?;
        let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
        numbers.with_context(|| format!("the worker printed {text:?}"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        clear(&self.lab);
    }
}

/// Loads a peer's rules; nothing for the other subjects.
pub fn load_rules(subject: Subject, lab: &Lab, services: &[Service]) -> Result<()> {
    match subject {
        Subject::Limit | Subject::Hawser => Ok(()),
        Subject::Iptables => peers::load(&mut lab.on_node("iptables-restore"), &peers::iptables(services)),
        Subject::Nftables => peers::load(lab.on_node("nft").args(["-f", "-"]), &peers::nftables(services)),
    }
}

/// Runs a command in the node's namespace.
pub fn on_node(lab: &Lab, line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().context("there is no command")?;
    output(lab.on_node(program).args(words)).map(drop)
}

/// Runs a command in the other host's namespace.
pub fn on_client(lab: &Lab, line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().context("there is no command")?;
    output(lab.on_client(program).args(words)).map(drop)
}

/// The node's network namespace.
pub fn node_namespace(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/run/netns/{}n", lab.id))
}

/// The other host's network namespace.
pub fn client_namespace(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/run/netns/{}c", lab.id))
}

/// Does something on a thread in another network namespace: interfaces are known by index there.
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

/// Index of an interface in the namespace of this thread.
pub fn interface(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name).with_context(|| format!("there is no interface {name}"))
}

/// Removes what a lab's data plane has left in the kernel.
pub fn clear(lab: &Lab) {
    if let Err(error) = remove(&bpf_root(lab)) {
        eprintln!("bench: {error}");
    }
}

pub fn bpf_root(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/sys/fs/bpf/{}", lab.id))
}

/// Sizes of maps for the largest of these benchmarks.
pub fn limits() -> Limits {
    Limits { frontends: 1 << 18, backends: 1 << 18, services: 1 << 17, ..Limits::default() }
}

/// The data plane of a lab's cgroup.
pub fn open(lab: &Lab, xdp: XdpMode) -> Result<Kernel> {
    let config = Config {
        bpf_root: bpf_root(lab),
        cgroup: lab.cgroup().to_path_buf(),
        limits: limits(),
        xdp,
        xdp_redirect: false,
    };
    Kernel::open(config).context("cannot open the data plane")
}

/// The services as the proxy would compile them.
pub fn tables(services: &[Service]) -> Tables {
    services
        .iter()
        .enumerate()
        .map(|(i, service)| (format!("bench/service-{i}"), service_tables(service)))
        .collect()
}

/// One service's share.
pub fn service_tables(service: &Service) -> ServiceTables {
    let address: IpAddr = service.vip.parse().unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let protocol = if service.protocol == "udp" { Protocol::Udp } else { Protocol::Tcp };
    let backends: Vec<Backend> = service
        .backends
        .iter()
        .filter_map(|text| text.parse::<SocketAddr>().ok())
        .map(|socket| Backend { address: socket.ip(), port: socket.port(), local: !service.external })
        .collect();
    let frontend = |scope| Frontend {
        key: FrontendKey { address, port: service.port, protocol, scope },
        backends: backends.clone(),
        affinity_seconds: 0,
        drop_when_empty: false,
    };
    ServiceTables { frontends: vec![frontend(Scope::Internal), frontend(Scope::External)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_has_its_turns_and_none_always_follows_the_same() {
        let mut order = Vec::new();
        let results = in_turn(&['a', 'b', 'c'], 2, |subject| {
            order.push(*subject);
            Ok(order.len())
        });
        assert_eq!(order, ['a', 'b', 'c', 'b', 'c', 'a']);
        assert_eq!(results.unwrap(), [vec![1, 6], vec![2, 4], vec![3, 5]]);
    }

    #[test]
    fn services_become_tables() {
        let services = peers::services(2, "udp", &["10.200.0.1:8080".to_owned()]);
        let tables = tables(&services);
        let frontend = &tables["bench/service-1"].frontends[1];
        assert_eq!((frontend.key.protocol, frontend.key.scope), (Protocol::Udp, Scope::External));
        assert_eq!(frontend.backends[0].address, IpAddr::from([10, 200, 0, 1]));
        assert!(frontend.backends[0].local);
    }
}
