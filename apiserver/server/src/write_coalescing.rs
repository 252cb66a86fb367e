//! Writes of one HTTP/2 connection, gathered.
//!
//! The HTTP/2 library flushes behind every frame that carries a body. Each such flush would be a TLS
//! record, a call of the kernel and a packet, and wake the client, though the answers to other
//! requests of the connection are often ready in the same moment. So a flush behind new bytes only asks
//! for another turn of the connection's task; when that brings nothing new, the bytes are sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are gathered at most: four TLS records.
const MOST: usize = 64 * 1024;
/// A buffer that is larger is given back when it is empty; most connections wait most of the time.
const KEPT: usize = 4 * 1024;

/// A stream whose task polls `poll_flush` in each of its turns, as that of an HTTP/2 connection does.
pub struct Corked<S> {
    stream: S,
    /// Bytes that wait, from `sent` on.
    buffer: Vec<u8>,
    sent: usize,
    /// Bytes came since the last flush.
    fresh: bool,
}

impl<S: AsyncWrite + Unpin> Corked<S> {
    /// Wraps `stream` and buffers writes to it.
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), sent: 0, fresh: false }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.buffer.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.buffer[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.sent = 0;
        self.buffer.clear();
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let size: usize = parts.iter().map(|part| part.len()).sum();
        if this.buffer.len() + size > MOST {
            ready!(this.poll_drain(cx))?;
        }
        let mut taken = 0;
        for part in parts {
            let room = MOST - this.buffer.len();
            let part = &part[..part.len().min(room)];
            this.buffer.extend_from_slice(part);
            taken += part.len();
        }
        this.fresh = true;
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if std::mem::take(&mut this.fresh) {
            // Others that are about to answer have their turn first.
            cx.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// One flush, as one turn of a task makes it.
    async fn flush<S: AsyncWrite + Unpin>(stream: &mut Corked<S>) {
        poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await.unwrap();
    }

    #[tokio::test]
    async fn bytes_are_sent_by_the_flush_that_follows_nothing_new() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut near = Corked::new(near);
        let mut seen = [0; 16];
        near.write_all(b"one ").await.unwrap();
        flush(&mut near).await;
        near.write_all(b"two").await.unwrap();
        flush(&mut near).await;
        assert!(futures::FutureExt::now_or_never(far.read(&mut seen)).is_none(), "they are gathered");
        flush(&mut near).await;
        assert_eq!(far.read(&mut seen).await.unwrap(), 7);
        assert_eq!(&seen[..7], b"one two");
    }

    #[tokio::test]
    async fn large_writes_pass_through_whole_and_in_order() {
        let (near, mut far) = tokio::io::duplex(10_000);
        let mut near = Corked::new(near);
        let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            for piece in sent.chunks(17_001) {
                near.write_all(piece).await.unwrap();
            }
            near.shutdown().await.unwrap();
            assert!(near.buffer.capacity() <= KEPT);
        });
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.unwrap();
        writer.await.unwrap();
        assert!(seen == expected);
    }
}
