//! Lanes of requests in flight. A request waits only for others of its lane, so that what the control
//! plane lives by gets through whatever everybody else does.
//!
//! The order is that of the FlowSchemas that Kubernetes makes (exempt, leader election and node-high,
//! system, the rest), without queues.

use std::sync::Arc;

use apiserver_api::auth::Identity;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::accounts::{Account, Class, payer};
use crate::health;
use crate::limits;
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
    /// Everybody else.
    Common,
}

/// The lane of a request.
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

/// Whether a request asks how the server is.
pub fn is_probe(info: &RequestInfo) -> bool {
    !info.is_resource && info.is_read() && health::path(&info.path).is_some()
}

/// Whether a request, if it is by the control plane or a node, is one that shows that its author lives.
fn is_heartbeat(info: &RequestInfo) -> bool {
    let one = matches!(info.verb, "get" | "create" | "update" | "patch");
    match (info.group.as_str(), info.resource.as_str(), info.subresource.as_str()) {
        _ if !info.is_resource || !one => false,
        ("coordination.k8s.io", "leases", "") => true,
        ("", "nodes", "status") => true,
        // As in Kubernetes, which counts all writes of nodes about Nodes.
        ("", "nodes", "") => info.verb == "update" || info.verb == "patch",
        _ => false,
    }
}

impl Lane {
    /// The lanes that have a limit.
    pub(super) const WITH_PLACES: [Self; Self::SHARED] =
        [Self::Leases, Self::Heartbeats, Self::System, Self::Nodes, Self::Common];
    /// How many of them there are.
    pub(super) const SHARED: usize = 5;

    /// Where a lane is among those that have a limit.
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

    /// The places that one account may take, of all that there are: at least one.
    pub(super) fn share(self, class: Class, places: usize) -> usize {
        let part = match class {
            Class::Anonymous | Class::Probes => limits::SHARE_OF_ANONYMOUS,
            Class::Tenants => limits::SHARE_OF_IDENTITY,
            Class::Nodes => limits::SHARE_OF_NODE,
            Class::System | Class::Administrators => limits::SHARE_OF_SYSTEM,
        };
        (places / part).max(1)
    }
}

/// The places of all lanes.
pub struct Lanes {
    places: [[Semaphore; 2]; Lane::SHARED],
    /// Places of the common lane for requests with large bodies, whose decoding occupies a thread.
    heavy: Arc<Semaphore>,
}

/// A request's place, until it is dropped.
pub struct Turn<'a> {
    _places: Option<[SemaphorePermit<'a>; 2]>,
}

/// There was no place in time.
#[derive(Debug)]
pub struct NoTurn;

impl Lanes {
    /// Lanes of which the common one has places for this many reads and writes.
    pub fn new(in_flight: [usize; 2]) -> Self {
        // One thread is left to everybody else.
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() - 1);
        Self {
            places: Lane::WITH_PLACES.map(|lane| lane.places(in_flight).map(Semaphore::new)),
            heavy: Arc::new(Semaphore::new(threads.max(1))),
        }
    }

    /// The places for large bodies, for requests that have to wait for them.
    pub fn heavy(&self, lane: Lane) -> Option<&Arc<Semaphore>> {
        (lane == Lane::Common).then_some(&self.heavy)
    }

    /// Waits for a place, first among the requests of the account, then among those of the lane.
    pub async fn turn<'a>(
        &'a self,
        lane: Lane,
        account: &'a Arc<Account>,
        read: bool,
    ) -> Result<Turn<'a>, NoTurn> {
        let (Some(index), Some(own)) = (lane.shared(), account.places(lane, read)) else {
            return Ok(Turn { _places: None });
        };
        let all = &self.places[index][usize::from(!read)];
        let places =
            async { Ok::<_, tokio::sync::AcquireError>([own.acquire().await?, all.acquire().await?]) };
        match tokio::time::timeout(limits::FLOW_WAIT, places).await {
            Ok(Ok(places)) => Ok(Turn { _places: Some(places) }),
            _ => Err(NoTurn),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::Method;

    use super::super::accounts::Accounts;
    use super::*;
    use crate::query::Query;

    fn lane_of(method: &str, uri: &str, user: &str, groups: &[&str]) -> Lane {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let info = RequestInfo::parse(&method, path, &Query::parse(query));
        lane(&info, &Identity::authenticated(user, groups))
    }

    #[test]
    fn what_the_control_plane_lives_by_has_a_lane_of_its_own() {
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
        let bob = accounts.account(Class::Tenants, "bob");
        let others: Vec<_> = (0..8).map(|i| accounts.account(Class::Tenants, &i.to_string())).collect();
        let mut held = Vec::new();
        for _ in 0..8 / limits::SHARE_OF_IDENTITY {
            held.push(lanes.turn(Lane::Common, &bob, true).await.unwrap());
        }
        assert!(lanes.turn(Lane::Common, &bob, true).now_or_never().is_none(), "bob has had his share");
        assert!(lanes.turn(Lane::Common, &bob, true).await.is_err(), "and is refused in time");
        for other in &others[..8 - held.len()] {
            held.push(lanes.turn(Lane::Common, other, true).await.unwrap());
        }
        assert!(lanes.turn(Lane::Common, &others[7], true).await.is_err(), "the lane is full");
        assert!(lanes.turn(Lane::Common, &bob, false).await.is_ok(), "writes have places of their own");
        let node = accounts.account(Class::Nodes, "system:node:n1");
        assert!(lanes.turn(Lane::Heartbeats, &node, true).await.is_ok());
        assert!(lanes.turn(Lane::Nodes, &node, true).await.is_ok());
        let scheduler = accounts.account(Class::System, "system:kube-scheduler");
        assert!(lanes.turn(Lane::Leases, &scheduler, true).await.is_ok());
        assert!(lanes.turn(Lane::Exempt, &bob, true).await.is_ok());
    }
}
