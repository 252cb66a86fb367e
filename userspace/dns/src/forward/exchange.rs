//! One question to one upstream: a socket with a random port for each, connected, so that the kernel passes
//! datagrams of the upstream's address and port alone.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use apiserver_meta::ambient::Random;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout_at};
use userspace_daemon::metrics::Counter;

use super::question::Question;
use super::reply::{Reply, ReplyError};
use super::tls::Tls;
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

/// The way to ask an upstream.
#[derive(Clone, Copy)]
pub struct Link<'a> {
    pub upstream: SocketAddr,
    /// By TCP alone.
    pub tcp: bool,
    /// By TLS alone.
    pub tls: Option<&'a Tls>,
    /// The case of letters is random, and the answer has to repeat it.
    pub mixed: bool,
    /// Datagrams that were not the answer.
    pub wrong: &'a Counter,
}

/// Asks a question and returns its answer: by TLS if that is given, otherwise by UDP, and by TCP if the answer is truncated or forged, or if
/// `tcp` is set.
pub async fn exchange(
    link: &Link<'_>,
    question: &Question,
    random: &dyn Random,
    limit: Duration,
) -> Result<Reply, ExchangeError> {
    let query = |mixed| question.random_query(random, mixed);
    let attempt = async {
        let mut unlike = false;
        if let Some(tls) = link.tls {
            return by_tls(link.upstream, tls, &query(false)).await;
        }
        if !link.tcp {
            match by_udp(link, &query(link.mixed), link.mixed).await {
                Err(ExchangeError::Reply { cause: ReplyError::Truncated | ReplyError::Flood, .. }) => {}
                Err(ExchangeError::Reply { cause: ReplyError::Case, .. }) => unlike = true,
                done => return done,
            }
        }
        match by_tcp(link.upstream, &query(link.mixed)).await {
            // A forger has to guess two ids and ports in a row, where there is no TCP.
            Err(ExchangeError::Io { .. }) if unlike => by_udp(link, &query(true), false).await,
            done => done,
        }
    };
    let out_of_time = Err(ExchangeError::Timeout(link.upstream));
    tokio::time::timeout(limit, attempt).await.unwrap_or(out_of_time)
}

/// Sends a query until its answer arrives. With `exact` the answer must repeat the case of the question.
async fn by_udp(link: &Link<'_>, query: &[u8], exact: bool) -> Result<Reply, ExchangeError> {
    let upstream = link.upstream;
    let failed = |cause| ExchangeError::Io { upstream, cause };
    let refused = |cause| Err(ExchangeError::Reply { upstream, cause });
    let any: SocketAddr = match upstream {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.map_err(failed)?;
    socket.connect(upstream).await.map_err(failed)?;
    socket.send(query).await.map_err(failed)?;
    let mut buffer = vec![0; limits::REQUEST];
    let mut pause = limits::REPEAT;
    let (mut again, mut wrong) = (Instant::now() + pause, 0);
    loop {
        let Ok(received) = timeout_at(again, socket.recv_from(&mut buffer)).await else {
            // A datagram may get lost. The same one again gives a forger nothing more to hit.
            socket.send(query).await.map_err(failed)?;
            pause *= 2;
            again = Instant::now() + pause;
            continue;
        };
        let (length, from) = received.map_err(failed)?;
        // A datagram from elsewhere may have come before the socket was connected.
        let is_upstreams = (from.ip(), from.port()) == (upstream.ip(), upstream.port());
        let read = if is_upstreams { Reply::read(&buffer[..length], query) } else { Err(ReplyError::Other) };
        match read {
            Ok(reply) if exact && !reply.echoed => {
                link.wrong.add(1);
                return refused(ReplyError::Case);
            }
            // A forged answer must not end the wait for the true one.
            Err(ReplyError::Other) => {
                link.wrong.add(1);
                wrong += 1;
                if wrong >= limits::WRONG_ANSWERS {
                    return refused(ReplyError::Flood);
                }
            }
            Err(cause) => return refused(cause),
            Ok(reply) => return Ok(reply),
        }
    }
}

async fn by_tcp(upstream: SocketAddr, query: &[u8]) -> Result<Reply, ExchangeError> {
    let stream = TcpStream::connect(upstream).await;
    over(upstream, stream.map_err(|cause| ExchangeError::Io { upstream, cause })?, query).await
}

async fn by_tls(upstream: SocketAddr, tls: &Tls, query: &[u8]) -> Result<Reply, ExchangeError> {
    let connect = async { tls.secure(upstream, TcpStream::connect(upstream).await?).await };
    over(upstream, connect.await.map_err(|cause| ExchangeError::Io { upstream, cause })?, query).await
}

/// Sends a query over a connection and reads its answer.
async fn over(
    upstream: SocketAddr,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    query: &[u8],
) -> Result<Reply, ExchangeError> {
    let failed = |cause| ExchangeError::Io { upstream, cause };
    let length = (query.len() as u16).to_be_bytes();
    stream.write_all(&[&length, query].concat()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let length = stream.read_u16().await.map_err(failed)?;
    // Grows as bytes arrive: the announced length alone takes no memory.
    let mut message = Vec::new();
    stream.take(length.into()).read_to_end(&mut message).await.map_err(failed)?;
    Reply::read(&message, query).map_err(|cause| ExchangeError::Reply { upstream, cause })
}
