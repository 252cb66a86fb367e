//! Questions under way. Equal ones are asked once: a forger who makes many clients ask the same name gets one
//! query to guess, not one a client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::pool::ForwardError;
use super::reply::Reply;

/// An answer with its lifetime in the cache, if it is there.
pub type Landed = Result<(Arc<Reply>, Option<u32>), Arc<ForwardError>>;

/// The questions of one rule that are under way, by name, type and wish for DNSSEC.
#[derive(Debug, Default)]
pub struct Flights(Mutex<UnderWay>);

type UnderWay = HashMap<Box<[u8]>, Answer>;
type Answer = watch::Receiver<Option<Landed>>;

/// A place among those who wait for the answer to one question.
pub struct Follower(Answer);

/// The duty to ask. Without an answer, the followers get an error.
pub struct Leader {
    flights: Arc<Flights>,
    key: Box<[u8]>,
    sender: watch::Sender<Option<Landed>>,
}

impl Flights {
    /// Joins the question of a key. The first to join also has to ask it.
    pub fn join(self: &Arc<Self>, key: &[u8]) -> (Follower, Option<Leader>) {
        let mut flights = self.lock();
        if let Some(receiver) = flights.get(key) {
            return (Follower(receiver.clone()), None);
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.into(), receiver.clone());
        let leader = Leader { flights: Arc::clone(self), key: key.into(), sender };
        (Follower(receiver), Some(leader))
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// Waits for the answer.
    pub async fn landed(&mut self) -> Landed {
        match self.0.wait_for(Option::is_some).await.map(|landed| landed.clone()) {
            Ok(Some(landed)) => landed,
            _ => Err(Arc::new(ForwardError::Abandoned)),
        }
    }
}

impl Leader {
    /// Tells the answer to all who wait.
    pub fn land(self, landed: Landed) {
        self.sender.send_replace(Some(landed));
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn equal_questions_are_asked_once_and_all_are_told() {
        let flights = Arc::new(Flights::default());
        let (mut first, leader) = flights.join(b"a");
        let (mut second, none) = flights.join(b"a");
        assert!(none.is_none());
        let (mut other, abandoned) = flights.join(b"b");
        drop(abandoned.unwrap());
        assert!(matches!(&*other.landed().await.unwrap_err(), ForwardError::Abandoned));
        leader.unwrap().land(Err(Arc::new(ForwardError::Busy)));
        for follower in [&mut first, &mut second] {
            assert!(matches!(&*follower.landed().await.unwrap_err(), ForwardError::Busy));
        }
        assert!(flights.lock().is_empty());
        assert!(flights.join(b"a").1.is_some(), "the next one asks again");
    }
}
