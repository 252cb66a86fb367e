//! The Lease that identifies this API server (KEP-1965), and the removal of those whose servers are gone.

use std::time::Duration;

use apiserver_meta::time;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::OwnObjects;
use super::events::{Recorder, Report};
use crate::objects::Objects;

/// Seconds that a Lease counts without being renewed.
pub const DURATION: i64 = 3600;
const RENEW: Duration = Duration::from_secs(10);
const COLLECT: Duration = Duration::from_secs(3600);
const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";

/// `apiserver-` and 128 bits of a hash of the host's name, in base 32 as Kubernetes writes it.
pub fn name(host: &str) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = Sha256::digest(host.as_bytes());
    let mut name = "apiserver-".to_owned();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in &digest[..16] {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            name.push(char::from(ALPHABET[(bits >> count & 31) as usize]));
        }
    }
    if count > 0 {
        name.push(char::from(ALPHABET[(bits << (5 - count) & 31) as usize]));
    }
    name
}

/// Renews the Lease of this server and collects those of others, for ever.
pub async fn run(own: &OwnObjects, host: &str, draining: &CancellationToken) {
    let holder = format!("{}_{}", name(host), own.objects().ambient().uid());
    let mut collect = tokio::time::interval(COLLECT);
    let mut renew = tokio::time::interval(RENEW);
    loop {
        tokio::select! {
            biased;
            () = draining.cancelled() => return,
            _ = renew.tick() => {
                if let Err(error) = renew_one(own, host, &holder).await {
                    tracing::warn!(%error, "this server's Lease cannot be renewed");
                }
            }
            _ = collect.tick() => {
                if let Err(error) = collect_expired(own.objects()).await {
                    tracing::warn!(%error, "Leases of other servers cannot be collected");
                }
            }
        }
    }
}

fn wanted(host: &str, holder: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name(host), "namespace": NAMESPACE,
            "labels": {LABEL: "kube-apiserver", "kubernetes.io/hostname": host}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": DURATION,
            "renewTime": time::rfc3339_micro(now)},
    })
}

async fn renew_one(own: &OwnObjects, host: &str, holder: &str) -> Result<(), ApiError> {
    let objects = own.objects();
    let Some(resource) = objects.registry().by_kind("coordination.k8s.io/v1", "Lease") else {
        return Ok(());
    };
    let wanted = wanted(host, holder, objects.ambient().now());
    match objects.fetch(resource, NAMESPACE, &name(host)).await? {
        None => own.create(resource, wanted).await.map(drop),
        Some(current) => {
            let mut lease = current.object;
            lease["spec"] = wanted["spec"].clone();
            for (key, value) in wanted["metadata"]["labels"].as_object().into_iter().flatten() {
                lease["metadata"]["labels"][key] = value.clone();
            }
            own.put(resource, lease).await.map(drop)
        }
    }
}

/// Returns `true` if a Lease is no longer renewed.
fn is_expired(lease: &Value, now: Timestamp) -> bool {
    let renewed = lease["spec"]["renewTime"].as_str().and_then(time::parse);
    let Some(renewed) = renewed else { return true };
    let lasts = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(DURATION);
    renewed.checked_add(SignedDuration::from_secs(lasts)).is_ok_and(|end| end < now)
}

async fn collect_expired(objects: &Objects) -> Result<(), ApiError> {
    let Some(resource) = objects.registry().by_kind("coordination.k8s.io/v1", "Lease") else {
        return Ok(());
    };
    let snapshot = objects.cache(resource)?.snapshot();
    let prefix = format!("{NAMESPACE}/");
    let leases = snapshot.objects.values().filter(|e| e.key.starts_with(&prefix));
    for entry in leases.filter(|entry| entry.label(LABEL) == Some("kube-apiserver")) {
        let Ok(lease) = serde_json::from_slice::<Value>(&entry.object()) else { continue };
        if is_expired(&lease, objects.ambient().now()) {
            let name = meta::name(&lease);
            tracing::info!(name, "the Lease of an API server that is gone is removed");
            drop(objects.remove(resource, NAMESPACE, name, entry.revision).await?);
        }
    }
    Ok(())
}

/// Records an Event about the Lease, so that others see why it is gone.
pub async fn record_end(recorder: &Recorder, host: &str) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name(host), "namespace": NAMESPACE},
    });
    let note =
        format!("The API server on {host} was told to end: it is no longer ready and finishes its requests");
    let report = Report {
        reporter: "apiserver",
        kind: "Normal",
        reason: "TerminationStart",
        action: "Terminating",
        note,
    };
    recorder.record(&lease, report).await;
}

/// Releases the Lease, because the server has ended in good order.
pub async fn withdraw(objects: &Objects, host: &str) {
    let Some(resource) = objects.registry().by_kind("coordination.k8s.io/v1", "Lease") else {
        return;
    };
    let found = objects.fetch(resource, NAMESPACE, &name(host)).await;
    if let Ok(Some(current)) = found
        && let Err(error) = objects.remove(resource, NAMESPACE, &name(host), current.revision).await
    {
        tracing::warn!(%error, "this server's Lease stays until it expires");
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
