//! Bodies of requests on their way in: charged to their senders, and given up if they arrive too slowly.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::PollSemaphore;
use tower::BoxError;

use super::budget::{Budget, Charge};
use crate::body::Body;
use crate::errors::Refused;
use crate::limits;

/// The charge of a body, held as long as its request is being worked on.
pub struct Received {
    held: Arc<Mutex<Held>>,
}

struct Held {
    charge: Charge,
    /// The permit of a place among the requests with large bodies.
    turn: Option<OwnedSemaphorePermit>,
}

/// Meters the body of a request. Its announced length is charged at once. A body that turns out to be large
/// waits at its end for a place in `heavy`, which it keeps as long as its request is worked on.
pub fn meter(
    body: Body,
    budget: &Budget,
    heavy: Option<&Arc<Semaphore>>,
) -> Result<(Body, Received), Refused> {
    let announced = body.size_hint().exact().unwrap_or(0).min(limits::BODY as u64) as usize;
    let charge = budget.try_charge(announced).ok_or(Refused::NoRoom)?;
    let held = Arc::new(Mutex::new(Held { charge, turn: None }));
    if body.is_end_stream() {
        return Ok((body, Received { held }));
    }
    let received = Received { held: Arc::clone(&held) };
    let heavy = heavy.map(|heavy| PollSemaphore::new(Arc::clone(heavy)));
    let metered = Metered {
        body,
        held,
        heavy,
        charged: announced,
        seen: 0,
        ended: false,
        began: Instant::now(),
        alarm: None,
    };
    Ok((metered.boxed_unsync(), received))
}

/// Returns the time within which `seen` bytes of a body must have arrived.
fn allowed(seen: usize) -> Duration {
    limits::UPLOAD_GRACE + Duration::from_millis(1_000 * seen as u64 / limits::UPLOAD_RATE)
}

/// Waits until a body has arrived, or as much of it as is kept, so that a slow sender holds nothing but its
/// bytes meanwhile. An error is returned again when the body is read.
pub async fn arrived(mut body: Body) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let mut come = BytesMut::new();
    let rest = loop {
        match body.frame().await {
            None => break None,
            Some(Err(error)) => break Some(stream::iter([Err(error)]).left_stream()),
            Some(Ok(frame)) => {
                come.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                if come.len() > limits::BODY {
                    break Some(BodyStream::new(body).right_stream());
                }
            }
        }
    };
    let come = stream::iter([Ok(Frame::data(come.freeze()))]);
    match rest {
        None => StreamBody::new(come).boxed_unsync(),
        Some(rest) => StreamBody::new(come.chain(rest)).boxed_unsync(),
    }
}

struct Metered {
    body: Body,
    held: Arc<Mutex<Held>>,
    heavy: Option<PollSemaphore>,
    charged: usize,
    seen: usize,
    began: Instant,
    /// Everything has come.
    ended: bool,
    /// Goes off when the sender is too slow.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let latest = self.began + allowed(self.seen);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(latest)));
        if alarm.deadline() != latest {
            alarm.as_mut().reset(latest);
        }
        alarm.as_mut().poll(context)
    }

    /// At the end of a large body.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.seen > limits::HEAVY_BODY
            && let Some(heavy) = &mut self.heavy
        {
            let turn = ready!(heavy.poll_acquire(context));
            self.held.lock().unwrap_or_else(PoisonError::into_inner).turn = turn;
        }
        self.heavy = None;
        Poll::Ready(())
    }

    /// Charges received bytes. Bytes beyond the limit of bodies are not kept.
    fn take(&mut self, bytes: usize) -> Result<(), Refused> {
        self.seen += bytes;
        let due = self.seen.min(limits::BODY);
        if due > self.charged {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            if !held.charge.try_grow(due - self.charged) {
                return Err(Refused::NoRoom);
            }
            self.charged = due;
        }
        Ok(())
    }
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.ended {
            return this.poll_turn(context).map(|()| None);
        }
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => match this.poll_slow(context) {
                Poll::Ready(()) => Poll::Ready(Some(Err(Refused::TooSlow.into()))),
                Poll::Pending => Poll::Pending,
            },
            Poll::Ready(Some(Ok(frame))) => {
                let taken = this.take(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(taken.map(|()| frame).map_err(BoxError::from)))
            }
            Poll::Ready(None) => {
                this.ended = true;
                this.poll_turn(context).map(|()| None)
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.heavy.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Received {
    /// Returns `true` if it takes a place among the requests with large bodies.
    pub(super) fn is_heavy(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).turn.is_some()
    }

    /// Bytes charged at the moment.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.held.lock().unwrap().charge.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;

    use super::super::accounts::{Accounts, Class};
    use super::super::budget::Level;
    use super::*;
    use crate::body;

    fn budget() -> Budget {
        let account = Accounts::new([4, 4]).account(Class::Tenants, "bob");
        Budget::new(Arc::new(Level::new(1_000_000)), account)
    }

    /// One byte every `pause`, for ever.
    fn trickle(pause: Duration) -> Body {
        let bytes = stream::unfold((), move |()| async move {
            tokio::time::sleep(pause).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))), ()))
        });
        StreamBody::new(bytes.boxed()).map_err(|never| match never {}).boxed_unsync()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_byte_by_byte_is_given_up() {
        let (body, _received) = meter(trickle(Duration::from_secs(1)), &budget(), None).unwrap();
        let began = Instant::now();
        let error = body::read(body).await.unwrap_err();
        assert_eq!(error.code, 408);
        assert!(began.elapsed() < limits::UPLOAD_GRACE + Duration::from_secs(1));
    }

    #[tokio::test]
    async fn bodies_are_charged_as_they_come_and_refused_when_there_is_no_room() {
        let budget = budget();
        let (first, received) = meter(body::full(vec![0; 600_000]), &budget, None).unwrap();
        assert_eq!(received.bytes(), 600_000, "what is announced is charged at once");
        assert!(meter(body::full(vec![0; 600_000]), &budget, None).is_err());
        let pieces =
            stream::iter((0..10).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; 100_000])))));
        let unsized_body = StreamBody::new(pieces).map_err(|never| match never {}).boxed_unsync();
        let (second, more) = meter(unsized_body, &budget, None).unwrap();
        assert_eq!(body::read(second).await.unwrap_err().code, 429);
        assert_eq!(more.bytes(), 400_000);
        assert_eq!(body::read(first).await.unwrap().len(), 600_000);
        drop((received, more));
        assert!(budget.try_charge(1_000_000).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_with_large_bodies_take_turns() {
        let heavy = Arc::new(Semaphore::new(1));
        let large = || meter(body::full(vec![0; limits::HEAVY_BODY + 1]), &budget(), Some(&heavy)).unwrap();
        let (first, second) = (large(), large());
        assert!(body::read(first.0).await.is_ok());
        let mut waits = std::pin::pin!(body::read(second.0));
        let soon = tokio::time::timeout(Duration::from_secs(9), waits.as_mut()).await;
        assert!(soon.is_err(), "the first one is being worked on");
        let small = meter(body::full(vec![0; limits::HEAVY_BODY]), &budget(), Some(&heavy)).unwrap();
        assert!(body::read(small.0).await.is_ok());
        drop(first.1);
        assert!(waits.await.is_ok());
        assert_eq!(heavy.available_permits(), 0);
        drop(second.1);
        assert_eq!(heavy.available_permits(), 1);
    }
}
