//! Coalescing of concurrent requests whose answer is the same for everyone, such as a linearizable read of
//! the revision.
//!
//! A caller must not get an answer that is older than its call, so an answer is valid only for callers that
//! arrived before the request was sent. Callers that arrive while a request is in progress wait for the next
//! one, which is sent as soon as the first is answered and serves all who wait by then. There is no added
//! delay: a single caller's request is sent immediately.

use std::future::Future;

use tokio::sync::watch;

/// Makes concurrent callers share requests. One request is under way at a time; they are numbered from 1 in the
/// order in which they are sent.
pub(super) struct Coalescer<T> {
    state: watch::Sender<State<T>>,
}

struct State<T> {
    /// Number of the last request that was sent.
    sent: u64,
    /// True while that request is in progress.
    in_progress: bool,
    /// The newest answer, with the number of its request.
    answer: Option<(u64, T)>,
}

impl<T> State<T> {
    /// Returns `true` if the answer is to request `needed` or a later one.
    fn answers(&self, needed: u64) -> bool {
        self.answer.as_ref().is_some_and(|(number, _)| *number >= needed)
    }
}

impl<T> Default for Coalescer<T> {
    fn default() -> Self {
        Self { state: watch::Sender::new(State { sent: 0, in_progress: false, answer: None }) }
    }
}

/// A request in progress. If it is dropped without an answer because its caller went away, one of the waiting
/// callers takes over.
struct InProgress<'a, T> {
    state: &'a watch::Sender<State<T>>,
    number: u64,
}

impl<T> InProgress<'_, T> {
    fn answered(self, answer: T) {
        let number = self.number;
        // The next request can be sent once `self` is dropped, which wakes the waiting callers.
        self.state.send_if_modified(|state| {
            state.answer = Some((number, answer));
            false
        });
    }
}

impl<T> Drop for InProgress<'_, T> {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.in_progress = false);
    }
}

impl<T: Clone> Coalescer<T> {
    /// Returns the answer to a request that is sent after this call, by this or another caller.
    pub(super) async fn run<F: Future<Output = T>>(&self, request: impl FnOnce() -> F) -> T {
        let mut seen = self.state.subscribe();
        let needed = seen.borrow().sent + 1;
        loop {
            if let Some(started) = self.start_request(needed) {
                let answer = request().await;
                started.answered(answer.clone());
                return answer;
            }
            let found = {
                // The sender lives in `self`, so the wait cannot fail before the value is dropped.
                let state = seen.wait_for(|state| state.answers(needed) || !state.in_progress).await;
                state.ok().and_then(|state| {
                    state.answer.as_ref().filter(|_| state.answers(needed)).map(|(_, answer)| answer.clone())
                })
            };
            if let Some(answer) = found {
                return answer;
            }
        }
    }

    /// Returns the right to send a request, if none is in progress and no answer has arrived meanwhile.
    fn start_request(&self, needed: u64) -> Option<InProgress<'_, T>> {
        let mut number = None;
        self.state.send_if_modified(|state| {
            if !state.in_progress && !state.answers(needed) {
                state.in_progress = true;
                state.sent += 1;
                number = Some(state.sent);
            }
            false
        });
        number.map(|number| InProgress { state: &self.state, number })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    /// A store whose revision increases while it is read; an answer is the revision at the time of the
    /// request.
    #[derive(Default)]
    struct Fake {
        revision: AtomicU64,
        requests: AtomicU64,
    }

    impl Fake {
        async fn revision(&self) -> u64 {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let revision = self.revision.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(10)).await;
            revision
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_during_a_request_share_the_next_one() {
        let (fake, coalescer) = (Arc::new(Fake::default()), Arc::new(Coalescer::default()));
        let start = |after: u64| {
            let (fake, coalescer) = (Arc::clone(&fake), Arc::clone(&coalescer));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                // A write that is completed now must be visible.
                let least = fake.revision.fetch_add(1, Ordering::Relaxed) + 1;
                let answered = coalescer.run(|| fake.revision()).await;
                assert!(answered >= least, "{answered} is older than {least}");
            })
        };
        let all: Vec<_> = [0, 1, 2, 9, 11, 12, 19, 50].map(start).into_iter().collect();
        for one in all {
            one.await.unwrap();
        }
        // At 0; at 10 for the callers of 1, 2 and 9; at 20 for 11, 12 and 19; at 50.
        assert_eq!(fake.requests.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_caller_takes_over_when_the_requesting_one_goes_away() {
        let (fake, coalescer) = (Arc::new(Fake::default()), Arc::new(Coalescer::default()));
        let start = |timeout: u64| {
            let (fake, coalescer) = (Arc::clone(&fake), Arc::clone(&coalescer));
            tokio::spawn(async move {
                let asked = coalescer.run(|| fake.revision());
                tokio::time::timeout(Duration::from_millis(timeout), asked).await.is_ok()
            })
        };
        let all: Vec<_> = [5, 100, 100, 12, 100].map(start).into_iter().collect();
        let mut answered = Vec::new();
        for one in all {
            answered.push(one.await.unwrap());
        }
        assert_eq!(answered, [false, true, true, false, true]);
        // Three if the caller that goes away at 12 had sent a request.
        assert!((2..=3).contains(&fake.requests.load(Ordering::Relaxed)));
        assert!(!coalescer.state.borrow().in_progress);
    }
}
