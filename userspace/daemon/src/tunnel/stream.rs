//! A connection inside of a tunnel, as a byte stream.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{FlowControl, Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, SimplexStream, WriteHalf, simplex};
use tokio_util::task::AbortOnDropHandle;

use super::io_error;
use crate::limits;

/// The half of a stream that is read. A task takes each frame as it comes and joins the contents: as long as a frame waits
/// within HTTP/2, it keeps the whole block alive that it was read into, and a peer may send one byte a frame. The peer may
/// send more only once the bytes are read here.
pub(super) struct Reader {
    received: ReadHalf<SimplexStream>,
    window: FlowControl,
    /// The error with which the stream ended.
    failure: Arc<OnceLock<io::Error>>,
    _receiving: AbortOnDropHandle<()>,
}

impl Reader {
    pub fn new(mut receive: RecvStream) -> Self {
        let (received, joined) = simplex(limits::TUNNEL_STREAM_WINDOW as usize);
        let window = receive.flow_control().clone();
        let failure = Arc::new(OnceLock::new());
        let receiving = tokio::spawn(join(receive, joined, Arc::clone(&failure)));
        Self { received, window, failure, _receiving: AbortOnDropHandle::new(receiving) }
    }
}

/// Joins the contents of frames until the stream ends. There is always room: it is as large as the stream's window.
async fn join(
    mut receive: RecvStream,
    mut joined: WriteHalf<SimplexStream>,
    failure: Arc<OnceLock<io::Error>>,
) {
    while let Some(data) = receive.data().await {
        let outcome = match data {
            Ok(data) => joined.write_all(&data).await,
            Err(error) => Err(io_error(error)),
        };
        if let Err(error) = outcome {
            // It is set once.
            let _ = failure.set(error);
            break;
        }
    }
    // The reader finds the end after the bytes before it. It fails only if the reader has gone.
    let _ = joined.shutdown().await;
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.received).poll_read(context, buffer))?;
        let taken = buffer.filled().len() - before;
        if taken > 0 {
            // The peer may send as much again.
            this.window.release_capacity(taken).map_err(io_error)?;
        } else if let Some(error) = this.failure.get().filter(|_| buffer.remaining() > 0) {
            return Poll::Ready(Err(io::Error::new(error.kind(), error.to_string())));
        }
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
        let wanted = bytes.len().min(limits::RELAY_BUFFER);
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
