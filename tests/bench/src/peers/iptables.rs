//! The rules of kube-proxy's iptables mode: a chain for each service and for each backend, and a list of all services.

use std::fmt::Write;

use super::{CLUSTER_CIDR, Service};

/// The filter table, in which only services without endpoints have rules of their own. Counters by nfacct are left out;
/// they need objects in the kernel that iptables cannot make.
const FILTER: &str = "*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
";

const NAT_CHAINS: &str = "*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
";

const NAT_RULES: &str = "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
";

const LAST_RULE: &str = "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
";

/// Returns the tables for these services.
pub fn rules(services: &[Service]) -> String {
    let (mut chains, mut rules) = (NAT_CHAINS.to_owned(), NAT_RULES.to_owned());
    for (i, service) in services.iter().enumerate() {
        let Service { vip, port, protocol, .. } = service;
        let (inner, outer, name) = (format!("KUBE-SVC-{i}"), format!("KUBE-EXT-{i}"), name(i));
        let _ = writeln!(
            rules,
            "-A KUBE-SERVICES -d {vip}/32 -p {protocol} -m comment --comment \"{name} cluster IP\" -m {protocol} --dport {port} -j {inner}"
        );
        if let Some(port) = service.node_port {
            let _ = writeln!(chains, ":{outer} - [0:0]");
            let _ = writeln!(
                rules,
                "-A {outer} -m comment --comment \"masquerade traffic for {name} external destinations\" -j KUBE-MARK-MASQ\n-A {outer} -j {inner}"
            );
            let to = format!("-p {protocol} -m comment --comment \"{name}\" -m {protocol} --dport {port}");
            let _ = writeln!(
                rules,
                "-A KUBE-NODEPORTS -d 127.0.0.0/8 {to} -j {outer}\n-A KUBE-NODEPORTS {to} -j {outer}"
            );
        }
        of_service(i, service, &mut chains, &mut rules);
    }
    [FILTER, &chains, &rules, LAST_RULE, "COMMIT\n"].concat()
}

/// Returns the chains of service `i` as a partial sync writes them.
pub fn change(i: usize, service: &Service) -> String {
    let (mut chains, mut rules) = ("*nat\n".to_owned(), String::new());
    of_service(i, service, &mut chains, &mut rules);
    chains + &rules + "COMMIT\n"
}

/// Returns a name as long as those of real Services, which comments carry.
fn name(i: usize) -> String {
    format!("default/service-{i}")
}

fn of_service(i: usize, service: &Service, chains: &mut String, rules: &mut String) {
    let Service { vip, port, protocol, .. } = service;
    let name = name(i);
    let _ = writeln!(chains, ":KUBE-SVC-{i} - [0:0]");
    let _ = writeln!(
        rules,
        "-A KUBE-SVC-{i} ! -s {CLUSTER_CIDR} -d {vip}/32 -p {protocol} -m comment --comment \"{name} cluster IP\" -m {protocol} --dport {port} -j KUBE-MARK-MASQ"
    );
    let count = service.backends.len();
    for (j, backend) in service.backends.iter().enumerate() {
        let _ = writeln!(chains, ":KUBE-SEP-{i}-{j} - [0:0]");
        let left = count - j;
        let chance = match left {
            1 => String::new(),
            _ => format!(" -m statistic --mode random --probability {:.11}", probability(left)),
        };
        let _ = writeln!(
            rules,
            "-A KUBE-SVC-{i} -m comment --comment \"{name} -> {backend}\"{chance} -j KUBE-SEP-{i}-{j}"
        );
        let address = backend.split(':').next().unwrap_or_default();
        let _ = writeln!(
            rules,
            "-A KUBE-SEP-{i}-{j} -s {address}/32 -m comment --comment \"{name}\" -j KUBE-MARK-MASQ"
        );
        let _ = writeln!(
            rules,
            "-A KUBE-SEP-{i}-{j} -p {protocol} -m comment --comment \"{name}\" -m {protocol} -j DNAT --to-destination {backend}"
        );
    }
}

/// Returns the chance of one of `left` backends as the kernel holds it, in parts of 2^31.
fn probability(left: usize) -> f64 {
    let parts = f64::from(1_u32 << 31);
    (parts / left as f64).round() / parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::recorded_services;
    use super::*;

    /// Returns the rules of each chain, by table and name. Services come in any order.
    fn chains(text: &str) -> BTreeMap<String, Vec<String>> {
        let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut table = String::new();
        for line in text.lines() {
            if line.starts_with('*') {
                line.clone_into(&mut table);
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                chains.entry(format!("{table} {chain}")).or_default().push(rule.to_owned());
            }
        }
        for (name, rules) in &mut chains {
            if name.ends_with("KUBE-SERVICES") {
                rules.sort();
            }
        }
        chains
    }

    #[test]
    fn rules_equal_those_of_kube_proxy() {
        let mut recorded = include_str!("../../testdata/kube-proxy-1.36.2-iptables.txt").replace("  ", " ");
        for (theirs, ours) in [
            ("JG744WXKNAQO4NVG", "0"),
            ("4BFERBCACGJOJ727", "1"),
            ("KUBE-SEP-QRTMDGKT7AFB764K", "KUBE-SEP-0-0"),
            ("KUBE-SEP-6FSELIT75TA4WFDU", "KUBE-SEP-0-1"),
            ("KUBE-SEP-XCTXISXQEE77NPTI", "KUBE-SEP-1-0"),
            ("KUBE-SEP-WZFWOQRQ6PJ2CPHE", "KUBE-SEP-1-1"),
            ("KUBE-SEP-CWLCOYJIKHNP2UHX", "KUBE-SEP-1-2"),
            ("default/inner", "default/service-0"),
            ("default/outer", "default/service-1"),
            (" -m nfacct --nfacct-name ct_state_invalid_dropped_pkts", ""),
            (" -m nfacct --nfacct-name localhost_nps_accepted_pkts", ""),
        ] {
            assert!(recorded.contains(theirs), "{theirs}");
            recorded = recorded.replace(theirs, ours);
        }
        // The Service `kubernetes` of the cluster that was recorded has no endpoints.
        let recorded: Vec<&str> =
            recorded.lines().filter(|line| !line.contains("default/kubernetes")).collect();
        assert_eq!(chains(&rules(&recorded_services())), chains(&recorded.join("\n")));
    }
}
