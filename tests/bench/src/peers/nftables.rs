//! The rules of kube-proxy's nftables mode: maps of all services, and one chain for each of them.

use std::collections::BTreeSet;
use std::fmt::Write;

use tests_e2e::lab::NODE_IP;

use super::{CLUSTER_CIDR, Service};

/// Chains that do not depend on the services.
const CHAINS: &str = "
    chain filter-prerouting-pre-dnat {
        type filter hook prerouting priority dstnat - 10; policy accept;
        ct state new jump firewall-check
    }
    chain filter-output-pre-dnat {
        type filter hook output priority -110; policy accept;
        ct state new jump firewall-check
    }
    chain filter-input {
        type filter hook input priority filter; policy accept;
        ct state new jump nodeport-endpoints-check
        ct state new jump service-endpoints-check
    }
    chain filter-forward {
        type filter hook forward priority filter; policy accept;
        ct state new jump service-endpoints-check
        ct state new jump cluster-ips-check
    }
    chain filter-output {
        type filter hook output priority filter; policy accept;
        ct state new jump service-endpoints-check
        ct state new jump cluster-ips-check
    }
    chain nat-prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        jump services
    }
    chain nat-output {
        type nat hook output priority -100; policy accept;
        jump services
    }
    chain nat-postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        jump masquerading
    }
    chain nodeport-endpoints-check {
        ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
    }
    chain service-endpoints-check {
        ip daddr . meta l4proto . th dport vmap @no-endpoint-services
    }
    chain firewall-check {
        ip daddr . meta l4proto . th dport vmap @firewall-ips
    }
    chain services {
        ip daddr @cluster-ips ip saddr != CLUSTER_CIDR meta mark set meta mark | 0x00004000
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }
    chain masquerading {
        meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
        ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
    }
    chain cluster-ips-check {
        ip daddr @cluster-ips reject
        ip daddr 10.96.0.0/16 drop
    }
    chain reject-chain {
        reject
    }
";

/// Returns the table for these services.
pub fn rules(services: &[Service]) -> String {
    let cluster_ips: BTreeSet<&str> = services.iter().map(|service| service.vip.as_str()).collect();
    let (mut chains, mut elements, mut node_ports) = (String::new(), Vec::new(), Vec::new());
    for (i, service) in services.iter().enumerate() {
        let Service { vip, port, protocol, .. } = service;
        let _ = writeln!(chains, "    chain service-{i} {{\n        {}\n    }}", pick(service));
        elements.push(format!("{vip} . {protocol} . {port} : goto service-{i}"));
        if let Some(port) = service.node_port {
            let _ = writeln!(
                chains,
                "    chain external-{i} {{\n        meta mark set meta mark | 0x00004000\n        goto service-{i}\n    }}"
            );
            node_ports.push(format!("{protocol} . {port} : goto external-{i}"));
        }
    }
    let set = |name: &str, kind: &str, elements: &[&str]| one("set", name, kind, &elements.join(", "));
    let map = |name: &str, kind: &str, elements: &[String]| {
        one("map", name, &format!("{kind} : verdict"), &elements.join(", "))
    };
    let (by_address, by_port) = ("ipv4_addr . inet_proto . inet_service", "inet_proto . inet_service");
    let cluster_ips: Vec<&str> = cluster_ips.into_iter().collect();
    [
        "table ip kube-proxy {\n".to_owned(),
        set("hairpin-connections", "ipv4_addr . ipv4_addr . inet_proto . inet_service", &[]),
        set("cluster-ips", "ipv4_addr", &cluster_ips),
        set("nodeport-ips", "ipv4_addr", &[NODE_IP]),
        map("no-endpoint-services", by_address, &[]),
        map("no-endpoint-nodeports", by_port, &[]),
        map("firewall-ips", by_address, &[]),
        map("service-ips", by_address, &elements),
        map("service-nodeports", by_port, &node_ports),
        // Chains have to be known before others jump to them, which those of services do.
        CHAINS.replace("CLUSTER_CIDR", CLUSTER_CIDR),
        chains,
        "}\n".to_owned(),
    ]
    .concat()
}

fn one(what: &str, name: &str, kind: &str, elements: &str) -> String {
    let elements =
        if elements.is_empty() { String::new() } else { format!("        elements = {{ {elements} }}\n") };
    format!("    {what} {name} {{\n        type {kind}\n{elements}    }}\n")
}

/// Returns rules that give service `i` the backends of `service`, as a partial sync writes them.
pub fn change(i: usize, service: &Service) -> String {
    let chain = format!("ip kube-proxy service-{i}");
    format!("flush chain {chain}\nadd rule {chain} {}\n", pick(service))
}

/// Returns the rule that picks a backend.
fn pick(service: &Service) -> String {
    let backends: Vec<String> = service
        .backends
        .iter()
        .enumerate()
        .map(|(j, backend)| format!("{j} : {}", backend.replace(':', " . ")))
        .collect();
    let (protocol, count) = (service.protocol, backends.len());
    format!("meta l4proto {protocol} dnat ip to numgen random mod {count} map {{ {} }}", backends.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::recorded_services;
    use super::*;

    /// Returns the sets, maps and chains of a table by name, without comments and in words.
    fn parts(text: &str) -> BTreeMap<String, String> {
        let mut plain = String::new();
        for (place, part) in text.split('"').enumerate() {
            // Every other part is the text of a comment.
            plain.push_str(if place % 2 == 0 { part } else { "" });
        }
        let mut parts = BTreeMap::new();
        let mut name = String::new();
        for line in plain.lines() {
            let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "comment").collect();
            if let ["set" | "map" | "chain", _, "{"] = words.as_slice() {
                name = words.join(" ");
            }
            let part: &mut String = parts.entry(name.clone()).or_default();
            part.push_str(&words.join(" "));
            part.push(' ');
        }
        parts.values_mut().for_each(|part| *part = part.split_whitespace().collect::<Vec<_>>().join(" "));
        parts
    }

    #[test]
    fn rules_equal_those_of_kube_proxy() {
        let recorded = include_str!("../../testdata/kube-proxy-1.36.2-nftables.txt");
        let recorded = recorded
            .replace("65XSZ3OQ-default/inner/tcp/", "0")
            .replace("CCU7TZD6-default/outer/udp/", "1")
            .replace("10.96.0.1, ", "");
        let mut recorded = parts(&recorded);
        // The Service `kubernetes` of the cluster that was recorded.
        let own = "service-2QRHZV4L-default/kubernetes/tcp/https";
        assert!(recorded.remove(&format!("chain {own} {{")).is_some());
        let all = recorded.get_mut("map service-ips {").unwrap();
        *all = all.replace(&format!(", 10.96.0.1 . tcp . 443 : goto {own}"), "");
        let mut ours = parts(&rules(&recorded_services()));
        // The table ends with whatever comes last.
        for parts in [&mut ours, &mut recorded] {
            parts.values_mut().for_each(|part| *part = part.trim_end_matches(" }").to_owned());
        }
        assert_eq!(ours, recorded);
    }
}
