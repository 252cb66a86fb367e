//! The peers: rules for services as kube-proxy's iptables and nftables modes write them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tests_e2e::lab::NODE_IP;

use crate::place::Place;
use crate::subject::Subject;

/// Cluster address of the first service; the others have the following ones.
pub const FIRST_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

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
    /// True if traffic to the cluster address is masqueraded: it comes from outside, and replies must return
    /// through this node.
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

/// Returns iptables rules: one chain per service and one per backend, reached through a list of all services.
pub fn iptables(services: &[Service]) -> String {
    let mut text = String::from(
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         :KUBE-POSTROUTING - [0:0]\n",
    );
    let mut rules = String::from(
        "-A OUTPUT -j KUBE-SERVICES\n-A PREROUTING -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n",
    );
    for (i, service) in services.iter().enumerate() {
        let Service { vip, port, protocol, .. } = service;
        let (inner, outer) = (format!("KUBE-SVC-{i}"), format!("KUBE-EXT-{i}"));
        let _ = writeln!(text, ":{inner} - [0:0]");
        let chain = if service.masquerade { &outer } else { &inner };
        let _ = writeln!(
            rules,
            "-A KUBE-SERVICES -d {vip}/32 -p {protocol} -m {protocol} --dport {port} -j {chain}"
        );
        if service.masquerade || service.node_port.is_some() {
            let _ = writeln!(text, ":{outer} - [0:0]");
            let _ = writeln!(rules, "-A {outer} -j KUBE-MARK-MASQ\n-A {outer} -j {inner}");
        }
        if let Some(port) = service.node_port {
            let _ =
                writeln!(rules, "-A KUBE-NODEPORTS -p {protocol} -m {protocol} --dport {port} -j {outer}");
        }
        iptables_backends(i, service, &mut text, &mut rules);
    }
    rules.push_str("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n");
    text + &rules + "COMMIT\n"
}

/// Returns the chains of service `i` as a partial sync writes them.
pub fn iptables_change(i: usize, service: &Service) -> String {
    let (mut chains, mut rules) = (format!("*nat\n:KUBE-SVC-{i} - [0:0]\n"), String::new());
    iptables_backends(i, service, &mut chains, &mut rules);
    chains + &rules + "COMMIT\n"
}

fn iptables_backends(i: usize, service: &Service, chains: &mut String, rules: &mut String) {
    let protocol = service.protocol;
    let count = service.backends.len();
    for (j, backend) in service.backends.iter().enumerate() {
        let _ = writeln!(chains, ":KUBE-SEP-{i}-{j} - [0:0]");
        let left = count - j;
        let chance = match left {
            1 => String::new(),
            _ => format!(" -m statistic --mode random --probability {:.10}", 1.0 / left as f64),
        };
        let _ = writeln!(rules, "-A KUBE-SVC-{i}{chance} -j KUBE-SEP-{i}-{j}");
        let address = backend.split(':').next().unwrap_or_default();
        let _ = writeln!(rules, "-A KUBE-SEP-{i}-{j} -s {address}/32 -j KUBE-MARK-MASQ");
        let _ = writeln!(
            rules,
            "-A KUBE-SEP-{i}-{j} -p {protocol} -m {protocol} -j DNAT --to-destination {backend}"
        );
    }
}

/// Returns nftables rules: one verdict map over all services, one chain per service and one per backend.
pub fn nftables(services: &[Service]) -> String {
    let mut chains = String::new();
    let (mut elements, mut node_ports) = (Vec::new(), Vec::new());
    for (i, service) in services.iter().enumerate() {
        let Service { vip, port, protocol, .. } = service;
        for (j, backend) in service.backends.iter().enumerate() {
            let _ =
                writeln!(chains, "  chain endpoint-{i}-{j} {{ meta l4proto {protocol} dnat to {backend}; }}");
        }
        let _ = writeln!(chains, "  chain service-{i} {{ {} }}", nftables_picks(i, service.backends.len()));
        let chain = if service.masquerade { "external" } else { "service" };
        if service.masquerade || service.node_port.is_some() {
            let _ =
                writeln!(chains, "  chain external-{i} {{ jump mark-for-masquerade; goto service-{i}; }}");
        }
        elements.push(format!("{vip} . {protocol} . {port} : goto {chain}-{i}"));
        if let Some(port) = service.node_port {
            node_ports.push(format!("{protocol} . {port} : goto external-{i}"));
        }
    }
    let of = |elements: &[String]| match elements {
        [] => String::new(),
        elements => format!("elements = {{ {} }}; ", elements.join(",\n    ")),
    };
    format!(
        "table ip kube-proxy {{\n  chain mark-for-masquerade {{ mark set mark or 0x4000; }}\n{chains}  \
         map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; {}}}\n  \
         map service-nodeports {{ type inet_proto . inet_service : verdict; {}}}\n  \
         chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; \
         fib daddr type local meta l4proto . th dport vmap @service-nodeports; }}\n  \
         chain nat-output {{ type nat hook output priority -100; goto services; }}\n  \
         chain nat-prerouting {{ type nat hook prerouting priority -100; goto services; }}\n  \
         chain nat-postrouting {{ type nat hook postrouting priority 100; \
         mark and 0x4000 == 0 return; mark set mark xor 0x4000; masquerade fully-random; }}\n}}\n",
        of(&elements),
        of(&node_ports)
    )
}

/// Returns rules that reduce service `i` to its first `backends` backends.
pub fn nftables_change(i: usize, backends: usize) -> String {
    let picks = nftables_picks(i, backends);
    format!("flush chain ip kube-proxy service-{i}\nadd rule ip kube-proxy service-{i} {picks}\n")
}

fn nftables_picks(i: usize, backends: usize) -> String {
    let picks: Vec<_> = (0..backends).map(|j| format!("{j} : goto endpoint-{i}-{j}")).collect();
    format!("numgen random mod {backends} vmap {{ {} }};", picks.join(", "))
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
    fn external_traffic_is_marked_for_masquerade() {
        let services = external_services(2, "udp", 3);
        assert_eq!(services[1].backends[2], "10.128.0.6:8080");
        let text = iptables(&services);
        assert!(text.contains("-d 10.96.0.2/32 -p udp -m udp --dport 80 -j KUBE-EXT-1\n"));
        assert!(text.contains("-A KUBE-EXT-1 -j KUBE-MARK-MASQ\n-A KUBE-EXT-1 -j KUBE-SVC-1\n"));
        assert_eq!(nftables(&services).matches(" . udp . 80 : goto external-").count(), 2);
    }

    #[test]
    fn node_ports_come_after_all_services() {
        let mut services = cluster_services(2, 2);
        services[1].node_port = Some(30080);
        let text = iptables(&services);
        assert!(text.contains("-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-1\n"));
        assert!(text.contains("-d 10.96.0.2/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-1\n"));
        assert!(text.ends_with("--dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n"));
        assert!(nftables(&services).contains("{ tcp . 30080 : goto external-1 }"));
        assert!(ipvs(&services).contains(&format!("-A -t {NODE_IP}:30080 -s rr\n")));
    }

    #[test]
    fn a_change_names_one_service_alone() {
        let mut service = cluster_services(8, 2).remove(7);
        service.backends.truncate(1);
        let text = iptables_change(7, &service);
        assert!(text.contains("-A KUBE-SVC-7 -j KUBE-SEP-7-0\n") && !text.contains("KUBE-SERVICES"));
        assert!(nftables_change(7, 1).contains("numgen random mod 1 vmap { 0 : goto endpoint-7-0 };"));
    }
}
