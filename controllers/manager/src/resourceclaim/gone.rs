//! Memory of pods that are gone for good.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::GONE_PODS;

/// The UIDs of the pods that were seen to go last. A pod that is neither in the cache nor here may be one that the
/// cache does not show yet, of which the server has to be asked.
#[derive(Default)]
pub(super) struct Gone(Mutex<Uids>);

#[derive(Default)]
struct Uids {
    all: BTreeSet<String>,
    by_age: VecDeque<String>,
}

impl Gone {
    pub fn add(&self, uid: &str) {
        let mut uids = self.lock();
        if !uids.all.insert(uid.to_owned()) {
            return;
        }
        uids.by_age.push_back(uid.to_owned());
        if uids.by_age.len() > GONE_PODS
            && let Some(oldest) = uids.by_age.pop_front()
        {
            uids.all.remove(&oldest);
        }
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.lock().all.contains(uid)
    }

    fn lock(&self) -> MutexGuard<'_, Uids> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_is_forgotten_beyond_the_limit() {
        let gone = Gone::default();
        (0..=GONE_PODS).for_each(|number| gone.add(&number.to_string()));
        gone.add("1");
        assert!(!gone.contains("0") && gone.contains("1") && gone.contains(&GONE_PODS.to_string()));
    }
}
