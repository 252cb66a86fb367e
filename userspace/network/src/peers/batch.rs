//! A netlink socket that writes many requests with one system call. The kernel works them off before the call
//! returns, so that thousands of routes take milliseconds and nothing waits for an answer.

use std::io;

use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

use crate::netlink::NetlinkError;

/// Requests of one system call. The kernel answers each failure with a message of about 1 KiB of the socket's
/// buffer, of which it has 208 KiB.
const REQUESTS: usize = 128;
/// Size of the buffer for answers; the kernel fills at most 32 KiB at a time.
const ANSWER_BYTES: usize = 64 * 1024;

/// A request with its flags.
pub(super) struct Request {
    pub message: RouteNetlinkMessage,
    /// Flags besides those of every request, such as `NLM_F_CREATE`.
    pub flags: u16,
}

/// A socket in the network namespace of the thread that opened it.
pub(super) struct Batch {
    socket: Socket,
    answer: Vec<u8>,
}

impl Batch {
    pub fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Errors do not repeat the request.
            socket.set_cap_ack(true)?;
            // Lists can be limited to a table; without it they are only longer.
            let _ = socket.set_netlink_get_strict_chk(true);
            Ok(socket)
        };
        let socket = open().map_err(NetlinkError::Open)?;
        Ok(Self { socket, answer: Vec::with_capacity(ANSWER_BYTES) })
    }

    /// Carries out all requests, in order. Returns those that failed, by index.
    pub fn write(&mut self, requests: Vec<Request>) -> io::Result<Vec<(usize, io::Error)>> {
        let mut failed = Vec::new();
        let mut first = 0;
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let mut bytes = Vec::new();
            let mut count = 0;
            while count < REQUESTS
                && let Some(mut request) = requests.next()
            {
                count += 1;
                if count == REQUESTS || requests.peek().is_none() {
                    // The kernel answers the other requests only if they fail.
                    request.flags |= NLM_F_ACK;
                }
                encode(request, count, &mut bytes);
            }
            self.send(&bytes)?;
            self.read_outcome(count, |index, error| failed.push((first + index, error)))?;
            first += count;
        }
        Ok(failed)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.send(bytes, 0)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
        }
    }

    /// Reads answers up to the acknowledgement of the last request.
    fn read_outcome(&mut self, last: usize, mut fail: impl FnMut(usize, io::Error)) -> io::Result<()> {
        loop {
            let mut ended = false;
            self.receive(|header, payload| {
                let NetlinkPayload::Error(answer) = payload else { return };
                let sequence = header.sequence_number as usize;
                if answer.code.is_some() {
                    fail(sequence.saturating_sub(1), answer.to_io());
                }
                ended |= sequence == last;
            })?;
            if ended {
                return Ok(());
            }
        }
    }

    /// Lists objects. `read` gets each message.
    pub fn list(
        &mut self,
        message: RouteNetlinkMessage,
        mut read: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(Request { message, flags: NLM_F_DUMP }, 0, &mut bytes);
        self.send(&bytes)?;
        loop {
            let mut end = None;
            self.receive(|_, payload| match payload {
                NetlinkPayload::InnerMessage(message) => read(message),
                NetlinkPayload::Done(_) => end = Some(Ok(())),
                NetlinkPayload::Error(answer) => end = Some(Err(answer.to_io())),
                _ => {}
            })?;
            if let Some(outcome) = end {
                return outcome;
            }
        }
    }

    fn receive(
        &mut self,
        mut each: impl FnMut(NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>),
    ) -> io::Result<()> {
        self.answer.clear();
        self.socket.recv(&mut self.answer, 0)?;
        let mut rest = self.answer.as_slice();
        while !rest.is_empty() {
            let length = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?.length() as usize;
            // An object that cannot be parsed is none that we look for.
            if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
                let (header, payload) = message.into_parts();
                each(header, payload);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Appends a request. `sequence` is repeated in the answer.
fn encode(request: Request, sequence: usize, bytes: &mut Vec<u8>) {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | request.flags;
    header.sequence_number = u32::try_from(sequence).unwrap_or_default();
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request.message));
    message.finalize();
    let start = bytes.len();
    bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
    message.serialize(&mut bytes[start..]);
}
