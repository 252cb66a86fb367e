//! Addresses and ranges as Kubernetes reads them: leading zeros are decimal, and an IPv4-mapped IPv6 address
//! is an IPv4 address. The apiserver refuses both in new objects; old ones keep them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the unspecified address, which stands for any address of the node.
    pub(super) fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// Parses an address that traffic can be sent to.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let parsed = text.parse().or_else(|_| without_zeros(text).parse()).ok()?;
    Some(IpAddr::to_canonical(&parsed)).filter(|address| !address.is_unspecified())
}

/// Parses a range, with or without white space around it.
pub(super) fn range(text: &str) -> Option<IpNetwork> {
    let (address, bits) = text.trim().split_once('/')?;
    let parsed: IpAddr = address.parse().or_else(|_| without_zeros(address).parse()).ok()?;
    let range = IpNetwork::new(parsed, bits.parse().ok()?).ok()?;
    // Equal ranges are equal values, whatever address in the range they were written with.
    IpNetwork::new(range.network(), range.prefix()).ok()
}

/// Removes leading zeros: `010.0.0.1` becomes `10.0.0.1`. Text that is not a dotted quad is unchanged.
fn without_zeros(text: &str) -> Cow<'_, str> {
    if text.contains(':') {
        return Cow::Borrowed(text);
    }
    let digits = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    Cow::Owned(text.split('.').map(digits).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_leniently_but_not_made_up() {
        let read = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(read("10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("010.000.00.001").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("fd00:0::1").as_deref(), Some("fd00::1"));
        for wrong in ["", "None", "0.0.0.0", "::", "10..0.1", "10.0.0.256", "1.2.3"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn ranges_are_trimmed_and_cut_to_their_bits() {
        let read = |text: &str| range(text).map(|range| range.to_string());
        assert_eq!(read(" 192.168.7.9/16\t").as_deref(), Some("192.168.0.0/16"));
        assert_eq!(read("0.0.0.0/0").as_deref(), Some("0.0.0.0/0"));
        assert_eq!(read("2001:db8::1/32").as_deref(), Some("2001:db8::/32"));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "here/8", "10.0.0.0/", ""] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
