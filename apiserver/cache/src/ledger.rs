//! Bytes held by the history and the snapshots of one kind, counted for all kinds together too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes held by history and snapshots, of all kinds together.
#[derive(Default)]
pub(super) struct Totals {
    /// The bytes of changes and their frames.
    pub(super) history: Arc<AtomicUsize>,
    /// The bytes of states for continue tokens.
    pub(super) snapshots: Arc<AtomicUsize>,
}

/// Bytes of one kind, which are also part of a total.
pub(super) struct Ledger {
    own: AtomicUsize,
    all: Arc<AtomicUsize>,
}

impl Ledger {
    pub(super) fn new(all: &Arc<AtomicUsize>) -> Self {
        Self { own: AtomicUsize::new(0), all: Arc::clone(all) }
    }

    /// Bytes of this kind.
    pub(super) fn own(&self) -> usize {
        self.own.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes, Ordering::SeqCst);
        self.all.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Adds bytes unless the kind, or all kinds together, would then exceed their bound.
    pub(super) fn add_within(&self, bytes: usize, own: usize, all: usize) -> bool {
        let own_after = self.own.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let all_after = self.all.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let fits = own_after <= own && all_after <= all;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    pub(super) fn release(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::SeqCst);
        self.all.fetch_sub(bytes, Ordering::SeqCst);
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own(), Ordering::SeqCst);
    }
}

/// Returns the part of a bound that changes may take: a quarter is left to the frames that watchers make of
/// them.
pub(super) fn room_left(bound: usize) -> usize {
    bound / 4 * 3
}
