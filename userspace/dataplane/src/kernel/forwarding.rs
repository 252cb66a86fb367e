//! Checks that the kernel forwards packets from uplinks. Otherwise it looks up no next hop for us either, and
//! drops packets that we have translated for a pod or another node.

use std::collections::BTreeSet;

use crate::tables::{Interface, Role};

/// Returns the switches below `/proc/sys` that are off and would have to be on, for the families `ipv4` and
/// `ipv6` that the node has. `read` returns the value of one; `None` if it does not exist.
pub fn off(
    interfaces: &[Interface],
    [ipv4, ipv6]: [bool; 2],
    read: impl Fn(&str) -> Option<String>,
) -> BTreeSet<String> {
    let uplinks = interfaces.iter().filter(|interface| interface.role == Role::Uplink);
    let families = [("ipv4", ipv4), ("ipv6", ipv6)];
    let switches = uplinks.flat_map(|uplink| {
        let of = move |(family, _)| format!("net/{family}/conf/{}/forwarding", uplink.name);
        families.into_iter().filter(|(_, wanted)| *wanted).map(of)
    });
    switches.filter(|switch| read(switch).is_some_and(|value| value.trim() == "0")).collect()
}

/// Returns the value of a switch in the network namespace of this thread.
pub fn read(switch: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/{switch}")).ok()
}

/// Logs the switches that have been switched off since the last time.
pub fn warn(off: &BTreeSet<String>, said: &BTreeSet<String>) {
    for switch in off.difference(said) {
        let family = if switch.starts_with("net/ipv6/") {
            "net.ipv6.conf.all.forwarding"
        } else {
            "net.ipv4.ip_forward"
        };
        tracing::warn!(
            "{switch} is 0: connections that come in there for pods, or for endpoints on other nodes, are \
             lost; set sysctl {family}=1"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_that_do_not_forward_are_named_for_the_families_in_use() {
        let interface = |name: &str, role| Interface { name: name.to_owned(), index: 1, role };
        let interfaces = [
            interface("eth0", Role::Uplink),
            interface("eth0.7", Role::Uplink),
            interface("pod1", Role::Pod),
        ];
        let read = |switch: &str| match switch {
            "net/ipv4/conf/eth0/forwarding" => Some("1\n".to_owned()),
            // A kernel without IPv6 has no such file.
            "net/ipv6/conf/eth0/forwarding" => None,
            _ => Some("0\n".to_owned()),
        };
        let found = |families| off(&interfaces, families, read).into_iter().collect::<Vec<_>>();
        assert_eq!(found([false, false]), Vec::<String>::new());
        assert_eq!(found([true, false]), ["net/ipv4/conf/eth0.7/forwarding"]);
        let both = ["net/ipv4/conf/eth0.7/forwarding", "net/ipv6/conf/eth0.7/forwarding"];
        assert_eq!(found([true, true]), both);
    }
}
