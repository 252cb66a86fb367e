//! Workers that drain a queue, and the timer that refills it regardless of events.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Cache, ObjectKey};
use kube::Resource;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::error::{Error, Result};
use crate::limits::{PANIC_PAUSE, QUIET_PAUSE};
use crate::queue::WorkQueue;

/// Result of a successful reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes.
    Done,
    /// Reconcile again after this time at the latest.
    After(Duration),
    /// A cache does not show yet what the server has: reconcile again after a short delay, which grows each time. What
    /// the cache shows next usually triggers a reconciliation before that.
    Behind,
}

/// Brings the state of an object closer to its specification.
pub trait Reconcile: Send + Sync + 'static {
    /// Type of the keys in the queue, usually an [`ObjectKey`].
    type Key: Ord + Clone + fmt::Display + Send + Sync + 'static;

    /// Takes the next steps for `key`. After an error it is called again with a growing delay.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Runs `workers` workers (at least one) on the queue until `shutdown`, and returns when the last has ended.
/// A reconciliation in progress is dropped at its next await point. A worker that panics is replaced after a pause.
pub async fn run_workers<R: Reconcile>(
    queue: WorkQueue<R::Key>,
    workers: usize,
    reconciler: Arc<R>,
    shutdown: CancellationToken,
) {
    let workers = workers.max(1);
    queue.add_workers(workers);
    let mut running = JoinSet::new();
    let worker = |pause: Duration| {
        let (queue, reconciler, shutdown) = (queue.clone(), Arc::clone(&reconciler), shutdown.clone());
        async move {
            let working = async {
                tokio::time::sleep(pause).await;
                work(&queue, reconciler.as_ref()).await;
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = working => {}
            }
        }
    };
    for _ in 0..workers {
        running.spawn(worker(Duration::ZERO));
    }
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = running.join_next() => if let Err(error) = ended {
                warn!(queue = queue.name(), %error, "worker failed, another one takes its place");
                running.spawn(worker(PANIC_PAUSE));
            },
        }
    }
    queue.shut_down();
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended {
            warn!(queue = queue.name(), %error, "worker failed");
        }
    }
}

async fn work<R: Reconcile>(queue: &WorkQueue<R::Key>, reconciler: &R) {
    while let Some(mut job) = queue.next().await {
        let (outcome, computing) = measured(reconciler.reconcile(job.key())).await;
        job.computed(computing);
        let key = job.key();
        match outcome {
            Ok(outcome) => {
                if outcome == Outcome::Behind {
                    queue.look_again(key.clone());
                    continue;
                }
                queue.forget(key);
                if let Outcome::After(delay) = outcome {
                    queue.add_after(key.clone(), delay);
                }
            }
            Err(error) => {
                let pause = queue.retry(key.clone());
                report(queue.name(), key, &error, pause);
            }
        }
    }
}

/// Returns the result of `work` with the time for which it computed, without the time in which it waited.
async fn measured<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let (mut work, mut computing) = (std::pin::pin!(work), Duration::ZERO);
    let done = std::future::poll_fn(|context| {
        let began = Instant::now();
        let polled = work.as_mut().poll(context);
        computing += began.elapsed();
        polled
    })
    .await;
    (done, computing)
}

fn report(queue: &str, key: &impl fmt::Display, error: &Error, pause: Duration) {
    let cause = error as &dyn std::error::Error;
    if is_ordinary(error, pause) {
        debug!(queue, %key, error = cause, ?pause, "conflicting change, retrying");
    } else {
        warn!(queue, %key, error = cause, ?pause, "reconciliation failed");
    }
}

/// Returns `true` if the next attempt is likely to succeed without intervention.
fn is_ordinary(error: &Error, pause: Duration) -> bool {
    match error {
        Error::Several { first, .. } => is_ordinary(first, pause),
        _ => error.is_conflict() || error.is_not_found() && pause < QUIET_PAUSE,
    }
}

