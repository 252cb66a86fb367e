//! The peers: services as kube-proxy's iptables and nftables modes lay them out.

use std::fmt::Write;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Cluster address of the first service; the others follow it.
pub const FIRST_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// A service of the benchmark, with its backends.
pub struct Service {
    pub vip: String,
    pub port: u16,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    pub backends: Vec<String>,
    /// Reached from outside, with backends on other nodes: replies must come back through this
    /// node, so the client's address is replaced.
    pub external: bool,
}

fn vip(i: usize) -> String {
    Ipv4Addr::from(u32::from(FIRST_VIP) + i as u32).to_string()
}

/// `count` services; the last one leads to `backends`, which really listen.
pub fn services(count: usize, protocol: &'static str, backends: &[String]) -> Vec<Service> {
    let service = |i: usize| {
        let elsewhere = || vec![format!("{}:8080", Ipv4Addr::from(0x0ac9_0001 + i as u32))];
        let backends = if i + 1 == count { backends.to_vec() } else { elsewhere() };
        Service { vip: vip(i), port: 80, protocol, backends, external: false }
    };
    (0..count).map(service).collect()
}

/// `count` services for clients outside, each with so many backends of its own on other nodes.
/// Their port is 8080, and 80 is that of the services.
pub fn external_services(count: usize, protocol: &'static str, backends: usize) -> Vec<Service> {
    let service = |i: usize| {
        let address = |j: usize| Ipv4Addr::from(0x0a80_0001 + (i * backends + j) as u32);
        let backends = (0..backends).map(|j| format!("{}:8080", address(j))).collect();
        Service { vip: vip(i), port: 80, protocol, backends, external: true }
    };
    (0..count).map(service).collect()
}

/// One chain a service and one a backend, reached through a list of all services.
pub fn iptables(services: &[Service]) -> String {
    let mut text =
        String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n");
    let mut rules = String::from(
        "-A OUTPUT -j KUBE-SERVICES\n-A PREROUTING -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n",
    );
    for (i, service) in services.iter().enumerate() {
        let Service { vip, port, protocol, .. } = service;
        let _ = writeln!(text, ":KUBE-SVC-{i} - [0:0]");
        let chain = if service.external { format!("KUBE-EXT-{i}") } else { format!("KUBE-SVC-{i}") };
        let _ = writeln!(
            rules,
            "-A KUBE-SERVICES -d {vip}/32 -p {protocol} -m {protocol} --dport {port} -j {chain}"
        );
        if service.external {
            let _ = writeln!(text, ":{chain} - [0:0]");
            let _ = writeln!(rules, "-A {chain} -j KUBE-MARK-MASQ\n-A {chain} -j KUBE-SVC-{i}");
        }
        let count = service.backends.len();
        for (j, backend) in service.backends.iter().enumerate() {
            let _ = writeln!(text, ":KUBE-SEP-{i}-{j} - [0:0]");
            let left = count - j;
            if left > 1 {
                let _ = writeln!(
                    rules,
                    "-A KUBE-SVC-{i} -m statistic --mode random --probability {:.10} -j KUBE-SEP-{i}-{j}",
                    1.0 / left as f64
                );
            } else {
                let _ = writeln!(rules, "-A KUBE-SVC-{i} -j KUBE-SEP-{i}-{j}");
            }
            let address = backend.split(':').next().unwrap_or_default();
            let _ = writeln!(rules, "-A KUBE-SEP-{i}-{j} -s {address}/32 -j KUBE-MARK-MASQ");
            let _ = writeln!(
                rules,
                "-A KUBE-SEP-{i}-{j} -p {protocol} -m {protocol} -j DNAT --to-destination {backend}"
            );
        }
    }
    text + &rules + "COMMIT\n"
}

/// One verdict map over all services, one chain a service and one a backend.
pub fn nftables(services: &[Service]) -> String {
    let mut chains = String::new();
    let mut elements = Vec::new();
    for (i, service) in services.iter().enumerate() {
        let Service { vip, port, protocol, .. } = service;
        let mut picks = Vec::new();
        for (j, backend) in service.backends.iter().enumerate() {
            let _ =
                writeln!(chains, "  chain endpoint-{i}-{j} {{ meta l4proto {protocol} dnat to {backend}; }}");
            picks.push(format!("{j} : goto endpoint-{i}-{j}"));
        }
        let picks = format!("numgen random mod {} vmap {{ {} }};", picks.len(), picks.join(", "));
        let _ = writeln!(chains, "  chain service-{i} {{ {picks} }}");
        let chain = if service.external { "external" } else { "service" };
        if service.external {
            let _ =
                writeln!(chains, "  chain external-{i} {{ jump mark-for-masquerade; goto service-{i}; }}");
        }
        elements.push(format!("{vip} . {protocol} . {port} : goto {chain}-{i}"));
    }
    format!(
        "table ip kube-proxy {{\n  chain mark-for-masquerade {{ mark set mark or 0x4000; }}\n{chains}  \
         map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{ {} }}; }}\n  \
         chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; }}\n  \
         chain nat-output {{ type nat hook output priority -100; goto services; }}\n  \
         chain nat-prerouting {{ type nat hook prerouting priority -100; goto services; }}\n  \
         chain nat-postrouting {{ type nat hook postrouting priority 100; \
         mark and 0x4000 == 0 return; mark set mark xor 0x4000; masquerade fully-random; }}\n}}\n",
        elements.join(",\n    ")
    )
}

/// Gives `text` to a program that loads rules (`iptables-restore`, `nft -f -`).
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
    fn only_the_last_service_leads_to_what_listens() {
        let services = services(300, "tcp", &["10.200.0.1:8080".to_owned()]);
        assert_eq!((services[0].vip.as_str(), services[299].vip.as_str()), ("10.96.0.1", "10.96.1.44"));
        assert_eq!(services[299].backends, ["10.200.0.1:8080"]);
        assert!(services[..299].iter().all(|s| s.backends[0].starts_with("10.201.")));
        assert_eq!(iptables(&services).lines().filter(|l| l.starts_with("-A KUBE-SERVICES ")).count(), 300);
        assert_eq!(nftables(&services).matches(" . tcp . 80 : goto service-").count(), 300);
    }

    #[test]
    fn what_comes_from_outside_is_marked_for_masquerade() {
        let services = external_services(2, "udp", 3);
        assert_eq!(services[1].backends[2], "10.128.0.6:8080");
        let text = iptables(&services);
        assert!(text.contains("-d 10.96.0.2/32 -p udp -m udp --dport 80 -j KUBE-EXT-1\n"));
        assert!(text.contains("-A KUBE-EXT-1 -j KUBE-MARK-MASQ\n-A KUBE-EXT-1 -j KUBE-SVC-1\n"));
        assert_eq!(nftables(&services).matches(" . udp . 80 : goto external-").count(), 2);
    }
}
