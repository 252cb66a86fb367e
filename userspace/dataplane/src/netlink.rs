//! As much of netlink as the data plane takes: requests with the kernel's own words on refusal,
//! dumps, attributes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// The answer to a request leaves the request itself out.
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER: usize = 16;

/// Why the kernel refused a request.
#[derive(Debug, thiserror::Error)]
pub struct Refused {
    #[source]
    pub cause: io::Error,
    /// What the kernel or a driver said about it.
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

/// A request in the making.
pub struct Message(Vec<u8>);

impl Message {
    /// One of that kind, with its fixed part.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(fixed);
        Self(bytes)
    }

    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// What follows the header.
    #[cfg(test)]
    pub fn body(&self) -> &[u8] {
        &self.0[HEADER..]
    }

    /// An attribute that is made of attributes.
    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.0.len();
        self = fill(self.attribute(kind, &[]));
        let length = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

/// A socket to the network namespace of this thread.
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// For interfaces and what is attached to them.
    pub fn open() -> io::Result<Self> {
        Self::to(libc::NETLINK_ROUTE)
    }

    /// To a part of the kernel, one of `NETLINK_*`.
    pub fn to(protocol: i32) -> io::Result<Self> {
        const NETLINK_CAP_ACK: i32 = 10;
        const NETLINK_EXT_ACK: i32 = 11;
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel gave this descriptor to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [NETLINK_CAP_ACK, NETLINK_EXT_ACK] {
            let on = 1_i32;
            // SAFETY: the value lives on the stack for the length of the call. A kernel that knows
            // neither option answers with less.
            unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_NETLINK,
                    option,
                    (&raw const on).cast(),
                    size_of::<i32>() as libc::socklen_t,
                )
            };
        }
        Ok(Self { fd, sequence: 0 })
    }

    /// Asks for a change and waits until it is made.
    pub fn change(&mut self, message: Message) -> Result<(), Refused> {
        self.exchange(message, NLM_F_ACK, &mut |_| {})
    }

    /// Asks for one object: the message's fixed part and attributes.
    pub fn get(&mut self, message: Message) -> Result<Option<Vec<u8>>, Refused> {
        let mut last = None;
        self.exchange(message, NLM_F_ACK, &mut |object| last = Some(object.to_vec()))?;
        Ok(last)
    }

    /// Asks for all objects of a kind.
    pub fn dump(&mut self, message: Message) -> Result<Vec<Vec<u8>>, Refused> {
        let mut all = Vec::new();
        self.dump_each(message, &mut |object| all.push(object.to_vec()))?;
        Ok(all)
    }

    /// As [`Socket::dump`], for objects of which there may be many: they are read lot by lot.
    pub fn dump_each(&mut self, message: Message, take: &mut dyn FnMut(&[u8])) -> Result<(), Refused> {
        self.exchange(message, NLM_F_DUMP, take)
    }

    fn exchange(
        &mut self,
        Message(mut bytes): Message,
        flags: u16,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Refused> {
        self.sequence += 1;
        let length = bytes.len() as u32;
        bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        bytes[6] |= (flags | NLM_F_REQUEST) as u8;
        bytes[7] |= (flags >> 8) as u8;
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        // SAFETY: the buffer is as long as stated.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error().into());
        }
        let mut buffer = vec![0_u8; 64 * 1024];
        loop {
            // SAFETY: the buffer is as long as stated.
            let read = unsafe {
                libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC)
            };
            let Ok(read) = usize::try_from(read) else {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error.into());
            };
            if read > buffer.len() {
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
            if read_answer(&buffer[..read], self.sequence, take)? {
                return Ok(());
            }
        }
    }
}

/// Takes one datagram apart; true if the answer is complete.
fn read_answer(mut bytes: &[u8], sequence: u32, take: &mut dyn FnMut(&[u8])) -> Result<bool, Refused> {
    while bytes.len() >= HEADER {
        let length = (word(bytes, 0) as usize).clamp(HEADER, bytes.len());
        let (kind, flags) = (short(bytes, 4), short(bytes, 6));
        let body = &bytes[HEADER..length];
        let mine = word(bytes, 8) == sequence;
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        match kind {
            _ if !mine => {}
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return refusal(body, flags).map_or(Ok(true), Err),
            _ => take(body),
        }
    }
    Ok(false)
}

/// What an acknowledgement says, if it is none.
fn refusal(body: &[u8], flags: u16) -> Option<Refused> {
    let code = (word(body, 0) as i32).wrapping_neg();
    if code == 0 {
        return None;
    }
    // The request follows: its header, and unless it was left out, all of it.
    let request = if flags & NLM_F_CAPPED == 0 { word(body, 4) as usize } else { HEADER };
    let words = body.get(4 + request.next_multiple_of(4)..).filter(|_| flags & NLM_F_ACK_TLVS != 0);
    let words = words.and_then(|rest| attribute(rest, NLMSGERR_ATTR_MSG)).map(text);
    Some(Refused { cause: io::Error::from_raw_os_error(code), words })
}

/// Attributes, by kind.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED_OR_BIG_ENDIAN: u16 = 0xc000;
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(short(bytes, 0)).clamp(4, bytes.len());
        let found = (short(bytes, 2) & !NESTED_OR_BIG_ENDIAN, &bytes[4..length]);
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some(found)
    })
}

/// The attribute of that kind.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A string that may end with zero.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// The 32 bits at an offset; 0 past the end.
pub fn word(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn short(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..offset + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let message = Message::new(44, 0, &[1; 20])
            .attribute(1, b"bpf\0")
            .nested(2, |inner| inner.attribute(7, b"name\0").attribute(8, &1_u32.to_ne_bytes()));
        let body = &message.0[HEADER + 20..];
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
