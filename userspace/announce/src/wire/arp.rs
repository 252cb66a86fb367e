//! ARP (RFC 826) and its use to find conflicts (RFC 5227).

use std::net::{IpAddr, Ipv4Addr};

use super::{BROADCAST, ETHERTYPE_ARP, Frame, HEADER, Heard, Mac, Sender, header, mac};

/// Ethernet, IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

pub(super) fn parse(frame: &[u8]) -> Option<Frame> {
    let packet = frame.get(HEADER..HEADER + 28)?;
    if packet[..6] != KIND {
        return None;
    }
    let address = |at: usize| -> Option<Ipv4Addr> {
        packet.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(Ipv4Addr::from)
    };
    let (sender, from, target) = (mac(&packet[8..14])?, address(14)?, address(24)?);
    let (about, heard) = match u16::from_be_bytes([packet[6], packet[7]]) {
        REQUEST if from == target => (from, Heard::Claim(sender)),
        REQUEST if from.is_unspecified() => (target, Heard::Probe),
        REQUEST => (target, Heard::Question),
        REPLY => (from, Heard::Claim(sender)),
        _ => return None,
    };
    let sender = Sender { mac: sender, address: IpAddr::V4(from) };
    Some(Frame { address: IpAddr::V4(about), heard, sender })
}

pub(super) fn probe(address: Ipv4Addr, own: Mac) -> Vec<u8> {
    build(BROADCAST, REQUEST, (own, Ipv4Addr::UNSPECIFIED), (Mac::default(), address))
}

/// Returns both forms of an announcement: some hosts follow requests only, some replies only.
pub(super) fn announcement(address: Ipv4Addr, own: Mac) -> Vec<Vec<u8>> {
    let request = build(BROADCAST, REQUEST, (own, address), (Mac::default(), address));
    let reply = build(BROADCAST, REPLY, (own, address), (BROADCAST, address));
    vec![request, reply]
}

pub(super) fn answer(address: Ipv4Addr, own: Mac, to: &Sender) -> Vec<u8> {
    let asker = match to.address {
        IpAddr::V4(asker) => asker,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    build(to.mac, REPLY, (own, address), (to.mac, asker))
}

fn build(to: Mac, operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = header(to, sender.0, ETHERTYPE_ARP);
    frame.extend(KIND);
    frame.extend(operation.to_be_bytes());
    for (mac, address) in [sender, target] {
        frame.extend(mac.0);
        frame.extend(address.octets());
    }
    frame
}
