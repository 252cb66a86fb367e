//! Bytes that clients make the server hold: answers that wait to be sent, bodies that are being
//! received, and what is kept to make them. Every byte is charged to the connection, to the account of
//! the identity that asked, and to the class of that account.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::accounts::Account;

/// So many tasks are woken when there is room again. The server's sweep wakes the rest, in case those
/// that were woken no longer want it.
const WOKEN: usize = 8;

/// A counter of bytes with a limit.
pub struct Level {
    used: AtomicUsize,
    limit: usize,
    /// True if `waiting` may have members, so that releasing usually takes no lock.
    waited_for: AtomicBool,
    waiting: Mutex<VecDeque<Waker>>,
}

impl Level {
    /// Returns a level with nothing charged.
    pub fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
            waited_for: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Bytes charged.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        self.used() > self.limit
    }

    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::SeqCst);
    }

    fn try_add(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    fn release(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        if before - bytes <= self.limit {
            // Not all of them: each that goes on takes some of the room.
            self.wake(WOKEN);
        }
    }

    /// Wakes those who have waited for longest.
    pub(super) fn wake(&self, most: usize) {
        if !self.waited_for.load(Ordering::SeqCst) {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let most = most.min(waiting.len());
        let woken: Vec<Waker> = waiting.drain(..most).collect();
        self.waited_for.store(!waiting.is_empty(), Ordering::SeqCst);
        drop(waiting);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ready once no more than the limit is charged.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_over() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.back().is_some_and(|waker| waker.will_wake(context.waker())) {
            waiting.push_back(context.waker().clone());
        }
        self.waited_for.store(true, Ordering::SeqCst);
        drop(waiting);
        // A release before the flag was set has woken nobody.
        if self.is_over() { Poll::Pending } else { Poll::Ready(()) }
    }
}

/// The levels that one request is charged to. The default one has no limits: components of this process
/// are not charged.
#[derive(Clone, Default)]
pub struct Budget {
    connection: Option<Arc<Level>>,
    account: Option<Arc<Account>>,
}

impl Budget {
    /// Returns the budget of a request by `account` on a connection.
    pub fn new(connection: Arc<Level>, account: Arc<Account>) -> Self {
        Self { connection: Some(connection), account: Some(account) }
    }

    /// Returns the account that is charged.
    pub fn account(&self) -> Option<&Account> {
        self.account.as_deref()
    }

    fn levels(&self) -> impl Iterator<Item = &Level> {
        let account = self.account.iter().flat_map(|account| [&account.held, &*account.class_held]);
        self.connection.as_deref().into_iter().chain(account)
    }

    /// Returns `true` if one of the levels is charged with more than its limit.
    pub fn is_over(&self) -> bool {
        self.levels().any(Level::is_over)
    }

    /// Returns `true` if one of the levels is exceeded by more than a quarter. Refusals cost something too.
    pub fn is_far_over(&self) -> bool {
        self.levels().any(|level| level.used() > level.limit.saturating_add(level.limit / 4))
    }

    /// Ready once no level is charged with more than its limit.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        // All of them are asked, so that each wakes the task.
        let pending = self.levels().filter(|level| level.poll_room(context).is_pending()).count();
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Charges bytes if they fit into every level.
    pub fn try_charge(&self, bytes: usize) -> Option<Charge> {
        if let Some(full) = self.levels().position(|level| !level.try_add(bytes)) {
            self.levels().take(full).for_each(|level| level.release(bytes));
            return None;
        }
        Some(Charge { budget: self.clone(), bytes })
    }

    /// Charges bytes that are held in any case. A level that exceeds its limit by this admits nothing more
    /// until it is below again.
    pub fn charge(&self, bytes: usize) -> Charge {
        self.levels().for_each(|level| level.add(bytes));
        Charge { budget: self.clone(), bytes }
    }
}

/// Charged bytes, until this is dropped.
pub struct Charge {
    budget: Budget,
    bytes: usize,
}

impl Charge {
    /// Charges more with the same life; `false` if it does not fit.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let Some(more) = self.budget.try_charge(bytes) else { return false };
        self.bytes += more.into_bytes();
        true
    }

    /// Charges more that is there in any case.
    pub fn grow(&mut self, bytes: usize) {
        self.bytes += self.budget.charge(bytes).into_bytes();
    }

    /// Bytes that are charged.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives a part back.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.levels().for_each(|level| level.release(bytes));
    }

    /// Returns the bytes without releasing them; the caller does.
    fn into_bytes(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.levels().for_each(|level| level.release(self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::super::accounts::{Accounts, Class};
    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn budget(limit: usize) -> (Budget, Arc<Level>) {
        let connection = Arc::new(Level::new(limit));
        let account = Accounts::new([4, 4]).account(Class::Tenants, "bob");
        (Budget::new(Arc::clone(&connection), account), connection)
    }

    #[test]
    fn a_charge_that_does_not_fit_one_level_is_on_none() {
        let (budget, connection) = budget(100);
        let first = budget.try_charge(60).unwrap();
        assert!(budget.try_charge(60).is_none());
        assert_eq!(budget.levels().map(Level::used).collect::<Vec<_>>(), [60, 60, 60]);
        drop(first);
        assert_eq!(budget.levels().map(Level::used).collect::<Vec<_>>(), [0, 0, 0]);
        assert!(budget.try_charge(60).is_some());
        assert_eq!(connection.used(), 0);
    }

    #[test]
    fn an_overdrawn_budget_wakes_who_waits_for_room() {
        let (budget, _) = budget(100);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut first = budget.charge(150);
        assert!(budget.is_over() && budget.poll_room(&mut context).is_pending());
        assert!(budget.poll_room(&mut context).is_pending(), "asked twice, woken once");
        first.shrink(20);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
        first.shrink(40);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(!budget.is_over() && budget.poll_room(&mut context).is_ready());
        assert!(first.try_grow(10) && !first.try_grow(50));
        drop(first);
        assert!(budget.try_charge(100).is_some());
    }

    #[test]
    fn the_process_itself_is_not_charged() {
        let budget = Budget::default();
        let charge = budget.try_charge(usize::MAX).unwrap();
        assert!(!budget.is_over());
        drop(charge);
    }
}
