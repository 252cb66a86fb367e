//! Repair of disagreements between Services and their claims.
//!
//! A server may die between a claim and the Service that it is for, and somebody may delete an
//! IPAddress by hand, which is written again at once. Each server looks at everything every few
//! minutes; what it does is judged by the revision that it has seen, so several of them do no harm to
//! each other.

mod addresses;
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::events::{Report, record};
use crate::server::Server;
use apiserver_cache::{Subscription, Trigger};

/// Kubernetes' interval of its repair loops.
const EVERY: Duration = Duration::from_secs(180);
/// The time after which addresses that seem to have leaked are looked at again.
const SOON: Duration = Duration::from_secs(30);
/// Pause before listening again where changes were missed.
const HEAR_AGAIN: Duration = Duration::from_secs(1);
const HOOK: &str = "poststarthook/start-service-ip-repair-controllers";

/// The state that is kept between two runs.
#[derive(Default)]
pub struct Repair {
    /// IPAddresses without a Service at the last run.
    suspects: BTreeSet<String>,
    /// Ports without a Service, and how many more runs they are given.
    leaks: BTreeMap<u16, u32>,
    /// The events that were written, by reporter, so that each is written once while its cause stays.
    told: BTreeMap<&'static str, BTreeSet<String>>,
}

/// A finding about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// `NAMESPACE/NAME`, or the name of an IPAddress.
    about: String,
    reason: &'static str,
    note: String,
}

impl Repair {
    /// One run over everything.
    pub async fn run(&mut self, server: &Arc<Server>) -> Result<(), ApiError> {
        self.addresses(server).await?;
        let findings = ports::run(server, &mut self.leaks).await?;
        let findings = findings.into_iter().map(|finding| (finding, "Service")).collect();
        self.tell_all(server, findings, "portallocator-repair-controller", "PortAllocation").await;
        server.lifetime().hooks().done(HOOK);
        Ok(())
    }

    async fn addresses(&mut self, server: &Arc<Server>) -> Result<(), ApiError> {
        let findings = addresses::run(server, &mut self.suspects).await?;
        self.tell_all(server, findings, "ipallocator-repair-controller", "ClusterIPAllocation").await;
        Ok(())
    }

    /// Writes again those of the IPAddresses just deleted that Services hold.
    async fn deleted(&self, server: &Arc<Server>, deleted: &[Value]) -> Result<(), ApiError> {
        for (finding, kind) in addresses::deleted(server, deleted).await? {
            server.metrics().repaired("address", error_type(finding.reason));
            tell(server, &finding, ("ipallocator-repair-controller", "ClusterIPAllocation", kind)).await;
        }
        Ok(())
    }

    /// Writes an Event for each finding that was not there at the last run.
    async fn tell_all(
        &mut self,
        server: &Arc<Server>,
        findings: Vec<(Finding, &'static str)>,
        reporter: &'static str,
        action: &str,
    ) {
        let before = self.told.remove(reporter).unwrap_or_default();
        let mut now = BTreeSet::new();
        for (finding, kind) in findings {
            let what = if action == "PortAllocation" { "port" } else { "address" };
            server.metrics().repaired(what, error_type(finding.reason));
            let id = format!("{} {} {}", finding.about, finding.reason, finding.note);
            if !before.contains(&id) {
                tell(server, &finding, (reporter, action, kind)).await;
            }
            now.insert(id);
        }
        self.told.insert(reporter, now);
    }
}

/// Returns the type of an error as Kubernetes' metrics name it.
fn error_type(reason: &str) -> &'static str {
    match reason {
        "IPAddressNotAllocated" => "leak",
        "ClusterIPNotAllocated" | "PortNotAllocated" => "repair",
        "ClusterIPOutOfRange" | "PortOutOfRange" => "outOfRange",
        "ClusterIPAlreadyAllocated" | "PortAlreadyAllocated" => "duplicate",
        "ClusterIPNotValid" => "invalid",
        _ => "unknown",
    }
}

async fn tell(server: &Arc<Server>, finding: &Finding, (reporter, action, kind): (&str, &str, &str)) {
    let api_version = if kind == "Service" { "v1" } else { "networking.k8s.io/v1" };
    let Some(resource) = server.objects().registry().by_kind(api_version, kind) else { return };
    let object = object(server, resource, &finding.about).unwrap_or_else(|| {
        // It was removed just now.
        let (namespace, name) = finding.about.split_once('/').unwrap_or(("", &finding.about));
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}})
    });
    let action = if kind == "Service" { action } else { "IPAddressAllocation" };
    let report =
        Report { reporter, kind: "Warning", reason: finding.reason, action, note: finding.note.clone() };
    record(server, &object, report).await;
}

fn object(server: &Server, resource: &Resource, key: &str) -> Option<Value> {
    let entry = server.objects().cache(resource).ok()?.get(key)?;
    serde_json::from_slice(&entry.object()).ok()
}

/// Returns all Services, as the cache has them.
fn services(server: &Server) -> Result<Vec<Value>, ApiError> {
    let Some(resource) = server.objects().registry().by_kind("v1", "Service") else { return Ok(Vec::new()) };
    let snapshot = server.objects().cache(resource)?.snapshot();
    let decode = |entry: &Arc<apiserver_cache::Entry>| serde_json::from_slice(&entry.object()).ok();
    Ok(snapshot.objects.values().filter_map(decode).collect())
}

/// The subscription to changes of IPAddresses.
struct Heard(Option<Subscription>);

impl Heard {
    fn begin(server: &Server) -> Self {
        let kind = server.objects().registry().by_kind("networking.k8s.io/v1", "IPAddress");
        let cache = kind.and_then(|kind| server.objects().cache(kind).ok());
        Self(cache.map(|cache| cache.subscribe_now(Trigger::All).1))
    }

    /// Returns deleted IPAddresses, once there is one. If the subscription is too slow to receive all, it
    /// begins anew; the next run over everything finds those it missed.
    async fn deleted(&mut self, server: &Server) -> Vec<Value> {
        let mut deleted = Vec::new();
        while deleted.is_empty() {
            let Some(subscription) = &mut self.0 else { return std::future::pending().await };
            let Some(change) = subscription.next().await else {
                // The cache may be closed for as long as the store does not answer.
                tokio::time::sleep(HEAR_AGAIN).await;
                *self = Self::begin(server);
                continue;
            };
            let mut next = Some(change);
            while let Some(change) = next {
                if let (Some(old), None) = (&change.old, &change.new) {
                    deleted.extend(serde_json::from_slice::<Value>(&old.object()).ok());
                }
                next = (deleted.len() < apiserver_cache::limits::WATCHER_QUEUE)
                    .then(|| subscription.ready().ok())
                    .flatten();
            }
        }
        deleted
    }
}

/// Repairs for ever.
pub async fn run(server: &Arc<Server>, mut repair: Repair) {
    let mut due = Instant::now() + EVERY;
    let mut soon = Instant::now() + SOON;
    let mut heard = Heard::begin(server);
    loop {
        let next = if repair.suspects.is_empty() { due } else { due.min(soon) };
        let deleted = tokio::select! {
            biased;
            () = tokio::time::sleep_until(next) => Vec::new(),
            deleted = heard.deleted(server) => deleted,
        };
        let result = if !deleted.is_empty() {
            repair.deleted(server, &deleted).await
        } else if next == due {
            due += EVERY;
            repair.run(server).await
        } else {
            repair.addresses(server).await
        };
        if deleted.is_empty() {
            soon = Instant::now() + SOON;
        }
        if let Err(error) = result {
            tracing::warn!(%error, "addresses and node ports of Services cannot be checked");
        }
    }
}
