//! Pods whose volumes and devices are being written and waited for. Until they are bound, their bindings can be called off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_meta::uid::Uid;
use tokio_util::sync::CancellationToken;

/// The pods that are being prepared, each with a token that is cancelled if its binding is called off. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Preparing(Arc<Mutex<BTreeMap<Uid, CancellationToken>>>);

impl Preparing {
    /// Adds a pod; returns its token.
    pub fn begin(&self, uid: &Uid) -> CancellationToken {
        let token = CancellationToken::new();
        self.lock().insert(uid.clone(), token.clone());
        token
    }

    /// Calls off the binding of a pod, which may have been called off before; returns `false` if it is too late.
    pub fn call_off(&self, uid: &Uid) -> bool {
        let all = self.lock();
        let token = all.get(uid);
        token.inspect(|token| token.cancel()).is_some()
    }

    /// Returns `true` if a pod that has been prepared may be bound; it can no longer be called off then.
    pub fn passes(&self, uid: &Uid) -> bool {
        let mut all = self.lock();
        let passes = all.get(uid).is_none_or(|token| !token.is_cancelled());
        if passes {
            all.remove(uid);
        }
        passes
    }

    /// Removes a pod whose binding has ended.
    pub fn ended(&self, uid: &Uid) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_is_called_off_before_it_passes_and_not_after() {
        let (preparing, uid) = (Preparing::default(), Uid::from("a"));
        assert!(!preparing.call_off(&uid));
        let token = preparing.begin(&uid);
        assert!(preparing.passes(&uid) && !preparing.call_off(&uid) && !token.is_cancelled());
    }

    #[test]
    fn binding_that_is_called_off_stays_so_until_its_end() {
        let (preparing, uid) = (Preparing::default(), Uid::from("a"));
        let token = preparing.begin(&uid);
        assert!(preparing.call_off(&uid) && token.is_cancelled());
        assert!(!preparing.passes(&uid));
        assert!(preparing.call_off(&uid), "a second preemptor need not delete it either");
        preparing.ended(&uid);
        assert!(!preparing.call_off(&uid));
    }
}
