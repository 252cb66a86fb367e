//! Accounting of the memory that the server holds for requests, and of their places among the requests in
//! flight.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use apiserver_meta::identity::Identity;

use super::budget::Level;
use super::lanes::{self, Lane, Places};
use crate::limits;

/// Kinds of clients that do not compete with each other for memory, nor for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Probes from anywhere; each client address has an account.
    Probes,
    /// Clients without credentials, who share one account.
    Anonymous,
    /// Authenticated clients, each with an account; ServiceAccounts share that of their namespace, since a
    /// client that may create one may create any number.
    Tenants,
    /// Nodes, each with an account.
    Nodes,
    /// The components of the control plane, and the ServiceAccounts of `kube-system`.
    System,
    /// Members of `system:masters`, who share one account.
    Administrators,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Probes, Self::Anonymous, Self::Tenants, Self::Nodes, Self::System, Self::Administrators];
    /// The number of classes.
    pub const COUNT: usize = 6;

    /// Returns the value of the label `class` in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Probes => "probes",
            Self::Anonymous => "anonymous",
            Self::Tenants => "tenants",
            Self::Nodes => "nodes",
            Self::System => "system",
            Self::Administrators => "administrators",
        }
    }

    /// Bytes that one account of the class may hold.
    fn account_limit(self) -> usize {
        match self {
            Self::Probes => limits::HELD_BY_PROBES_OF_ADDRESS,
            Self::Anonymous => limits::HELD_BY_ANONYMOUS,
            Self::Tenants | Self::Nodes | Self::System => limits::HELD_BY_IDENTITY,
            Self::Administrators => limits::HELD_BY_ADMINISTRATORS,
        }
    }

    /// Bytes that all accounts of the class may hold together.
    fn limit(self) -> usize {
        match self {
            Self::Probes => limits::HELD_BY_PROBES,
            Self::Anonymous => limits::HELD_BY_ANONYMOUS,
            Self::Tenants => limits::HELD_BY_TENANTS,
            Self::Nodes => limits::HELD_BY_NODES,
            Self::System => limits::HELD_BY_SYSTEM,
            Self::Administrators => limits::HELD_BY_ADMINISTRATORS,
        }
    }
}

/// Users of the control plane's components.
const COMPONENTS: [&str; 4] =
    ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:apiserver"];
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Returns the class of an identity, and what tells its account from others of the class.
pub fn payer(identity: &Identity) -> (Class, &str) {
    let member = |group: &str| identity.groups.iter().any(|g| g == group);
    if identity.user == "system:anonymous" || member("system:unauthenticated") {
        return (Class::Anonymous, "");
    }
    if member("system:masters") {
        return (Class::Administrators, "");
    }
    if let Some(account) = identity.user.strip_prefix(SERVICE_ACCOUNT) {
        let namespace = account.split(':').next().unwrap_or_default();
        let class = if namespace == "kube-system" { Class::System } else { Class::Tenants };
        return (class, &identity.user[..SERVICE_ACCOUNT.len() + namespace.len()]);
    }
    let class = match identity.user.as_str() {
        user if COMPONENTS.contains(&user) => Class::System,
        _ if member("system:nodes") => Class::Nodes,
        _ => Class::Tenants,
    };
    (class, &identity.user)
}

/// The memory and the places in flight of identities with one key.
pub struct Account {
    class: Class,
    key: Box<str>,
    /// Bytes of this account.
    pub(super) held: Level,
    /// Bytes of all accounts of the class.
    pub(super) class_held: Arc<Level>,
    /// Connections whose first authenticated request was the account's.
    pub(super) connections: AtomicUsize,
    /// The account's share of the places of each lane that has some.
    places: [Places; Lane::SHARED],
    accounts: Weak<Accounts>,
}

impl Account {
    /// Returns the class of the account.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns the class, and the name of the account among those of the class.
    pub fn id(&self) -> (Class, &str) {
        (self.class, &self.key)
    }

    /// Returns the account's share of a lane's places; `None` for a lane that has no limit.
    pub(super) fn places(&self, lane: Lane) -> Option<&Places> {
        Some(&self.places[lane.shared()?])
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let Some(accounts) = self.accounts.upgrade() else { return };
        let mut all = accounts.lock();
        let key = (self.class, &*self.key);
        // Another one may have been made since the last reference went.
        if all[key.0 as usize].get(key.1).is_some_and(|other| other.strong_count() == 0) {
            all[key.0 as usize].remove(key.1);
        }
    }
}

