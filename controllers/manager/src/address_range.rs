//! Ranges of addresses for load balancers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnetwork::IpNetwork;

/// The addresses from one to another of the same family, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// A text is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("{0:?} is neither a CIDR such as 192.0.2.192/27 nor a range such as 192.0.2.200-192.0.2.250")]
    Syntax(String),
    #[error("{first} and {last} are not of the same family")]
    Families { first: IpAddr, last: IpAddr },
    #[error("the range begins with {first}, which is after its end {last}")]
    Order { first: IpAddr, last: IpAddr },
    #[error(
        "{0} is not an address for a load balancer: it is a loopback, multicast, link-local or unspecified one"
    )]
    Kind(IpAddr),
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let text = text.trim();
        let syntax = || RangeError::Syntax(text.to_owned());
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => {
                let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| syntax());
                (address(first)?, address(last)?)
            }
            // A plain address would parse as a range of one; it is as likely to be a mistake.
            None if !text.contains('/') => return Err(syntax()),
            None => {
                let network: IpNetwork = text.parse().map_err(|_| syntax())?;
                (network.network(), network.broadcast())
            }
        };
        if first.is_ipv4() != last.is_ipv4() {
            return Err(RangeError::Families { first, last });
        }
        if first > last {
            return Err(RangeError::Order { first, last });
        }
        match [first, last].into_iter().find(|address| !is_unicast(*address)) {
            Some(address) => Err(RangeError::Kind(address)),
            None => Ok(Self { first, last }),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

impl AddressRange {
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && self.first <= address && address <= self.last
    }

    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// Returns `true` if an address of the range is in the network.
    pub fn overlaps(&self, network: IpNetwork) -> bool {
        network.is_ipv4() == self.is_ipv4()
            && self.first <= network.broadcast()
            && network.network() <= self.last
    }

    /// Returns the lowest address that is not in `taken`, which is sorted.
    pub(crate) fn lowest_free(&self, taken: impl IntoIterator<Item = IpAddr>) -> Option<IpAddr> {
        let mut free = self.first;
        for address in taken {
            if !self.contains(address) || address < free {
                continue;
            }
            if address > free {
                break;
            }
            free = next(free).filter(|next| self.contains(*next))?;
        }
        Some(free)
    }
}

/// Returns the address after this one.
fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => u32::from(address).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(address) => u128::from(address).checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}

fn is_unicast(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_multicast() || address.is_unspecified() || link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn networks_and_pairs_of_addresses_are_read() {
        for (text, expected) in [
            ("192.0.2.240/28", "192.0.2.240-192.0.2.255"),
            ("192.0.2.7/32", "192.0.2.7-192.0.2.7"),
            (" 192.0.2.200 - 192.0.2.250 ", "192.0.2.200-192.0.2.250"),
            ("2001:db8::100/124", "2001:db8::100-2001:db8::10f"),
            ("2001:db8::1-2001:db8::9", "2001:db8::1-2001:db8::9"),
        ] {
            assert_eq!(range(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        for (text, expected) in [
            ("192.0.2.1", "neither a CIDR"),
            ("", "neither a CIDR"),
            ("192.0.2.1-", "neither a CIDR"),
            ("192.0.2.0/33", "neither a CIDR"),
            ("192.0.2.1-2001:db8::1", "not of the same family"),
            ("192.0.2.9-192.0.2.1", "after its end"),
            ("127.0.0.1-127.0.0.9", "loopback"),
            ("ff02::/16", "multicast"),
            ("0.0.0.0/0", "unspecified"),
            ("fe80::/64", "link-local"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn gaps_are_filled_from_the_lowest() {
        let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let lowest = |taken: &[&str]| {
            range("192.0.2.1-192.0.2.3").lowest_free(ips(taken)).map(|address| address.to_string())
        };
        assert_eq!(lowest(&[]).as_deref(), Some("192.0.2.1"));
        assert_eq!(lowest(&["192.0.1.1", "192.0.2.1", "192.0.2.3"]).as_deref(), Some("192.0.2.2"));
        assert_eq!(lowest(&["192.0.2.2", "2001:db8::1"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(lowest(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]), None);
        let last = range("255.255.255.254-255.255.255.254");
        assert_eq!(last.lowest_free(ips(&["255.255.255.254"])), None);
    }

    #[test]
    fn an_overlap_is_found_whichever_contains_the_other() {
        let overlaps = |network: &str| range("192.0.2.100-192.0.2.200").overlaps(network.parse().unwrap());
        assert!(overlaps("192.0.0.0/16") && overlaps("192.0.2.128/30") && overlaps("192.0.2.96/29"));
        assert!(!overlaps("192.0.2.0/26") && !overlaps("192.0.3.0/24") && !overlaps("2001:db8::/32"));
    }
}
