//! Bytes that are carried from one connection to another.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::limits;

/// Copies bytes until `from` ends, and then ends `to`. Whatever was read before `from` failed is written first.
///
/// # Errors
///
/// Fails if `from` cannot be read, or `to` takes no more.
pub async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; limits::RELAY_BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        write(to, &buffer[..length]).await?;
    }
}

/// Copies the bytes of a client to its server like [`copy`]. That the server takes no more is no error: it may have
/// answered already, and the answer still has to be carried. What the client sends from then on is dropped.
///
/// # Errors
///
/// Fails if the client cannot be read.
pub async fn copy_request(
    client: &mut (impl AsyncRead + Unpin),
    server: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    copy_filtered(client, server, |bytes, passed| passed.extend_from_slice(bytes)).await
}

/// Copies those bytes of a client that `filter` appends to its second argument, like [`copy_request`].
///
/// # Errors
///
/// Fails if the client cannot be read.
pub async fn copy_filtered(
    client: &mut (impl AsyncRead + Unpin),
    server: &mut (impl AsyncWrite + Unpin),
    mut filter: impl FnMut(&[u8], &mut Vec<u8>),
) -> io::Result<()> {
    let (mut buffer, mut passed, mut takes_more) = (vec![0; limits::RELAY_BUFFER], Vec::new(), true);
    loop {
        let length = client.read(&mut buffer).await?;
        if length == 0 {
            // It may have ended by itself.
            let _ = server.shutdown().await;
            return Ok(());
        }
        if takes_more {
            passed.clear();
            filter(&buffer[..length], &mut passed);
            takes_more = write(server, &passed).await.is_ok();
        }
    }
}

async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{ReadBuf, duplex};

    use super::*;

    struct Reset;

    impl AsyncRead for Reset {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    #[tokio::test]
    async fn bytes_read_before_a_failure_are_written() {
        let mut from = b"last words".chain(Reset);
        let (mut to, mut reader) = duplex(64);
        assert_eq!(copy(&mut from, &mut to).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        drop(to);
        let mut received = String::new();
        reader.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "last words");
    }

    #[tokio::test]
    async fn a_server_that_takes_no_more_is_no_error_of_its_client() {
        let (mut near, mut client) = duplex(64);
        let (mut far, server) = duplex(64);
        drop(server);
        client.write_all(b"too late").await.unwrap();
        drop(client);
        copy_request(&mut near, &mut far).await.unwrap();
    }
}
