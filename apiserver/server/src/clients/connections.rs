//! The table of connections: the data that [`connection_admission`](super::connection_admission) decides on, and the execution of its decisions.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use userspace_daemon::metrics::Counter;

use super::accounts::{Account, Class};
use super::budget::{Budget, Level};
use super::connection_admission::{self, Bounds, Network, Seen, Stage};
use super::delivery::Progress;
use super::frame_limit::Earnings;
use crate::limits;

/// A connection of a client.
pub struct Connection {
    id: u64,
    address: IpAddr,
    network: Network,
    loopback: bool,
    opened: u64,
    /// Set once the handshake is complete.
    shaken: OnceLock<()>,
    /// The account of the first identity that was authenticated on it and found a place.
    account: OnceLock<Arc<Account>>,
    /// Requests in flight, and answers that are being sent.
    active: AtomicUsize,
    idle_since: AtomicU64,
    held: Arc<Level>,
    /// The connection's progress, which pays for the frames of HTTP/2.
    earnings: Arc<Earnings>,
    /// Answers that are being sent.
    deliveries: Mutex<Vec<Weak<Progress>>>,
    /// Cancelled to end the connection when the requests under way have ended.
    retired: CancellationToken,
    /// Closed at once.
    closed: CancellationToken,
    table: Weak<Connections>,
}

/// Keeps a connection in the table until it is dropped.
pub struct Place(Arc<Connection>);

