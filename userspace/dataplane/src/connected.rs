//! The sockets that programs keep by cookie, read concurrently with them.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::flow::{FlowTags, WAYS, tag};
use ebpf_common::socket::Connected;

use crate::convert::{address4, address6};
use crate::map::MappedArray;

/// A socket that is connected to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// Cookie of the socket.
    pub cookie: u64,
    /// Cookie of the network namespace of a datagram socket; else 0.
    pub netns: u64,
    pub service: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// The address that the application connected to.
    pub frontend: (IpAddr, u16),
    /// The address that its packets are sent to.
    pub backend: (IpAddr, u16),
}

/// Slots and tags, mapped for reading.
pub struct ConnectedTable {
    slots: MappedArray<Connected>,
    tags: MappedArray<FlowTags>,
}

impl ConnectedTable {
    /// Maps the arrays pinned in `directory`.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let slots: MappedArray<Connected> = MappedArray::open(&directory.join("CONNECTED"), false)?;
        let tags: MappedArray<FlowTags> = MappedArray::open(&directory.join("CONNECTED_TAGS"), false)?;
        let (lines, length) = (tags.len(), slots.len());
        if lines != Connected::SETS as usize || length != lines * WAYS as usize {
            let text = format!("{lines} lines of tags for {length} slots: another build left them there");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self { slots, tags })
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots that belong to a socket. Reads the tags only.
    pub fn used(&self) -> usize {
        let held = |line| self.tags.get(line).tags.into_iter().filter(|held| *held != tag::EMPTY).count();
        (0..self.tags.len()).map(held).sum()
    }

    /// Returns `true` if some set has no slot left: further sockets of it are kept elsewhere.
    pub fn is_overflowing(&self) -> bool {
        (0..self.tags.len()).any(|line| !self.tags.get(line).tags.contains(&tag::EMPTY))
    }

    /// Returns copies of the connections. One that starts or ends meanwhile may be missing.
    pub fn iter(&self) -> impl Iterator<Item = Connection> + '_ {
        (0..Connected::SETS).flat_map(move |set| {
            let tags = self.tags.get(set as usize).tags;
            let held = (0..WAYS).zip(tags).filter(|(_, held)| *held != tag::EMPTY);
            held.filter_map(move |(way, held)| self.read(set, way, held))
        })
    }

    /// Returns the connection of a socket. `None` if it has no slot, or if it starts or ends meanwhile.
    pub fn get(&self, cookie: u64) -> Option<Connection> {
        let (set, wanted) = (Connected::set(cookie), Connected::tag(cookie));
        let tags = self.tags.get(set as usize).tags;
        let (way, _) = (0..WAYS).zip(tags).find(|(_, held)| *held == wanted)?;
        self.read(set, way, wanted).filter(|connection| connection.cookie == cookie)
    }

    fn read(&self, set: u32, way: u32, held: u32) -> Option<Connection> {
        let slot = self.slots.get(Connected::element(set, way) as usize);
        let again = self.slots.get(Connected::element(set, way) as usize);
        (slot == again).then(|| connection(set, held, &slot)).flatten()
    }
}

/// Returns the connection in a slot; `None` if the slot does not belong, or no longer belongs, to the tag.
fn connection(set: u32, tag: u32, slot: &Connected) -> Option<Connection> {
    if slot.cookie == 0 || Connected::set(slot.cookie) != set || Connected::tag(slot.cookie) != tag {
        return None;
    }
    let address = |words: [u32; 4]| match slot.family {
        4 => Some(IpAddr::V4(address4(words[0]))),
        6 => Some(IpAddr::V6(address6(words))),
        _ => None,
    };
    Some(Connection {
        cookie: slot.cookie,
        netns: slot.netns,
        service: slot.service,
        protocol: u8::try_from(slot.protocol).ok()?,
        frontend: (address(slot.frontend)?, u16::from_be(slot.frontend_port)),
        backend: (address(slot.backend)?, u16::from_be(slot.backend_port)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::word;
    use ebpf_common::limits;

    #[test]
    fn a_slot_counts_when_its_cookie_is_that_of_the_tag() {
        let cookie = 0x12_3456_7890;
        let (set, tag) = (Connected::set(cookie), Connected::tag(cookie));
        let slot = Connected {
            cookie,
            frontend: [word("10.96.0.10".parse().unwrap()), 7, 7, 7],
            backend: [word("10.1.0.5".parse().unwrap()), 0, 0, 0],
            frontend_port: 53_u16.to_be(),
            backend_port: 5_353_u16.to_be(),
            service: 3,
            protocol: 17,
            family: 4,
            ..Connected::default()
        };
        let read = connection(set, tag, &slot).unwrap();
        assert_eq!(read.frontend, ("10.96.0.10".parse().unwrap(), 53));
        assert_eq!(read.backend, ("10.1.0.5".parse().unwrap(), 5_353));
        assert_eq!((read.cookie, read.protocol, read.service), (cookie, 17, 3));
        // Being written, left over from another socket of the set, or of another set.
        assert_eq!(connection(set, tag, &Connected { cookie: 0, ..slot }), None);
        assert_eq!(connection(set, Connected::tag(cookie + u64::from(limits::CONNECTED)), &slot), None);
        assert_eq!(connection(set + 1, tag, &slot), None);
        assert_eq!(connection(set, tag, &Connected { family: 0, ..slot }), None);
    }

    #[test]
    fn no_cookie_has_the_tag_of_a_free_slot() {
        for cookie in [1, u64::from(limits::CONNECTED), u64::from(u32::MAX), u64::MAX] {
            assert_ne!(Connected::tag(cookie), tag::EMPTY);
            assert!(Connected::set(cookie) < Connected::SETS);
        }
        // Cookies of the same set have distinct tags.
        let mut seen = std::collections::BTreeSet::new();
        for cookie in (0..64 * u64::from(limits::CONNECTED)).step_by(7) {
            assert!(seen.insert((Connected::set(cookie), Connected::tag(cookie))), "cookie {cookie}");
        }
    }

    #[test]
    fn a_socket_is_found_among_those_of_its_set() {
        let mut table = ConnectedTable {
            slots: MappedArray::anonymous(limits::CONNECTED as usize),
            tags: MappedArray::anonymous(Connected::SETS as usize),
        };
        let word = word("10.96.0.10".parse().unwrap());
        // Cookies of one set: two adjacent ones, and one of the next round.
        let (set, cookies) = (Connected::set(160), [160, 161, 160 + u64::from(limits::CONNECTED)]);
        let mut tags = FlowTags::default();
        for (way, cookie) in [(9, cookies[0]), (2, cookies[1]), (0, cookies[2])] {
            assert_eq!(Connected::set(cookie), set);
            tags.tags[way as usize] = Connected::tag(cookie);
            let slot = Connected {
                cookie,
                frontend: [word; 4],
                backend: [word; 4],
                service: way,
                protocol: 6,
                family: 4,
                ..Connected::default()
            };
            table.slots.set(Connected::element(set, way) as usize, slot);
        }
        table.tags.set(set as usize, tags);
        let found = cookies.map(|cookie| table.get(cookie).map(|found| (found.cookie, found.service)));
        assert_eq!(found, [Some((cookies[0], 9)), Some((cookies[1], 2)), Some((cookies[2], 0))]);
        assert_eq!(table.get(162), None);
        assert_eq!(table.iter().count(), 3);
    }
}
