//! Labels of Services and addresses.

use std::net::IpAddr;

/// Namespace and name of a Service in wire form: the labels `web` and `shop` of Service shop/web.
pub type Key = Box<[u8]>;

/// Returns the label of an address, such as `10-0-0-1`.
pub fn hyphenated(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// Returns the address of a label such as `10-0-0-1` or `2001-db8--1`.
pub fn dashed(label: &[u8]) -> Option<IpAddr> {
    let mut text = [0; 63];
    let text = text.get_mut(..label.len())?;
    text.copy_from_slice(label);
    let as_v4 = label.iter().filter(|byte| **byte == b'-').count() == 3;
    for separator in if as_v4 { [b'.', b':'] } else { [b':', b':'] } {
        for (byte, old) in text.iter_mut().zip(label) {
            *byte = if *old == b'-' { separator } else { *old };
        }
        let address = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        // IPv4 in the notation of IPv6 has dots, which no label has.
        if address.is_some() && !label.contains(&b'.') && !label.contains(&b':') {
            return address;
        }
    }
    None
}

/// Returns the key of a Service.
pub fn key(name: &str, namespace: &str) -> Key {
    let mut key = Vec::with_capacity(name.len() + namespace.len() + 2);
    for label in [name, namespace] {
        key.push(label.len().min(63) as u8);
        key.extend(label.bytes().take(63).map(|byte| byte.to_ascii_lowercase()));
    }
    key.into_boxed_slice()
}
