//! Finds what Services and their claims do not agree on, and puts it right.
//!
//! A server may die between a claim and the Service that it is for, and somebody may delete an
//! IPAddress by hand. Each server looks at everything every few minutes; what it does is judged
//! by the revision that it has seen, so several of them do no harm to each other.

mod addresses;
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_api::error::ApiError;
use apiserver_api::registry::Resource;
use serde_json::{Value, json};

use super::events::{Report, record};
use crate::server::Server;

/// Kubernetes' interval of its repair loops.
const EVERY: Duration = Duration::from_secs(180);
const HOOK: &str = "poststarthook/start-service-ip-repair-controllers";

/// What is remembered between two runs.
#[derive(Default)]
pub struct Repair {
    /// IPAddresses without a Service at the last run.
    suspects: BTreeSet<String>,
    /// Ports without a Service, and how many more runs they are given.
    leaks: BTreeMap<u16, u32>,
    /// Events that were written, so that each is written once while its cause stays.
    told: BTreeSet<String>,
}

/// Something to say about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// `NAMESPACE/NAME`, or the name of an IPAddress.
    about: String,
    reason: &'static str,
    note: String,
}

impl Repair {
    /// One run over everything. Events are not written for what an earlier version of the store
    /// could not have.
    pub async fn run(&mut self, server: &Arc<Server>) -> Result<(), ApiError> {
        let addresses = addresses::run(server, &mut self.suspects).await?;
        let ports = ports::run(server, &mut self.leaks).await?;
        let mut now = BTreeSet::new();
        for (finding, reporter, action, kind) in addresses
            .into_iter()
            .map(|(f, kind)| (f, "ipallocator-repair-controller", "ClusterIPAllocation", kind))
            .chain(ports.into_iter().map(|f| (f, "portallocator-repair-controller", "PortAllocation", "Service")))
        {
            let id = format!("{} {} {}", finding.about, finding.reason, finding.note);
            if !self.told.contains(&id) {
                tell(server, &finding, (reporter, action, kind)).await;
            }
            now.insert(id);
        }
        self.told = now;
        server.hooks().done(HOOK);
        Ok(())
    }
}

async fn tell(server: &Arc<Server>, finding: &Finding, (reporter, action, kind): (&str, &str, &str)) {
    let api_version = if kind == "Service" { "v1" } else { "networking.k8s.io/v1" };
    let Some(resource) = server.registry().by_kind(api_version, kind) else { return };
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
    let entry = server.cache(resource).ok()?.get(key)?;
    serde_json::from_slice(entry.object_slice()).ok()
}

/// All Services, as the cache has them.
fn services(server: &Server) -> Result<Vec<Value>, ApiError> {
    let Some(resource) = server.registry().by_kind("v1", "Service") else { return Ok(Vec::new()) };
    let snapshot = server.cache(resource)?.snapshot();
    let decode = |entry: &Arc<crate::cache::Entry>| serde_json::from_slice(entry.object_slice()).ok();
    Ok(snapshot.objects.values().filter_map(decode).collect())
}

/// Repairs for ever.
pub async fn keep(server: &Arc<Server>, mut repair: Repair) {
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = repair.run(server).await {
            tracing::warn!(%error, "addresses and node ports of Services cannot be checked");
        }
    }
}
