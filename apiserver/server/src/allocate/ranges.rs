//! Arithmetic of address ranges: which addresses may be used, and in which order they are tried.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Returns `true` if a Service may have `address`: in the range, and neither the network's address nor the IPv4
/// broadcast address.
pub(super) fn usable(cidr: &IpNetwork, address: IpAddr) -> bool {
    cidr.contains(address) && address != cidr.network() && !(cidr.is_ipv4() && address == cidr.broadcast())
}

/// Returns the usable addresses, each once, in the order of a dynamic allocation started by `random`.
pub(super) fn dynamic_addresses(cidr: &IpNetwork, random: u64) -> impl Iterator<Item = IpAddr> + use<> {
    let cidr = *cidr;
    let size = size(&cidr);
    // Small ranges have no part for explicit requests.
    let reserved = if size < 16 { 0 } else { (size / 16).clamp(16, 256).min(size - 1) };
    dynamic_offsets(size, reserved, random).map(move |offset| at(&cidr, offset + 1))
}

/// Returns 0 to `size - 1`, each once: from a random place on through the unreserved part, then the reserved
/// lower part in the same way.
pub(super) fn dynamic_offsets(size: u128, reserved: u128, random: u64) -> impl Iterator<Item = u128> + use<> {
    let random = u128::from(random);
    let circle = move |from: u128, to: u128| {
        let length = to - from;
        let start = random.checked_rem(length).unwrap_or_default();
        (0..length).map(move |step| from + (start + step) % length)
    };
    circle(reserved, size).chain(circle(0, reserved))
}

/// Number of usable addresses.
pub(super) fn size(cidr: &IpNetwork) -> u128 {
    let (bits, excluded) = if cidr.is_ipv4() { (32, 2) } else { (128, 1) };
    // More than 2^64 addresses are never needed and would overflow.
    let host_bits = u32::from(bits - cidr.prefix()).min(64);
    (1_u128 << host_bits).saturating_sub(excluded)
}

fn at(cidr: &IpNetwork, offset: u128) -> IpAddr {
    match cidr.network() {
        // The offset is below the size of the range, so neither sum wraps.
        IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).wrapping_add(offset as u32)).into(),
        IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).wrapping_add(offset)).into(),
    }
}