/// Adds every object of the cache to the queue once per `period` until `shutdown`, as a safety net in case
/// events are missed.
pub async fn resync<T: Resource + Send + Sync + 'static>(
    cache: Cache<T>,
    queue: WorkQueue<ObjectKey>,
    period: Duration,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
        for object in cache.list() {
            queue.add(ObjectKey::of(object.as_ref()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Panics over the key `bad`, and counts the others.
    struct Fragile(Mutex<usize>);

    impl Reconcile for Fragile {
        type Key = String;

        async fn reconcile(&self, key: &String) -> Result<Outcome> {
            assert_ne!(key, "bad");
            *self.0.lock().unwrap() += 1;
            Ok(Outcome::Done)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn worker_that_panics_is_replaced() {
        let (queue, shutdown) = (WorkQueue::new("test"), CancellationToken::new());
        let fragile = Arc::new(Fragile(Mutex::new(0)));
        let running = tokio::spawn(run_workers(queue.clone(), 1, Arc::clone(&fragile), shutdown.clone()));
        for expected in 1..4 {
            queue.add("bad".to_owned());
            queue.add("good".to_owned());
            tokio::time::sleep(2 * PANIC_PAUSE).await;
            assert_eq!(*fragile.0.lock().unwrap(), expected);
        }
        shutdown.cancel();
        running.await.unwrap();
    }

    /// Fails a given number of times, then succeeds; records the times of its calls in milliseconds.
    struct Flaky {
        failures: usize,
        then: Outcome,
        start: Instant,
        calls: Mutex<Vec<u128>>,
    }

    impl Flaky {
        fn new(failures: usize, then: Outcome) -> Arc<Self> {
            Arc::new(Self { failures, then, start: Instant::now(), calls: Mutex::default() })
        }
    }

    impl Reconcile for Flaky {
        type Key = String;

        async fn reconcile(&self, _: &String) -> Result<Outcome> {
            let count = {
                let mut calls = self.calls.lock().unwrap();
                calls.push(self.start.elapsed().as_millis());
                calls.len()
            };
            if count <= self.failures {
                return Err(Error::Unusable { object: "x".to_owned(), problem: "not yet".to_owned() });
            }
            Ok(self.then)
        }
    }

    /// Takes a minute for each key that begins with `bad`, and fails then.
    struct Hanging(Mutex<Vec<(Instant, String)>>);

    impl Reconcile for Hanging {
        type Key = String;

        async fn reconcile(&self, key: &String) -> Result<Outcome> {
            self.0.lock().unwrap().push((Instant::now(), key.clone()));
            if !key.starts_with("bad") {
                return Ok(Outcome::Done);
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            Err(Error::Unusable { object: key.clone(), problem: "does not answer".to_owned() })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_whose_attempts_hang_leave_workers_to_the_others_once_each_has_failed() {
        let (queue, shutdown) = (WorkQueue::new("test"), CancellationToken::new());
        let hanging = Arc::new(Hanging(Mutex::default()));
        let running = tokio::spawn(run_workers(queue.clone(), 16, Arc::clone(&hanging), shutdown.clone()));
        (0..1000).for_each(|number| queue.add(format!("bad-{number}")));
        // Twelve of sixteen workers try each for the first time, four have their turns with retries.
        tokio::time::sleep(Duration::from_secs(60 * (1000 / 12 + 2))).await;
        assert_eq!(queue.metrics().retrying, 8);
        for number in 0..10 {
            let (key, added) = (format!("good-{number}"), Instant::now());
            queue.add(key.clone());
            tokio::time::sleep(Duration::from_secs(77)).await;
            let all = hanging.0.lock().unwrap().clone();
            assert!(all.contains(&(added, key)), "{:?}", queue.metrics());
        }
        shutdown.cancel();
        running.await.unwrap();
    }

    async fn run_for(flaky: &Arc<Flaky>, time: Duration) {
        let queue = WorkQueue::new("test");
        queue.add("key".to_owned());
        let shutdown = CancellationToken::new();
        let workers = tokio::spawn(run_workers(queue, 2, Arc::clone(flaky), shutdown.clone()));
        tokio::time::sleep(time).await;
        shutdown.cancel();
        workers.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_growing_delays_until_success() {
        let flaky = Flaky::new(3, Outcome::Done);
        run_for(&flaky, Duration::from_secs(60)).await;
        assert_eq!(*flaky.calls.lock().unwrap(), [0, 5, 15, 35]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_that_is_behind_is_looked_at_again_with_growing_delays() {
        let flaky = Flaky::new(0, Outcome::Behind);
        run_for(&flaky, Duration::from_secs(60)).await;
        let calls = flaky.calls.lock().unwrap();
        assert_eq!(calls[..5], [0, 5, 15, 35, 75]);
        let pauses: Vec<_> = calls.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses.iter().max(), Some(&10_000));
        assert!(calls.len() < 20, "{calls:?}");
    }

    #[test]
    fn missing_objects_are_logged_as_warnings_only_after_some_time() {
        let refused = |code: u16, reason: &str| {
            let status = kube::core::Status::failure("no", reason).with_code(code);
            let cause = Box::new(kube::Error::Api(Box::new(status)));
            Error::Api { attempt: "update x".to_owned(), cause }
        };
        let several = |first| Error::Several { count: 1, of: 2, first: Box::new(first) };
        let (short, long) = (Duration::from_millis(5), QUIET_PAUSE);
        for (error, pause, ordinary) in [
            (refused(404, "NotFound"), short, true),
            (several(refused(404, "NotFound")), short, true),
            (refused(404, "NotFound"), long, false),
            (refused(409, "Conflict"), long, true),
            (refused(403, "Forbidden"), short, false),
            (several(refused(403, "Forbidden")), short, false),
        ] {
            assert_eq!(is_ordinary(&error, pause), ordinary, "{error:?} {pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_of_computing_is_measured_without_that_of_waiting() {
        let work = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            7
        };
        let (mut work, mut computes) = (Box::pin(work), true);
        let busy = std::future::poll_fn(move |context| {
            if std::mem::take(&mut computes) {
                // The clock advances within the first poll, as it does while a worker computes.
                let advance = std::pin::pin!(tokio::time::advance(Duration::from_millis(3)));
                let _ = advance.poll(context);
            }
            work.as_mut().poll(context)
        });
        let (seven, computing) = measured(busy).await;
        assert_eq!((seven, computing), (7, Duration::from_millis(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_may_request_another_reconciliation() {
        let flaky = Flaky::new(0, Outcome::After(Duration::from_secs(1)));
        run_for(&flaky, Duration::from_millis(2500)).await;
        assert_eq!(*flaky.calls.lock().unwrap(), [0, 1000, 2000]);
    }
}
