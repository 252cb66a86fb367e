//! One question to one upstream: a socket with a random port for each, connected, so that the kernel passes
//! datagrams of the upstream's address and port alone.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::reply::{Reply, ReplyError};
use crate::limits;

/// An upstream did not answer a question.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("cannot ask the upstream {upstream}")]
    Io {
        upstream: SocketAddr,
        #[source]
        cause: io::Error,
    },
    #[error("the upstream {0} did not answer in time")]
    Timeout(SocketAddr),
    #[error("the upstream {upstream} gave an answer that cannot be used")]
    Reply {
        upstream: SocketAddr,
        #[source]
        cause: ReplyError,
    },
}

/// Sends a query and returns its answer: by UDP, and by TCP if the answer is truncated or `tcp` is set.
pub async fn exchange(
    upstream: SocketAddr,
    query: &[u8],
    tcp: bool,
    limit: Duration,
) -> Result<Reply, ExchangeError> {
    let attempt = async {
        if !tcp {
            match by_udp(upstream, query).await {
                Err(ExchangeError::Reply { cause: ReplyError::Truncated, .. }) => {}
                done => return done,
            }
        }
        by_tcp(upstream, query).await
    };
    tokio::time::timeout(limit, attempt).await.unwrap_or(Err(ExchangeError::Timeout(upstream)))
}

async fn by_udp(upstream: SocketAddr, query: &[u8]) -> Result<Reply, ExchangeError> {
    let failed = |cause| ExchangeError::Io { upstream, cause };
    let any: SocketAddr = match upstream {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.map_err(failed)?;
    socket.connect(upstream).await.map_err(failed)?;
    socket.send(query).await.map_err(failed)?;
    let mut buffer = vec![0; limits::REQUEST];
    for _ in 0..limits::WRONG_ANSWERS {
        let length = socket.recv(&mut buffer).await.map_err(failed)?;
        match Reply::read(&buffer[..length], query) {
            // A forged answer must not end the wait for the true one.
            Err(ReplyError::Other) => {}
            Err(cause) => return Err(ExchangeError::Reply { upstream, cause }),
            Ok(reply) => return Ok(reply),
        }
    }
    Err(ExchangeError::Reply { upstream, cause: ReplyError::Other })
}

async fn by_tcp(upstream: SocketAddr, query: &[u8]) -> Result<Reply, ExchangeError> {
    let failed = |cause| ExchangeError::Io { upstream, cause };
    let mut stream = TcpStream::connect(upstream).await.map_err(failed)?;
    let length = (query.len() as u16).to_be_bytes();
    stream.write_all(&[&length, query].concat()).await.map_err(failed)?;
    let length = stream.read_u16().await.map_err(failed)?;
    // What has not arrived takes no memory.
    let mut message = Vec::new();
    stream.take(length.into()).read_to_end(&mut message).await.map_err(failed)?;
    Reply::read(&message, query).map_err(|cause| ExchangeError::Reply { upstream, cause })
}
