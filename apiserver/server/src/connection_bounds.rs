//! Bounds on a connection before there is a request: heads, streams, silence, and malformed requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Method, Request, Response, Version};
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::body::Body;
use crate::clients::connections::Place;
use crate::clients::delivery::StreamTasks;
use crate::clients::frame_limit::{Allowance, Earnings, Frames};
use crate::limits;
use crate::respond;

/// HTTP/1.1 and HTTP/2 within limits.
pub fn builder() -> auto::Builder<StreamTasks> {
    let mut builder = auto::Builder::new(StreamTasks);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD)
        .max_headers(limits::HEADERS)
        .max_buf_size(limits::HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::STREAMS)
        .max_header_list_size(limits::HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(Some(limits::PENDING_RESETS))
        .max_local_error_reset_streams(Some(limits::ERROR_RESETS))
        .keep_alive_interval(Some(limits::KEEP_ALIVE))
        .keep_alive_timeout(limits::KEEP_ALIVE_ANSWER)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .max_send_buf_size(limits::STREAM_SEND_BUFFER);
    builder
}

/// Returns the answer to a request that Go's HTTP server refuses before any handler sees it, in its words;
/// `None` for all others. HTTP/2 has `:authority` in the place of the header `Host`.
pub fn refusal<B>(request: &Request<B>) -> Option<Response<Body>> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let is_one_dot_one = request.version() == Version::HTTP_11 && request.method() != Method::CONNECT;
    let why = match hosts {
        _ if !escapes_are_whole(request.uri().path()) => "",
        0 if is_one_dot_one => ": missing required Host header",
        2.. if request.version() <= Version::HTTP_11 => ": too many Host headers",
        _ => return None,
    };
    let mut response = respond::text(400, format!("400 Bad Request{why}"));
    if request.version() <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}

/// Returns `true` if two hexadecimal digits follow each `%`.
fn escapes_are_whole(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// The bytes that HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol that the peer of a connection speaks.
enum Speech {
    /// So many bytes of [`PREFACE`] have come.
    Unknown(usize),
    /// Not HTTP/2.
    Other,
    Http2(Frames),
}

/// A stream whose peer must soon show which version of HTTP it speaks: before that, the timeouts of neither
/// version run. One that speaks HTTP/2 must not send frames without end (CVE-2019-9512 and others).
pub struct Spoken<T> {
    stream: T,
    speech: Speech,
    /// The allowance for frames of HTTP/2.
    allowance: Allowance,
    earnings: Arc<Earnings>,
    /// Until the version is known.
    head_timeout: Option<Pin<Box<Sleep>>>,
    /// Reads since the connection last let others run.
    reads: usize,
    /// Held as long as the stream is open, even after an upgrade from HTTP.
    place: Option<Place>,
}

impl<T> Spoken<T> {
    /// Begins to wait.
    pub fn soon(stream: T) -> Self {
        let head_timeout = Some(Box::pin(tokio::time::sleep(limits::HEAD)));
        Self {
            stream,
            speech: Speech::Unknown(0),
            allowance: Allowance::new(Instant::now()),
            earnings: Arc::default(),
            head_timeout,
            reads: 0,
            place: None,
        }
    }

    /// Keeps the connection's place in the table until the stream is dropped.
    pub fn with_place(self, place: Place) -> Self {
        Self { earnings: Arc::clone(place.earnings()), place: Some(place), ..self }
    }

    /// Looks at bytes that have come. An error ends the connection.
    fn hear(&mut self, mut new: &[u8]) -> io::Result<()> {
        if let Speech::Unknown(seen) = &mut self.speech {
            let expected = &PREFACE[*seen..];
            let (start, rest) = new.split_at(new.len().min(expected.len()));
            *seen += start.len();
            if start.is_empty() || start != &expected[..start.len()] {
                self.speech = Speech::Other;
            } else if *seen == PREFACE.len() {
                self.speech = Speech::Http2(Frames::default());
            } else {
                return Ok(());
            }
            self.head_timeout = None;
            new = rest;
        }
        if let Speech::Http2(frames) = &mut self.speech
            && !self.allowance.spend(Instant::now(), self.earnings.take(), frames.read(new))
        {
            if let Some(place) = &self.place {
                place.flooded();
            }
            return Err(io::Error::other("the client sends frames of HTTP/2 without end"));
        }
        Ok(())
    }

    /// Counts bytes that the peer has taken.
    fn sent(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.earnings.sent(*bytes);
        }
        written
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Spoken<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // A read may bring a thousand frames that are handled and answered at once, and a client that sends
        // nothing else would occupy a thread.
        if this.reads == limits::READS_IN_A_ROW {
            this.reads = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.reads = if polled.is_ready() { this.reads + 1 } else { 0 };
        if polled.is_ready() {
            this.hear(&buffer.filled()[before..])?;
        } else if let Some(head_timeout) = &mut this.head_timeout
            && head_timeout.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Spoken<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
#[path = "connection_bounds_tests.rs"]
mod tests;
