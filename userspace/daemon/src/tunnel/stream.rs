//! A connection inside of a tunnel, as a byte stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::io_error;
use crate::limits;

/// The half of a stream that is read.
pub(super) struct Reader {
    receive: RecvStream,
    /// Bytes of the last frame that nobody has read yet.
    rest: Bytes,
    ended: bool,
}

impl Reader {
    pub fn new(receive: RecvStream) -> Self {
        Self { receive, rest: Bytes::new(), ended: false }
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.rest.is_empty() && !this.ended {
            match ready!(this.receive.poll_data(context)) {
                Some(data) => this.rest = data.map_err(io_error)?,
                None => this.ended = true,
            }
        }
        let taken = this.rest.len().min(buffer.remaining());
        buffer.put_slice(&this.rest[..taken]);
        this.rest.advance(taken);
        // The peer may send as much again.
        this.receive.flow_control().release_capacity(taken).map_err(io_error)?;
        Poll::Ready(Ok(()))
    }
}

/// The half of a stream that is written. If it is dropped before its end, the peer is told that the stream is broken.
pub(super) struct Writer {
    send: SendStream<Bytes>,
    ended: bool,
}

impl Writer {
    pub fn new(send: SendStream<Bytes>) -> Self {
        Self { send, ended: false }
    }

    /// Waits until the peer breaks the stream off, and returns the error of that.
    pub async fn broken(&mut self) -> io::Error {
        match std::future::poll_fn(|context| self.send.poll_reset(context)).await {
            Ok(reason) => io_error(reason.into()),
            Err(error) => io_error(error),
        }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let wanted = bytes.len().min(limits::TUNNEL_COPY);
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        self.send.reserve_capacity(wanted);
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(context)) {
                Some(more) => {
                    more.map_err(io_error)?;
                }
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let taken = wanted.min(self.send.capacity());
        self.send.send_data(Bytes::copy_from_slice(&bytes[..taken]), false).map_err(io_error)?;
        // A part that an idle stream keeps reserved is one that the others of its tunnel do not have.
        self.send.reserve_capacity(0);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection sends what it has.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ended {
            self.ended = true;
            self.send.send_data(Bytes::new(), true).map_err(io_error)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.ended {
            // Without it the stream would wait for a peer that takes nothing, and keep its place in the tunnel.
            self.send.send_reset(Reason::CANCEL);
        }
    }
}

/// A connection inside of a tunnel. `P` is what it holds as long as it exists.
pub struct TunnelStream<P> {
    reader: Reader,
    writer: Writer,
    _place: P,
}

impl<P> TunnelStream<P> {
    pub(super) fn new(reader: Reader, writer: Writer, place: P) -> Self {
        Self { reader, writer, _place: place }
    }
}

impl<P: Unpin> AsyncRead for TunnelStream<P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl<P: Unpin> AsyncWrite for TunnelStream<P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}
