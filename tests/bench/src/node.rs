//! Set-up of the data plane under test and of its tables.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;
use tests_e2e::Lab;
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{
    Algorithm, Backend, Frontend, FrontendKey, Masquerade, NodeTables, NonMasquerade, Protocol, Scope,
    ServiceTables, Tables,
};
use userspace_dataplane::{Config, Kernel, Limits, XdpMode, remove};

use crate::peers::Service;

/// Number of services up to which the default sizes of maps suffice.
const USUAL: usize = 50_000;

/// Removes what a lab's data plane has left in the kernel.
pub fn clear(lab: &Lab) {
    if let Err(error) = remove(&bpf_root(lab)) {
        eprintln!("bench: {error}");
    }
}

pub fn bpf_root(lab: &Lab) -> PathBuf {
    PathBuf::from(format!("/sys/fs/bpf/{}", lab.id))
}

/// Returns map sizes for this many services, with room for twice the flows of 100,000 connections.
pub fn limits(services: usize) -> Limits {
    let usual = Limits { flows4: 1 << 19, ..Limits::default() };
    if services <= USUAL {
        return usual;
    }
    Limits { frontends: 1 << 19, backends: 1 << 20, services: 1 << 17, ..usual }
}

/// Opens the data plane of a lab's cgroup.
pub fn open(lab: &Lab, limits: Limits, xdp: XdpMode) -> Result<Kernel> {
    let (bpf_root, cgroup) = (bpf_root(lab), lab.cgroup().to_path_buf());
    let config = Config { bpf_root, cgroup, limits, xdp, xdp_redirect: false };
    Kernel::open(config).context("cannot open the data plane")
}

/// Sets the node's address and the ranges of services and pods, as the proxy of `hawser up` does.
pub fn set_node(kernel: &mut Kernel, address: Ipv4Addr) -> Result<()> {
    let range = |text: &str| text.parse::<IpNetwork>().context("not a range");
    let masquerade = Masquerade {
        pods: vec![range("10.244.0.0/24")?],
        exempt: BTreeMap::from([(range("10.244.0.0/16")?, NonMasquerade::Cluster)]),
    };
    let node = NodeTables {
        addresses: vec![IpAddr::from(address)],
        service_ranges: vec![range("10.96.0.0/12")?],
        masquerade: Some(masquerade),
        ..NodeTables::default()
    };
    kernel.set_node(&node).context("cannot set the node's address")
}

/// Returns the tables of services as the proxy would compile them: those with the same address are ports of
/// one service.
pub fn tables(services: &[Service]) -> Tables {
    let mut by_vip: BTreeMap<&str, Vec<&Service>> = BTreeMap::new();
    for service in services {
        by_vip.entry(&service.vip).or_default().push(service);
    }
    by_vip.into_iter().map(|(vip, ports)| (format!("bench/service-{vip}"), service_tables(&ports))).collect()
}

/// Returns the tables of one service.
fn service_tables(ports: &[&Service]) -> ServiceTables {
    let mut frontends = Vec::new();
    for service in ports {
        let address: IpAddr = service.vip.parse().unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let protocol = if service.protocol == "udp" { Protocol::Udp } else { Protocol::Tcp };
        let sockets = service.backends.iter().filter_map(|text| text.parse::<SocketAddr>().ok());
        let backends: Vec<Backend> =
            sockets.map(|socket| Backend::new(socket.ip(), socket.port(), !service.remote)).collect();
        let node_port = service.node_port.map(|port| (IpAddr::from([0, 0, 0, 0]), port));
        for (address, port) in std::iter::once((address, service.port)).chain(node_port) {
            for scope in [Scope::Internal, Scope::External] {
                let key = FrontendKey { address, port, protocol, scope };
                let algorithm = match scope {
                    Scope::Internal => Algorithm::Random,
                    Scope::External => Algorithm::Consistent,
                };
                frontends.push(Frontend { algorithm, ..Frontend::new(key, backends.clone()) });
            }
        }
        frontends.push(Frontend::mark(address));
    }
    frontends.sort_by_key(|frontend| frontend.key);
    frontends.dedup_by_key(|frontend| frontend.key);
    ServiceTables { frontends, ..ServiceTables::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    #[test]
    fn services_are_compiled_to_tables() {
        let mut services = peers::external_services(2, "udp", 1);
        services[1].node_port = Some(30080);
        let tables = tables(&services);
        let frontends = &tables["bench/service-10.96.0.2"].frontends;
        assert_eq!(frontends.len(), 5);
        let inside = frontends.iter().find(|frontend| frontend.key.port == 80).unwrap();
        assert_eq!((inside.key.protocol, inside.key.scope), (Protocol::Udp, Scope::Internal));
        assert_eq!(inside.backends[0].address, IpAddr::from([10, 128, 0, 2]));
        assert!(!inside.backends[0].local);
    }
}
