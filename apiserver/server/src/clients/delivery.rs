//! Delivery of answers to clients. Every answer to a request over a connection passes through [`deliver`], so
//! that all bytes that wait to be sent are charged, and answers that are not taken are cut off.
//!
//! A body is handed to the HTTP library in slices whose owner notes when the library lets go of them:
//! that is when they have been sent. So no code that makes an answer has to say what it holds, unless
//! that is memory beside the answer's bytes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{AbortHandle, abortable};
use futures::task::AtomicWaker;
use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tower::BoxError;

use super::accounts::Account;
use super::budget::{Budget, Charge};
use super::connections::{Active, Connection, Connections};
use crate::body::Body;
use crate::errors::too_many_requests;
use crate::limits;
use crate::respond;
use crate::respond::Shared;

tokio::task_local! {
    /// Ends the task of the HTTP/2 stream that is being polled, which resets the stream.
    static STREAM: AbortHandle;
}

/// Runs the streams of an HTTP/2 connection as tasks that [`Progress::cut`] can end.
#[derive(Clone, Copy, Default)]
pub struct StreamTasks;

impl<F> hyper::rt::Executor<F> for StreamTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let (stream, handle) = abortable(stream);
        tokio::spawn(STREAM.scope(handle, stream));
    }
}

/// In the extensions of an answer: who asked, and so pays for it.
#[derive(Clone)]
pub struct Payer {
    pub account: Arc<Account>,
    /// True if nothing has been done yet, so that the request may still be refused.
    pub refusable: bool,
    /// The longest time during which the client may take nothing.
    pub stall: Duration,
}

/// Marks, in the extensions of an answer, a body that waits for room by itself: while its client is over the limit it
/// produces nothing new. The delivery polls it at any time, since sending is what gives room back.
#[derive(Clone, Copy)]
pub struct Paced;

/// Gives an answer to the connection. One that does not fit into what its client may hold is refused
/// with 429, unless something was written for it.
pub fn deliver(
    connections: &Connections,
    connection: &Arc<Connection>,
    anonymous: impl FnOnce() -> Arc<Account>,
    active: Active,
    mut response: Response<Body>,
) -> Response<Body> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // No further answer follows. The connection counts as long as its socket is open.
        connection.upgraded();
        return response;
    }
    let payer = response.extensions_mut().remove::<Payer>();
    let payer =
        payer.unwrap_or_else(|| Payer { account: anonymous(), refusable: false, stall: limits::STALL });
    let shared = response.extensions_mut().remove::<Shared>().is_some();
    let paced = response.extensions_mut().remove::<Paced>().is_some();
    let size = response.body().size_hint().exact();
    let budget = connection.budget(payer.account);
    let bytes = if shared { 0 } else { size.unwrap_or(0) };
    // A stream that is compressed needs the compressor until its end.
    let zips = size.is_none() && response.headers().contains_key(CONTENT_ENCODING);
    let own = limits::HELD_BY_STREAM + if zips { limits::HELD_BY_GZIP } else { 0 };
    let bytes = own.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
    let (charge, response) = match budget.try_charge(bytes) {
        Some(charge) => (charge, response),
        None if payer.refusable => {
            connections.refused.add(1);
            if budget.is_far_over() {
                // The client does not even read refusals.
                connection.closed().cancel();
            }
            let refusal = respond::refusal(&too_many_requests());
            let size = refusal.body().size_hint().exact().unwrap_or(0);
            (budget.charge(limits::HELD_BY_STREAM + usize::try_from(size).unwrap_or(0)), refusal)
        }
        None => (budget.charge(bytes), response),
    };
    response.map(|body| match body.size_hint().exact() {
        Some(0) => body,
        _ => {
            let progress = Progress::new(connection, payer.stall);
            let mut delivery = Delivery::new(body, budget, charge, progress, active);
            delivery.paced = paced;
            delivery.boxed_unsync()
        }
    })
}

/// The progress of an answer.
pub struct Progress {
    /// Slices that the HTTP library has and has not sent.
    unsent: AtomicUsize,
    /// The time at which the last slice was sent, or at which there was first something to send.
    /// Milliseconds.
    since: AtomicU64,
    /// The server has nothing to send at the moment.
    waits: AtomicBool,
    /// The body has ended, or was dropped.
    gone: AtomicBool,
    /// Wakes the body when everything has been sent.
    sent: AtomicWaker,
    /// The longest time that sending may take.
    stall: Duration,
    stream: Option<AbortHandle>,
    connection: Arc<Connection>,
}

