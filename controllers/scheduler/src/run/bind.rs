//! Writes bindings, and before them what plugins have planned, in tasks of their own.

use std::sync::Arc;

use apiserver_client::{Informers, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use super::follow::{Subject, Update, Updates};
use crate::bind_devices::{DeviceBinder, Held, clean};
use crate::bind_volumes::VolumeBinder;
use crate::framework::{Cleanup, PreBind};
use crate::limits;
use crate::pod::PodInfo;

/// The outcome of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Bound,
    /// The pod is gone.
    Gone,
    /// The binding was refused, or nobody knows whether it was accepted.
    Failed,
}

/// Writes bindings for the loop.
pub(super) struct Binder {
    client: Client,
    updates: Updates,
    /// Bounds the requests in flight; others wait in their tasks.
    lanes: Arc<Semaphore>,
    volumes: VolumeBinder,
    devices: DeviceBinder,
}

/// A pod that was placed.
pub(super) struct Placed {
    pub pod: Arc<PodInfo>,
    pub node: Arc<str>,
    /// Writes that plugins have planned before the binding.
    pub plans: Vec<PreBind>,
    pub recorder: Option<Recorder>,
}

impl Binder {
    pub fn new(client: Client, updates: Updates, informers: &Informers, ambient: Ambient) -> Self {
        let lanes = Arc::new(Semaphore::new(limits::BINDINGS));
        let (volumes, devices) = (VolumeBinder::new(informers), DeviceBinder::new(informers, ambient));
        Self { client, updates, lanes, volumes, devices }
    }

    /// Returns the bound on requests in flight, for other requests about pods.
    pub fn lanes(&self) -> Arc<Semaphore> {
        Arc::clone(&self.lanes)
    }

    /// Writes a binding, and reports the outcome to the loop.
    pub fn bind(&self, placed: Placed) {
        let (client, updates, lanes) = (self.client.clone(), self.updates.clone(), Arc::clone(&self.lanes));
        let (volumes, devices) = (self.volumes.clone(), self.devices.clone());
        tokio::spawn(async move {
            let mut held = Vec::new();
            let outcome = match carry_out(&client, &volumes, (&devices, &updates), &placed, &mut held).await {
                Ok(()) => {
                    let _lane = lanes.acquire().await;
                    write(client.clone(), &placed).await
                }
                Err(outcome) => outcome,
            };
            if outcome != Outcome::Bound {
                devices.undo(&client, &placed.pod.uid, &held).await;
            }
            let pod = placed.pod;
            updates.put(Subject::Binding(pod.uid.clone()), Update::Binding(pod, outcome));
        });
    }

    /// Frees what is in the way of a pod that fits nowhere, and has it tried again; after a pause if that fails.
    pub fn clean(&self, pod: &PodInfo, cleanups: Vec<Cleanup>) {
        let (client, updates, lanes) = (self.client.clone(), self.updates.clone(), Arc::clone(&self.lanes));
        let (key, uid) = (pod.key(), pod.uid.clone());
        tokio::spawn(async move {
            for cleanup in &cleanups {
                let _lane = lanes.acquire().await;
                let Err(error) = clean(&client, cleanup).await else { continue };
                warn!(pod = %key, error = %error.event_text(), "a claim in the way of a pod is not freed");
                tokio::time::sleep(limits::MAX_BACKOFF).await;
            }
            updates.put(Subject::Retry(uid.clone()), Update::Retry(uid));
        });
    }
}

/// Writes what plugins have planned, which can take minutes. `held` gets the claims of devices as they were written.
async fn carry_out(
    client: &Client,
    volumes: &VolumeBinder,
    (devices, updates): (&DeviceBinder, &Updates),
    placed: &Placed,
    held: &mut Vec<Held>,
) -> Result<(), Outcome> {
    let told = |claim: Arc<ResourceClaim>| {
        updates.put(Subject::Written(ObjectKey::of(claim.as_ref())), Update::Written(claim));
    };
    for plan in &placed.plans {
        match plan {
            PreBind::Volumes(plan) => {
                let bound = volumes.bind(client, plan).await;
                bound.map_err(|error| not_bound(placed, "VolumeBinding", &error, &error.event_text()))?;
            }
            PreBind::Devices(plan) => {
                let event = placed.recorder.as_ref().map(|recorder| (recorder, reference(&placed.pod)));
                let bound = devices.bind(client, plan, event, held, &told).await;
                bound.map_err(|error| not_bound(placed, "DynamicResources", &error, &error.event_text()))?;
            }
        }
    }
    Ok(())
}

/// Reports that what a plugin has planned could not be written.
fn not_bound(
    placed: &Placed,
    plugin: &str,
    cause: &(dyn std::error::Error + 'static),
    text: &str,
) -> Outcome {
    info!(pod = %placed.pod.key(), node = %placed.node, error = cause, "the claims are not bound");
    if let Some(recorder) = &placed.recorder {
        let text = format!("running PreBind plugin {plugin:?}: {text}");
        recorder.warning(reference(&placed.pod), "FailedScheduling", text);
    }
    Outcome::Failed
}

async fn write(client: Client, placed: &Placed) -> Outcome {
    let (pod, node) = (&placed.pod, &placed.node);
    match write_binding(client.clone(), pod, node).await {
        Ok(()) => {
            if let Some(recorder) = &placed.recorder {
                let message = format!("Successfully assigned {} to {node}", pod.key());
                recorder.normal(reference(pod), "Scheduled", message);
            }
            Outcome::Bound
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            info!(pod = %pod.key(), "the pod is gone, and is not bound");
            Outcome::Gone
        }
        Err(error @ kube::Error::Api(_)) => {
            warn!(pod = %pod.key(), %node, %error, "binding was refused, retrying");
            Outcome::Failed
        }
        Err(error) => {
            warn!(pod = %pod.key(), %node, %error, "binding got no answer, reading the pod");
            resolve(client, pod).await
        }
    }
}

/// Returns a reference to a pod for events.
pub(super) fn reference(pod: &PodInfo) -> ObjectReference {
    use apiserver_client::Metadata;
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace().to_owned()),
        name: Some(pod.name().to_owned()),
        uid: Some(pod.uid.to_string()),
        resource_version: Some(pod.metadata.resource_version().to_owned()),
        field_path: None,
    }
}

async fn write_binding(client: Client, pod: &PodInfo, node: &str) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.name(), "namespace": pod.namespace(), "uid": pod.uid.to_string()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let answer: kube::Result<serde_json::Value> =
        pods.create_subresource("binding", pod.name(), &PostParams::default(), &binding).await;
    answer.map(drop)
}

/// Finds out what has become of a pod whose binding got no answer. Until the API server answers, the pod may be bound, and
/// nobody else gets its place.
async fn resolve(client: Client, pod: &PodInfo) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let mut pause = limits::RESOLVE_PAUSE;
    loop {
        match pods.get_opt(pod.name()).await {
            Ok(Some(found)) if found.metadata.uid.as_deref().is_some_and(|uid| pod.uid == *uid) => {
                let node = found.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
                return if node.is_some() { Outcome::Bound } else { Outcome::Failed };
            }
            Ok(_) => return Outcome::Gone,
            Err(error) => debug!(pod = %pod.key(), %error, "cannot read the pod whose binding got no answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::RESOLVE_PAUSE_MAX);
    }
}
