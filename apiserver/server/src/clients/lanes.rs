//! Lanes of requests in flight. A request waits only for others of its lane, so that requests vital to the
//! control plane get through regardless of all others.
//!
//! The order is that of the FlowSchemas that Kubernetes makes (exempt, leader election and node-high,
//! system, the rest), without queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_meta::identity::Identity;
use apiserver_schema::error::ApiError;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::accounts::{Account, Class, payer};
use super::intake::Received;
use crate::errors::too_many_requests;
use crate::limits;
use crate::probes;
use crate::request::RequestInfo;

/// Requests that compete with each other for places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Administrators and probes, who never wait.
    Exempt,
    /// Leases of the control plane.
    Leases,
    /// Leases and statuses of nodes.
    Heartbeats,
    /// Everything else that the control plane asks.
    System,
    /// Everything else that nodes ask.
    Nodes,
    /// All others.
    Common,
}

/// Returns the lane of a request.
pub fn lane(info: &RequestInfo, identity: &Identity) -> Lane {
    let (class, _) = payer(identity);
    match class {
        _ if is_probe(info) => Lane::Exempt,
        Class::Administrators => Lane::Exempt,
        Class::System if is_heartbeat(info) => Lane::Leases,
        Class::System => Lane::System,
        Class::Nodes if is_heartbeat(info) => Lane::Heartbeats,
        Class::Nodes => Lane::Nodes,
        Class::Tenants | Class::Anonymous | Class::Probes => Lane::Common,
    }
}

/// Returns `true` for a health probe.
pub fn is_probe(info: &RequestInfo) -> bool {
    !info.is_resource && info.is_read() && probes::probe(&info.path).is_some()
}

/// Returns `true` if a request, when made by the control plane or a node, shows that its author is alive.
fn is_heartbeat(info: &RequestInfo) -> bool {
    let one = matches!(info.verb, "get" | "create" | "update" | "patch");
    match (info.group.as_str(), info.resource.as_str(), info.subresource.as_str()) {
        _ if !info.is_resource || !one => false,
        ("coordination.k8s.io", "leases", "") => true,
        ("", "nodes", "status") => true,
        // All writes of nodes to Nodes count, as in Kubernetes.
        ("", "nodes", "") => info.verb == "update" || info.verb == "patch",
        _ => false,
    }
}

impl Lane {
    /// The lanes that have a limit.
    pub(super) const WITH_PLACES: [Self; Self::SHARED] =
        [Self::Leases, Self::Heartbeats, Self::System, Self::Nodes, Self::Common];
    /// The number of lanes with a limit.
    pub(super) const SHARED: usize = 5;

    /// Returns the position of a lane among those that have a limit.
    pub(super) fn shared(self) -> Option<usize> {
        Self::WITH_PLACES.iter().position(|lane| *lane == self)
    }

    /// Places for reads and writes, where the common lane has `common`.
    pub(super) fn places(self, common: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Exempt | Self::Common => common,
            Self::Leases | Self::Heartbeats => [limits::LEASES_IN_FLIGHT; 2],
            Self::System | Self::Nodes => [limits::SYSTEM_READS_IN_FLIGHT, limits::SYSTEM_WRITES_IN_FLIGHT],
        }
    }

    /// Requests with large bodies that are worked on at one time, where `threads` may be occupied by them.
    fn heavy(self, threads: usize) -> usize {
        match self {
            Self::Exempt | Self::Common | Self::Nodes => threads.max(1),
            // No request that shows that its author is alive is large.
            Self::Leases | Self::Heartbeats => 1,
            Self::System => limits::HEAVY_OF_SYSTEM,
        }
    }
}

/// Returns the places that one account may take, of all that there are: at least one.
pub fn share(class: Class, places: usize) -> usize {
    let part = match class {
        Class::Anonymous | Class::Probes => limits::SHARE_OF_ANONYMOUS,
        Class::Tenants => limits::SHARE_OF_IDENTITY,
        Class::Nodes => limits::SHARE_OF_NODE,
        Class::System | Class::Administrators => limits::SHARE_OF_SYSTEM,
    };
    (places / part).max(1)
}

