//! Names below `in-addr.arpa` and `ip6.arpa`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use super::labels::{Key, hyphenated};
use super::records::Records;
use crate::name::{Reversed, labels};

/// The strength of the claim of a name to an address: only the names with the strongest one are answered, so that
/// nobody can give another's address a name of his own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// The address is the Service's own, which the API server allots once.
    Service,
    /// A controller found the address with a pod of the Service's namespace.
    Pod,
    /// The writer of an EndpointSlice says so.
    Written,
}

/// An address, and a name below `svc.DOMAIN` in wire form.
pub type Pointer = (IpAddr, Claim, Key);

/// Returns the names that addresses of a Service lead back to. Within `networks`, the ranges of pods and Services,
/// what was merely written does not count.
pub fn pointers(records: &Records, key: &Key, networks: &[IpNetwork]) -> BTreeSet<Pointer> {
    if !records.headless {
        return records.own.iter().map(|address| (address, Claim::Service, key.clone())).collect();
    }
    let named: BTreeSet<IpAddr> = records.hosts.iter().map(|host| host.address).collect();
    let below = |address: IpAddr, label: &str| {
        let is_written = records.claimed.contains(address);
        if is_written && networks.iter().any(|network| network.contains(address)) {
            return None;
        }
        let mut name = Vec::with_capacity(label.len() + 1 + key.len());
        name.push(label.len() as u8);
        name.extend(label.as_bytes());
        name.extend(&**key);
        let claim = if is_written { Claim::Written } else { Claim::Pod };
        Some((address, claim, name.into_boxed_slice()))
    };
    let hosts = records.hosts.iter().filter_map(|host| below(host.address, &host.label));
    let others = records.own.iter().filter(|address| !named.contains(address));
    hosts.chain(others.filter_map(|address| below(address, &hyphenated(address)))).collect()
}

/// Number of labels of a whole IPv6 address: its nibbles.
const NIBBLES: usize = 32;

/// Returns the address that a name belongs to, such as 10.0.96.1 for `1.96.0.10.in-addr.arpa`; `None` for
/// names of parts of an address and all others.
pub fn address(wire: &[u8]) -> Option<IpAddr> {
    let mut name = Reversed::new(wire);
    if name.next()? != b"arpa" {
        return None;
    }
    match name.next()? {
        b"in-addr" => {
            let mut octets = [0; 4];
            for octet in &mut octets {
                *octet = decimal(name.next()?)?;
            }
            name.next().is_none().then(|| Ipv4Addr::from(octets).into())
        }
        b"ip6" => {
            if labels(name.rest()).count() != NIBBLES {
                return None;
            }
            let mut bits = 0_u128;
            for label in name {
                let [digit] = label else { return None };
                bits = bits << 4 | u128::from(char::from(*digit).to_digit(16)?);
            }
            Some(Ipv6Addr::from(bits).into())
        }
        _ => None,
    }
}

fn decimal(label: &[u8]) -> Option<u8> {
    let is_canonical = label.iter().all(u8::is_ascii_digit) && (label.len() == 1 || label.first()? != &b'0');
    is_canonical.then(|| std::str::from_utf8(label).ok()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    #[test]
    fn whole_addresses_are_found() {
        let found = |text: &str| address(Name::parse(text).unwrap().bytes()).map(|ip| ip.to_string());
        assert_eq!(found("1.0.96.10.in-addr.arpa").as_deref(), Some("10.96.0.1"));
        let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.B.D.0.1.0.0.2.ip6.arpa";
        assert_eq!(found(v6).as_deref(), Some("2001:db8::1"));
        for other in [
            "0.96.10.in-addr.arpa",
            "x.1.0.96.10.in-addr.arpa",
            "01.0.96.10.in-addr.arpa",
            "256.0.96.10.in-addr.arpa",
            "+1.0.96.10.in-addr.arpa",
            "in-addr.arpa",
            "1.0.ip6.arpa",
            "arpa",
            "example.org",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
