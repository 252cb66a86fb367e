//! Many requests of one kind, several at a time.
//!
//! They run as tasks, so that their work is shared among the processors and does not hold up the one that waits for them.
//! If that is dropped, as when leadership is lost, they end.

use std::future::Future;

use tokio::task::JoinSet;

use crate::limits::REQUESTS_IN_FLIGHT;

/// The outcome of many requests.
#[derive(Debug)]
pub struct Done<T, E> {
    /// Results of the requests that were made, as they arrived.
    pub results: Vec<Result<T, E>>,
    /// Number of requests that were not made, because another one had failed.
    pub left: usize,
}

/// Makes the requests for `items`: at first one, and with each success one more at a time, so that their number doubles
/// with each round trip, up to [`REQUESTS_IN_FLIGHT`]. After the first failure no further one is made: what the server
/// refuses for all of them, such as an invalid template, is asked for once rather than many times.
pub async fn slow_start<I, T, E, F>(
    items: impl IntoIterator<Item = I>,
    request: impl Fn(I) -> F,
) -> Done<T, E>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let (mut items, mut running, mut window) = (items.into_iter(), JoinSet::new(), 1);
    let (mut results, mut has_failed) = (Vec::new(), false);
    loop {
        while !has_failed && running.len() < window {
            let Some(item) = items.next() else { break };
            running.spawn(request(item));
        }
        let Some(result) = next(&mut running).await else { break };
        has_failed |= result.is_err();
        window = REQUESTS_IN_FLIGHT.min(window + 1);
        results.push(result);
    }
    Done { results, left: items.count() }
}

/// Makes the requests for all `items`, up to [`REQUESTS_IN_FLIGHT`] at a time, whatever becomes of them; returns their
/// results in the order of the items.
pub async fn all<I, T, F>(items: impl IntoIterator<Item = I>, request: impl Fn(I) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let (mut items, mut running) = (items.into_iter().enumerate(), JoinSet::new());
    let mut results = Vec::new();
    loop {
        while running.len() < REQUESTS_IN_FLIGHT {
            let Some((place, item)) = items.next() else { break };
            let request = request(item);
            running.spawn(async move { (place, request.await) });
        }
        let Some(result) = next(&mut running).await else { break };
        results.push(result);
    }
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Waits for the next result; `None` if nothing runs. A panic of a request is one of this task, but only once the others
/// in flight have come to their ends: what they note of their answers would be lost otherwise.
async fn next<T: Send + 'static>(running: &mut JoinSet<T>) -> Option<T> {
    match running.join_next().await? {
        Ok(result) => Some(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => {
                while running.join_next().await.is_some() {}
                std::panic::resume_unwind(panic)
            }
            // Nobody else ends these tasks but the runtime, which ends this one too.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Counts requests that take a second each.
    #[derive(Clone, Default)]
    struct Server {
        running: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
        begun: Arc<AtomicUsize>,
    }

    impl Server {
        async fn ask(self, refuses: bool) -> Result<usize, &'static str> {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            let running = 1 + self.running.fetch_add(1, Ordering::Relaxed);
            self.most.fetch_max(running, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.running.fetch_sub(1, Ordering::Relaxed);
            if refuses { Err("refused") } else { Ok(number) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_double_with_each_round_trip_up_to_the_limit() {
        let (server, began) = (Server::default(), tokio::time::Instant::now());
        let done = slow_start(0..500, |_| server.clone().ask(false)).await;
        assert_eq!((done.results.len(), done.left), (500, 0));
        // 1, 2, 4, 8, 16, 32 and then 64 a second.
        assert_eq!(began.elapsed(), Duration::from_secs(6 + (500_u64 - 63).div_ceil(64)));
        assert_eq!(server.most.load(Ordering::Relaxed), REQUESTS_IN_FLIGHT);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_no_further_request_is_made() {
        let server = Server::default();
        let done = slow_start(0..500, |_| server.clone().ask(true)).await;
        assert_eq!((done.results.len(), done.left), (1, 499));
        let server = Server::default();
        let done = slow_start(0..500, |item| server.clone().ask(item == 4)).await;
        // 1, 2 and 4 at a time: those beside the one that is refused are waited for.
        assert_eq!(
            (done.results.len(), done.left),
            (server.begun.load(Ordering::Relaxed), 500 - done.results.len())
        );
        assert!(done.results.len() < 16, "{} requests", done.results.len());
    }

    #[tokio::test(start_paused = true)]
    async fn all_requests_are_made_and_answered_in_their_order() {
        let server = Server::default();
        let results = all(0..200, |item| {
            let answer = server.clone().ask(item % 7 == 0);
            async move { (item, answer.await.is_ok()) }
        })
        .await;
        assert!(
            results.iter().enumerate().all(|(place, (item, ok))| place == *item && *ok == (item % 7 != 0))
        );
        assert_eq!((results.len(), server.most.load(Ordering::Relaxed)), (200, REQUESTS_IN_FLIGHT));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beside_one_that_panics_come_to_their_ends_before_the_panic_goes_on() {
        for is_slow in [true, false] {
            let (server, ended) = (Server::default(), Arc::new(AtomicUsize::new(0)));
            let began = tokio::time::Instant::now();
            let waiting = tokio::spawn({
                let (server, ended) = (server.clone(), Arc::clone(&ended));
                let request = move |item: usize| {
                    let (server, ended) = (server.clone(), Arc::clone(&ended));
                    async move {
                        assert_ne!(item, 5, "this request fails on purpose");
                        let answer = server.ask(false).await;
                        ended.fetch_add(1, Ordering::Relaxed);
                        answer
                    }
                };
                async move {
                    if is_slow {
                        slow_start(0..500, request).await;
                    } else {
                        all(0..500, request).await;
                    }
                }
            });
            let panic = waiting.await.unwrap_err().into_panic();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("on purpose"), "{message}");
            let begun = server.begun.load(Ordering::Relaxed);
            assert_eq!(ended.load(Ordering::Relaxed), begun, "all that had begun have ended");
            assert!(begun < 2 * REQUESTS_IN_FLIGHT, "{begun} were begun");
            // Nothing runs on.
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(server.begun.load(Ordering::Relaxed), begun);
            assert!(began.elapsed() < Duration::from_secs(10));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_end_with_the_one_that_waits() {
        let server = Server::default();
        let waiting = tokio::spawn({
            let server = server.clone();
            async move { all(0..10, |_| server.clone().ask(false)).await }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        waiting.abort();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(server.running.load(Ordering::Relaxed), 10, "none of them has come to its end");
    }
}