/// The kind of a request's stay in a lane; each kind has places of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    Read,
    Write,
    /// It has left its place and waits for something to happen.
    Aside,
}

/// The places of a lane, or of an account's share of one, by [`Stay`].
pub(super) type Places = [Arc<Semaphore>; 3];

/// Makes places for this many reads and writes; as many as write may stand aside.
pub(super) fn places([reads, writes]: [usize; 2]) -> Places {
    [reads, writes, writes].map(|places| Arc::new(Semaphore::new(places)))
}

/// The places of all lanes.
pub struct Lanes {
    places: [Places; Lane::SHARED],
    /// Places of each lane for requests with large bodies, whose decoding occupies a thread and takes many
    /// times their bytes.
    heavy: [Arc<Semaphore>; Lane::SHARED],
}

/// The place of one request in its lane. The default is that of a request that needs none.
#[derive(Default)]
pub struct Place {
    /// The account's share of the lane, and the lane, for what the request does.
    working: Option<[Arc<Semaphore>; 2]>,
    /// The semaphores that the request counts in while it waits for another request.
    aside: Option<[Arc<Semaphore>; 2]>,
    held: Mutex<Option<[OwnedSemaphorePermit; 2]>>,
    body: Option<Received>,
}

/// The time of a request in its place, which is free again when this is dropped.
pub struct Turn<'a>(&'a Place);

/// There was no place in time.
#[derive(Debug)]
pub struct NoTurn;

impl From<NoTurn> for ApiError {
    fn from(_: NoTurn) -> Self {
        too_many_requests()
    }
}

impl Lanes {
    /// Lanes of which the common one has places for this many reads and writes.
    pub fn new(in_flight: [usize; 2]) -> Self {
        // One thread is left for all others.
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() - 1);
        Self {
            places: Lane::WITH_PLACES.map(|lane| places(lane.places(in_flight))),
            heavy: Lane::WITH_PLACES.map(|lane| Arc::new(Semaphore::new(lane.heavy(threads)))),
        }
    }

    /// Returns the places for large bodies, for requests that have to wait for them.
    pub fn heavy(&self, lane: Lane) -> Option<&Arc<Semaphore>> {
        Some(&self.heavy[lane.shared()?])
    }

    /// Returns the place for a request of the account, which is still to be taken. `body` is the charge of
    /// its body.
    pub fn place(&self, lane: Lane, account: &Account, read: bool, body: Option<Received>) -> Place {
        let of = |stay: Stay| {
            let (own, all) = (account.places(lane)?, &self.places[lane.shared()?]);
            Some([own, all].map(|places| Arc::clone(&places[stay as usize])))
        };
        let working = of(if read { Stay::Read } else { Stay::Write });
        Place { working, aside: of(Stay::Aside), held: Mutex::default(), body }
    }
}

impl Place {
    fn held(&self) -> MutexGuard<'_, Option<[OwnedSemaphorePermit; 2]>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the place, first among the requests of the account, then among those of the lane.
    pub async fn take(&self) -> Result<Turn<'_>, NoTurn> {
        self.acquire().await?;
        Ok(Turn(self))
    }

    async fn acquire(&self) -> Result<(), NoTurn> {
        let Some([own, all]) = &self.working else { return Ok(()) };
        let places = async {
            let own = Arc::clone(own).acquire_owned().await?;
            Ok::<_, AcquireError>([own, Arc::clone(all).acquire_owned().await?])
        };
        let Ok(Ok(places)) = tokio::time::timeout(limits::FLOW_WAIT, places).await else {
            return Err(NoTurn);
        };
        *self.held() = Some(places);
        Ok(())
    }

    /// Leaves the place to others while `wait` lasts, and takes it again afterwards, so that waiting requests
    /// keep no others from the server. As each of them still holds what it has decoded, no more may stand
    /// aside than may write, and none with a large body.
    pub async fn aside<T>(&self, wait: impl Future<Output = T>) -> Result<T, NoTurn> {
        if self.held().is_none() {
            return Ok(wait.await);
        }
        if self.body.as_ref().is_some_and(Received::is_heavy) {
            return Err(NoTurn);
        }
        let _aside = match &self.aside {
            Some([own, all]) => Some([enter(own)?, enter(all)?]),
            None => None,
        };
        self.held().take();
        let result = wait.await;
        // The turn that began before still ends it.
        self.acquire().await?;
        Ok(result)
    }
}

