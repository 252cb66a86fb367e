//! Rules for addresses that connections are made to on behalf of others.

use std::net::IpAddr;

/// Returns `true` if an address is that of one machine or pod, and neither loopback nor link-local, where clouds serve
/// credentials.
pub fn is_global_unicast(ip: IpAddr) -> bool {
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
        return false;
    }
    match ip {
        // The rest of 0.0.0.0/8 means this host, too.
        IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_broadcast() && ip.octets()[0] != 0,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}
