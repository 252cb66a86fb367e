//! Pods whose volumes and devices are being written and waited for, which can be called off until they are bound.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_meta::uid::Uid;
use tokio_util::sync::CancellationToken;

/// The pods that are being prepared. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Preparing(Arc<Mutex<BTreeMap<Uid, CancellationToken>>>);

impl Preparing {
    /// Prepares the binding of a pod; returns `None` if it was called off before the end. What was on its way to the API
    /// server then may still be carried out, as if the process had ended.
    pub async fn run<T>(&self, uid: &Uid, work: impl Future<Output = T>) -> Option<T> {
        let token = CancellationToken::new();
        self.lock().insert(uid.clone(), token.clone());
        let done = token.run_until_cancelled(work).await;
        // Whoever calls it off removes it: later, it is too late.
        let is_kept = self.lock().remove(uid).is_some();
        done.filter(|_| is_kept)
    }

    /// Calls off the binding of a pod; returns `false` if it is not being prepared.
    pub fn call_off(&self, uid: &Uid) -> bool {
        match self.lock().remove(uid) {
            Some(token) => {
                token.cancel();
                true
            }
            None => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_called_off_before_its_end_and_not_after() {
        let (preparing, uid) = (Preparing::default(), Uid::from("a"));
        assert_eq!(preparing.run(&uid, async { 1 }).await, Some(1));
        assert!(!preparing.call_off(&uid));
        let (other, name) = (preparing.clone(), uid.clone());
        let work = tokio::spawn(async move { other.run(&name, std::future::pending::<()>()).await });
        tokio::task::yield_now().await;
        assert!(preparing.call_off(&uid) && !preparing.call_off(&uid));
        assert_eq!(work.await.unwrap(), None);
        // Called off while its last step is taken.
        assert_eq!(preparing.run(&uid, async { preparing.call_off(&uid) }).await, None);
    }
}
