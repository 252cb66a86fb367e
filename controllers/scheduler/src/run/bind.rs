//! Writes bindings, and before them what plugins have planned, in tasks of their own.

use std::sync::Arc;

use apiserver_client::{Informers, IsBusy, ObjectKey, SeriesRecorder};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::IgnoredAny;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::conditions::Conditions;
use super::extend::{self, ExtenderBinder};
use super::follow::{Subject, Update, Updates};
use super::preparing::Preparing;
use crate::bind_devices::{DeviceBinder, Held, clean};
use crate::bind_volumes::VolumeBinder;
use crate::framework::{Cleanup, Code, PreBind, Profile, Stage, Status};
use crate::limits;
use crate::metrics::{Call, Metrics, Placement};
use crate::pod::PodInfo;

/// The outcome of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Bound,
    /// The pod is gone.
    Gone,
    /// The pod is not bound, for this reason.
    Failed(String),
}

impl Outcome {
    fn status(&self) -> Status {
        match self {
            Self::Bound => Status::Success,
            Self::Gone | Self::Failed(_) => Status::Refused(Code::Error),
        }
    }
}

/// Writes bindings for the loop.
#[derive(Clone)]
pub(super) struct Binder {
    client: Client,
    updates: Updates,
    /// Bounds the requests in flight; others wait in their tasks.
    lanes: Arc<Semaphore>,
    volumes: VolumeBinder,
    devices: DeviceBinder,
    preparing: Preparing,
    pub conditions: Conditions,
    profiles: Arc<[Profile]>,
    metrics: Metrics,
}

/// A pod that was placed.
pub(super) struct Placed {
    pub pod: Arc<PodInfo>,
    pub node: Arc<str>,
    /// Writes that plugins have planned before the binding.
    pub plans: Vec<PreBind>,
    /// Set if an extender binds the pod.
    pub extender: Option<ExtenderBinder>,
    pub recorder: Option<SeriesRecorder>,
    pub attempt: Placement,
}

impl Binder {
    pub fn new(
        client: Client,
        updates: Updates,
        informers: &Informers,
        ambient: Ambient,
        profiles: Arc<[Profile]>,
        metrics: Metrics,
    ) -> Self {
        let lanes = Arc::new(Semaphore::new(limits::BINDINGS));
        let (volumes, devices) = (VolumeBinder::new(informers), DeviceBinder::new(informers, ambient));
        let conditions = Conditions::new(client.clone(), Arc::clone(&lanes), metrics.clone());
        let preparing = Preparing::default();
        Self { client, updates, lanes, volumes, devices, preparing, conditions, profiles, metrics }
    }

    /// Returns the bound on requests in flight, for other requests about pods.
    pub fn lanes(&self) -> Arc<Semaphore> {
        Arc::clone(&self.lanes)
    }

    /// Returns a function that tells if requests about pods are in flight.
    pub fn is_busy(&self) -> IsBusy {
        let lanes = self.lanes();
        Arc::new(move || lanes.available_permits() < limits::BINDINGS)
    }

    /// Writes a binding, and reports the outcome to the loop.
    pub fn bind(&self, placed: Placed) {
        self.metrics.binding();
        let binder = self.clone();
        let off = match placed.plans.is_empty() {
            true => CancellationToken::new(),
            false => self.preparing.begin(&placed.pod.uid),
        };
        tokio::spawn(async move {
            let outcome = binder.try_bind(&placed, &off).await;
            match &outcome {
                Outcome::Bound => {
                    binder.metrics.bound(placed.attempt, Instant::now());
                    binder.post_bind(&placed);
                }
                Outcome::Gone | Outcome::Failed(_) => {
                    binder.metrics.not_bound(placed.attempt, Instant::now());
                }
            }
            let pod = placed.pod;
            binder.updates.put(Subject::Binding(pod.uid.clone()), Update::Binding(pod, outcome));
        });
    }

