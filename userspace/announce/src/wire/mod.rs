//! The bytes of ARP, NDP and pings: parsed and built here, and nowhere else.

mod arp;
mod ndp;
mod ping;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

pub use ndp::solicited_node;
pub use ping::{Ping, PingKind};

/// The address of an Ethernet interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

const BROADCAST: Mac = Mac([0xff; 6]);
/// Length of an Ethernet header.
const HEADER: usize = 14;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The content of another machine's frame about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A host wants to reach the address.
    Question,
    /// Somebody asks whether the address is free.
    Probe,
    /// Somebody says that the address is theirs.
    Claim(Mac),
}

/// A frame about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub address: IpAddr,
    pub heard: Heard,
    pub sender: Sender,
}

/// The machine that sent a frame, to which an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    pub mac: Mac,
    /// Unspecified in probes.
    pub address: IpAddr,
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    Probe(IpAddr),
    Announce(IpAddr),
    Answer(IpAddr, Sender),
}

/// Reads a frame; `None` if it is not about an address of interest.
pub fn parse(frame: &[u8]) -> Option<Frame> {
    match frame.get(12..HEADER)? {
        bytes if bytes == ETHERTYPE_ARP.to_be_bytes() => arp::parse(frame),
        bytes if bytes == ETHERTYPE_IPV6.to_be_bytes() => ndp::parse(frame),
        _ => None,
    }
}

/// Returns the frames of a message from an interface with this address.
pub fn build(message: &Message, own: Mac) -> Vec<Vec<u8>> {
    match message {
        Message::Probe(IpAddr::V4(address)) => vec![arp::probe(*address, own)],
        Message::Announce(IpAddr::V4(address)) => arp::announcement(*address, own),
        Message::Answer(IpAddr::V4(address), sender) => vec![arp::answer(*address, own, sender)],
        Message::Probe(IpAddr::V6(address)) => vec![ndp::probe(*address, own)],
        Message::Announce(IpAddr::V6(address)) => vec![ndp::announcement(*address, own)],
        Message::Answer(IpAddr::V6(address), sender) => vec![ndp::answer(*address, own, sender)],
    }
}

fn header(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    [to.0.as_slice(), &from.0, &kind.to_be_bytes()].concat()
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

fn ipv6(bytes: &[u8]) -> Option<Ipv6Addr> {
    <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const HOST: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn host(address: &str) -> Sender {
        Sender { mac: HOST, address: address.parse().unwrap() }
    }

    fn read(message: Message) -> Vec<(String, Heard)> {
        let frames = build(&message, OWN).into_iter();
        frames
            .map(|frame| parse(&frame).unwrap())
            .map(|frame| (frame.address.to_string(), frame.heard))
            .collect()
    }

    #[test]
    fn other_nodes_understand_probes_announcements_and_answers() {
        for (address, asker) in [("192.0.2.240", "192.0.2.7"), ("2001:db8::240", "2001:db8::7")] {
            let ip = address.parse().unwrap();
            let expected = |heard| (address.to_owned(), heard);
            assert_eq!(read(Message::Probe(ip)), [expected(Heard::Probe)]);
            assert!(read(Message::Announce(ip)).iter().all(|one| *one == expected(Heard::Claim(OWN))));
            assert_eq!(read(Message::Answer(ip, host(asker))), [expected(Heard::Claim(OWN))]);
        }
    }

    #[test]
    fn an_arp_request_is_read_and_answered_byte_by_byte() {
        let request: Vec<u8> = [
            &[0xff; 6][..],
            &HOST.0,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &HOST.0,
            &[192, 0, 2, 7],
            &[0; 6],
            &[192, 0, 2, 240],
            &[0; 18],
        ]
        .concat();
        let frame = parse(&request).unwrap();
        assert_eq!((frame.address, frame.heard), ("192.0.2.240".parse().unwrap(), Heard::Question));
        assert_eq!(frame.sender, host("192.0.2.7"));
        let answer = build(&Message::Answer(frame.address, frame.sender), OWN).remove(0);
        let expected: Vec<u8> = [
            &HOST.0[..],
            &OWN.0,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
            &OWN.0,
            &[192, 0, 2, 240],
            &HOST.0,
            &[192, 0, 2, 7],
        ]
        .concat();
        assert_eq!(answer, expected);
    }

    #[test]
    fn a_neighbour_advertisement_has_the_checksum_that_receivers_check() {
        let address: Ipv6Addr = "2001:db8::240".parse().unwrap();
        let answer = build(&Message::Answer(address.into(), host("2001:db8::7")), OWN).remove(0);
        assert_eq!(answer.len(), 86);
        assert_eq!((&answer[..6], answer[20], answer[21], answer[54]), (&HOST.0[..], 58, 255, 136));
        assert_eq!(answer[58] & 0xe0, 0x60, "solicited and override");
        let sum =
            |bytes: &[u8]| bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum::<u32>();
        let total = sum(&answer[22..]) + 32 + 58;
        assert_eq!((total & 0xffff) + (total >> 16), 0xffff);
        let all = build(&Message::Announce(address.into()), OWN).remove(0);
        assert_eq!((&all[..6], all[58] & 0xe0), (&[0x33, 0x33, 0, 0, 0, 1][..], 0x20));
        let probe = build(&Message::Probe(address.into()), OWN).remove(0);
        assert_eq!((&probe[..6], &probe[22..38]), (&[0x33, 0x33, 0xff, 0, 2, 0x40][..], &[0; 16][..]));
        // The answer to a probe goes to all nodes, since the sender has no address.
        let asker = parse(&probe).unwrap().sender;
        let told = build(&Message::Answer(address.into(), asker), HOST).remove(0);
        assert_eq!(&told[38..54], &"ff02::1".parse::<Ipv6Addr>().unwrap().octets());
    }

    #[test]
    fn frames_from_beyond_the_link_and_of_other_kinds_are_ignored() {
        let address = "2001:db8::240".parse().unwrap();
        let mut probe = build(&Message::Probe(address), OWN).remove(0);
        probe[21] = 254;
        assert_eq!(parse(&probe), None, "a router has forwarded it");
        let mut arp = build(&Message::Probe("192.0.2.1".parse().unwrap()), OWN).remove(0);
        arp[21] = 9;
        assert_eq!(parse(&arp), None);
    }

    proptest! {
        #![proptest_config(crate::seeded::config(256))]

        #[test]
        fn no_bytes_are_too_odd_to_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..3) {
            let mut frame = bytes;
            if frame.len() > HEADER {
                let ethertype = [ETHERTYPE_ARP, ETHERTYPE_IPV6, 0x0800][kind as usize];
                frame[12..HEADER].copy_from_slice(&ethertype.to_be_bytes());
            }
            let _ = parse(&frame);
            let _ = Ping::parse(&frame);
        }
    }
}
