//! The turns of calls of conversion webhooks. Each call counts among those of its kind and account, of its account, of its
//! kind, and of the server, in this order, so that a call that waits for its own account's share occupies nothing that
//! other accounts need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clients::accounts::{Account, Class};
use crate::clients::lanes;
use crate::limits;

/// Bytes are counted in these units.
const UNIT: usize = 1024;

/// The calls under way.
pub struct Turns {
    all: Arc<Share>,
    shares: Mutex<Shares>,
}

#[derive(Default)]
struct Shares {
    by_owner: HashMap<Owner, Weak<Share>>,
    /// The number of entries at which those without calls are removed.
    sweep_at: usize,
}

/// The owner of a share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    AccountInKind(Class, Box<str>, Box<str>),
    Account(Class, Box<str>),
    /// By the name of its definition.
    Kind(Box<str>),
}

/// The calls that an owner may have under way at one time, and the units of the objects in them.
struct Share {
    calls: Arc<Semaphore>,
    units: Arc<Semaphore>,
    most_units: u32,
}

impl Share {
    fn new(calls: usize, bytes: usize) -> Arc<Self> {
        let units = (bytes / UNIT).max(1);
        Arc::new(Self {
            calls: Arc::new(Semaphore::new(calls)),
            units: Arc::new(Semaphore::new(units)),
            most_units: u32::try_from(units).unwrap_or(u32::MAX),
        })
    }

    /// Waits for room for a call with so many units.
    async fn enter(self: Arc<Self>, units: u32) -> Entered {
        let open = "no share is ever closed";
        let call = Arc::clone(&self.calls).acquire_owned().await.expect(open);
        let units = Arc::clone(&self.units).acquire_many_owned(units).await.expect(open);
        Entered { _permits: [call, units], _share: self }
    }
}

/// A part of a share.
struct Entered {
    _permits: [OwnedSemaphorePermit; 2],
    /// Others of the owner find the same share.
    _share: Arc<Share>,
}

/// The turn of a call, until this is dropped.
pub struct Turn {
    _entered: Vec<Entered>,
}

impl Default for Turns {
    fn default() -> Self {
        let all = Share::new(limits::CONVERSIONS, limits::CONVERSION_BYTES);
        Self { all, shares: Mutex::default() }
    }
}

impl Turns {
    /// Waits for the turn of a call that converts objects of this many bytes, for `account` or for the server itself. One
    /// with more bytes than the smallest share has takes all of that. `kind` is the name of the definition.
    pub async fn take(&self, kind: &str, account: Option<&Account>, bytes: usize) -> Turn {
        let shares = self.shares(kind, account);
        let most = shares.iter().map(|share| share.most_units).min().unwrap_or(1);
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, most);
        let mut entered = Vec::with_capacity(shares.len());
        for share in shares {
            entered.push(share.enter(units).await);
        }
        Turn { _entered: entered }
    }

    /// Returns the shares that a call counts in, in the order in which they are entered.
    fn shares(&self, kind: &str, account: Option<&Account>) -> Vec<Arc<Share>> {
        let (calls, bytes) = (limits::CONVERSIONS, limits::CONVERSION_BYTES);
        let of_kind = |all: usize| all / limits::SHARE_OF_CONVERTED_KIND;
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::with_capacity(4);
        if let Some((class, name)) = account.map(Account::id) {
            let part = |all: usize| lanes::share(class, all);
            let own = || Share::new(part(of_kind(calls)), part(of_kind(bytes)));
            found.push(shares.of(Owner::AccountInKind(class, name.into(), kind.into()), own));
            let own = || Share::new(part(calls), part(bytes));
            found.push(shares.of(Owner::Account(class, name.into()), own));
        }
        found.push(shares.of(Owner::Kind(kind.into()), || Share::new(of_kind(calls), of_kind(bytes))));
        found.push(Arc::clone(&self.all));
        found
    }
}

