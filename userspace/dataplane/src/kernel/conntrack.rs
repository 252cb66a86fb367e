//! ctnetlink: connections that the kernel's own connection tracking translates, by rules of any origin.

use std::io;
use std::net::IpAddr;

use crate::netlink::{Message, Refused, Socket, attribute, attributes};

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
/// Attributes of a connection.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const ID: u16 = 12;
const ZONE: u16 = 18;
const STATUS_MASK: u16 = 26;
/// Attributes of one direction.
const ADDRESSES: u16 = 1;
const PORTS: u16 = 2;
/// Attributes of the state that the protocol has.
const TCP: u16 = 1;
const SCTP: u16 = 3;
const STATE: u16 = 1;
/// The destination is translated (`IPS_DST_NAT`).
const TRANSLATED: u32 = 1 << 5;

/// An address and a port.
pub type End = (IpAddr, u16);

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Opening,
    UnderWay,
    /// Closed; the entry remains for late packets.
    Over,
}

/// A connection whose destination is translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination as the client sees them.
    pub original: (End, End),
    /// Source and destination of replies as the backend sees them.
    pub reply: (End, End),
    pub stage: Stage,
    /// The kernel's id of the entry.
    id: Vec<u8>,
}

impl Entry {
    #[cfg(test)]
    pub fn made(protocol: u8, original: (End, End), reply: (End, End), stage: Stage) -> Self {
        Self { protocol, original, reply, stage, id: Vec::new() }
    }

    /// Parses an entry; `None` if it is in a zone of its own, has no ports, or is not translated.
    fn read(object: &[u8]) -> Option<Self> {
        // The attributes follow `struct nfgenmsg`.
        let object = object.get(4..)?;
        if attribute(object, ZONE).is_some_and(|zone| zone.iter().any(|byte| *byte != 0)) {
            return None;
        }
        let (protocol, original) = ends(attribute(object, ORIGINAL)?)?;
        let (_, reply) = ends(attribute(object, REPLY)?)?;
        if original.1 == reply.0 {
            return None;
        }
        let info = attribute(object, PROTOCOL_INFO);
        let state = |of| info.and_then(|info| attribute(attribute(info, of)?, STATE)?.first().copied());
        let stage = match protocol {
            ebpf_common::protocol::TCP => tcp_stage(state(TCP)),
            ebpf_common::protocol::SCTP => sctp_stage(state(SCTP)),
            _ => Stage::UnderWay,
        };
        Some(Self {
            protocol,
            original,
            reply,
            stage,
            id: attribute(object, ID).unwrap_or_default().to_vec(),
        })
    }
}

/// Returns the stage of an `enum tcp_conntrack`.
fn tcp_stage(state: Option<u8>) -> Stage {
    match state {
        // SYN_SENT, SYN_RECV, SYN_SENT2.
        Some(1 | 2 | 9) => Stage::Opening,
        // TIME_WAIT, CLOSE.
        Some(7 | 8) => Stage::Over,
        _ => Stage::UnderWay,
    }
}

/// Returns the stage of an `enum sctp_conntrack`.
fn sctp_stage(state: Option<u8>) -> Stage {
    match state {
        // COOKIE_WAIT, COOKIE_ECHOED.
        Some(2 | 3) => Stage::Opening,
        // CLOSED, SHUTDOWN_ACK_SENT.
        Some(1 | 7) => Stage::Over,
        _ => Stage::UnderWay,
    }
}

/// Returns protocol, source and destination of one direction.
fn ends(tuple: &[u8]) -> Option<(u8, (End, End))> {
    let addresses = attribute(tuple, ADDRESSES)?;
    let ports = attribute(tuple, PORTS)?;
    let address = |v4: u16, v6: u16| {
        attributes(addresses).find_map(|(kind, value)| {
            if kind == v4 {
                <[u8; 4]>::try_from(value).ok().map(IpAddr::from)
            } else if kind == v6 {
                <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
            } else {
                None
            }
        })
    };
    let port = |kind| attribute(ports, kind)?.try_into().ok().map(u16::from_be_bytes);
    let protocol = *attribute(ports, 1)?.first()?;
    Some((protocol, ((address(1, 3)?, port(2)?), (address(2, 4)?, port(3)?))))
}

/// Adds a direction in the kernel's format.
fn tuple(message: Message, kind: u16, protocol: u8, (source, destination): (End, End)) -> Message {
    message.nested(kind, |tuple| {
        tuple
            .nested(ADDRESSES, |inner| match (source.0, destination.0) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    inner.attribute(1, &source.octets()).attribute(2, &destination.octets())
                }
                (source, destination) => {
                    let octets = |address: IpAddr| match address {
                        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                        IpAddr::V6(address) => address.octets(),
                    };
                    inner.attribute(3, &octets(source)).attribute(4, &octets(destination))
                }
            })
            .nested(PORTS, |inner| {
                inner
                    .attribute(1, &[protocol])
                    .attribute(2, &source.1.to_be_bytes())
                    .attribute(3, &destination.1.to_be_bytes())
            })
    })
}

