//! Distances between the watches of one reader.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use tokio::time::Instant;

use crate::around::around;
use crate::limits;

/// Returns the client of one watcher: after a watch that was short, the next one begins with a delay that grows.
///
/// A watch that ends without an error is taken for one whose time is over, and the next one follows at once. A server
/// that is about to stop, or a proxy in front of one that has, ends each watch like that as soon as it has begun.
pub fn paced(client: Client) -> Client {
    let pace = Mutex::<Pace>::default();
    around(client, move |inner, request| {
        // What follows a watch that began with all objects goes on behind them, or waits by itself.
        let goes_on = |query: &str| query.contains("watch=true") && !query.contains("sendInitialEvents=true");
        let begin = request.uri().query().is_some_and(goes_on).then(|| {
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.next(Instant::now())
        });
        async move {
            if let Some(begin) = begin {
                tokio::time::sleep_until(begin).await;
            }
            Ok(inner.send(request).await?)
        }
    })
}

#[derive(Default)]
struct Pace {
    /// Beginning of the last watch.
    last: Option<Instant>,
    /// Least time between the beginnings of that watch and the next one.
    pause: Duration,
}

impl Pace {
    /// Returns when a watch that is requested now begins.
    fn next(&mut self, now: Instant) -> Instant {
        let mut begin = now;
        match self.last {
            Some(last) if now < last + self.pause + limits::SHORT_WATCH => {
                begin = now.max(last + self.pause);
                self.pause = (self.pause * 2).min(limits::MAX_RETRY);
            }
            _ => self.pause = limits::MIN_RETRY,
        }
        self.last = Some(begin);
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn short_watches_follow_each_other_with_growing_pauses_and_long_ones_at_once() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut now = start;
        let mut begins = Vec::new();
        for life in [0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 60_000, 0, 500].map(Duration::from_millis) {
            let begin = pace.next(now);
            begins.push((begin - now).as_millis());
            now = begin + life;
        }
        assert_eq!(begins, [0, 100, 200, 400, 780, 1600, 3200, 5000, 5000, 5000, 5000, 5000, 5000, 0, 100]);
    }
}