    /// Calls off the binding of a pod whose volumes or devices are still waited for, so that it fails; returns `false` if
    /// there is none.
    pub fn call_off(&self, uid: &Uid) -> bool {
        self.preparing.call_off(uid)
    }

    /// Notes that the loop has heard of the end of a binding.
    pub fn ended(&self, uid: &Uid) {
        self.preparing.ended(uid);
    }

    /// Tells plugins that a pod was bound.
    fn post_bind(&self, placed: &Placed) {
        let Some(profile) = self.profiles.get(placed.attempt.profile) else { return };
        if profile.post_bind.is_empty() {
            return;
        }
        let began = Instant::now();
        for &plugin in &profile.post_bind {
            profile.plugin(plugin).post_bind(&placed.pod, &placed.node);
        }
        self.metrics.stage(placed.attempt.profile, Stage::PostBind, Status::Success, began.elapsed());
    }

    /// Writes what plugins have planned and the binding; undoes what can be undone if the pod is not bound.
    async fn try_bind(&self, placed: &Placed, off: &CancellationToken) -> Outcome {
        let (profile, began) = (placed.attempt.profile, Instant::now());
        let mut held = Held::default();
        let prepared = self.carry_out(placed, off, &mut held).await.and_then(|()| {
            let called_off = || Outcome::Failed("preempted by DefaultPreemption".to_owned());
            self.preparing.passes(&placed.pod.uid).then_some(()).ok_or_else(called_off)
        });
        let status = prepared.as_ref().map_or_else(Outcome::status, |()| Status::Success);
        self.metrics.stage(profile, Stage::PreBind, status, began.elapsed());
        let outcome = match prepared {
            Ok(()) => {
                let began = Instant::now();
                let _binding = self.conditions.bind(&placed.pod.uid).await;
                let outcome = match extend::bind(&self.client, placed).await {
                    Some(outcome) => outcome,
                    None => self.write(placed).await,
                };
                self.metrics.stage(profile, Stage::Bind, outcome.status(), began.elapsed());
                outcome
            }
            Err(outcome) => outcome,
        };
        if outcome != Outcome::Bound {
            self.devices.undo(&self.client, &placed.pod.uid, &held).await;
        }
        outcome
    }

    /// Writes a binding, and finds out what has become of it.
    async fn write(&self, placed: &Placed) -> Outcome {
        let (pod, node) = (&placed.pod, &placed.node);
        self.metrics.call_waits(Call::Binding);
        let _lane = self.lanes.acquire().await;
        self.metrics.call_waits_no_more(Call::Binding);
        let began = Instant::now();
        let written = write_binding(self.client.clone(), pod, node).await;
        self.metrics.called(Call::Binding, written.is_ok(), began.elapsed());
        match written {
            Ok(()) => {
                announce(placed);
                Outcome::Bound
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                info!(pod = %pod.key(), "the pod is gone, and is not bound");
                Outcome::Gone
            }
            Err(kube::Error::Api(status)) if is_refusal(status.code) => {
                let error = &status.message;
                warn!(pod = %pod.key(), %node, error, "binding was refused, retrying");
                Outcome::Failed(failure(error))
            }
            Err(error) => {
                warn!(pod = %pod.key(), %node, %error, "binding got no clear answer, reading the pod");
                resolve(self.client.clone(), pod, &failure(&error.to_string())).await
            }
        }
    }