/// Returns a place that is free now.
fn enter(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, NoTurn> {
    Arc::clone(places).try_acquire_owned().map_err(|_| NoTurn)
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.held().take();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use http::Method;

    use super::super::accounts::Accounts;
    use super::super::budget::{Budget, Level};
    use super::super::intake;
    use super::*;
    use crate::body;
    use crate::query::Query;

    /// Returns the place, once it is taken for good.
    async fn taken_for_good(place: Place) -> Result<Place, NoTurn> {
        place.acquire().await.map(|()| place)
    }

    fn lane_of(method: &str, uri: &str, user: &str, groups: &[&str]) -> Lane {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let info = RequestInfo::parse(&method, path, &Query::parse(query));
        lane(&info, &Identity::authenticated(user, groups))
    }

    #[test]
    fn leases_and_heartbeats_have_a_lane_of_their_own() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
        let node = "/api/v1/nodes/n1/status";
        let nodes: &[&str] = &["system:nodes"];
        let table = [
            ("PUT", lease, "system:kube-scheduler", &[][..], Lane::Leases),
            ("GET", lease, "system:kube-controller-manager", &[], Lane::Leases),
            ("PATCH", lease, "system:node:n1", nodes, Lane::Heartbeats),
            ("PATCH", node, "system:node:n1", nodes, Lane::Heartbeats),
            ("PATCH", node, "bob", &[], Lane::Common),
            ("PUT", lease, "bob", &[], Lane::Common),
            ("PUT", lease, "bob", &["system:masters"], Lane::Exempt),
            ("GET", "/apis/coordination.k8s.io/v1/leases", "system:node:n1", nodes, Lane::Nodes),
            ("GET", "/api/v1/pods", "system:node:n1", nodes, Lane::Nodes),
            ("GET", "/api/v1/pods", "system:serviceaccount:kube-system:x", &[], Lane::System),
            ("GET", "/api/v1/pods", "system:serviceaccount:a:x", &[], Lane::Common),
            ("GET", "/livez", "bob", &[], Lane::Exempt),
            ("GET", "/readyz/ping", "bob", &[], Lane::Exempt),
            ("POST", "/livez", "bob", &[], Lane::Common),
            ("GET", "/openapi/v2", "bob", &[], Lane::Common),
        ];
        for (method, uri, user, groups, expected) in table {
            assert_eq!(lane_of(method, uri, user, groups), expected, "{method} {uri} by {user}");
        }
        let info = RequestInfo::parse(&Method::GET, "/healthz", &Query::parse(""));
        assert_eq!(lane(&info, &Identity::anonymous()), Lane::Exempt);
    }

    #[tokio::test(start_paused = true)]
    async fn one_identity_takes_a_share_and_other_lanes_are_open() {
        let (accounts, lanes) = (Accounts::new([8, 8]), Lanes::new([8, 8]));
        let turn = async |lane: Lane, account: &Account, read: bool| {
            taken_for_good(lanes.place(lane, account, read, None)).await
        };
        let bob = accounts.account(Class::Tenants, "bob");
        let others: Vec<_> = (0..8).map(|i| accounts.account(Class::Tenants, &i.to_string())).collect();
        let mut held = Vec::new();
        for _ in 0..8 / limits::SHARE_OF_IDENTITY {
            held.push(turn(Lane::Common, &bob, true).await.unwrap());
        }
        assert!(turn(Lane::Common, &bob, true).now_or_never().is_none(), "bob has had his share");
        assert!(turn(Lane::Common, &bob, true).await.is_err(), "and is refused in time");
        for other in &others[..8 - held.len()] {
            held.push(turn(Lane::Common, other, true).await.unwrap());
        }
        assert!(turn(Lane::Common, &others[7], true).await.is_err(), "the lane is full");
        assert!(turn(Lane::Common, &bob, false).await.is_ok(), "writes have places of their own");
        let node = accounts.account(Class::Nodes, "system:node:n1");
        assert!(turn(Lane::Heartbeats, &node, true).await.is_ok());
        assert!(turn(Lane::Nodes, &node, true).await.is_ok());
        let scheduler = accounts.account(Class::System, "system:kube-scheduler");
        assert!(turn(Lane::Leases, &scheduler, true).await.is_ok());
        assert!(turn(Lane::Exempt, &bob, true).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_only_waits_leaves_its_place_to_others() {
        let (accounts, lanes) = (Accounts::new([4, 4]), Lanes::new([4, 4]));
        let bob = accounts.account(Class::Tenants, "bob");
        let place = lanes.place(Lane::Common, &bob, false, None);
        let turn = place.take().await.unwrap();
        let others = async {
            let other = lanes.place(Lane::Common, &bob, false, None);
            let taken = other.take().await.expect("bob's only place is free");
            assert!(other.aside(async {}).await.is_err(), "no more stand aside than may write");
            drop(taken);
            taken_for_good(other).await
        };
        let other = place.aside(others).await;
        assert!(other.is_err(), "the place is taken again before the request goes on");
        place.acquire().await.expect("the other one is gone");
        assert_eq!(place.aside(async { 7 }).await.unwrap(), 7);
        assert!(lanes.place(Lane::Common, &bob, false, None).take().await.is_err(), "and taken again");
        drop(turn);
        assert!(lanes.place(Lane::Common, &bob, false, None).take().await.is_ok());
        let administrator = lanes.place(Lane::Exempt, &bob, false, None);
        let _turn = administrator.take().await.unwrap();
        assert_eq!(administrator.aside(async { 8 }).await.unwrap(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_take_turns_in_every_lane() {
        let (accounts, lanes) = (Accounts::new([4, 4]), Lanes::new([4, 4]));
        assert!(lanes.heavy(Lane::Exempt).is_none());
        for lane in Lane::WITH_PLACES {
            let places = lanes.heavy(lane).unwrap().available_permits();
            let mut turns = Vec::new();
            for one in 0..=places {
                let account = accounts.account(Class::Nodes, &format!("system:node:n{one}"));
                let budget = Budget::new(Arc::new(Level::new(usize::MAX)), account);
                let large = body::full(vec![0; limits::HEAVY_BODY + 1]);
                let (large, received) = intake::meter(large, &budget, lanes.heavy(lane)).unwrap();
                let read = tokio::time::timeout(Duration::from_secs(1), body::read(large)).await;
                assert_eq!(read.is_ok(), one < places, "{one} of {places} in {lane:?}");
                turns.push(received);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_with_a_large_body_does_not_stand_aside() {
        let (accounts, lanes) = (Accounts::new([4, 4]), Lanes::new([4, 4]));
        let bob = accounts.account(Class::Tenants, "bob");
        let budget = Budget::new(Arc::new(Level::new(usize::MAX)), Arc::clone(&bob));
        let large = body::full(vec![0; limits::HEAVY_BODY + 1]);
        let (large, received) = intake::meter(large, &budget, lanes.heavy(Lane::Common)).unwrap();
        body::read(large).await.unwrap();
        let place = lanes.place(Lane::Common, &bob, false, Some(received));
        let _turn = place.take().await.unwrap();
        assert!(place.aside(std::future::pending::<()>()).await.is_err());
    }
}