type ByKey = HashMap<Box<str>, Weak<Account>>;

/// The accounts of all present clients.
pub struct Accounts {
    classes: [Arc<Level>; Class::COUNT],
    /// Reads and writes in flight that the common lane takes.
    in_flight: [usize; 2],
    accounts: Mutex<[ByKey; Class::COUNT]>,
}

impl Accounts {
    /// No accounts. `in_flight`: reads and writes that the common lane takes at one time.
    pub fn new(in_flight: [usize; 2]) -> Arc<Self> {
        let classes = Class::ALL.map(|class| Arc::new(Level::new(class.limit())));
        Arc::new(Self { classes, in_flight, accounts: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, [ByKey; Class::COUNT]> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the account that an identity is charged to.
    pub fn of(self: &Arc<Self>, identity: &Identity) -> Arc<Account> {
        let (class, key) = payer(identity);
        self.account(class, key)
    }

    /// Returns the account of clients that are not authenticated.
    pub fn anonymous(self: &Arc<Self>) -> Arc<Account> {
        self.account(Class::Anonymous, "")
    }

    /// Returns the account of probes from one client address.
    pub fn probes(self: &Arc<Self>, network: &str) -> Arc<Account> {
        self.account(Class::Probes, network)
    }

    /// Returns the account of a class with this key.
    pub fn account(self: &Arc<Self>, class: Class, key: &str) -> Arc<Account> {
        let mut all = self.lock();
        if let Some(account) = all[class as usize].get(key).and_then(Weak::upgrade) {
            return account;
        }
        let share =
            |lane: Lane| lanes::places(lane.places(self.in_flight).map(|places| lanes::share(class, places)));
        let account = Arc::new(Account {
            class,
            key: Box::from(key),
            held: Level::new(class.account_limit()),
            class_held: Arc::clone(&self.classes[class as usize]),
            connections: AtomicUsize::new(0),
            places: Lane::WITH_PLACES.map(share),
            accounts: Arc::downgrade(self),
        });
        all[class as usize].insert(Box::from(key), Arc::downgrade(&account));
        account
    }

    /// Makes all waiting requests look for room again.
    pub fn wake(&self) {
        let all: Vec<_> = self.lock().iter().flat_map(HashMap::values).filter_map(Weak::upgrade).collect();
        all.iter().map(|account| &account.held).for_each(|level| level.wake(usize::MAX));
        self.classes.iter().for_each(|level| level.wake(usize::MAX));
    }

    /// Bytes held by each class, in the order of [`Class::ALL`].
    pub fn held(&self) -> [usize; Class::COUNT] {
        std::array::from_fn(|class| self.classes[class].used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_that_one_owner_can_multiply_share_an_account() {
        let service_account = |namespace: &str, name: &str| {
            Identity::authenticated(
                &format!("system:serviceaccount:{namespace}:{name}"),
                &["system:serviceaccounts"],
            )
        };
        let table = [
            (Identity::anonymous(), Class::Anonymous, ""),
            (Identity::authenticated("admin", &["system:masters"]), Class::Administrators, ""),
            (Identity::authenticated("system:node:n1", &["system:nodes"]), Class::Nodes, "system:node:n1"),
            (Identity::authenticated("system:kube-scheduler", &[]), Class::System, "system:kube-scheduler"),
            (service_account("kube-system", "x"), Class::System, "system:serviceaccount:kube-system"),
            (service_account("a", "x"), Class::Tenants, "system:serviceaccount:a"),
            (service_account("a", "y"), Class::Tenants, "system:serviceaccount:a"),
            (service_account("kube-system2", "x"), Class::Tenants, "system:serviceaccount:kube-system2"),
            (Identity::authenticated("bob", &[]), Class::Tenants, "bob"),
            (Identity::authenticated("system:anonymous", &["system:masters"]), Class::Anonymous, ""),
        ];
        for (identity, class, key) in table {
            assert_eq!(payer(&identity), (class, key), "{}", identity.user);
        }
    }

    #[test]
    fn an_account_lives_as_long_as_somebody_uses_it() {
        let accounts = Accounts::new([400, 200]);
        let bob = Identity::authenticated("bob", &[]);
        let one = accounts.of(&bob);
        assert!(Arc::ptr_eq(&one, &accounts.of(&bob)));
        drop(one);
        assert!(accounts.lock().iter().all(HashMap::is_empty));
        accounts.of(&bob);
        assert!(accounts.lock().iter().all(HashMap::is_empty));
    }
}