    /// Writes what plugins have planned, which can take minutes, unless `off` is cancelled. `held` gets the claims of devices as
    /// they were written.
    async fn carry_out(
        &self,
        placed: &Placed,
        off: &CancellationToken,
        held: &mut Held,
    ) -> Result<(), Outcome> {
        let told = |claim: Arc<ResourceClaim>| {
            self.updates.put(Subject::Written(ObjectKey::of(claim.as_ref())), Update::Written(claim));
        };
        for plan in &placed.plans {
            match plan {
                PreBind::Volumes(plan) => {
                    self.volumes.bind(&self.client, plan, off).await.map_err(|error| {
                        self.metrics.volumes_failed();
                        not_bound(placed, "VolumeBinding", &error, &error.event_text())
                    })?;
                }
                PreBind::Devices(plan) => {
                    let event = placed.recorder.as_ref().map(|recorder| (recorder, reference(&placed.pod)));
                    let bound = self.devices.bind(&self.client, plan, event, held, &told, off).await;
                    self.metrics.devices_bound(placed.attempt.profile, held);
                    bound.map_err(|error| {
                        not_bound(placed, "DynamicResources", &error, &error.event_text())
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Frees what is in the way of a pod that fits nowhere, and has it tried again; after a pause if that fails.
    pub fn clean(&self, pod: &PodInfo, cleanups: Vec<Cleanup>) {
        let (client, updates, lanes) = (self.client.clone(), self.updates.clone(), Arc::clone(&self.lanes));
        let (key, uid) = (pod.key(), pod.uid.clone());
        tokio::spawn(async move {
            for cleanup in &cleanups {
                let lane = lanes.acquire().await;
                let Err(error) = clean(&client, cleanup).await else { continue };
                // Bindings do not wait for the pause.
                drop(lane);
                warn!(pod = %key, error = %error.event_text(), "a claim in the way of a pod is not freed");
                tokio::time::sleep(limits::MAX_BACKOFF).await;
            }
            updates.put(Subject::Retry(uid.clone()), Update::Retry(uid));
        });
    }
}

/// Reports that what a plugin has planned could not be written.
fn not_bound(
    placed: &Placed,
    plugin: &str,
    cause: &(dyn std::error::Error + 'static),
    text: &str,
) -> Outcome {
    info!(pod = %placed.pod.key(), node = %placed.node, error = cause, "the claims are not bound");
    Outcome::Failed(format!("running PreBind plugin {plugin:?}: {text}"))
}

/// Returns `true` if an answer with this code means that the pod was not bound. An error of the server says nothing of
/// what it has done, and the pod may be bound already by a first request, which was repeated on the way.
fn is_refusal(code: u16) -> bool {
    code < 500 && code != 409
}

/// Returns why a pod was not bound in the words of kube-scheduler.
fn failure(error: &str) -> String {
    format!("running Bind plugin \"DefaultBinder\": {error}")
}

/// Records that a pod was bound.
pub(super) fn announce(placed: &Placed) {
    let Placed { pod, node, .. } = placed;
    if let Some(recorder) = &placed.recorder {
        let message = format!("Successfully assigned {} to {node}", pod.key());
        recorder.normal(reference(pod), "Scheduled", "Binding", message);
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
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(pod.name().to_owned()),
            namespace: Some(pod.namespace().to_owned()),
            uid: Some(pod.uid.to_string()),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    // Nothing of the answer is read but that the pod is bound.
    let answer: kube::Result<IgnoredAny> =
        pods.create_subresource("binding", pod.name(), &PostParams::default(), &binding).await;
    answer.map(drop)
}

/// Finds out what has become of a pod whose binding got no clear answer. Until the API server answers, the pod may be bound, and
/// nobody else gets its place.
pub(super) async fn resolve(client: Client, pod: &PodInfo, failure: &str) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(client, pod.namespace());
    let mut pause = limits::RESOLVE_PAUSE;
    loop {
        match pods.get_opt(pod.name()).await {
            Ok(Some(found)) if found.metadata.uid.as_deref().is_some_and(|uid| pod.uid == *uid) => {
                let node = found.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
                return if node.is_some() { Outcome::Bound } else { Outcome::Failed(failure.to_owned()) };
            }
            Ok(_) => return Outcome::Gone,
            Err(error) => debug!(pod = %pod.key(), %error, "cannot read the pod whose binding got no answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::RESOLVE_PAUSE_MAX);
    }
}
