//! The peers: rules for services as kube-proxy's iptables and nftables modes write them.
//!
//! `testdata` has the rules that kube-proxy 1.36.2 wrote for two Services with `--cluster-cidr` 10.128.0.0/9, and tests
//! compare ours with them.

mod iptables;
mod nftables;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tests_e2e::lab::NODE_IP;

pub use self::iptables::{change as iptables_change, rules as iptables};
pub use self::nftables::{change as nftables_change, rules as nftables};
use crate::place::Place;
use crate::subject::Subject;

/// Cluster address of the first service; the others have the following ones.
pub const FIRST_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Addresses of the cluster's pods: kube-proxy masquerades connections of others to cluster addresses.
const CLUSTER_CIDR: &str = "10.128.0.0/9";

/// A port of a service of the benchmark, with its backends.
#[derive(Clone)]
pub struct Service {
    pub vip: String,
    pub port: u16,
    /// Protocol, `tcp` or `udp`.
    pub protocol: &'static str,
    pub backends: Vec<String>,
    /// True if the backends are on other nodes.
    pub remote: bool,
    /// True if IPVS masquerades traffic to the cluster address, so that replies return through this node. The other modes
    /// decide by the source ([`CLUSTER_CIDR`]).
    pub masquerade: bool,
    /// Node port, if it has one.
    pub node_port: Option<u16>,
}

fn vip(i: usize) -> String {
    Ipv4Addr::from(u32::from(FIRST_VIP) + i as u32).to_string()
}

/// Returns `count` unused services with one backend each.
pub fn idle_services(count: usize) -> Vec<Service> {
    let service = |i: usize| Service {
        vip: vip(i),
        port: 80,
        protocol: "tcp",
        backends: vec![format!("{}:8080", Ipv4Addr::from(0x0ac9_0001 + i as u32))],
        remote: false,
        masquerade: false,
        node_port: None,
    };
    (0..count).map(service).collect()
}

/// Returns `count` services for external clients, each with its own backends on other nodes. Their port is
/// 8080, that of the services 80.
pub fn external_services(count: usize, protocol: &'static str, backends: usize) -> Vec<Service> {
    let service = |i: usize| {
        let address = |j: usize| Ipv4Addr::from(0x0a80_0001 + (i * backends + j) as u32);
        let backends = (0..backends).map(|j| format!("{}:8080", address(j))).collect();
        let (vip, node_port) = (vip(i), None);
        Service { vip, port: 80, protocol, backends, remote: true, masquerade: true, node_port }
    };
    (0..count).map(service).collect()
}

/// Returns such services for clients in the cluster.
pub fn cluster_services(count: usize, backends: usize) -> Vec<Service> {
    let mut services = external_services(count, "tcp", backends);
    services.iter_mut().for_each(|service| service.masquerade = false);
    services
}

/// Returns input for `ipvsadm -R`: round robin with masquerading by this node.
pub fn ipvs(services: &[Service]) -> String {
    let mut text = String::new();
    for service in services {
        let flag = if service.protocol == "udp" { 'u' } else { 't' };
        let node_port = service.node_port.map(|port| (NODE_IP, port));
        for (address, port) in [(service.vip.as_str(), service.port)].into_iter().chain(node_port) {
            let _ = writeln!(text, "-A -{flag} {address}:{port} -s rr");
            for backend in &service.backends {
                let _ = writeln!(text, "-a -{flag} {address}:{port} -r {backend} -m -w 1");
            }
        }
    }
    text
}

/// Firewall rule that IPVS needs so that replies of remote backends return through this node.
const IPVS_MASQUERADE: &str = "*nat\n-A POSTROUTING -m ipvs --ipvs -j MASQUERADE --random-fully\nCOMMIT\n";

/// Returns input for `ip -batch -`: the addresses of services, which IPVS needs on an interface.
pub fn ipvs_addresses(services: &[Service]) -> String {
    let mut text = String::from("link add kube-ipvs0 type dummy\n");
    let vips: BTreeSet<&str> = services.iter().map(|service| service.vip.as_str()).collect();
    for vip in vips {
        let _ = writeln!(text, "addr add {vip}/32 dev kube-ipvs0");
    }
    text
}

/// Returns the program that loads iptables rules: the legacy one if available, since it is faster both at
/// loading and with packets.
pub fn iptables_restore() -> &'static str {
    let legacy = "/usr/sbin/iptables-legacy-restore";
    if Path::new(legacy).exists() { legacy } else { "iptables-restore" }
}

