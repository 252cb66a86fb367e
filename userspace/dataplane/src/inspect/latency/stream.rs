//! A TCP connection in the format in which the kernel lists it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Ends;

/// Offsets in `struct inet_diag_msg`, and its length.
mod message {
    pub const FAMILY: usize = 0;
    pub const LOCAL_PORT: usize = 4;
    pub const REMOTE_PORT: usize = 6;
    pub const LOCAL: usize = 8;
    pub const REMOTE: usize = 24;
    pub const COOKIE: usize = 44;
    pub const LENGTH: usize = 72;
}

/// The attribute with a `struct tcp_info`, and offsets in that. Times are in microseconds.
mod info {
    pub const KIND: u16 = 2;
    pub const RTT: usize = 68;
    pub const RETRANSMITS: usize = 100;
    /// Since Linux 4.6.
    pub const LEAST_RTT: usize = 148;
}

/// A connection with the kernel's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The number by which programs know the socket, too.
    pub cookie: u64,
    /// From this end to the other.
    pub ends: Ends,
    /// In microseconds, smoothed; `None` before the first measurement.
    pub rtt: Option<u32>,
    /// In microseconds; the least of the last minutes.
    pub least_rtt: Option<u32>,
    /// Retransmitted segments since the connection began.
    pub retransmits: u32,
}

impl Stream {
    /// Parses the answer of sock_diag(7) for a socket; `None` for a socket of other families than IPv4 and
    /// IPv6.
    pub fn read(body: &[u8]) -> Option<Self> {
        let family = i32::from(*body.get(message::FAMILY)?);
        let address = |place: usize| -> Option<IpAddr> {
            match family {
                libc::AF_INET => Some(Ipv4Addr::from(bytes::<4>(body, place)?).into()),
                // An IPv6 socket may have an IPv4 peer.
                libc::AF_INET6 => Some(Ipv6Addr::from(bytes::<16>(body, place)?).to_canonical()),
                _ => None,
            }
        };
        let port = |place: usize| bytes(body, place).map(u16::from_be_bytes);
        let measured = attribute(body.get(message::LENGTH..)?, info::KIND).unwrap_or_default();
        let number = |place: usize| bytes(measured, place).map(u32::from_ne_bytes);
        Some(Self {
            cookie: u64::from_ne_bytes(bytes(body, message::COOKIE)?),
            ends: Ends {
                source: (address(message::LOCAL)?, port(message::LOCAL_PORT)?),
                destination: (address(message::REMOTE)?, port(message::REMOTE_PORT)?),
            },
            rtt: number(info::RTT).filter(|time| *time != 0),
            least_rtt: number(info::LEAST_RTT).filter(|time| *time != 0 && *time != u32::MAX),
            retransmits: number(info::RETRANSMITS).unwrap_or(0),
        })
    }
}

fn bytes<const LENGTH: usize>(from: &[u8], place: usize) -> Option<[u8; LENGTH]> {
    from.get(place..place + LENGTH)?.try_into().ok()
}

/// Returns the payload of the first attribute of a kind.
fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    const HEADER: usize = 4;
    loop {
        let length = usize::from(u16::from_ne_bytes(bytes(list, 0)?));
        let kind = u16::from_ne_bytes(bytes(list, 2)?);
        let payload = list.get(HEADER..length)?;
        if kind == wanted {
            return Some(payload);
        }
        list = list.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(body: &mut [u8], place: usize, bytes: &[u8]) {
        body[place..place + bytes.len()].copy_from_slice(bytes);
    }

    fn attribute_of(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [(payload.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn listed(family: i32, local: &[u8], remote: &[u8]) -> Vec<u8> {
        let mut body = vec![0; message::LENGTH];
        body[message::FAMILY] = family as u8;
        put(&mut body, message::LOCAL_PORT, &40_000_u16.to_be_bytes());
        put(&mut body, message::REMOTE_PORT, &8_080_u16.to_be_bytes());
        put(&mut body, message::LOCAL, local);
        put(&mut body, message::REMOTE, remote);
        put(&mut body, message::COOKIE, &0x1_0000_0002_u64.to_ne_bytes());
        body
    }

    fn measured(rtt: u32, least: u32, retransmits: u32) -> Vec<u8> {
        let mut info = vec![0xee; 248];
        put(&mut info, info::RTT, &rtt.to_ne_bytes());
        put(&mut info, info::RETRANSMITS, &retransmits.to_ne_bytes());
        put(&mut info, info::LEAST_RTT, &least.to_ne_bytes());
        info
    }

    #[test]
    fn a_connection_is_read_with_what_was_measured() {
        let mut body = listed(libc::AF_INET, &[10, 1, 0, 5], &[10, 1, 0, 6]);
        body.extend(attribute_of(8, &[1]));
        body.extend(attribute_of(info::KIND, &measured(1_500, 900, 3)));
        let stream = Stream::read(&body).unwrap();
        assert_eq!(stream.cookie, 0x1_0000_0002);
        assert_eq!(stream.ends.source, ("10.1.0.5".parse().unwrap(), 40_000));
        assert_eq!(stream.ends.destination, ("10.1.0.6".parse().unwrap(), 8_080));
        assert_eq!((stream.rtt, stream.least_rtt, stream.retransmits), (Some(1_500), Some(900), 3));
    }

    #[test]
    fn a_mapped_peer_is_one_of_the_older_family() {
        let mapped = |last: u8| Ipv4Addr::new(10, 1, 0, last).to_ipv6_mapped().octets();
        let stream = Stream::read(&listed(libc::AF_INET6, &mapped(5), &mapped(6))).unwrap();
        assert_eq!(stream.ends.destination.0, IpAddr::from([10, 1, 0, 6]));
        let own = "fd00::5".parse::<Ipv6Addr>().unwrap().octets();
        let stream = Stream::read(&listed(libc::AF_INET6, &own, &own)).unwrap();
        assert_eq!(stream.ends.source.0, IpAddr::from(own));
    }

    #[test]
    fn missing_measurements_stay_missing() {
        // Without the attribute, with times that mean none, and with the attribute of an older kernel.
        let plain = listed(libc::AF_INET, &[10, 1, 0, 5], &[10, 1, 0, 6]);
        let with = |info: &[u8]| {
            let mut body = plain.clone();
            body.extend(attribute_of(info::KIND, info));
            let stream = Stream::read(&body).unwrap();
            (stream.rtt, stream.least_rtt, stream.retransmits)
        };
        assert_eq!(Stream::read(&plain).unwrap().rtt, None);
        assert_eq!(with(&measured(0, u32::MAX, 0)), (None, None, 0));
        assert_eq!(with(&measured(7, 5, 1)[..104]), (Some(7), None, 1));
        assert_eq!(Stream::read(&plain[..60]), None);
        assert_eq!(Stream::read(&listed(libc::AF_UNIX, &[], &[])), None);
        // An attribute that claims to be longer than the message, or shorter than its header.
        for length in [200_u16, 0] {
            let mut body = plain.clone();
            body.extend([length.to_ne_bytes(), info::KIND.to_ne_bytes()].concat());
            assert_eq!(Stream::read(&body).unwrap().rtt, None);
        }
    }
}
