//! Uses of the tokens in Secrets, until the server has recorded them there.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::limits::TOKEN_USES;

/// Namespace and name of a Secret.
pub type SecretName = (String, String);

/// The Secrets whose tokens were used on a day that they do not name yet.
#[derive(Default)]
pub struct TokenUses {
    pending: Mutex<BTreeSet<SecretName>>,
    /// Wakes the one that records uses.
    added: Notify,
}

impl TokenUses {
    /// Takes note of a use. What finds no room is noted with the next use.
    pub(super) fn add(&self, namespace: &str, secret: &str) {
        let mut pending = self.lock();
        if pending.len() < TOKEN_USES && pending.insert((namespace.to_owned(), secret.to_owned())) {
            self.added.notify_one();
        }
    }

    /// Waits for uses, and returns them all.
    pub async fn next(&self) -> BTreeSet<SecretName> {
        loop {
            let pending = std::mem::take(&mut *self.lock());
            if !pending.is_empty() {
                return pending;
            }
            self.added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<SecretName>> {
        // No section awaits, and a panic elsewhere cannot leave the set half changed.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn uses_are_bounded_and_handed_out_once() {
        let uses = TokenUses::default();
        for number in 0..TOKEN_USES + 10 {
            uses.add("ns", &format!("s{number}"));
            uses.add("ns", "s0");
        }
        assert_eq!(uses.next().await.len(), TOKEN_USES);
        uses.add("ns", "s0");
        assert_eq!(uses.next().await, [("ns".to_owned(), "s0".to_owned())].into());
    }
}
