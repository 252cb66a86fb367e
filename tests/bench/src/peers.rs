//! The peers: services as kube-proxy's iptables and nftables modes lay them out.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A service of the benchmark, with its backends.
pub struct Service {
    pub vip: String,
    pub port: u16,
    pub backends: Vec<String>,
}

/// `count` services; the last one leads to `backends`, which really listen.
pub fn services(count: usize, backends: &[String]) -> Vec<Service> {
    (0..count)
        .map(|i| {
            let real = i + 1 == count;
            let vip = format!("10.96.{}.{}", i / 250, i % 250 + 1);
            let backends = if real {
                backends.to_vec()
            } else {
                vec![format!("10.201.{}.{}:8080", i / 250, i % 250 + 1)]
            };
            Service { vip, port: 80, backends }
        })
        .collect()
}

/// One chain a service and one a backend, reached through a list of all services.
pub fn iptables(services: &[Service]) -> String {
    let mut text = String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n");
    let mut rules = String::from(
        "-A OUTPUT -j KUBE-SERVICES\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n",
    );
    for (i, service) in services.iter().enumerate() {
        let _ = writeln!(text, ":KUBE-SVC-{i} - [0:0]");
        let _ = writeln!(
            rules,
            "-A KUBE-SERVICES -d {}/32 -p tcp -m tcp --dport {} -j KUBE-SVC-{i}",
            service.vip, service.port
        );
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
            let _ = writeln!(rules, "-A KUBE-SEP-{i}-{j} -p tcp -m tcp -j DNAT --to-destination {backend}");
        }
    }
    text + &rules + "COMMIT\n"
}

/// One verdict map over all services, one chain a service and one a backend.
pub fn nftables(services: &[Service]) -> String {
    let mut chains = String::new();
    let mut elements = Vec::new();
    for (i, service) in services.iter().enumerate() {
        let mut picks = Vec::new();
        for (j, backend) in service.backends.iter().enumerate() {
            let _ = writeln!(chains, "  chain endpoint-{i}-{j} {{ meta l4proto tcp dnat to {backend}; }}");
            picks.push(format!("{j} : goto endpoint-{i}-{j}"));
        }
        let _ = writeln!(
            chains,
            "  chain service-{i} {{ numgen random mod {} vmap {{ {} }}; }}",
            picks.len(),
            picks.join(", ")
        );
        elements.push(format!("{} . tcp . {} : goto service-{i}", service.vip, service.port));
    }
    format!(
        "table ip kube-proxy {{\n{chains}  map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; \
         elements = {{ {} }}; }}\n  chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; }}\n  \
         chain nat-output {{ type nat hook output priority -100; goto services; }}\n  \
         chain nat-prerouting {{ type nat hook prerouting priority -100; goto services; }}\n}}\n",
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
        let services = services(300, &["10.200.0.1:8080".to_owned()]);
        assert_eq!(services[299].backends, ["10.200.0.1:8080"]);
        assert!(services[..299].iter().all(|s| s.backends[0].starts_with("10.201.")));
        assert_eq!(iptables(&services).lines().filter(|l| l.starts_with("-A KUBE-SERVICES ")).count(), 300);
        assert_eq!(nftables(&services).matches(" . tcp . 80 : goto service-").count(), 300);
    }
}