impl Shares {
    fn of(&mut self, owner: Owner, new: impl FnOnce() -> Arc<Share>) -> Arc<Share> {
        if let Some(share) = self.by_owner.get(&owner).and_then(Weak::upgrade) {
            return share;
        }
        if self.by_owner.len() >= self.sweep_at {
            self.by_owner.retain(|_, share| share.strong_count() > 0);
            self.sweep_at = 2 * self.by_owner.len() + 64;
        }
        let share = new();
        self.by_owner.insert(owner, Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::clients::accounts::Accounts;

    const KIND_CALLS: usize = limits::CONVERSIONS / limits::SHARE_OF_CONVERTED_KIND;
    const KIND_BYTES: usize = limits::CONVERSION_BYTES / limits::SHARE_OF_CONVERTED_KIND;

    /// Takes as many turns as there are.
    fn all(turns: &Turns, kind: &str, account: Option<&Account>, bytes: usize) -> Vec<Turn> {
        std::iter::from_fn(|| turns.take(kind, account, bytes).now_or_never()).collect()
    }

    #[test]
    fn calls_beyond_the_share_of_account_kind_or_server_wait() {
        let (turns, accounts) = (Turns::default(), Accounts::new([4, 4]));
        let tenants: Vec<_> =
            (0..6).map(|number| accounts.account(Class::Tenants, &number.to_string())).collect();
        let mut held = Vec::new();
        for tenant in &tenants[..limits::SHARE_OF_IDENTITY] {
            let taken = all(&turns, "a", Some(tenant), 1);
            assert_eq!(taken.len(), KIND_CALLS / limits::SHARE_OF_IDENTITY);
            held.extend(taken);
        }
        assert!(all(&turns, "a", Some(&tenants[4]), 1).is_empty(), "the kind has its share");
        assert!(!all(&turns, "b", Some(&tenants[0]), 1).is_empty(), "another kind is not delayed");
        for kind in ["b", "c", "d"] {
            held.extend(all(&turns, kind, None, 1));
        }
        assert_eq!(held.len(), limits::CONVERSIONS);
        assert!(all(&turns, "e", None, 1).is_empty(), "the server has its limit");
        held.clear();
        assert_eq!(all(&turns, "e", None, 1).len(), KIND_CALLS);
    }

    #[test]
    fn bytes_under_way_are_bounded_and_a_large_call_goes_alone() {
        let (turns, accounts) = (Turns::default(), Accounts::new([4, 4]));
        let (mallory, bob) =
            (accounts.account(Class::Tenants, "mallory"), accounts.account(Class::Tenants, "bob"));
        let large = KIND_BYTES / limits::SHARE_OF_IDENTITY / 2;
        let held = all(&turns, "a", Some(&mallory), large);
        assert_eq!(held.len(), 2);
        assert_eq!(all(&turns, "a", Some(&bob), large).len(), 2, "another account has its own share");
        drop(held);
        let huge = all(&turns, "a", Some(&mallory), usize::MAX);
        assert_eq!(huge.len(), 1);
        assert!(all(&turns, "a", Some(&mallory), 1).is_empty());
        assert!(!all(&turns, "a", Some(&bob), 1).is_empty());
        let of_the_server = all(&turns, "b", None, KIND_BYTES / 2);
        assert_eq!(of_the_server.len(), 2);
    }

    #[tokio::test]
    async fn waiting_call_gets_its_turn_when_one_of_its_account_ends() {
        let (turns, accounts) = (Turns::default(), Accounts::new([4, 4]));
        let bob = accounts.account(Class::Tenants, "bob");
        let mut held = all(&turns, "a", Some(&bob), 1);
        let mut next = std::pin::pin!(turns.take("a", Some(&bob), 1));
        assert!(next.as_mut().now_or_never().is_none());
        held.pop();
        drop(next.await);
    }

    #[tokio::test]
    async fn shares_without_calls_are_forgotten() {
        let (turns, accounts) = (Turns::default(), Accounts::new([4, 4]));
        let bob = accounts.account(Class::Tenants, "bob");
        for number in 0..1_000 {
            drop(turns.take(&number.to_string(), Some(&bob), 1).await);
        }
        assert!(turns.shares.lock().unwrap().by_owner.len() < 200);
    }
}
