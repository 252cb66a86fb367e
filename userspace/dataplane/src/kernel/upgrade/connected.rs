//! Writes sockets that are connected to a service, concurrently with the programs: see [`Connected`].

use std::io;
use std::mem::offset_of;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use ebpf_common::flow::{FlowTags, WAYS, tag};
use ebpf_common::socket::Connected;

use super::Socket;
use crate::convert::{word, words};
use crate::map::{self, MappedArray};

/// Slots and tags, mapped for writing.
pub struct ConnectedWriter {
    slots: MappedArray<Connected>,
    tags: MappedArray<FlowTags>,
}

impl ConnectedWriter {
    /// Maps the arrays pinned in `directory`.
    pub fn open(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            slots: MappedArray::open(&directory.join("CONNECTED"), true)?,
            tags: MappedArray::open(&directory.join("CONNECTED_TAGS"), true)?,
        })
    }

    /// Inserts a socket; `false` if it exists already, since that entry is newer. `None` if its set is full.
    pub fn insert(&self, slot: &Connected) -> Option<bool> {
        let (set, own) = (Connected::set(slot.cookie), Connected::tag(slot.cookie));
        let place = |way: u32| self.tags.word(set as usize, way as usize);
        if (0..WAYS).any(|way| place(way).load(SeqCst) == own) {
            return Some(false);
        }
        let claim = |way: &u32| place(*way).compare_exchange(tag::EMPTY, own, SeqCst, SeqCst).is_ok();
        let way = (0..WAYS).find(claim)?;
        // The cookie comes last. Until then the slot has that of a socket which is gone.
        const COOKIE: usize = offset_of!(Connected, cookie) / 4;
        let index = Connected::element(set, way) as usize;
        let words = map::words(slot);
        let rest = (0..words.len()).filter(|word| *word != COOKIE && *word != COOKIE + 1);
        for place in rest.chain([COOKIE + 1, COOKIE]) {
            self.slots.word(index, place).store(words[place], SeqCst);
        }
        Some(true)
    }

    /// Frees the slot of a socket.
    pub fn remove(&self, cookie: u64) {
        let (set, own) = (Connected::set(cookie), Connected::tag(cookie));
        for way in 0..WAYS {
            let place = self.tags.word(set as usize, way as usize);
            let _ = place.compare_exchange(own, tag::EMPTY, SeqCst, SeqCst);
        }
    }
}

/// Returns the slot of a socket; `None` if it is not connected.
pub fn slot(socket: &Socket) -> Option<Connected> {
    let netns = socket.connected?;
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => [word(address), 0, 0, 0],
        IpAddr::V6(address) => words(address),
    };
    Some(Connected {
        cookie: socket.cookie,
        netns,
        frontend: address(socket.value.0),
        backend: address(socket.key.0),
        frontend_port: socket.value.1.to_be(),
        backend_port: socket.key.1.to_be(),
        service: socket.service,
        protocol: u16::from(socket.protocol),
        family: if socket.key.0.is_ipv4() { 4 } else { 6 },
        reserved: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::limits;
    use ebpf_common::socket::direction;

    fn socket(cookie: u64) -> Socket {
        Socket {
            cookie,
            protocol: 6,
            direction: direction::REVERSE,
            key: ([10, 1, 0, 5].into(), 8_080),
            value: ([10, 96, 0, 1].into(), 80),
            service: 9,
            connected: Some(0),
        }
    }

    #[test]
    fn a_socket_is_put_in_once_and_a_full_set_takes_no_more() {
        let writer = ConnectedWriter {
            slots: MappedArray::anonymous(limits::CONNECTED as usize),
            tags: MappedArray::anonymous(Connected::SETS as usize),
        };
        // Cookies of one set.
        let cookie = |number: u64| 7 * u64::from(WAYS) + number * u64::from(limits::CONNECTED);
        for number in 0..u64::from(WAYS) {
            let one = slot(&socket(cookie(number))).unwrap();
            assert_eq!(writer.insert(&one), Some(true));
            assert_eq!(writer.insert(&one), Some(false));
        }
        assert_eq!(writer.insert(&slot(&socket(cookie(99))).unwrap()), None);
        let read = writer.slots.get(Connected::element(7, 2) as usize);
        assert_eq!((read.cookie, read.service, read.family), (cookie(2), 9, 4));
        assert_eq!((u16::from_be(read.frontend_port), u16::from_be(read.backend_port)), (80, 8_080));
        writer.remove(cookie(2));
        assert_eq!(writer.insert(&slot(&socket(cookie(99))).unwrap()), Some(true));
        assert_eq!(slot(&Socket { connected: None, ..socket(1) }), None);
    }
}
