//! The open sockets. A slot in `CONNECTED` is freed when its socket is closed, but the entries of a socket in
//! `SOCKETS4` and `SOCKETS6` outlive it, until others need the room.

use std::collections::BTreeSet;
use std::io;

use ebpf_common::protocol;

use super::latency::Stream;
use crate::destroy::diag;
use crate::destroy::namespaces::Home;

/// Cookies of the sockets of all network namespaces that can be entered: of datagram sockets all that have a
/// port, of TCP those with an established connection.
#[derive(Debug, Default)]
pub struct Open {
    datagrams: BTreeSet<u64>,
    streams: BTreeSet<u64>,
    /// Some namespace could not be asked: an unknown socket may be there.
    partial: bool,
}

impl Open {
    /// Asks the kernel, on a separate thread, which changes its namespace as it goes.
    #[expect(clippy::disallowed_methods, reason = "it enters namespaces, and is joined at once")]
    pub fn now() -> Self {
        let listed = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("hawser-open".to_owned());
            let list = || list().unwrap_or_else(|_| Self { partial: true, ..Self::default() });
            thread.spawn_scoped(scope, list).ok().and_then(|thread| thread.join().ok())
        });
        listed.unwrap_or(Self { partial: true, ..Self::default() })
    }

    /// Returns `true` if the socket is, or may be, open.
    pub fn has(&self, number: u8, cookie: u64) -> bool {
        let known = if number == protocol::TCP { &self.streams } else { &self.datagrams };
        self.partial || known.contains(&cookie)
    }
}

fn list() -> io::Result<Open> {
    let mut open = Open::default();
    Home::here()?.visit(|_| {
        open.partial |= ask(&mut open).is_err();
        true
    })?;
    Ok(open)
}

/// Adds the sockets of the namespace of this thread.
fn ask(open: &mut Open) -> io::Result<()> {
    let mut socket = diag::Socket::open()?;
    for found in [socket.connected_datagrams()?, socket.unconnected_datagrams()?].iter().flatten() {
        open.datagrams.insert(found.cookie());
    }
    socket.streams(|body| open.streams.extend(Stream::read(body).map(|stream| stream.cookie)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfound_sockets_are_gone_unless_a_namespace_was_unreadable() {
        let open = Open { datagrams: [1].into(), streams: [2].into(), partial: false };
        let has = |open: &Open| [1, 2, 3].map(|cookie| open.has(protocol::UDP, cookie));
        assert_eq!(has(&open), [true, false, false]);
        assert_eq!([1, 2].map(|cookie| open.has(protocol::TCP, cookie)), [false, true]);
        assert_eq!(has(&Open { partial: true, ..open }), [true; 3]);
    }

    #[test]
    fn own_sockets_are_found() {
        let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let open = Open::now();
        assert!(open.partial || !open.datagrams.is_empty());
    }
}
