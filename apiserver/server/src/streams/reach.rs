//! Rules for the addresses that a request may be forwarded to: pure functions on addresses that were looked
//! up.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use apiserver_schema::error::ApiError;
use userspace_daemon::addresses::is_global_unicast;

/// The addresses of this API server, to which it must not proxy.
#[derive(Clone, Debug, Default)]
pub struct OwnAddresses {
    /// The addresses that it listens on or advertises.
    pub listeners: Vec<SocketAddr>,
    /// Cluster addresses of the Service `kubernetes`, on any port.
    pub services: Vec<IpAddr>,
}

impl OwnAddresses {
    /// Returns `true` if `address` leads back to this server. A port that it listens on belongs to it on every
    /// address of its machine, as `is_local` knows them.
    fn include(&self, address: SocketAddr, is_local: impl Fn(IpAddr) -> bool) -> bool {
        let ip = address.ip().to_canonical();
        let mut listeners = self.listeners.iter().filter(|own| own.port() == address.port());
        let listens = listeners.clone().next().is_some();
        self.services.iter().any(|own| own.to_canonical() == ip)
            || listeners.any(|own| own.ip().to_canonical() == ip)
            || (listens && is_local(ip))
    }
}

/// Returns `true` if an address is one of this machine: only such can be bound.
pub fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// 400 unless a request may be sent on to every one of the addresses that a host has: one that may not
/// could be the one that is dialled.
pub fn check(
    addresses: &[SocketAddr],
    loopback: bool,
    own: &OwnAddresses,
    is_local: impl Fn(IpAddr) -> bool,
) -> Result<(), ApiError> {
    if addresses.is_empty() {
        return Err(ApiError::bad_request("no addresses for hostname"));
    }
    let allowed = |address: &SocketAddr| {
        let ip = address.ip().to_canonical();
        (is_global_unicast(ip) || (loopback && ip.is_loopback())) && !own.include(*address, &is_local)
    };
    if addresses.iter().all(allowed) { Ok(()) } else { Err(ApiError::bad_request("address not allowed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(address: &str, loopback: bool) -> bool {
        let own = OwnAddresses {
            listeners: vec!["0.0.0.0:6443".parse().unwrap(), "192.0.2.1:6443".parse().unwrap()],
            services: vec!["10.96.0.1".parse().unwrap()],
        };
        let local = |ip: IpAddr| ip.is_loopback() || ip == IpAddr::from([198, 51, 100, 7]);
        match check(&[address.parse().unwrap()], loopback, &own, local) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!((error.code, error.message.as_str()), (400, "address not allowed"));
                false
            }
        }
    }

    #[test]
    fn loopback_link_local_and_other_special_addresses_are_refused() {
        for address in [
            "127.0.0.1:10250",
            "127.8.8.8:10250",
            "[::1]:10250",
            "[::ffff:127.0.0.1]:10250",
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[fe80::1]:10250",
            "224.0.0.1:10250",
            "[ff02::1]:10250",
            "0.0.0.0:10250",
            "0.1.2.3:10250",
            "[::]:10250",
            "255.255.255.255:10250",
        ] {
            assert!(!allowed(address, false), "{address}");
        }
        for address in ["192.0.2.9:10250", "10.0.0.5:80", "[fd00::5]:10250", "100.64.0.1:10250"] {
            assert!(allowed(address, false), "{address}");
        }
        assert!(allowed("127.0.0.1:10250", true), "a kubelet on the same machine");
        assert!(!allowed("169.254.169.254:80", true));
    }

    #[test]
    fn the_api_server_itself_is_refused_by_each_of_its_addresses() {
        for address in [
            "127.0.0.1:6443",
            "[::ffff:127.0.0.1]:6443",
            "198.51.100.7:6443",
            "192.0.2.1:6443",
            "[::ffff:192.0.2.1]:6443",
            "10.96.0.1:443",
            "10.96.0.1:6443",
        ] {
            assert!(!allowed(address, true), "{address}");
        }
        assert!(allowed("198.51.100.7:10250", true), "the kubelet beside it");
        assert!(allowed("198.51.100.8:6443", true), "another machine");
    }

    #[test]
    fn one_address_that_is_refused_is_enough() {
        let addresses = ["192.0.2.9:1".parse().unwrap(), "127.0.0.1:1".parse().unwrap()];
        let none = OwnAddresses::default();
        assert_eq!(check(&addresses, false, &none, |_| false).unwrap_err().message, "address not allowed");
        assert_eq!(check(&[], false, &none, |_| false).unwrap_err().message, "no addresses for hostname");
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        assert!(is_local([127, 0, 0, 1].into()));
        assert!(!is_local([192, 0, 2, 1].into()));
    }
}
