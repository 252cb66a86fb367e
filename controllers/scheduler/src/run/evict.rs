//! Removes the victims of a preemption, in a task of its own.

use std::sync::Arc;

use apiserver_client::{About, SeriesRecorder};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{info, warn};

use super::bind::reference;
use super::conditions::{Conditions, PodStatus};
use super::follow::{Subject, Update, Updates};
use crate::metrics::Metrics;
use crate::pod::PodInfo;

/// The writes of a preemption.
pub(super) struct Eviction {
    pub preemptor: Arc<PodInfo>,
    pub node: Arc<str>,
    /// Pods to delete; those that are being deleted already are not among them.
    pub victims: Vec<Arc<PodInfo>>,
    /// Pods of lower priority that were nominated for the node and no longer have room there.
    pub outdone: Vec<Arc<PodInfo>>,
    pub conditions: Conditions,
    pub recorder: Option<SeriesRecorder>,
    /// Bounds the requests in flight.
    pub lanes: Arc<Semaphore>,
    pub metrics: Metrics,
}

/// Carries out an eviction, and reports to the loop when all victims are being deleted.
pub(super) fn spawn(eviction: Eviction, client: Client, ambient: Ambient, updates: Updates) {
    for pod in &eviction.outdone {
        let status = PodStatus { nomination: Some(None), ..PodStatus::default() };
        eviction.conditions.write_pod(pod, status, false);
    }
    tokio::spawn(async move {
        let _lane = eviction.lanes.acquire().await;
        let began = Instant::now();
        let mut all_deleted = true;
        for victim in &eviction.victims {
            if let Err(error) = evict(&client, &ambient, &eviction, victim).await {
                warn!(pod = %eviction.preemptor.key(), victim = %victim.key(), %error, "cannot preempt the victim");
                all_deleted = false;
                break;
            }
        }
        eviction.metrics.preempted(all_deleted, began.elapsed());
        let uid = eviction.preemptor.uid.clone();
        updates.put(Subject::Preemption(uid.clone()), Update::Preempted { uid, all_deleted });
    });
}

/// Tells why the victim goes, and deletes it.
async fn evict(
    client: &Client,
    ambient: &Ambient,
    eviction: &Eviction,
    victim: &PodInfo,
) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), victim.namespace());
    let preemptor = &eviction.preemptor;
    let scheduler = &preemptor.spec.scheduler;
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
        "lastTransitionTime": Time(ambient.now()), "observedGeneration": victim.metadata.generation(),
    });
    let patch = json!({"metadata": {"uid": victim.uid.to_string()}, "status": {"conditions": [condition]}});
    let patched = pods.patch_status(victim.name(), &PatchParams::default(), &Patch::Strategic(patch)).await;
    if !is_there(patched)? {
        return Ok(());
    }
    let uid = Some(victim.uid.to_string());
    let preconditions = Some(Preconditions { uid, resource_version: None });
    let deleted =
        pods.delete(victim.name(), &DeleteParams { preconditions, ..DeleteParams::default() }).await;
    if is_there(deleted)? {
        info!(victim = %victim.key(), pod = %preemptor.key(), node = %eviction.node, "preempted");
        if let Some(recorder) = &eviction.recorder {
            let message = format!("Preempted by pod {} on node {}", preemptor.uid, eviction.node);
            let about = About { regarding: reference(victim), related: Some(reference(preemptor)) };
            recorder.normal(about, "Preempted", "Preempting", message);
        }
    }
    Ok(())
}

/// Returns `false` if a request has found the pod gone, or another one in its place.
fn is_there<T>(answer: kube::Result<T>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