/// A connection to the connection tracking of the network namespace of the thread that opened it.
pub struct Tracking(Socket);

impl Tracking {
    pub fn open() -> io::Result<Self> {
        Socket::to(libc::NETLINK_NETFILTER).map(Self)
    }

    /// Returns connections whose destination is translated; none if the kernel tracks none. Entries that
    /// change meanwhile may be missing or appear twice. With `all`, the kernel also goes through those
    /// without its mark of a translation, which IPVS does not set.
    pub fn translated(&mut self, all: bool) -> Result<Vec<Entry>, Refused> {
        let mut message = Message::new(GET, 0, &[0; 4]);
        if !all {
            let bits = TRANSLATED.to_be_bytes();
            message = message.attribute(STATUS, &bits).attribute(STATUS_MASK, &bits);
        }
        let mut found = Vec::new();
        let result = self.0.dump_each(message, &mut |object| found.extend(Entry::read(object)));
        match result {
            Err(refused) if is_absent(&refused) => Ok(Vec::new()),
            other => other.map(|()| found),
        }
    }

    /// Removes an entry; returns `false` if it was gone.
    pub fn remove(&mut self, entry: &Entry) -> Result<bool, Refused> {
        let family = if entry.original.0.0.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut message = Message::new(DELETE, 0, &[family as u8, 0, 0, 0]);
        message = tuple(message, ORIGINAL, entry.protocol, entry.original);
        if entry.id.len() == 4 {
            // The id excludes another entry with the same ends.
            message = message.attribute(ID, &entry.id);
        }
        match self.0.change(message) {
            Ok(()) => Ok(true),
            Err(refused) if refused.cause.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(refused) => Err(refused),
        }
    }
}

/// Returns `true` if the kernel has no connection tracking, or no interface to query it.
fn is_absent(refused: &Refused) -> bool {
    matches!(refused.cause.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT))
}

/// Returns `true` if the interface of kube-proxy's IPVS mode exists.
pub fn has_ipvs() -> bool {
    // SAFETY: the name ends with zero.
    unsafe { libc::if_nametoindex(c"kube-ipvs0".as_ptr()) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> End {
        let address: std::net::SocketAddr = text.parse().unwrap();
        (address.ip(), address.port())
    }

    /// Returns an object in the kernel's format.
    fn object(
        protocol: u8,
        original: (End, End),
        reply: (End, End),
        fill: fn(Message) -> Message,
    ) -> Vec<u8> {
        let message = tuple(Message::new(GET, 0, &[2, 0, 0, 0]), ORIGINAL, protocol, original);
        fill(tuple(message, REPLY, protocol, reply)).body().to_vec()
    }

    #[test]
    fn conntrack_entries_are_parsed() {
        let original = (end("10.1.0.9:40000"), end("10.96.0.1:80"));
        let reply = (end("10.1.0.5:8080"), end("192.0.2.1:1025"));
        let established = |message: Message| {
            let info = |info: Message| info.nested(TCP, |tcp| tcp.attribute(STATE, &[3]));
            message.nested(PROTOCOL_INFO, info).attribute(ID, &[1, 2, 3, 4])
        };
        let read = Entry::read(&object(6, original, reply, established)).unwrap();
        let expected = Entry { protocol: 6, original, reply, stage: Stage::UnderWay, id: vec![1, 2, 3, 4] };
        assert_eq!(read, expected);
        // Not translated, or only its source; or in a zone of its own.
        let back = (original.1, original.0);
        assert_eq!(Entry::read(&object(17, original, back, |message| message)), None);
        let zone = |message: Message| message.attribute(ZONE, &[0, 7]);
        assert_eq!(Entry::read(&object(17, original, reply, zone)), None);
        let six = (end("[fd00::9]:40000"), end("[fd00:96::1]:53"));
        let found = Entry::read(&object(17, six, (end("[fd00::5]:53"), six.0), |message| message)).unwrap();
        assert_eq!((found.protocol, found.original, found.stage), (17, six, Stage::UnderWay));
        assert_eq!(Entry::read(&[2, 0, 0, 0, 8, 0, 1, 128, 1]), None);
    }

    #[test]
    fn stages_follow_the_protocols_states() {
        assert_eq!([1, 2, 9].map(|state| tcp_stage(Some(state))), [Stage::Opening; 3]);
        assert_eq!([3, 4, 5, 6].map(|state| tcp_stage(Some(state))), [Stage::UnderWay; 4]);
        assert_eq!([7, 8].map(|state| tcp_stage(Some(state))), [Stage::Over; 2]);
        assert_eq!(
            [1, 2, 4].map(|state| sctp_stage(Some(state))),
            [Stage::Over, Stage::Opening, Stage::UnderWay]
        );
        assert_eq!(tcp_stage(None), Stage::UnderWay);
    }
}
