//! `--node-ip`: the addresses of a node, one or one of each family, and the choice of those that are not given.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use ipnetwork::IpNetwork;

/// The kernel's list of IPv6 addresses.
const IPV6_ADDRESSES: &str = "/proc/self/net/if_inet6";
/// Flags of that list: an address for privacy that is replaced every day, one that failed because another host has it,
/// one that is on its way out, and one that is still being checked.
const UNSTEADY: u32 = 0x01 | 0x08 | 0x20 | 0x40;
/// The scope of addresses in that list that other networks reach.
const GLOBAL: u32 = 0x00;

/// The value of `--node-ip`: an address, or one of each family, the primary one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIps(Vec<IpAddr>);

impl FromStr for NodeIps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ips = Vec::new();
        for part in text.split(',').map(str::trim) {
            let ip: IpAddr = part.parse().map_err(|_| format!("{part:?} is not an IP address"))?;
            check(ip)?;
            ips.push(ip);
        }
        let [first, others @ ..] = ips.as_slice() else { return Err("it is empty".to_owned()) };
        if others.len() > 1 || others.iter().any(|other| other.is_ipv4() == first.is_ipv4()) {
            return Err("give one address, or one of IPv4 and one of IPv6".to_owned());
        }
        if !others.is_empty() && ips.iter().any(IpAddr::is_unspecified) {
            return Err(
                "0.0.0.0 and :: stand alone: they choose the family of the primary address".to_owned()
            );
        }
        if let Some(ip) = ips.iter().find(|ip| !others.is_empty() && ip.is_loopback()) {
            return Err(format!(
                "{ip} is a loopback address: give one at which other machines reach this one"
            ));
        }
        Ok(Self(ips))
    }
}

impl fmt::Display for NodeIps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

impl NodeIps {
    /// Returns the addresses, the primary one first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0
    }
}

/// Refuses an address by which no other machine reaches a node.
fn check(ip: IpAddr) -> Result<(), String> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let kind = match ip {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => "an IPv4-mapped IPv6",
        _ if ip.is_multicast() => "a multicast",
        _ if link_local => "a link-local",
        _ => return Ok(()),
    };
    Err(format!("{ip} is {kind} address: give one at which other machines reach this one"))
}

/// The addresses of this machine that the routes to other networks choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
}

impl Defaults {
    /// Asks this machine.
    pub fn find() -> Self {
        let ipv4 = match default_source(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))) {
            Some(IpAddr::V4(ip)) => Some(ip),
            _ => None,
        };
        let ipv6 = match default_source(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))) {
            Some(IpAddr::V6(ip)) => {
                let known = std::fs::read_to_string(IPV6_ADDRESSES).unwrap_or_default();
                Some(steady(ip, &known))
            }
            _ => None,
        };
        Self { ipv4, ipv6 }
    }

    fn of(&self, ipv4: bool) -> Option<IpAddr> {
        if ipv4 { self.ipv4.map(IpAddr::V4) } else { self.ipv6.map(IpAddr::V6) }
    }
}

