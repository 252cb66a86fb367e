//! The sockets' state in an earlier layout, written to our maps.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6};

use super::connected::{self, ConnectedWriter};
use super::open::Open;
use super::{Predecessor, Socket};
use crate::convert;
use crate::limits::{OPEN_SOCKETS_PART, OTHER_SOCKETS_PART};
use crate::map::HashTable;

impl Predecessor {
    /// Copies sockets. Our programs must be attached, since a slot in `CONNECTED` is freed when its socket is
    /// closed. With `slots` false only the sockets without one are copied.
    pub(super) fn carry_sockets(
        &self,
        maps: &Path,
        id: &dyn Fn(u32) -> Option<u32>,
        slots: bool,
    ) -> io::Result<usize> {
        let connected = ConnectedWriter::open(maps)?;
        let (mut carried, mut others) = (0, Vec::new());
        for socket in self.reader.sockets()? {
            let Some(service) = id(socket.service) else { continue };
            let socket = Socket { service, ..socket };
            let Some(slot) = connected::slot(&socket) else {
                others.push(socket);
                continue;
            };
            match if slots { connected.insert(&slot) } else { Some(false) } {
                Some(put) => {
                    // It may have been closed meanwhile, before its slot could be freed.
                    if put && !self.reader.holds(&socket)? {
                        connected.remove(socket.cookie);
                    }
                    carried += usize::from(put);
                }
                None => others.push(socket),
            }
        }
        // Read after the peers: a socket that has been closed since needs nothing any more.
        let (open, gone) = Open::now().divide(others);
        carried += put_peers(maps, &open, OPEN_SOCKETS_PART)?;
        if slots {
            carried += put_peers(maps, &gone, OTHER_SOCKETS_PART)?;
        }
        Ok(carried)
    }
}

/// Writes the peers of sockets without a slot, in this order; at most one in `part` of the room.
fn put_peers(maps: &Path, sockets: &[Socket], part: usize) -> io::Result<usize> {
    let sockets4: HashTable<SocketKey4, Socket4> = HashTable::open(&maps.join("SOCKETS4"))?;
    let sockets6: HashTable<SocketKey6, Socket6> = HashTable::open(&maps.join("SOCKETS6"))?;
    let room = |limit: u32| limit as usize / part;
    let (mut carried4, mut carried6) = (0, 0);
    for socket in sockets {
        let Socket { cookie, protocol, direction, service, .. } = *socket;
        let (port, to_port) = (socket.key.1.to_be(), socket.value.1.to_be());
        match (socket.key.0, socket.value.0) {
            (IpAddr::V4(address), IpAddr::V4(to)) if carried4 < room(sockets4.max_entries()) => {
                let address = convert::word(address);
                let key = SocketKey4 { cookie, address, port, protocol, direction };
                let address = convert::word(to);
                let value = Socket4 { address, port: to_port, service, ..Socket4::default() };
                carried4 += usize::from(sockets4.insert_new(&key, &value)?);
            }
            (IpAddr::V6(address), IpAddr::V6(to)) if carried6 < room(sockets6.max_entries()) => {
                let address = convert::words(address);
                let key = SocketKey6 { cookie, address, port, protocol, direction, reserved: 0 };
                let address = convert::words(to);
                let value = Socket6 { address, port: to_port, service, ..Socket6::default() };
                carried6 += usize::from(sockets6.insert_new(&key, &value)?);
            }
            _ => {}
        }
    }
    Ok(carried4 + carried6)
}
