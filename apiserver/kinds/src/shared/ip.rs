//! Validation of IP addresses and ranges. New objects must write them in the usual form; ambiguous spellings, such as
//! those with leading zeros, are accepted only where the stored object has them already (KEP-4858).

use std::net::{IpAddr, Ipv4Addr};

use apiserver_schema::validation::Errors;
use serde_json::json;

const ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

const RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// An address, with or without leading zeros in its decimal parts.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let (head, quad) = match text.rfind(':') {
        Some(colon) => text.split_at(colon + 1),
        None => ("", text),
    };
    let parts: Vec<&str> = quad.split('.').collect();
    let decimal = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if parts.len() != 4 || !parts.iter().all(decimal) {
        return None;
    }
    let plain = |part: &&str| match part.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => digits.to_owned(),
    };
    let quad: Vec<String> = parts.iter().map(plain).collect();
    format!("{head}{}", quad.join(".")).parse().ok()
}

/// A range: the address as written and the length of its prefix.
pub(crate) fn parse_range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let ip = parse(address)?;
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length: u8 = length.parse().ok().filter(|_| digits)?;
    (length <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, length))
}

/// The first address of the range that `ip` and a prefix length describe.
pub(crate) fn network(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// Returns `true` for an IPv4-mapped IPv6 address.
fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// Refuses a text that is not an address; with `strict` also leading zeros and IPv4-mapped addresses.
pub(crate) fn address(text: &str, strict: bool, path: &str, errors: &mut Errors) -> Option<IpAddr> {
    let Some(ip) = parse(text) else {
        errors.invalid(path, &json!(text), ADDRESS);
        return None;
    };
    if strict && text.parse::<IpAddr>().is_err() {
        errors.invalid(path, &json!(text), "must not have leading 0s");
    } else if strict && is_mapped(ip) {
        errors.invalid(path, &json!(text), "must not be an IPv4-mapped IPv6 address");
    }
    Some(ip)
}

/// Refuses a text that is not a CIDR range; with `strict` also ranges in a non-standard form.
pub(crate) fn range(text: &str, strict: bool, path: &str, errors: &mut Errors) -> Option<(IpAddr, u8)> {
    let Some((ip, length)) = parse_range(text) else {
        errors.invalid(path, &json!(text), RANGE);
        return None;
    };
    if strict {
        let (address, digits) = text.split_once('/').unwrap_or((text, ""));
        if address.parse::<IpAddr>().is_err() || (digits.len() > 1 && digits.starts_with('0')) {
            errors.invalid(path, &json!(text), "must not have leading 0s in IP or prefix length");
        } else if is_mapped(ip) {
            errors.invalid(path, &json!(text), "must not have an IPv4-mapped IPv6 address");
        } else if network(ip, length) != ip {
            errors.invalid(path, &json!(text), "must not have bits set beyond the prefix length");
        }
    }
    Some((ip, length))
}

/// Returns the fault of an address that must be in canonical form, as in the name of an IPAddress.
pub(crate) fn canonical_fault(text: &str) -> Option<String> {
    let Some(ip) = parse(text) else { return Some(ADDRESS.to_owned()) };
    if text.parse::<IpAddr>().is_err() {
        Some("must not have leading 0s".to_owned())
    } else if is_mapped(ip) {
        Some("must not be an IPv4-mapped IPv6 address".to_owned())
    } else {
        (ip.to_string() != text).then(|| format!("must be in canonical form (\"{ip}\")"))
    }
}

/// Refuses a text that is not a CIDR range, or not in canonical form.
pub(crate) fn canonical_range(text: &str, path: &str, errors: &mut Errors) {
    let before = errors.count();
    let Some((ip, length)) = range(text, true, path, errors) else { return };
    if errors.count() == before && format!("{ip}/{length}") != text {
        errors.invalid(path, &json!(text), &format!("must be in canonical form (\"{ip}/{length}\")"));
    }
}

/// Refuses a text that is not an interface address with the length of its network, or has a non-standard
/// form.
pub(crate) fn interface_address(text: &str, path: &str, errors: &mut Errors) {
    let Some((ip, length)) = parse_range(text) else {
        let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(path, &json!(text), detail);
    };
    let (plain, length) = match ip.to_canonical() {
        v4 @ IpAddr::V4(_) if ip.is_ipv6() => (v4, length.saturating_sub(96)),
        plain => (plain, length),
    };
    let canonical = format!("{plain}/{length}");
    if text != canonical {
        errors.invalid(path, &json!(text), &format!("must be in canonical form (\"{canonical}\")"));
    }
}

/// Refuses addresses to which traffic would stay on the sender's machine or link.
pub(crate) fn not_special(ip: IpAddr, text: &str, path: &str, errors: &mut Errors) {
    let mut refuse = |wrong: bool, detail: &str| {
        if wrong {
            errors.invalid(path, &json!(text), detail);
        }
    };
    refuse(ip.is_unspecified(), &format!("may not be unspecified ({text})"));
    refuse(ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    let (link, multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    refuse(link, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    refuse(multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
}

/// Returns the warning about an address, if it has one.
pub(crate) fn address_warning(text: &str, path: &str) -> Option<String> {
    let ip = parse(text)?;
    if text.parse::<IpAddr>().is_err() || is_mapped(ip) {
        let better = ip.to_canonical();
        return Some(format!(
            "{path}: non-standard IP address {text:?} will be considered invalid in a future Kubernetes release: use \"{better}\""
        ));
    }
    (ip.is_ipv6() && ip.to_string() != text)
        .then(|| format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{ip}\")"))
}

/// Returns the warnings about a CIDR range.
pub(crate) fn range_warnings(text: &str, path: &str) -> Vec<String> {
    let Some((ip, length)) = parse_range(text) else { return Vec::new() };
    let mut warnings = Vec::new();
    let first = network(ip, length);
    if first != ip {
        let full = if ip.is_ipv4() { 32 } else { 128 };
        warnings.push(format!(
            "{path}: CIDR value {text:?} is ambiguous in this context (should be \"{first}/{length}\" or \"{ip}/{full}\"?)"
        ));
    }
    let written = text.split_once('/').map_or(text, |(address, _)| address);
    if written.parse::<IpAddr>().is_err() || is_mapped(ip) {
        warnings.push(format!(
            "{path}: non-standard CIDR value {text:?} will be considered invalid in a future Kubernetes release: use \"{first}/{length}\""
        ));
    } else if ip.is_ipv6() && format!("{ip}/{length}") != text {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{ip}/{length}\")"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(check: impl FnOnce(&mut Errors)) -> Vec<String> {
        let mut errors = Errors::default();
        check(&mut errors);
        errors.list().into_iter().map(|e| e.message).collect()
    }

    #[test]
    fn odd_spellings_of_addresses_are_refused_in_new_objects() {
        for (text, strict) in [
            ("10.0.0.1", None),
            ("fd00::1", None),
            ("FD00::0:1", None),
            ("010.0.0.1", Some("must not have leading 0s")),
            ("::ffff:1.2.3.4", Some("must not be an IPv4-mapped IPv6 address")),
        ] {
            assert!(
                faults(|e| {
                    address(text, false, "p", e);
                })
                .is_empty(),
                "{text}"
            );
            let found = faults(|e| {
                address(text, true, "p", e);
            });
            assert_eq!(found.first().map(String::as_str).map(|m| m.rsplit(": ").next().unwrap()), strict);
        }
        for text in ["", "10.0.0", "10.0.0.256", "fd00::1%eth0", "10.0.0.1.2", "1.2.3.x"] {
            assert_eq!(
                faults(|e| {
                    address(text, false, "p", e);
                })
                .len(),
                1,
                "{text}"
            );
        }
    }

    #[test]
    fn odd_spellings_of_ranges_are_refused_in_new_objects() {
        for (text, lax, strict) in [
            ("10.0.0.0/8", 0, 0),
            ("::/0", 0, 0),
            ("0.0.0.0/0", 0, 0),
            ("10.0.0.1/8", 0, 1),
            ("010.0.0.0/8", 0, 1),
            ("10.0.0.0/08", 0, 1),
            ("10.0.0.0/33", 1, 1),
            ("10.0.0.0", 1, 1),
            ("10.0.0.0/+8", 1, 1),
        ] {
            assert_eq!(
                faults(|e| {
                    range(text, false, "p", e);
                })
                .len(),
                lax,
                "{text}"
            );
            assert_eq!(
                faults(|e| {
                    range(text, true, "p", e);
                })
                .len(),
                strict,
                "{text}"
            );
        }
        assert_eq!(
            range_warnings("10.0.0.1/8", "p"),
            [
                "p: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)"
            ]
        );
        assert_eq!(
            address_warning("fd00::0:1", "p").as_deref(),
            Some("p: IPv6 address \"fd00::0:1\" should be in RFC 5952 canonical format (\"fd00::1\")")
        );
    }

    #[test]
    fn special_addresses_are_refused() {
        let check = |text: &str| faults(|e| not_special(parse(text).unwrap(), text, "p", e)).len();
        for text in ["0.0.0.0", "::", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "224.0.0.7", "ff02::1"] {
            assert_eq!(check(text), 1, "{text}");
        }
        assert_eq!(check("10.0.0.1"), 0);
    }
}