/// Returns the source address of packets to another network, without sending any. The target is an address for
/// documentation (RFC 5737, RFC 3849): only its route is looked up.
fn default_source(target: IpAddr) -> Option<IpAddr> {
    let any = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let ask = |any: IpAddr| -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((target, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    ask(any).ok().filter(|ip| !ip.is_loopback() && !ip.is_unspecified() && check(*ip).is_ok())
}

/// Returns the address itself, or one of the same interface that stays, if the kernel would replace it: temporary
/// addresses are those of clients. `known` is the content of [`IPV6_ADDRESSES`].
fn steady(chosen: Ipv6Addr, known: &str) -> Ipv6Addr {
    let entries: Vec<Entry> = known.lines().filter_map(Entry::read).collect();
    let Some(own) = entries.iter().find(|entry| entry.address == chosen) else { return chosen };
    if own.flags & UNSTEADY == 0 {
        return chosen;
    }
    let network = |ip: Ipv6Addr| ip.to_bits() >> 64;
    let mut others: Vec<&Entry> = entries
        .iter()
        .filter(|one| one.interface == own.interface && one.scope == GLOBAL && one.flags & UNSTEADY == 0)
        .collect();
    // An address of the same network before one of another that happens to be on the interface.
    others.sort_by_key(|one| network(one.address) != network(chosen));
    others.first().map_or(chosen, |one| one.address)
}

/// A line of [`IPV6_ADDRESSES`]: address, interface, prefix length, scope, flags, all hexadecimal, and a name.
struct Entry {
    address: Ipv6Addr,
    interface: u32,
    scope: u32,
    flags: u32,
}

impl Entry {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let address = Ipv6Addr::from_bits(u128::from_str_radix(fields.next()?, 16).ok()?);
        let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
        let (interface, _prefix, scope, flags) = (number()?, number()?, number()?, number()?);
        Some(Self { address, interface, scope, flags })
    }
}

/// Returns the node's addresses, the primary one first: the given ones, or this machine's own of each family that pods
/// have, in the order of the pods' ranges. `0.0.0.0` or `::` chooses the family of the primary one. A machine without
/// an address of any of these families has one of the other family, or loopback.
pub fn choose(given: Option<&NodeIps>, pods: &[IpNetwork], own: &Defaults) -> Vec<IpAddr> {
    let given = given.map(NodeIps::addresses).unwrap_or_default();
    let preferred = match given {
        [] => None,
        [only] if only.is_unspecified() => Some(only.is_ipv4()),
        _ => return given.to_vec(),
    };
    let of_pods = pods.iter().map(IpNetwork::is_ipv4);
    let mut families: Vec<bool> = Vec::new();
    for family in preferred.into_iter().chain(of_pods) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    if let (Some(preferred), true) = (preferred, is_single(pods)) {
        families = vec![preferred];
    }
    let mut chosen: Vec<IpAddr> = families.iter().filter_map(|ipv4| own.of(*ipv4)).collect();
    if chosen.is_empty() {
        chosen.extend(own.of(true).or(own.of(false)));
    }
    if chosen.is_empty() {
        chosen.push(Ipv4Addr::LOCALHOST.into());
    }
    chosen
}

/// Returns `true` unless there are ranges of both families.
fn is_single(pods: &[IpNetwork]) -> bool {
    pods.iter().all(IpNetwork::is_ipv4) || pods.iter().all(IpNetwork::is_ipv6)
}

/// Returns `true` if the machine has this address: no other can be bound.
pub fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Returns the address to listen on so that clients reach all of a node's addresses. A socket on `::` also takes IPv4.
pub fn wildcard(ips: &[IpAddr]) -> IpAddr {
    if ips.iter().any(IpAddr::is_ipv6) { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn node_ip_of_one_or_two_families_is_read_in_its_order() {
        for (text, expected) in [
            ("192.0.2.1", &["192.0.2.1"][..]),
            ("2001:db8::1", &["2001:db8::1"]),
            ("192.0.2.1,2001:db8::1", &["192.0.2.1", "2001:db8::1"]),
            ("2001:db8::1, 192.0.2.1", &["2001:db8::1", "192.0.2.1"]),
            ("::", &["::"]),
        ] {
            let read: NodeIps = text.parse().unwrap();
            assert_eq!(read.addresses(), ips(expected), "{text}");
            assert_eq!(read.to_string().parse::<NodeIps>().unwrap(), read);
        }
    }

    #[test]
    fn node_ip_that_is_no_pair_of_families_is_refused() {
        for (text, words) in [
            ("", "\"\" is not an IP address"),
            ("192.0.2.1,", "\"\" is not an IP address"),
            ("node-1", "\"node-1\" is not an IP address"),
            ("192.0.2.1/24", "\"192.0.2.1/24\" is not an IP address"),
            ("192.0.2.1,192.0.2.2", "one of IPv4 and one of IPv6"),
            ("2001:db8::1,2001:db8::2", "one of IPv4 and one of IPv6"),
            ("192.0.2.1,2001:db8::1,192.0.2.2", "one of IPv4 and one of IPv6"),
            ("0.0.0.0,2001:db8::1", "stand alone"),
            ("192.0.2.1,::", "stand alone"),
            ("192.0.2.1,fe80::1", "fe80::1 is a link-local address"),
            ("192.0.2.1,::1", "::1 is a loopback address"),
            ("169.254.0.1", "169.254.0.1 is a link-local address"),
            ("224.0.0.1", "224.0.0.1 is a multicast address"),
            ("192.0.2.1,::ffff:192.0.2.1", "is an IPv4-mapped IPv6 address"),
        ] {
            let error = text.parse::<NodeIps>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_that_are_not_given_follow_the_pods_families() {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let both =
            Defaults { ipv4: Some("192.0.2.1".parse().unwrap()), ipv6: Some("2001:db8::1".parse().unwrap()) };
        let (v4, v6, none) =
            (Defaults { ipv6: None, ..both }, Defaults { ipv4: None, ..both }, Defaults::default());
        let (one, other) = ("10.244.0.0/16", "fd00:244::/56");
        for (given, pods, own, expected) in [
            (None, &[one][..], both, &["192.0.2.1"][..]),
            (None, &[other], both, &["2001:db8::1"]),
            (None, &[one, other], both, &["192.0.2.1", "2001:db8::1"]),
            (None, &[other, one], both, &["2001:db8::1", "192.0.2.1"]),
            // An address that the machine lacks cannot be chosen.
            (None, &[one, other], v4, &["192.0.2.1"]),
            (None, &[one, other], v6, &["2001:db8::1"]),
            (None, &[other], v4, &["192.0.2.1"]),
            (None, &[one, other], none, &["127.0.0.1"]),
            (Some("::"), &[one], both, &["2001:db8::1"]),
            (Some("::"), &[one], v4, &["192.0.2.1"]),
            (Some("::"), &[one, other], both, &["2001:db8::1", "192.0.2.1"]),
            (Some("0.0.0.0"), &[other, one], both, &["192.0.2.1", "2001:db8::1"]),
            (Some("198.51.100.1"), &[one, other], both, &["198.51.100.1"]),
            (Some("fd00::1,198.51.100.1"), &[one], both, &["fd00::1", "198.51.100.1"]),
        ] {
            let flag = given.map(|text| text.parse::<NodeIps>().unwrap());
            let chosen = choose(flag.as_ref(), &ranges(pods), &own);
            assert_eq!(chosen, ips(expected), "{given:?} {pods:?} {own:?}");
        }
    }

    #[test]
    fn temporary_address_gives_way_to_one_that_stays() {
        let known = "\
            fe800000000000000000000000000002 02 40 20 80     eth0\n\
            20010db8000100000000000000000009 03 40 00 80     eth1\n\
            20010db8000200000000000000000005 02 40 00 80     eth0\n\
            20010db8000100000000000000000666 02 40 00 01     eth0\n\
            20010db8000100000000000000000777 02 40 00 20     eth0\n\
            20010db8000100000000000000000005 02 40 00 80     eth0\n\
            not a line\n";
        let of = |text: &str| steady(text.parse().unwrap(), known).to_string();
        assert_eq!(of("2001:db8:1::666"), "2001:db8:1::5");
        assert_eq!(of("2001:db8:1::777"), "2001:db8:1::5");
        assert_eq!(of("2001:db8:1::9"), "2001:db8:1::9");
        assert_eq!(of("2001:db8:9::9"), "2001:db8:9::9");
        let alone = "20010db8000100000000000000000666 02 40 00 01 eth0\n";
        let chosen: Ipv6Addr = "2001:db8:1::666".parse().unwrap();
        assert_eq!((steady(chosen, alone), steady(chosen, "")), (chosen, chosen));
    }

    #[test]
    fn wildcard_takes_ipv6_where_the_node_has_it() {
        assert_eq!(wildcard(&ips(&["192.0.2.1"])).to_string(), "0.0.0.0");
        assert_eq!(wildcard(&ips(&["192.0.2.1", "2001:db8::1"])).to_string(), "::");
    }

    #[test]
    fn address_of_another_machine_is_not_here() {
        assert!(is_here(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_here(Ipv4Addr::new(192, 0, 2, 77).into()));
    }
}
