//! The suite `dataplane`: what a connection costs, subject after subject in one run, each in a
//! network namespace of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tests_e2e::{Lab, output};
use userspace_dataplane::tables::{
    Backend, DataPlane, Frontend, FrontendKey, Protocol, Scope, ServiceTables, Tables,
};
use userspace_dataplane::{Config, Kernel, Limits, XdpMode, remove};

use crate::peers::{self, Service};
use crate::row::Report;

/// Who balances.
#[derive(Clone, Copy)]
enum Subject {
    /// A direct connection to the backend.
    Limit,
    Hawser,
    Iptables,
    Nftables,
}

const SUBJECTS: [Subject; 4] = [Subject::Limit, Subject::Hawser, Subject::Iptables, Subject::Nftables];

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Hawser => "hawser",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// Backends that really listen.
pub fn backends() -> Vec<String> {
    (1..=3).map(|i| format!("10.200.0.{i}:8080")).collect()
}

/// Measures connection rates.
pub fn run(report: &Report, quick: bool) -> Result<()> {
    let (sizes, rounds, seconds): (&[usize], usize, f64) =
        if quick { (&[1, 1000], 5, 1.0) } else { (&[1, 100, 10_000], 9, 3.0) };
    for &size in sizes {
        let services = peers::services(size, &backends());
        let mut stages = Vec::new();
        for subject in SUBJECTS {
            stages.push(Stage::new(subject, &services)?);
        }
        let mut rates = vec![Vec::new(); stages.len()];
        for round in 0..rounds {
            // Each round begins with another subject, so that none always follows the same one.
            for turn in 0..stages.len() {
                let i = (turn + round) % stages.len();
                rates[i].push(stages[i].measure(&services, seconds)?);
            }
        }
        let case = format!("connect_rate/services={size}");
        for (stage, rates) in stages.iter().zip(&rates) {
            report.row("dataplane", &case, stage.subject.name(), ("per_second", "per_second"), rates)?;
        }
    }
    Ok(())
}

/// A subject, set up in its namespace.
struct Stage {
    subject: Subject,
    lab: Lab,
}

impl Stage {
    fn new(subject: Subject, services: &[Service]) -> Result<Self> {
        let stage = Self { subject, lab: Lab::new()? };
        for line in [
            "addr add 10.200.0.1/32 dev lo",
            "addr add 10.200.0.2/32 dev lo",
            "addr add 10.200.0.3/32 dev lo",
            // Services need a route, whoever translates.
            "route add default dev uplink",
        ] {
            output(stage.lab.on_node("ip").args(line.split_whitespace()))?;
        }
        match subject {
            Subject::Limit => {}
            Subject::Hawser => {
                open(&stage.lab)?.apply_full(&tables(services)).context("cannot program the tables")?;
            }
            Subject::Iptables => {
                peers::load(&mut stage.lab.on_node("iptables-restore"), &peers::iptables(services))?;
            }
            Subject::Nftables => {
                peers::load(stage.lab.on_node("nft").args(["-f", "-"]), &peers::nftables(services))?;
            }
        }
        Ok(stage)
    }

    /// Connections per second to the last service, the only one that leads anywhere.
    fn measure(&self, services: &[Service], seconds: f64) -> Result<f64> {
        let last = services.last().context("there is no service")?;
        let target = match self.subject {
            Subject::Limit => last.backends[0].clone(),
            _ => format!("{}:{}", last.vip, last.port),
        };
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut worker: Command = self.lab.on_node(program);
        worker.arg("--worker").arg(target).arg(last.backends.join(",")).arg(seconds.to_string());
        let text = output(&mut worker)?;
        text.trim().parse().with_context(|| format!("the worker printed {text:?}"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = remove(&bpf_root(&self.lab)) {
            eprintln!("bench: {error}");
        }
    }
}

pub fn bpf_root(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/sys/fs/bpf/{}", lab.id))
}

/// The data plane of a lab's cgroup. XDP is not among what these suites measure.
pub fn open(lab: &Lab) -> Result<Kernel> {
    let config = Config {
        bpf_root: bpf_root(lab),
        cgroup: lab.cgroup().to_path_buf(),
        limits: Limits { frontends: 1 << 18, backends: 1 << 18, services: 1 << 17, ..Limits::default() },
        xdp: XdpMode::Off,
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
    let backends: Vec<Backend> = service
        .backends
        .iter()
        .filter_map(|text| text.parse::<SocketAddr>().ok())
        .map(|socket| Backend { address: socket.ip(), port: socket.port(), local: true })
        .collect();
    let key = |scope| FrontendKey { address, port: service.port, protocol: Protocol::Tcp, scope };
    let frontend = |scope| Frontend {
        key: key(scope),
        backends: backends.clone(),
        affinity_seconds: 0,
        drop_when_empty: false,
    };
    ServiceTables { frontends: vec![frontend(Scope::Internal), frontend(Scope::External)] }
}
