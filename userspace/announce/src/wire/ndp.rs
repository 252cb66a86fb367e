//! Neighbour Discovery (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use super::{ETHERTYPE_IPV6, Frame, HEADER, Heard, Mac, Sender, header, ipv6, mac};

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options: the sender's link-layer address, and the target's.
const SOURCE: u8 = 1;
const TARGET: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Length of an IPv6 header.
const IPV6: usize = 40;
/// Hop limit of packets that no router has forwarded.
const ON_LINK: u8 = 255;

pub(super) fn parse(frame: &[u8]) -> Option<Frame> {
    let packet = frame.get(HEADER..)?;
    let body = packet.get(IPV6..)?;
    let valid = packet[0] >> 4 == 6 && packet[6] == ICMPV6 && packet[7] == ON_LINK;
    if !valid || body.len() < 24 || body[1] != 0 {
        return None;
    }
    let (from, target) = (ipv6(&packet[8..24])?, ipv6(&body[8..24])?);
    let sender = mac(&frame[6..12])?;
    let (heard, sender) = match body[0] {
        SOLICITATION if from.is_unspecified() => (Heard::Probe, sender),
        SOLICITATION => (Heard::Question, option(&body[24..], SOURCE).unwrap_or(sender)),
        ADVERTISEMENT => {
            let owner = option(&body[24..], TARGET).unwrap_or(sender);
            (Heard::Claim(owner), owner)
        }
        _ => return None,
    };
    let sender = Sender { mac: sender, address: IpAddr::V6(from) };
    Some(Frame { address: IpAddr::V6(target), heard, sender })
}

/// Returns the link-layer address in an option of this kind.
fn option(mut options: &[u8], kind: u8) -> Option<Mac> {
    // An option's length is in units of 8 bytes.
    while let [this, units, ..] = options {
        let option = options.get(..usize::from(*units) * 8).filter(|option| !option.is_empty())?;
        if *this == kind {
            return mac(option.get(2..8)?);
        }
        options = &options[option.len()..];
    }
    None
}

pub(super) fn probe(address: Ipv6Addr, own: Mac) -> Vec<u8> {
    let group = solicited_node(address);
    build((own, Ipv6Addr::UNSPECIFIED), (multicast(group), group), SOLICITATION, 0, address, &[])
}

pub(super) fn announcement(address: Ipv6Addr, own: Mac) -> Vec<u8> {
    advertise(address, own, (multicast(ALL_NODES), ALL_NODES), OVERRIDE)
}

pub(super) fn answer(address: Ipv6Addr, own: Mac, to: &Sender) -> Vec<u8> {
    match to.address {
        IpAddr::V6(asker) if !asker.is_unspecified() => {
            advertise(address, own, (to.mac, asker), SOLICITED | OVERRIDE)
        }
        _ => announcement(address, own),
    }
}

/// Returns the multicast group to which questions about an address go.
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Returns the Ethernet address of a multicast group.
fn multicast(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

fn advertise(address: Ipv6Addr, own: Mac, to: (Mac, Ipv6Addr), flags: u8) -> Vec<u8> {
    let option = [&[TARGET, 1][..], &own.0].concat();
    build((own, address), to, ADVERTISEMENT, flags, address, &option)
}

fn build(
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: &[u8],
) -> Vec<u8> {
    let mut body = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    body.extend(target.octets());
    body.extend(option);
    let length = (body.len() as u16).to_be_bytes();
    let sum = checksum(&[&from.1.octets()[..], &to.1.octets(), &length, &[0, ICMPV6], &body]);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = header(to.0, from.0, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0, length[0], length[1], ICMPV6, ON_LINK]);
    frame.extend(from.1.octets());
    frame.extend(to.1.octets());
    frame.extend(body);
    frame
}

/// Returns the Internet checksum of parts of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
