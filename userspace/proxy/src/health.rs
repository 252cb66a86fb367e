//! Health check node ports: load balancers ask them whether this node has endpoints of a Service with
//! `externalTrafficPolicy: Local`. As in kube-proxy, the answer depends on the endpoints and the proxy alone:
//! `/healthz` reports a node that is about to go.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::ObjectKey;
use apiserver_meta::ambient::Ambient;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use userspace_daemon::page::{Page, json, pages, ready};

use crate::bandwidth::PodWarnings;
use crate::compile::HealthCheck;
use crate::metrics::Metrics;
use crate::retry::Retry;
use crate::service_warnings::ServiceWarnings;
use crate::status::Status;

/// The header with the number of endpoints on the node, for balancers that weigh nodes.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The places where the worker reports its state and findings.
pub(crate) struct Report {
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub health: Arc<HealthChecks>,
    pub service_warnings: ServiceWarnings,
    pub pod_warnings: PodWarnings,
}

/// The requested answers and addresses.
#[derive(Default)]
struct Wanted {
    checks: BTreeMap<ObjectKey, HealthCheck>,
    /// `None` for all addresses of the machine.
    addresses: Option<Vec<IpAddr>>,
}

/// Written by the worker, read by the listeners.
pub(crate) struct HealthChecks {
    wanted: Mutex<Wanted>,
    changed: Notify,
    status: Arc<Status>,
    metrics: Arc<Metrics>,
    ambient: Ambient,
}

impl HealthChecks {
    pub fn new(status: Arc<Status>, metrics: Arc<Metrics>, ambient: Ambient) -> Self {
        Self { wanted: Mutex::default(), changed: Notify::new(), status, metrics, ambient }
    }

    /// Sets the answer for one Service; `None` if it has no health check node port.
    pub fn set(&self, service: &ObjectKey, check: Option<HealthCheck>) {
        let mut wanted = self.lock();
        let ports = |check: Option<&HealthCheck>| check.map(|check| check.port);
        let old = match &check {
            Some(check) => wanted.checks.insert(service.clone(), check.clone()),
            None => wanted.checks.remove(service),
        };
        let moved = ports(old.as_ref()) != ports(check.as_ref());
        drop(wanted);
        if moved {
            self.changed.notify_one();
        }
    }

    /// Removes every Service except these.
    pub fn keep_only(&self, services: &BTreeSet<ObjectKey>) {
        self.lock().checks.retain(|service, _| services.contains(service));
        self.changed.notify_one();
    }

    /// Sets the addresses of the ports; `None` for all addresses.
    pub fn listen_on(&self, addresses: Option<Vec<IpAddr>>) {
        let mut wanted = self.lock();
        if wanted.addresses != addresses {
            wanted.addresses = addresses;
            drop(wanted);
            self.changed.notify_one();
        }
    }

    /// Listens until shutdown. A port that somebody else holds is tried again, and does not delay the others.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut open: BTreeMap<SocketAddr, CancellationToken> = BTreeMap::new();
        let mut retries: BTreeMap<SocketAddr, Retry> = BTreeMap::new();
        loop {
            let places = self.places();
            open.retain(|place, stop| {
                let kept = places.contains(place);
                if !kept {
                    debug!(%place, "stopped listening for health checks");
                    stop.cancel();
                }
                kept
            });
            retries.retain(|place, _| places.contains(place));
            for place in places {
                let waits = retries.get(&place).is_some_and(|retry| retry.due > Instant::now());
                if waits || open.contains_key(&place) {
                    continue;
                }
                match bind(place).await {
                    Ok(listener) => {
                        info!(%place, "listening for health checks");
                        retries.remove(&place);
                        open.insert(place, self.serve(listener, place.port(), &shutdown));
                    }
                    Err(error) => {
                        let earlier = retries.get(&place).copied();
                        if earlier.is_none() {
                            let services = self.of_port(place.port());
                            warn!(%place, %services, %error, "cannot listen for health checks, trying again");
                        }
                        let jitter = self.ambient.random.next_u64();
                        retries.insert(place, Retry::after(earlier, Instant::now(), jitter));
                    }
                }
            }
            self.metrics.health_checks.set(count(open.len() + retries.len()));
            self.metrics.health_checks_failing.set(count(retries.len()));
            let due = retries.values().map(|retry| retry.due).min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        port: u16,
        shutdown: &CancellationToken,
    ) -> CancellationToken {
        let stop = shutdown.child_token();
        let checks = Arc::clone(self);
        // The same page under any path.
        let handler = pages(move |_| Some(ready(checks.page(port))));
        tokio::spawn(userspace_daemon::serve(listener, None, handler, stop.clone()));
        stop
    }

    /// Returns the addresses and ports to listen on.
    fn places(&self) -> BTreeSet<SocketAddr> {
        let wanted = self.lock();
        let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let addresses = wanted.addresses.as_deref().unwrap_or(&all);
        let ports: BTreeSet<u16> = wanted.checks.values().map(|check| check.port).collect();
        ports
            .into_iter()
            .flat_map(|port| addresses.iter().map(move |ip| SocketAddr::new(*ip, port)))
            .collect()
    }

    fn of_port(&self, port: u16) -> String {
        let wanted = self.lock();
        let services = wanted.checks.values().filter(|check| check.port == port);
        services.map(|check| check.service.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the answer of a port; if two Services want it, the first one has it.
    fn page(&self, port: u16) -> Page {
        let check = self.lock().checks.values().find(|check| check.port == port).cloned();
        let health = self.status.health(self.ambient.now(), false);
        let healthy = health.healthy && health.serving;
        let response = page(check.as_ref(), healthy);
        self.metrics.health_check_requests.get(&[response.status().as_str()]).value.add(1);
        response
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the answer for a Service: its endpoints here, and whether the proxy is healthy.
fn page(check: Option<&HealthCheck>, healthy: bool) -> Page {
    // The Service was removed between the connection and the request.
    let Some(check) = check else { return json(StatusCode::SERVICE_UNAVAILABLE, b"{}".to_vec()) };
    let body = serde_json::json!({
        "service": {"namespace": check.service.namespace, "name": check.service.name},
        "localEndpoints": check.local_endpoints,
        "serviceProxyHealthy": healthy,
    });
    let code = match check.local_endpoints {
        0 => StatusCode::SERVICE_UNAVAILABLE,
        _ if healthy => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = json(code, body.to_string().into_bytes());
    response.headers_mut().insert(WEIGHT, HeaderValue::from(check.local_endpoints));
    response
}

/// Binds an address; one that stands for all addresses is bound in both families, as far as the machine has
/// both.
async fn bind(place: SocketAddr) -> io::Result<TcpListener> {
    let outcome = TcpListener::bind(place).await;
    match &outcome {
        Err(error) if place.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, place.port())).await
        }
        _ => outcome,
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(local_endpoints: usize) -> HealthCheck {
        HealthCheck { service: ObjectKey::new("default", "web"), port: 30_100, local_endpoints }
    }

    #[test]
    fn a_node_gets_traffic_with_endpoints_and_a_proxy_that_is_well() {
        for (endpoints, healthy, code) in [(2, true, 200), (0, true, 503), (2, false, 503), (0, false, 503)] {
            let response = page(Some(&check(endpoints)), healthy);
            assert_eq!(response.status(), code, "{endpoints} endpoints, healthy {healthy}");
            assert_eq!(response.headers()[WEIGHT], endpoints.to_string());
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
            assert_eq!(response.headers()["content-type"], "application/json");
        }
        assert_eq!(page(None, true).status(), 503);
    }
}
