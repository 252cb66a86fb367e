//! Requests to the kernel over netlink, with its own error messages; dumps; attributes. Sockets and the
//! framing of messages and attributes are those of netlink-sys and netlink-packet-core.

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use netlink_packet_core::{
    DefaultNla, Emitable, ErrorBuffer, NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP,
    NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlaBuffer, NlasIterator,
};

use crate::limits::ANSWER_BYTES;

const NLMSGERR_ATTR_MSG: u16 = 1;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;

/// The reason why the kernel refused a request.
#[derive(Debug, thiserror::Error)]
pub struct Refused {
    #[source]
    pub cause: io::Error,
    /// The message of the kernel or a driver.
    pub words: Option<String>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.words {
            Some(words) => f.write_str(words),
            None => f.write_str("netlink request refused"),
        }
    }
}

impl From<io::Error> for Refused {
    fn from(cause: io::Error) -> Self {
        Self { cause, words: None }
    }
}

/// A request under construction: its kind, its flags, and what follows the header.
pub struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// Creates a request of a kind, with its fixed part.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        Self { kind, flags, body: fixed.to_vec() }
    }

    /// Creates a request of a kind, as netlink-packet-route describes it.
    pub fn of(kind: u16, flags: u16, message: &impl Emitable) -> Self {
        let mut body = vec![0; message.buffer_len()];
        message.emit(&mut body);
        Self { kind, flags, body }
    }

    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let at = self.body.len();
        self.body.resize(at + attribute.buffer_len(), 0);
        attribute.emit(&mut self.body[at..]);
        self
    }

    /// Returns what follows the header.
    #[cfg(test)]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Adds an attribute that consists of attributes.
    pub fn nested(self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let inner = fill(Self::new(self.kind, self.flags, &[]));
        self.attribute(kind, &inner.body)
    }

    /// Returns the whole message.
    fn bytes(&self, flags: u16, sequence_number: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes.extend(&self.body);
        let length = bytes.len() as u32;
        let mut message = NetlinkBuffer::new(&mut bytes);
        message.set_length(length);
        message.set_message_type(self.kind);
        message.set_flags(self.flags | flags | NLM_F_REQUEST);
        message.set_sequence_number(sequence_number);
        bytes
    }
}

