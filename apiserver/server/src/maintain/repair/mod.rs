//! Repair of disagreements between Services and their claims.
//!
//! A server may die between a claim and the Service that it is for, and somebody may delete an
//! IPAddress by hand, which is written again at once. Each server looks at everything every few
//! minutes; what it does is judged by the revision that it has seen, so several of them do no harm to
//! each other.

mod addresses;
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::events::{Recorder, Report};
use crate::addresses::Addresses;
use crate::hooks::Hooks;
use crate::objects::Objects;
use apiserver_cache::{Subscription, Trigger};

/// Kubernetes' interval of its repair loops.
const EVERY: Duration = Duration::from_secs(180);
/// The time after which addresses that seem to have leaked are looked at again.
const SOON: Duration = Duration::from_secs(30);
/// Pause before listening again where changes were missed.
const HEAR_AGAIN: Duration = Duration::from_secs(1);
const HOOK: &str = "poststarthook/start-service-ip-repair-controllers";

/// The repair of allocations, with the state that it keeps between two runs.
pub struct Repair<'a> {
    objects: &'a Objects,
    addresses: &'a Addresses,
    recorder: &'a Recorder,
    node_ports: RangeInclusive<u16>,
    hooks: &'a Hooks,
    /// IPAddresses without a Service at the last run.
    suspects: BTreeSet<String>,
    /// Ports without a Service, and how many more runs they are given.
    leaks: BTreeMap<u16, u32>,
    /// The events that were recorded, by reporter, so that each is recorded once while its cause stays.
    recorded: BTreeMap<&'static str, BTreeSet<String>>,
}

/// A finding about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// `NAMESPACE/NAME`, or the name of an IPAddress.
    about: String,
    reason: &'static str,
    note: String,
}

impl<'a> Repair<'a> {
    /// Returns a repair that has not run yet.
    pub fn new(
        objects: &'a Objects,
        addresses: &'a Addresses,
        recorder: &'a Recorder,
        node_ports: RangeInclusive<u16>,
        hooks: &'a Hooks,
    ) -> Self {
        let (suspects, leaks, recorded) = Default::default();
        Self { objects, addresses, recorder, node_ports, hooks, suspects, leaks, recorded }
    }

    /// Checks everything once.
    pub async fn run(&mut self) -> Result<(), ApiError> {
        self.check_addresses().await?;
        let findings = ports::run(self.objects, &self.node_ports, &mut self.leaks).await?;
        let findings = findings.into_iter().map(|finding| (finding, "Service")).collect();
        self.record_new(findings, "portallocator-repair-controller", "PortAllocation").await;
        self.hooks.done(HOOK);
        Ok(())
    }

    async fn check_addresses(&mut self) -> Result<(), ApiError> {
        let findings = addresses::run(self.objects, self.addresses, &mut self.suspects).await?;
        self.record_new(findings, "ipallocator-repair-controller", "ClusterIPAllocation").await;
        Ok(())
    }

    /// Writes again those of the IPAddresses just deleted that Services hold.
    async fn restore(&self, deleted: &[Value]) -> Result<(), ApiError> {
        for (finding, kind) in addresses::deleted(self.objects, self.addresses, deleted).await? {
            self.objects.metrics().repaired("address", error_type(finding.reason));
            self.record(&finding, ("ipallocator-repair-controller", "ClusterIPAllocation", kind)).await;
        }
        Ok(())
    }

    /// Records an Event for each finding that was not there at the last run.
    async fn record_new(
        &mut self,
        findings: Vec<(Finding, &'static str)>,
        reporter: &'static str,
        action: &str,
    ) {
        let before = self.recorded.remove(reporter).unwrap_or_default();
        let mut now = BTreeSet::new();
        for (finding, kind) in findings {
            let what = if action == "PortAllocation" { "port" } else { "address" };
            self.objects.metrics().repaired(what, error_type(finding.reason));
            let id = format!("{} {} {}", finding.about, finding.reason, finding.note);
            if !before.contains(&id) {
                self.record(&finding, (reporter, action, kind)).await;
            }
            now.insert(id);
        }
        self.recorded.insert(reporter, now);
    }

    async fn record(&self, finding: &Finding, (reporter, action, kind): (&str, &str, &str)) {
        let api_version = if kind == "Service" { "v1" } else { "networking.k8s.io/v1" };
        let Some(resource) = self.objects.registry().by_kind(api_version, kind) else { return };
        let object = object(self.objects, resource, &finding.about).unwrap_or_else(|| {
            // It was removed just now.
            let (namespace, name) = finding.about.split_once('/').unwrap_or(("", &finding.about));
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}})
        });
        let action = if kind == "Service" { action } else { "IPAddressAllocation" };
        let report =
            Report { reporter, kind: "Warning", reason: finding.reason, action, note: finding.note.clone() };
        self.recorder.record(&object, report).await;
    }

    /// Repairs for ever.
    pub async fn watch(&mut self) {
        let mut due = Instant::now() + EVERY;
        let mut soon = Instant::now() + SOON;
        let mut deletions = Deletions::begin(self.objects);
        loop {
            let next = if self.suspects.is_empty() { due } else { due.min(soon) };
            let deleted = tokio::select! {
                biased;
                () = tokio::time::sleep_until(next) => Vec::new(),
                deleted = deletions.next(self.objects) => deleted,
            };
            let result = if !deleted.is_empty() {
                self.restore(&deleted).await
            } else if next == due {
                due += EVERY;
                self.run().await
            } else {
                self.check_addresses().await
            };
            if deleted.is_empty() {
                soon = Instant::now() + SOON;
            }
            if let Err(error) = result {
                tracing::warn!(%error, "addresses and node ports of Services cannot be checked");
            }
        }
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

fn object(objects: &Objects, resource: &Resource, key: &str) -> Option<Value> {
    let entry = objects.cache(resource).ok()?.get(key)?;
    serde_json::from_slice(&entry.object()).ok()
}

/// Returns all Services, as the cache has them.
fn services(objects: &Objects) -> Result<Vec<Value>, ApiError> {
    let Some(resource) = objects.registry().by_kind("v1", "Service") else { return Ok(Vec::new()) };
    let snapshot = objects.cache(resource)?.snapshot();
    let decode = |entry: &Arc<apiserver_cache::Entry>| serde_json::from_slice(&entry.object()).ok();
    Ok(snapshot.objects.values().filter_map(decode).collect())
}

/// The subscription to changes of IPAddresses.
struct Deletions(Option<Subscription>);

impl Deletions {
    fn begin(objects: &Objects) -> Self {
        let kind = objects.registry().by_kind("networking.k8s.io/v1", "IPAddress");
        let cache = kind.and_then(|kind| objects.cache(kind).ok());
        Self(cache.map(|cache| cache.subscribe_now(Trigger::All).1))
    }

    /// Returns deleted IPAddresses, once there is one. If the subscription is too slow to receive all, it
    /// begins anew; the next run over everything finds those it missed.
    async fn next(&mut self, objects: &Objects) -> Vec<Value> {
        let mut deleted = Vec::new();
        while deleted.is_empty() {
            let Some(subscription) = &mut self.0 else { return std::future::pending().await };
            let Some(change) = subscription.next().await else {
                // The cache may be closed for as long as the store does not answer.
                tokio::time::sleep(HEAR_AGAIN).await;
                *self = Self::begin(objects);
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
