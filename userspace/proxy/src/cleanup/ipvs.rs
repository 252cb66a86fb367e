//! kube-proxy's virtual servers in the output of `ipvsadm-save -n`, and its sets in that of
//! `ipset list -n`. Pure.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// The interface that carries services' addresses in the IPVS mode.
pub const INTERFACE: &str = "kube-ipvs0";

/// Returns the virtual servers to delete, each as the arguments of `ipvsadm`. If the interface above exists,
/// kube-proxy owns all of them except those whose addresses it was told to leave alone.
pub fn virtual_servers(save: &str, excluded: &[IpNetwork]) -> Vec<Vec<String>> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == "-A").then_some(())?;
        let (protocol, address) = (words.next()?, words.next()?);
        (protocol != "-f").then_some(())?;
        let host = address.rsplit_once(':')?.0;
        let host: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
        let left_alone = excluded.iter().any(|range| range.contains(host));
        (!left_alone).then(|| vec!["-D".to_owned(), protocol.to_owned(), address.to_owned()])
    };
    save.lines().filter_map(server).collect()
}

/// The longest name that a set can have; longer ones are cut.
const LONGEST: usize = 31;
/// Names of kube-proxy's sets after `KUBE-` and, for IPv6, `6-`.
const SETS: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-SOURCE-CIDR",
    "LOAD-BALANCER-SOURCE-IP",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];

/// Returns the sets to destroy.
pub fn sets(names: &str) -> Vec<&str> {
    let is_kube_proxys = |name: &&str| {
        let Some(rest) = name.strip_prefix("KUBE-") else { return false };
        let short = rest.strip_prefix("6-").unwrap_or(rest);
        let cut = || name.len() == LONGEST && SETS.iter().any(|set| set.starts_with(short));
        SETS.contains(&short) || cut()
    };
    names.lines().map(str::trim).filter(is_kube_proxys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_virtual_servers_go_but_those_left_alone() {
        let save = "-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1\n\
            -A -u [fd00::a]:53 -s rr\n-A -t 203.0.113.5:80 -s wlc\n-A -f 7 -s rr\n";
        let found = virtual_servers(save, &["203.0.113.0/24".parse().unwrap()]);
        assert_eq!(found, [["-D", "-t", "10.96.0.1:443"], ["-D", "-u", "[fd00::a]:53"]]);
    }

    #[test]
    fn sets_are_known_by_their_names() {
        let names = "KUBE-CLUSTER-IP\nKUBE-6-LOOP-BACK\nKUBE-SRC-MINE\ncali40all\n\
            KUBE-6-LOAD-BALANCER-SOURCE-CID\n";
        let expected = ["KUBE-CLUSTER-IP", "KUBE-6-LOOP-BACK", "KUBE-6-LOAD-BALANCER-SOURCE-CID"];
        assert_eq!(sets(names), expected);
    }
}
