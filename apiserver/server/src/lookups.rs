//! Lookups of host names. The system's resolver blocks a thread for each until it has an answer or gives up, which may
//! take half a minute and cannot be cut short: so each owner of names has one lookup at a time, and all owners together
//! have a limited number.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::limits;

/// The lookups under way.
pub struct Lookups {
    places: Arc<Semaphore>,
    /// By owner.
    under_way: Mutex<HashMap<Box<str>, UnderWay>>,
}

/// The lookup that an owner of names has under way.
struct UnderWay {
    name: Box<str>,
    found: watch::Receiver<Option<Found>>,
}

/// The result of a lookup, for all that wait for it.
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

impl Default for Lookups {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(limits::LOOKUPS)), under_way: Mutex::default() }
    }
}

impl Lookups {
    /// Returns the addresses that `lookup` finds for a name of `owner`. A lookup of the same name that is under way
    /// already is shared; another one of the same owner is waited for.
    pub async fn resolve(
        self: &Arc<Self>,
        owner: &str,
        name: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let found = async {
            let mut lookup = Some(lookup);
            loop {
                let (same, mut found) = self.join(owner, name, &mut lookup);
                let ended =
                    found.wait_for(Option::is_some).await.ok().and_then(|found| Option::clone(&found));
                if same {
                    return ended.unwrap_or_else(|| Err(too_late()));
                }
            }
        };
        let found = timeout(limits::LOOKUP, found).await.unwrap_or_else(|_| Err(too_late()));
        found.map_err(|(kind, why)| {
            io::Error::new(kind, format!("the host name {name:?} cannot be looked up: {why}"))
        })
    }

    /// Begins a lookup unless its owner has one under way; returns that, and whether it is of the same name.
    fn join<L>(
        self: &Arc<Self>,
        owner: &str,
        name: &str,
        lookup: &mut Option<L>,
    ) -> (bool, watch::Receiver<Option<Found>>)
    where
        L: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        let mut all = self.lock();
        if let Some(under_way) = all.get(owner) {
            return (*under_way.name == *name, under_way.found.clone());
        }
        let (sender, found) = watch::channel(None);
        if let Some(lookup) = lookup.take() {
            all.insert(Box::from(owner), UnderWay { name: Box::from(name), found: found.clone() });
            let turn = Turn { lookups: Arc::clone(self), owner: Box::from(owner) };
            // It goes on if nobody waits any more: the thread is not free before its end.
            tokio::spawn(async move {
                let _ = sender.send(Some(turn.take(lookup).await));
            });
        }
        (true, found)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, UnderWay>> {
        // Nothing panics while it holds the lock, and each change is complete.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lookup that an owner may have, until this is dropped.
struct Turn {
    lookups: Arc<Lookups>,
    owner: Box<str>,
}

impl Turn {
    async fn take(&self, lookup: impl Future<Output = io::Result<Vec<SocketAddr>>>) -> Found {
        let place = timeout(limits::LOOKUP, self.lookups.places.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(too_late()) };
        lookup.await.map_err(|error| (error.kind(), error.to_string()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lookups.lock().remove(&self.owner);
    }
}

fn too_late() -> (io::ErrorKind, String) {
    (io::ErrorKind::TimedOut, "no answer in time".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::time::{Duration, Instant};

    use super::*;

    fn address() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 9], 10250))
    }

    /// Answers once `ends` is notified; counts the lookups that have begun.
    async fn slow(begun: Arc<AtomicUsize>, ends: Arc<Notify>) -> io::Result<Vec<SocketAddr>> {
        begun.fetch_add(1, Ordering::SeqCst);
        ends.notified().await;
        Ok(vec![address()])
    }

    #[tokio::test(start_paused = true)]
    async fn owner_of_names_that_never_resolve_has_one_lookup_and_delays_nobody() {
        let (lookups, begun) = (Arc::<Lookups>::default(), Arc::<AtomicUsize>::default());
        let never = Arc::<Notify>::default();
        let names = (0..10_000).map(|number| format!("n{number}.example"));
        let waiting: Vec<_> = names
            .map(|name| {
                let (lookups, begun, never) = (Arc::clone(&lookups), Arc::clone(&begun), Arc::clone(&never));
                tokio::spawn(async move { lookups.resolve("hostile", &name, slow(begun, never)).await })
            })
            .collect();
        tokio::task::yield_now().await;
        let began = Instant::now();
        let found = lookups.resolve("n", "n.example", async { Ok(vec![address()]) }).await;
        assert_eq!((found.unwrap(), began.elapsed()), (vec![address()], Duration::ZERO));
        assert_eq!(begun.load(Ordering::SeqCst), 1, "one thread is held");
        for waiting in waiting {
            let error = waiting.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1, "and no more, as its thread is not free");
        never.notify_one();
        while !lookups.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_of_one_name_are_shared_and_another_name_is_looked_up_afterwards() {
        let (lookups, begun) = (Arc::<Lookups>::default(), Arc::<AtomicUsize>::default());
        let ends = Arc::<Notify>::default();
        let ask = |name: &'static str| {
            let (lookups, begun, ends) = (Arc::clone(&lookups), Arc::clone(&begun), Arc::clone(&ends));
            tokio::spawn(async move { lookups.resolve("n", name, slow(begun, ends)).await })
        };
        let same = [ask("n.example"), ask("n.example"), ask("n.example")];
        tokio::task::yield_now().await;
        let other = ask("other.example");
        tokio::task::yield_now().await;
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        ends.notify_one();
        for same in same {
            assert_eq!(same.await.unwrap().unwrap(), [address()]);
        }
        ends.notify_one();
        assert_eq!(other.await.unwrap().unwrap(), [address()]);
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_of_all_owners_are_bounded_and_their_errors_name_the_host() {
        let (lookups, begun) = (Arc::<Lookups>::default(), Arc::<AtomicUsize>::default());
        let never = Arc::<Notify>::default();
        let owners: Vec<_> = (0..limits::LOOKUPS + 5)
            .map(|number| {
                let (lookups, begun, never) = (Arc::clone(&lookups), Arc::clone(&begun), Arc::clone(&never));
                let owner = number.to_string();
                tokio::spawn(async move { lookups.resolve(&owner, "n.example", slow(begun, never)).await })
            })
            .collect();
        for owner in owners {
            let error = owner.await.unwrap().unwrap_err();
            assert_eq!(
                error.to_string(),
                "the host name \"n.example\" cannot be looked up: no answer in time"
            );
        }
        assert_eq!(begun.load(Ordering::SeqCst), limits::LOOKUPS);
    }
}