impl std::ops::Deref for Place {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(table) = self.0.table.upgrade() else { return };
        // Others that are counted from now on find that the connection is gone.
        table.lock().remove(&self.0.id);
        if let Some(account) = self.0.account.get() {
            table.known.fetch_sub(1, Ordering::SeqCst);
            account.connections.fetch_sub(1, Ordering::SeqCst);
            if account.class() == Class::Tenants {
                table.tenants.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// A request in flight, or an answer that is being sent.
pub struct Active(Arc<Connection>);

impl Drop for Active {
    fn drop(&mut self) {
        if let Some(table) = self.0.table.upgrade() {
            self.0.idle_since.store(table.now(), Ordering::SeqCst);
        }
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connection {
    /// The handshake is complete.
    pub fn shaken(&self) {
        // The first time counts.
        let _ = self.shaken.set(());
    }

    /// A request begins.
    pub fn begin(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.earnings.request();
        Active(Arc::clone(self))
    }

    /// Returns the earnings that pay for the frames of HTTP/2.
    pub fn earnings(&self) -> &Arc<Earnings> {
        &self.earnings
    }

    /// Counts a connection that was closed because its client sent HTTP/2 frames without end.
    pub fn flooded(&self) {
        if let Some(table) = self.table.upgrade() {
            table.flooded.add(1);
        }
    }

    /// Notes that HTTP no longer owns the connection, which therefore is never idle.
    pub(super) fn upgraded(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a client was authenticated: the connection leaves the part of the table whose connections
    /// give way, if there is a place for it elsewhere.
    pub fn authenticated(&self, account: &Arc<Account>) {
        if self.account.get().is_none()
            && let Some(table) = self.table.upgrade()
        {
            table.promote(self, account);
        }
    }

    /// Returns the levels that a request of `account` on this connection is charged to.
    pub fn budget(&self, account: Arc<Account>) -> Budget {
        Budget::new(Arc::clone(&self.held), account)
    }

    /// Returns the client's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the key that a client's address is counted under.
    pub fn network_key(&self) -> String {
        format!("{:?}", self.network)
    }

    /// Returns the token that ends the connection once the requests under way have ended.
    pub fn retired(&self) -> &CancellationToken {
        &self.retired
    }

    /// Returns the token that ends the connection at once.
    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// An answer is being sent on it.
    pub(super) fn delivers(&self, progress: &Arc<Progress>) {
        let mut all = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|delivery| delivery.strong_count() > 0);
        }
        all.push(Arc::downgrade(progress));
    }

    /// Milliseconds of the table's clock.
    pub(super) fn now(&self) -> u64 {
        self.table.upgrade().map_or(0, |table| table.now())
    }

    fn seen(&self) -> Seen {
        let stage = match (self.account.get(), self.shaken.get()) {
            (Some(account), _) => Stage::Known(account.class()),
            (None, Some(())) => Stage::Unknown,
            (None, None) => Stage::Handshake,
        };
        let active = self.active.load(Ordering::SeqCst) > 0;
        Seen {
            id: self.id,
            network: self.network,
            loopback: self.loopback,
            stage,
            opened: self.opened,
            idle_since: (!active).then(|| self.idle_since.load(Ordering::SeqCst)),
        }
    }

    /// Cuts off answers that are not taken: only the stream if that is possible and has not been tried yet,
    /// else the connection.
    fn cut_stalled(&self, now: u64, cut: &Counter) {
        let all: Vec<_> = {
            let mut all = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|delivery| delivery.strong_count() > 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        for progress in all {
            if progress.is_stalled(now) {
                cut.add(1);
                if !progress.cut(now) {
                    self.closed.cancel();
                }
            }
        }
    }
}

/// The numbers of connections, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub handshakes: usize,
    pub unknown: usize,
    pub known: usize,
}

/// All connections.
pub struct Connections {
    bounds: Bounds,
    began: Instant,
    next: AtomicU64,
    table: Mutex<HashMap<u64, Arc<Connection>>>,
    known: AtomicUsize,
    tenants: AtomicUsize,
    /// Connections that gave way to others.
    pub displaced: Counter,
    /// Connections that were idle for too long.
    pub idled: Counter,
    /// Connections whose clients sent frames of HTTP/2 without end.
    pub flooded: Counter,
    /// The number of answers that were cut off because they were not taken.
    pub cut: Counter,
    /// Requests that were refused because of what their client held already.
    pub refused: Counter,
}

impl Connections {
    /// Returns a table with this many places.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            bounds: Bounds::of(total),
            began: Instant::now(),
            next: AtomicU64::new(0),
            table: Mutex::default(),
            known: AtomicUsize::new(0),
            tenants: AtomicUsize::new(0),
            displaced: Counter::default(),
            idled: Counter::default(),
            flooded: Counter::default(),
            cut: Counter::default(),
            refused: Counter::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the table was made.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes a new connection into the table; another one may have to give way to it.
    pub fn admit(self: &Arc<Self>, peer: SocketAddr) -> Place {
        let (network, now) = (Network::of(peer.ip()), self.now());
        let loopback = peer.ip().to_canonical().is_loopback();
        let connection = Arc::new(Connection {
            id: self.next.fetch_add(1, Ordering::SeqCst),
            // A socket for both families has IPv4 clients by mapped addresses.
            address: peer.ip().to_canonical(),
            network,
            loopback,
            opened: now,
            shaken: OnceLock::new(),
            account: OnceLock::new(),
            active: AtomicUsize::new(0),
            idle_since: AtomicU64::new(now),
            held: Arc::new(Level::new(limits::HELD_BY_CONNECTION)),
            earnings: Arc::default(),
            deliveries: Mutex::default(),
            retired: CancellationToken::new(),
            closed: CancellationToken::new(),
            table: Arc::downgrade(self),
        });
        let mut table = self.lock();
        // Authenticated ones do not give way.
        let part = table.values().filter(|c| c.account.get().is_none() && !c.closed.is_cancelled());
        let seen: Vec<Seen> = part.map(|c| c.seen()).collect();
        if let Some(gone) = connection_admission::admit(seen.iter(), network, loopback, &self.bounds)
            && let Some(gone) = table.get(&gone)
        {
            self.displaced.add(1);
            gone.closed.cancel();
        }
        table.insert(connection.id, Arc::clone(&connection));
        Place(connection)
    }

    fn promote(&self, connection: &Connection, account: &Arc<Account>) {
        // The lock makes the counts and the decision one step, before the place is given back or not at
        // all: streams of HTTP/2 have tasks of their own, which may outlive their connection.
        let table = self.lock();
        if !table.contains_key(&connection.id) {
            return;
        }
        let [known, tenants, own] =
            [&self.known, &self.tenants, &account.connections].map(|count| count.load(Ordering::SeqCst));
        if connection.account.get().is_none()
            && self.bounds.admits_known(account.class(), known, tenants, own)
            && connection.account.set(Arc::clone(account)).is_ok()
        {
            self.known.fetch_add(1, Ordering::SeqCst);
            account.connections.fetch_add(1, Ordering::SeqCst);
            if account.class() == Class::Tenants {
                self.tenants.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Closes connections that are idle or stalled for too long.
    pub fn sweep(&self) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        let (counts, now) = (self.counts(), self.now());
        let unknown = counts.handshakes + counts.unknown;
        let longest_idle = [
            connection_admission::idle_time(false, unknown, self.bounds.unknown),
            connection_admission::idle_time(true, counts.known, self.bounds.known),
        ];
        for connection in all {
            connection.held.wake(usize::MAX);
            connection.cut_stalled(now, &self.cut);
            let seen = connection.seen();
            let longest_idle = match seen.stage {
                // It has a time of its own.
                Stage::Handshake => continue,
                Stage::Unknown => longest_idle[0],
                Stage::Known(_) => longest_idle[1],
            };
            let idle = seen.idle_since.map_or(0, |since| now.saturating_sub(since));
            if u128::from(idle) < longest_idle.as_millis() {
                continue;
            }
            if connection.retired.is_cancelled() {
                connection.closed.cancel();
            } else {
                self.idled.add(1);
                connection.retired.cancel();
            }
        }
    }

    /// Returns the numbers of connections.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for connection in self.lock().values() {
            match connection.seen().stage {
                Stage::Handshake => counts.handshakes += 1,
                Stage::Unknown => counts.unknown += 1,
                Stage::Known(_) => counts.known += 1,
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::accounts::Accounts;
    use super::*;

    fn peer(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 4000))
    }

    #[tokio::test(start_paused = true)]
    async fn an_authenticated_connection_stays_when_others_have_to_give_way() {
        let table = Connections::new(20);
        let accounts = Accounts::new([4, 4]);
        let admin = table.admit(peer(1));
        admin.shaken();
        admin.authenticated(&accounts.account(Class::Administrators, ""));
        let places: Vec<Place> = (0..20).map(|_| table.admit(peer(1))).inspect(|p| p.shaken()).collect();
        let left = places.iter().filter(|place| !place.closed().is_cancelled()).count();
        assert_eq!(left, table.bounds.network);
        assert!(!admin.closed().is_cancelled());
        assert!(table.displaced.value() >= 17);
        drop((places, admin));
        assert_eq!(table.counts(), Counts::default());
        assert_eq!(table.known.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn client_on_a_socket_of_both_families_has_its_own_address() {
        let table = Connections::new(20);
        let [plain, mapped] =
            ["10.0.0.1:4000", "[::ffff:10.0.0.1]:4000"].map(|peer| table.admit(peer.parse().unwrap()));
        assert_eq!((mapped.address(), mapped.network), (plain.address(), plain.network));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_told_to_end_and_then_closed() {
        let table = Connections::new(100);
        let (idle, busy) = (table.admit(peer(1)), table.admit(peer(2)));
        idle.shaken();
        busy.shaken();
        let active = busy.begin();
        tokio::time::advance(limits::IDLE).await;
        table.sweep();
        assert!(idle.retired().is_cancelled() && !idle.closed().is_cancelled());
        table.sweep();
        assert!(idle.closed().is_cancelled());
        assert!(!busy.retired().is_cancelled());
        drop(active);
        table.sweep();
        assert!(!busy.retired().is_cancelled(), "it has only just become idle");
    }

    #[tokio::test(start_paused = true)]
    async fn one_account_takes_a_share_of_the_authenticated_connections() {
        let table = Connections::new(50);
        let accounts = Accounts::new([4, 4]);
        let bob = accounts.account(Class::Tenants, "bob");
        let places: Vec<Place> = (0..20).map(|host| table.admit(peer(host))).collect();
        places.iter().for_each(|place| place.authenticated(&bob));
        assert_eq!(table.counts().known, table.bounds.account);
        drop(places);
        assert_eq!(bob.connections.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_outlives_its_connection_counts_for_nobody() {
        let table = Connections::new(20);
        let accounts = Accounts::new([4, 4]);
        let bob = accounts.account(Class::Tenants, "bob");
        let place = table.admit(peer(1));
        let connection = Arc::clone(&place);
        drop(place);
        connection.authenticated(&bob);
        assert!(connection.account.get().is_none());
        let counts =
            [&table.known, &table.tenants, &bob.connections].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_takes_a_share_of_the_authenticated_connections_and_another_finds_its_own() {
        let table = Connections::new(10_000);
        let accounts = Accounts::new([4, 4]);
        let [one, other] =
            ["system:node:a", "system:node:b"].map(|node| accounts.account(Class::Nodes, node));
        let places: Vec<Place> = (0..400).map(|host| table.admit(peer((host % 250) as u8))).collect();
        places.iter().for_each(|place| place.authenticated(&one));
        assert_eq!(table.counts().known, table.bounds.node);
        let place = table.admit(peer(251));
        place.authenticated(&other);
        assert_eq!(table.counts().known, table.bounds.node + 1);
    }
}
