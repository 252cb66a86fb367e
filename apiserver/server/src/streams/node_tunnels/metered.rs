//! The bytes of a tunnel, of which a node may not send frames without end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::clients::frame_limit::{Allowance, Earnings, Frames};

/// A stream over which a node speaks HTTP/2. Frames without data cost, as on the listener; each connection that is opened
/// and all bytes that are sent earn. Frames with data are limited by the windows and by their number.
pub struct Metered<T> {
    stream: T,
    frames: Frames,
    allowance: Allowance,
    earnings: Arc<Earnings>,
}

impl<T> Metered<T> {
    /// Begins to count. `earnings` are those of the connections in the tunnel.
    pub fn new(stream: T, earnings: Arc<Earnings>) -> Self {
        Self { stream, frames: Frames::default(), allowance: Allowance::new(Instant::now()), earnings }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        let cost = this.frames.read_control(&buffer.filled()[before..]);
        if !this.allowance.spend(Instant::now(), this.earnings.take(), cost) {
            return Poll::Ready(Err(io::Error::other("the node sends frames of HTTP/2 without end")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.earnings.sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// A frame of a type with this payload.
    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
    }

    /// Returns how many of a hundred thousand frames of a node pass.
    async fn pass(frame: Vec<u8>) -> usize {
        let (near, mut far) = duplex(64 * 1024);
        let length = frame.len();
        let sending = tokio::spawn(async move {
            for _ in 0..100_000 {
                if far.write_all(&frame).await.is_err() {
                    return;
                }
            }
        });
        let mut metered = Metered::new(near, Arc::default());
        let (mut buffer, mut bytes) = (vec![0; 16 * 1024], 0);
        while let Ok(read @ 1..) = metered.read(&mut buffer).await {
            bytes += read;
        }
        drop(metered);
        sending.await.unwrap();
        bytes / length
    }

    #[tokio::test]
    async fn flood_of_pings_settings_or_resets_is_cut_off_and_data_is_not() {
        for (kind, payload) in [(0x6, &[0; 8][..]), (0x4, &[]), (0x3, &[0; 4]), (0x8, &[0; 4]), (0xbe, &[])] {
            let passed = pass(frame(kind, payload)).await;
            assert!(passed < 10_000, "{passed} of type {kind:#x}");
        }
        assert_eq!(pass(frame(0, b"x")).await, 100_000);
    }
}