/// A socket in the network namespace of this thread.
pub struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket for interfaces and what is attached to them.
    pub fn open() -> io::Result<Self> {
        Self::to(libc::NETLINK_ROUTE)
    }

    /// Opens a socket to a part of the kernel, one of `NETLINK_*`.
    pub fn to(protocol: i32) -> io::Result<Self> {
        let socket = netlink_sys::Socket::new(protocol as isize)?;
        // A kernel without these options answers with less.
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_ext_ack(true);
        Ok(Self { socket, sequence: 0, buffer: vec![0; ANSWER_BYTES] })
    }

    /// Sets the maximum time to wait for an answer.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let time = libc::timeval {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_usec: timeout.subsec_micros().into(),
        };
        // SAFETY: the value lives for the length of the call, and is as long as stated.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const time).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Requests a change and waits until it is made.
    pub fn change(&mut self, message: Message) -> Result<(), Refused> {
        self.exchange(&message, NLM_F_ACK, &mut |_| {})
    }

    /// Requests one object: the message's fixed part and attributes.
    pub fn get(&mut self, message: Message) -> Result<Option<Vec<u8>>, Refused> {
        let mut last = None;
        self.exchange(&message, NLM_F_ACK, &mut |object| last = Some(object.to_vec()))?;
        Ok(last)
    }

    /// Requests all objects of a kind.
    pub fn dump(&mut self, message: Message) -> Result<Vec<Vec<u8>>, Refused> {
        let mut all = Vec::new();
        self.dump_each(message, &mut |object| all.push(object.to_vec()))?;
        Ok(all)
    }

    /// Dumps as [`Socket::dump`] does, for many objects: they are read in batches.
    pub fn dump_each(&mut self, message: Message, take: &mut dyn FnMut(&[u8])) -> Result<(), Refused> {
        self.exchange(&message, NLM_F_DUMP, take)
    }

    fn exchange(
        &mut self,
        message: &Message,
        flags: u16,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Refused> {
        self.sequence += 1;
        self.socket.send(&message.bytes(flags, self.sequence), 0)?;
        loop {
            let mut room = &mut self.buffer[..];
            let read = match self.socket.recv(&mut room, libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let lot = self.buffer.get(..read).ok_or_else(cut)?;
            if read_answer(lot, self.sequence, take)? {
                return Ok(());
            }
        }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of netlink's is cut short")
}

/// Parses one datagram; returns `true` if the answer is complete.
fn read_answer(mut bytes: &[u8], sequence: u32, take: &mut dyn FnMut(&[u8])) -> Result<bool, Refused> {
    while !bytes.is_empty() {
        let message = NetlinkBuffer::new_checked(bytes).map_err(|_| cut())?;
        let body = message.payload();
        match message.message_type() {
            _ if message.sequence_number() != sequence => {}
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return refusal(body, message.flags()).map_or(Ok(true), Err),
            _ => take(body),
        }
        bytes = bytes.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns the refusal in an acknowledgement, if it is one.
fn refusal(body: &[u8], flags: u16) -> Option<Refused> {
    let Ok(error) = ErrorBuffer::new_checked(body) else {
        return Some(cut().into());
    };
    let code = error.code()?.get().wrapping_neg();
    // The request follows: its header and, unless it was left out, all of it.
    let request = error.payload();
    let length = if flags & NLM_F_CAPPED == 0 { word(request, 0) as usize } else { HEADER };
    let words = request.get(length.next_multiple_of(4)..).filter(|_| flags & NLM_F_ACK_TLVS != 0);
    let words = words.and_then(|rest| attribute(rest, NLMSGERR_ATTR_MSG)).map(text);
    Some(Refused { cause: io::Error::from_raw_os_error(code), words })
}

/// Returns the attributes, by kind.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|attribute: NlaBuffer<&[u8]>| {
        let (kind, length) = (attribute.kind(), attribute.value_length());
        (kind, &attribute.into_inner()[NLA_HEADER_SIZE..NLA_HEADER_SIZE + length])
    })
}

/// Returns the attribute of that kind.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Returns a string that may end with zero.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// Returns the 32 bits at an offset; 0 past the end.
pub fn word(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_attributes_are_read_back() {
        let message = Message::new(44, 0, &[1; 20])
            .attribute(1, b"bpf\0")
            .nested(2, |inner| inner.attribute(7, b"name\0").attribute(8, &1_u32.to_ne_bytes()));
        let body = &message.body()[20..];
        assert_eq!(attribute(body, 1).map(text).as_deref(), Some("bpf"));
        let inner = attribute(body, 2).unwrap();
        assert_eq!(attribute(inner, 7).map(text).as_deref(), Some("name"));
        assert_eq!(word(attribute(inner, 8).unwrap(), 0), 1);
        assert_eq!(attribute(inner, 9), None);
    }

    #[test]
    fn a_refusal_comes_with_the_kernel_s_words() {
        let mut body = (-libc::ERANGE).to_ne_bytes().to_vec();
        body.extend([0; HEADER]);
        body.extend([10, 0, 1, 0]);
        body.extend(b"too b\0");
        let refused = refusal(&body, NLM_F_CAPPED | NLM_F_ACK_TLVS).unwrap();
        assert_eq!(refused.cause.raw_os_error(), Some(libc::ERANGE));
        assert_eq!(refused.words.as_deref(), Some("too b"));
        assert!(refusal(&[0; 20], NLM_F_CAPPED).is_none());
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Message::new(kind, 0, body).bytes(0, 7);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn the_end_an_error_and_rubbish_are_told_apart() {
        let read = |bytes: &[u8]| {
            let mut bodies = Vec::new();
            read_answer(bytes, 7, &mut |body| bodies.push(body.to_vec())).map(|done| (done, bodies))
        };
        assert!(read(&message(NLMSG_DONE, &[0; 4])).unwrap().0);
        assert!(read(&message(NLMSG_ERROR, &[0; 20])).unwrap().0);
        let error = read(&message(NLMSG_ERROR, &(-libc::EOPNOTSUPP).to_ne_bytes())).unwrap_err();
        assert_eq!(error.cause.raw_os_error(), Some(libc::EOPNOTSUPP));
        for length in 1..HEADER {
            assert!(read(&message(NLMSG_DONE, &[])[..length]).is_err());
        }
        // A length of less than a header would never end.
        assert!(read(&[0; 32]).is_err());
        let lot = [message(20, &[1; 5]), message(20, &[2; 4])].concat();
        assert_eq!(read(&lot).unwrap(), (false, vec![vec![1; 5], vec![2; 4]]));
        assert!(!read(&[]).unwrap().0);
    }

    #[test]
    fn the_loopback_interface_is_there_and_another_is_not() {
        let mut socket = Socket::open().unwrap();
        let link = |index: i32| Message::new(18, 0, &[[0; 4], index.to_ne_bytes(), [0; 4], [0; 4]].concat());
        let found = socket.get(link(1)).unwrap().unwrap();
        assert_eq!(attribute(&found[16..], 3).map(text).as_deref(), Some("lo"));
        assert_eq!(socket.get(link(i32::MAX)).unwrap_err().cause.raw_os_error(), Some(libc::ENODEV));
        assert!(!socket.dump(link(0)).unwrap().is_empty());
    }
}