/// Loads a peer's rules; does nothing for other subjects.
pub fn load_rules(subject: Subject, place: &Place, services: &[Service]) -> Result<()> {
    match subject {
        Subject::Limit | Subject::Hawser | Subject::Etcd => Ok(()),
        Subject::Iptables => load(&mut place.command(iptables_restore()), &iptables(services)),
        Subject::Nftables => load(place.command("nft").args(["-f", "-"]), &nftables(services)),
        Subject::Ipvs => {
            load(place.command("ip").args(["-batch", "-"]), &ipvs_addresses(services))?;
            // Translated packets belong to connections that the firewall tracks, as with kube-proxy.
            place.run("sysctl -qw net.ipv4.vs.conntrack=1")?;
            if services.iter().any(|service| service.masquerade) {
                load(&mut place.command(iptables_restore()), IPVS_MASQUERADE)?;
            }
            load(place.command("ipvsadm").arg("-R"), &ipvs(services))
        }
    }
}

/// Passes `text` to a program that loads rules (`iptables-restore`, `nft -f -`).
pub fn load(command: &mut Command, text: &str) -> Result<()> {
    let shown = format!("{command:?}");
    let mut child = command.stdin(Stdio::piped()).spawn().with_context(|| format!("cannot start {shown}"))?;
    let mut stdin = child.stdin.take().context("standard input was not piped")?;
    stdin.write_all(text.as_bytes()).with_context(|| format!("cannot write to {shown}"))?;
    drop(stdin);
    let status = child.wait().with_context(|| format!("cannot wait for {shown}"))?;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the two services for which kube-proxy's rules were recorded.
    pub fn recorded_services() -> [Service; 2] {
        let service = |vip: &str, protocol, backends: std::ops::Range<u8>, node_port| Service {
            vip: vip.to_owned(),
            port: 80,
            protocol,
            backends: backends.map(|last| format!("10.128.0.{last}:8080")).collect(),
            remote: true,
            masquerade: false,
            node_port,
        };
        [service("10.96.0.11", "tcp", 1..3, None), service("10.96.0.12", "udp", 3..6, Some(30_080))]
    }

    #[test]
    fn every_service_has_its_rule() {
        let services = idle_services(300);
        assert_eq!((services[0].vip.as_str(), services[299].vip.as_str()), ("10.96.0.1", "10.96.1.44"));
        assert!(services.iter().all(|service| service.backends[0].starts_with("10.201.")));
        let rules = iptables(&services);
        assert_eq!(rules.lines().filter(|l| l.starts_with("-A KUBE-SERVICES -d ")).count(), 300);
        assert_eq!(nftables(&services).matches(" . tcp . 80 : goto service-").count(), 300);
        assert_eq!(ipvs(&services).lines().count(), 600);
        assert_eq!(ipvs_addresses(&services).lines().count(), 301);
    }

    #[test]
    fn traffic_from_outside_the_pod_range_is_marked_for_masquerade() {
        let services = external_services(2, "udp", 3);
        assert_eq!(services[1].backends[2], "10.128.0.6:8080");
        let text = iptables(&services);
        let mark = "-A KUBE-SVC-1 ! -s 10.128.0.0/9 -d 10.96.0.2/32 -p udp -m comment --comment";
        assert!(text.contains(mark));
        assert!(nftables(&services).contains("ip daddr @cluster-ips ip saddr != 10.128.0.0/9 meta mark set"));
    }

    #[test]
    fn node_ports_come_after_all_services() {
        let mut services = cluster_services(2, 2);
        services[1].node_port = Some(30080);
        let text = iptables(&services);
        assert!(text.contains("-m tcp --dport 30080 -j KUBE-EXT-1\n"));
        assert!(text.contains("-m tcp --dport 80 -j KUBE-SVC-1\n"));
        let last = text.lines().rfind(|line| line.starts_with("-A KUBE-SERVICES")).unwrap();
        assert!(last.ends_with("--dst-type LOCAL -j KUBE-NODEPORTS"));
        assert!(nftables(&services).contains("{ tcp . 30080 : goto external-1 }"));
        assert!(ipvs(&services).contains(&format!("-A -t {NODE_IP}:30080 -s rr\n")));
    }

    #[test]
    fn a_change_names_one_service_alone() {
        let mut service = cluster_services(8, 2).remove(7);
        service.backends.truncate(1);
        let text = iptables_change(7, &service);
        assert!(text.contains("-j KUBE-SEP-7-0\n") && !text.contains("KUBE-SERVICES"));
        assert!(nftables_change(7, &service).contains("numgen random mod 1 map { 0 : 10.128.0.15 . 8080 }"));
    }
}
