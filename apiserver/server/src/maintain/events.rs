//! Events that the server itself reports.

use apiserver_meta::time;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::{Value, json};

use super::OwnObjects;

/// An event about an object.
pub struct Report<'a> {
    /// The reporting controller: `portallocator-repair-controller`.
    pub reporter: &'a str,
    /// `Normal` or `Warning`.
    pub kind: &'a str,
    /// `PortNotAllocated`
    pub reason: &'a str,
    /// `PortAllocation`
    pub action: &'a str,
    pub note: String,
}

/// Records Events in the name of one server.
pub struct Recorder {
    own: OwnObjects,
    /// The name of the host, or `apiserver` where the server has none.
    host: String,
}

impl Recorder {
    /// Returns a recorder for the server on `host`.
    pub fn new(own: OwnObjects, host: Option<&str>) -> Self {
        Self { own, host: host.unwrap_or("apiserver").to_owned() }
    }

    /// Writes an Event about an object, which needs `apiVersion`, `kind` and metadata. A failure is
    /// logged: nothing depends on an Event.
    pub async fn record(&self, regarding: &Value, report: Report<'_>) {
        let Report { reason, note, .. } = &report;
        tracing::info!(object = meta::name(regarding), reason, note, "event recorded");
        if let Err(error) = write(&self.own, &self.host, regarding, &report).await {
            tracing::warn!(%error, reason, "cannot write an event");
        }
    }
}

async fn write(own: &OwnObjects, host: &str, regarding: &Value, report: &Report<'_>) -> Result<(), ApiError> {
    let objects = own.objects();
    let Some(resource) = objects.registry().by_kind("v1", "Event") else { return Ok(()) };
    // Events about objects without a namespace are in `default`.
    let namespace = Some(meta::namespace(regarding)).filter(|n| !n.is_empty()).unwrap_or("default");
    let now = objects.ambient().now();
    let suffix = format!("{:016x}", objects.ambient().random.next_u64());
    let reference = json!({
        "apiVersion": regarding["apiVersion"], "kind": regarding["kind"],
        "namespace": meta::namespace(regarding), "name": meta::name(regarding),
        "uid": meta::uid(regarding), "resourceVersion": meta::resource_version(regarding),
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{}.{suffix}", meta::name(regarding)), "namespace": namespace},
        "involvedObject": reference, "type": report.kind, "reason": report.reason,
        "action": report.action, "message": report.note,
        "eventTime": time::rfc3339_micro(now),
        "reportingComponent": report.reporter,
        "reportingInstance": format!("{}-{}", report.reporter, host),
        "source": {},
    });
    own.create(resource, event).await.map(drop)
}