impl Progress {
    fn new(connection: &Arc<Connection>, stall: Duration) -> Arc<Self> {
        let progress = Arc::new(Self {
            unsent: AtomicUsize::new(0),
            since: AtomicU64::new(connection.now()),
            waits: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            sent: AtomicWaker::new(),
            stall,
            stream: STREAM.try_with(AbortHandle::clone).ok(),
            connection: Arc::clone(connection),
        });
        connection.delivers(&progress);
        progress
    }

    /// Returns `true` if something has been waiting to be sent for too long.
    pub(super) fn is_stalled(&self, now: u64) -> bool {
        let unsent = self.unsent.load(Ordering::SeqCst) > 0;
        let unasked = !self.gone.load(Ordering::SeqCst) && !self.waits.load(Ordering::SeqCst);
        let stalled = now.saturating_sub(self.since.load(Ordering::SeqCst));
        (unsent || unasked) && u128::from(stalled) >= self.stall.as_millis()
    }

    /// Resets the stream; `false` if there is none that can be reset. It then has its time again.
    pub(super) fn cut(&self, now: u64) -> bool {
        self.since.store(now, Ordering::SeqCst);
        let Some(stream) = self.stream.as_ref().filter(|_| !self.gone.load(Ordering::SeqCst)) else {
            return false;
        };
        if stream.is_aborted() {
            return false;
        }
        stream.abort();
        true
    }

    fn takes(&self) {
        self.waits.store(false, Ordering::SeqCst);
        if self.unsent.fetch_add(1, Ordering::SeqCst) == 0 {
            self.since.store(self.connection.now(), Ordering::SeqCst);
        }
    }

    fn all_sent(&self) -> bool {
        self.unsent.load(Ordering::SeqCst) == 0
    }
}

/// Bytes in the hands of the HTTP library.
struct Slice {
    bytes: Bytes,
    progress: Arc<Progress>,
    _charge: Arc<Charge>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.progress.since.store(self.progress.connection.now(), Ordering::SeqCst);
        if self.progress.unsent.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.progress.sent.wake();
        }
    }
}

/// A body that is handed over in slices.
struct Delivery {
    body: Body,
    budget: Budget,
    /// The charge of the whole answer.
    whole: Arc<Charge>,
    /// True if that charge has all its bytes in it.
    sized: bool,
    /// True if the body waits for room by itself.
    paced: bool,
    /// The rest of a frame, and what that frame is charged with.
    rest: Option<(Bytes, Arc<Charge>)>,
    /// True if its end waits for what is before it: a stream whose end is known to the HTTP library can no
    /// longer be reset.
    lingers: bool,
    ended: bool,
    progress: Arc<Progress>,
    _active: Active,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.progress.gone.store(true, Ordering::SeqCst);
    }
}

impl Delivery {
    fn new(body: Body, budget: Budget, charge: Charge, progress: Arc<Progress>, active: Active) -> Self {
        let size = body.size_hint().exact();
        Self {
            body,
            budget,
            whole: Arc::new(charge),
            sized: size.is_some(),
            paced: false,
            rest: None,
            lingers: size.is_none_or(|size| size > limits::SLICE as u64),
            ended: false,
            progress,
            _active: active,
        }
    }

    fn slice(&mut self) -> Option<Bytes> {
        let (rest, charge) = self.rest.as_mut()?;
        let bytes = rest.split_to(rest.len().min(limits::SLICE));
        let slice = Slice { bytes, progress: Arc::clone(&self.progress), _charge: Arc::clone(charge) };
        self.progress.takes();
        if rest.is_empty() {
            self.rest = None;
        }
        Some(Bytes::from_owner(slice))
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.lingers && !self.progress.all_sent() {
            self.progress.sent.register(context.waker());
            if !self.progress.all_sent() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl http_body::Body for Delivery {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            if let Some(slice) = this.slice() {
                return Poll::Ready(Some(Ok(Frame::data(slice))));
            }
            if this.ended {
                return this.poll_end(context).map(|()| None);
            }
            this.progress.waits.store(true, Ordering::SeqCst);
            if !this.sized && !this.paced {
                // Nothing more is made while the client holds more than it may.
                ready!(this.budget.poll_room(context));
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                None => this.ended = true,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        let charge = match this.sized {
                            true => Arc::clone(&this.whole),
                            false => Arc::new(this.budget.charge(data.len())),
                        };
                        this.rest = Some((data, charge));
                    }
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none()
            && (self.ended || self.body.is_end_stream())
            && (!self.lingers || self.progress.all_sent())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            // The rest of the frame and the following ones are still to come.
            Some((rest, _)) if self.sized => {
                let more = self.body.size_hint().exact().unwrap_or(0);
                SizeHint::with_exact(rest.len() as u64 + more)
            }
            _ => self.body.size_hint(),
        }
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
