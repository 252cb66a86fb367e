//! The open datagram sockets. The maps of an earlier layout keep the peers of closed sockets until there is
//! no room: copied as they are, they would evict those in use.

use std::collections::BTreeSet;

use super::Socket;
use crate::destroy::{diag, namespaces};

/// Cookies of the datagram sockets without a peer, of all visible network namespaces.
#[derive(Debug, Default)]
pub struct Open(BTreeSet<u64>);

impl Open {
    /// Returns those of this moment. If some cannot be listed, that is logged, and they are missing.
    pub fn now() -> Self {
        // The thread changes its network namespace.
        #[expect(clippy::disallowed_methods, reason = "it enters namespaces, and is joined at once")]
        let listed = std::thread::scope(|scope| scope.spawn(list).join());
        match listed {
            Ok(Ok(cookies)) => Self(cookies),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot list open datagram sockets");
                Self::default()
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Divides sockets into those that are open, and those that are gone or elsewhere, the youngest of them
    /// first. (Each processor has its own run of cookies, so that is only a guess.)
    pub fn divide(&self, sockets: Vec<Socket>) -> (Vec<Socket>, Vec<Socket>) {
        let is_open = |socket: &Socket| self.0.contains(&socket.cookie);
        let (open, mut others): (Vec<_>, Vec<_>) = sockets.into_iter().partition(is_open);
        others.sort_by_key(|socket| std::cmp::Reverse(socket.cookie));
        (open, others)
    }
}

fn list() -> std::io::Result<BTreeSet<u64>> {
    let mut cookies = BTreeSet::new();
    let mut first = Ok(());
    namespaces::Home::here()?.visit(|_| {
        match diag::Socket::open().and_then(|mut socket| socket.unconnected_datagrams()) {
            Ok(found) => cookies.extend(found.iter().map(diag::Found::cookie)),
            Err(error) => first = Err(error),
        }
        true
    })?;
    if cookies.is_empty() { first.map(|()| cookies) } else { Ok(cookies) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::socket::direction;

    #[test]
    fn open_sockets_are_told_from_others_the_youngest_first() {
        let socket = |cookie| Socket {
            cookie,
            protocol: 17,
            direction: direction::FORWARD,
            key: ([10, 96, 0, 1].into(), 53),
            value: ([10, 1, 0, 5].into(), 53),
            service: 1,
            connected: None,
        };
        let (open, others) = Open(BTreeSet::from([2, 6])).divide([1, 2, 3, 4, 5, 6, 9].map(socket).to_vec());
        let cookies = |sockets: Vec<Socket>| sockets.iter().map(|socket| socket.cookie).collect::<Vec<_>>();
        assert_eq!((cookies(open), cookies(others)), (vec![2, 6], vec![9, 5, 4, 3, 1]));
    }

    #[test]
    fn own_sockets_are_listed() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut cookie = 0_u64;
        let mut length = size_of::<u64>() as libc::socklen_t;
        // SAFETY: value and length live on the stack for the length of the call.
        let result = unsafe {
            libc::getsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&socket),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        };
        assert_eq!(result, 0);
        assert!(Open::now().0.contains(&cookie));
    }
}
