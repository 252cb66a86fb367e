//! The scheduling loop: applies changes, schedules pods one by one, and writes bindings in parallel.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{Cache, Change, Informers, Latest, ObjectKey, Recorder, events};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{LeaderElection, Leadership};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::bind_volumes::Claims;
use crate::framework::Profile;
use crate::limits;
use apiserver_meta::pods::is_finished;

use crate::model::PodInfo;
use crate::plugins::default_profile;
use crate::queue::Queue;
use crate::schedule::{FitError, schedule};
use crate::snapshot::Snapshot;
use crate::storage::Plan;

/// Configuration of the scheduler.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `schedulerName` of the pods to schedule.
    pub scheduler_name: String,
    /// Lease to hold while working; `None` for a single instance.
    pub leader_election: Option<LeaderElection>,
}

impl Default for Config {
    fn default() -> Self {
        Self { scheduler_name: "default-scheduler".to_owned(), leader_election: None }
    }
}

/// Schedules pods until shutdown; with leader election, only while this process leads.
///
/// # Errors
///
/// Fails if the lease was lost: another process may be scheduling now.
pub async fn run(
    config: Config,
    informers: Informers,
    ambient: Ambient,
    shutdown: CancellationToken,
) -> Result<(), controllers_runtime::Error> {
    let Some(election) = config.leader_election.clone() else {
        work(config, informers, ambient, shutdown.into()).await;
        return Ok(());
    };
    let (client, time) = (informers.client().clone(), ambient.clone());
    controllers_runtime::lead(election, client, time, shutdown, |leading| {
        work(config, informers, ambient, leading)
    })
    .await
}

async fn work(config: Config, informers: Informers, ambient: Ambient, leading: Leadership) {
    let Leadership { stop: shutdown, fence } = leading;
    let client = fence.around(informers.client().clone());
    let updates = Updates::new();
    let recorder =
        Recorder::new(client.clone(), ambient.clone(), &config.scheduler_name, "", shutdown.clone());
    let (pods, nodes) = (informers.cache::<Pod>(), informers.cache::<Node>());
    let to = updates.clone();
    nodes.on_change(move |change| {
        let (Change::Applied { new: node, .. } | Change::Deleted(node)) = change;
        let name = node.metadata.name.clone().unwrap_or_default();
        let update = match change {
            Change::Applied { new, .. } => Update::Node(Arc::clone(new)),
            Change::Deleted(_) => Update::NodeGone(name.clone()),
        };
        to.put(Subject::Node(name), update);
    });
    let to = updates.clone();
    pods.on_change(move |change| {
        let (Change::Applied { new: pod, .. } | Change::Deleted(pod)) = change;
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let update = match change {
            Change::Applied { new, .. } => Update::Pod(Arc::clone(new)),
            Change::Deleted(_) => Update::PodGone(uid.clone()),
        };
        to.put(Subject::Pod(uid), update);
    });
    let (claims, volumes) =
        (informers.cache::<PersistentVolumeClaim>(), informers.cache::<PersistentVolume>());
    follow_storage(&claims, &volumes, &informers.cache(), &updates);
    let scheduler = Scheduler {
        config,
        profile: default_profile(),
        snapshot: Snapshot::default(),
        queue: Queue::default(),
        waiting: BTreeMap::new(),
        client,
        ambient,
        recorder,
        updates,
        claims: Claims::new(claims.clone()),
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        // Decisions based on incomplete lists would overcommit nodes. Classes are not waited for: their API may be
        // switched off, and without a class no claim gets a node.
        () = async {
            pods.synced().await;
            nodes.synced().await;
            claims.synced().await;
            volumes.synced().await;
            scheduler.run().await
        } => {}
    }
}

/// Reports changes of claims, volumes and classes to the loop.
fn follow_storage(
    claims: &Cache<PersistentVolumeClaim>,
    volumes: &Cache<PersistentVolume>,
    classes: &Cache<StorageClass>,
    updates: &Updates,
) {
    let to = updates.clone();
    claims.on_change(move |change| {
        to.put(Subject::Claim(change.key()), Update::Claim(change.key(), present(change)));
    });
    let to = updates.clone();
    volumes.on_change(move |change| {
        let name = change.key().name;
        to.put(Subject::Volume(name.clone()), Update::Volume(name, present(change)));
    });
    let to = updates.clone();
    classes.on_change(move |change| {
        let name = change.key().name;
        to.put(Subject::Class(name.clone()), Update::Class(name, present(change)));
    });
}

/// Returns the object after a change; `None` if it is gone.
fn present<K>(change: &Change<K>) -> Option<Arc<K>> {
    match change {
        Change::Applied { new, .. } => Some(Arc::clone(new)),
        Change::Deleted(_) => None,
    }
}

/// Updates from handlers and binders that the loop has not applied yet: at most one for each node and pod,
/// and one for each binding under way.
type Updates = Latest<Subject, Update>;

/// The object that an update is about. A newer update about the same object replaces it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// By name.
    Node(String),
    /// By uid.
    Pod(String),
    /// The binding of the pod with this uid.
    Binding(String),
    Claim(ObjectKey),
    /// By name.
    Volume(String),
    /// By name.
    Class(String),
}

/// A change that handlers and binders report to the loop.
enum Update {
    Node(Arc<Node>),
    NodeGone(String),
    Pod(Arc<Pod>),
    PodGone(String),
    /// `None` if it is gone, as below.
    Claim(ObjectKey, Option<Arc<PersistentVolumeClaim>>),
    Volume(String, Option<Arc<PersistentVolume>>),
    Class(String, Option<Arc<StorageClass>>),
    /// The API server did not accept the binding.
    BindFailed {
        uid: String,
        gone: bool,
    },
}

struct Scheduler {
    config: Config,
    profile: Profile,
    snapshot: Snapshot,
    queue: Queue,
    /// Pods without a node, by uid, for their conditions and events.
    waiting: BTreeMap<String, Arc<Pod>>,
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    updates: Updates,
    claims: Claims,
}

impl Scheduler {
    async fn run(mut self) {
        let updates = self.updates.clone();
        loop {
            while let Some(update) = updates.try_take() {
                self.apply(update);
            }
            if let Some(pod) = self.queue.pop(Instant::now()) {
                self.place(&pod);
                // Give other tasks of this process a chance to run.
                tokio::task::yield_now().await;
                continue;
            }
            let deadline = self.queue.deadline().unwrap_or_else(|| Instant::now() + limits::IDLE);
            tokio::select! {
                biased;
                update = updates.take() => self.apply(update),
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    fn apply(&mut self, update: Update) {
        let now = Instant::now();
        match update {
            Update::Node(node) => {
                self.snapshot.set_node(&node);
                self.queue.activate_unschedulable(now);
            }
            Update::NodeGone(name) => self.snapshot.remove_node(&name),
            Update::Pod(pod) => self.apply_pod(pod, now),
            Update::PodGone(uid) => self.forget(&uid, now),
            Update::Claim(key, claim) => {
                set(&mut self.snapshot.storage.claims, key, claim);
                self.queue.activate_unschedulable(now);
            }
            Update::Volume(name, volume) => {
                set(&mut self.snapshot.storage.volumes, name, volume);
                self.queue.activate_unschedulable(now);
            }
            Update::Class(name, class) => {
                set(&mut self.snapshot.storage.classes, name, class);
                self.queue.activate_unschedulable(now);
            }
            Update::BindFailed { uid, gone } => {
                self.snapshot.remove_pod(&uid);
                if gone { self.forget(&uid, now) } else { self.queue.retry(&uid, now) }
            }
        }
    }

    fn apply_pod(&mut self, pod: Arc<Pod>, now: Instant) {
        let info = Arc::new(PodInfo::parse(&pod));
        if is_finished(&pod) {
            self.forget(&info.uid, now);
        } else if !info.node.is_empty() {
            let node = info.node.clone();
            self.queue.remove(&info.uid);
            self.waiting.remove(&info.uid);
            self.snapshot.place(&info, &node);
        } else if info.terminating {
            self.forget(&info.uid, now);
        } else if self.is_ours(&pod) && self.snapshot.place_of(&info.uid).is_none() {
            self.waiting.insert(info.uid.clone(), pod);
            self.queue.add(info, now);
        }
    }

    /// Removes a pod that no longer occupies resources.
    fn forget(&mut self, uid: &str, now: Instant) {
        self.queue.remove(uid);
        self.waiting.remove(uid);
        self.snapshot.remove_pod(uid);
        self.queue.activate_unschedulable(now);
    }

    fn is_ours(&self, pod: &Pod) -> bool {
        let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
        name.unwrap_or("default-scheduler") == self.config.scheduler_name
    }

    fn place(&mut self, pod: &Arc<PodInfo>) {
        match schedule(&self.profile, &self.snapshot, pod, self.ambient.random.next_u64()) {
            Ok(node) => {
                debug!(pod = %pod.key, node, "placed");
                let plan = self.volumes(pod, &node);
                self.snapshot.place(pod, &node);
                self.bind(pod, node, plan);
            }
            Err(error) => {
                info!(pod = %pod.key, %error, "no node is feasible");
                self.queue.mark_unschedulable(&pod.uid, Instant::now());
                self.report_unschedulable(pod, &error);
            }
        }
    }

    /// Returns what is to be written for the claims of a pod on the node that was chosen for it.
    fn volumes(&self, pod: &PodInfo, node: &str) -> Plan {
        let storage = &self.snapshot.storage;
        let node = self.snapshot.node(node).filter(|_| !pod.claims.is_empty());
        // The filter has found a plan a moment ago.
        let plan = node.and_then(|node| storage.plan_for(&storage.claims_of(pod).ok()?, node).ok());
        plan.unwrap_or_default()
    }

    /// Writes the binding, after the claims are bound; the pod counts on its node from now on.
    fn bind(&self, pod: &Arc<PodInfo>, node: String, plan: Plan) {
        let (client, updates, recorder) = (self.client.clone(), self.updates.clone(), self.recorder.clone());
        let object = self.waiting.get(&pod.uid).cloned();
        let (pod, claims) = (Arc::clone(pod), self.claims.clone());
        tokio::spawn(async move {
            if let Err(error) = claims.bind(&client, &plan, &node).await {
                let cause = &error as &dyn std::error::Error;
                info!(pod = %pod.key, node, error = cause, "the claims are not bound, retrying");
                let uid = pod.uid.clone();
                updates.put(Subject::Binding(uid.clone()), Update::BindFailed { uid, gone: false });
                return;
            }
            match write_binding(client, &pod, &node).await {
                Ok(()) => {
                    if let Some(object) = object {
                        let message = format!("Successfully assigned {} to {node}", pod.key);
                        recorder.normal(events::reference(object.as_ref()), "Scheduled", message);
                    }
                }
                Err(error) => {
                    let gone = matches!(&error, kube::Error::Api(status) if status.code == 404);
                    if !gone {
                        warn!(pod = %pod.key, node, %error, "binding was refused, retrying");
                    }
                    let uid = pod.uid.clone();
                    updates.put(Subject::Binding(uid.clone()), Update::BindFailed { uid, gone });
                }
            }
        });
    }

    /// Reports why the pod is unschedulable: in an event and in the pod's condition.
    fn report_unschedulable(&self, pod: &Arc<PodInfo>, error: &FitError) {
        let Some(object) = self.waiting.get(&pod.uid) else { return };
        let message = error.to_string();
        self.recorder.warning(events::reference(object.as_ref()), "FailedScheduling", message.clone());
        let conditions =
            object.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let known = conditions.iter().any(|condition| {
            condition.type_ == "PodScheduled" && condition.message.as_deref() == Some(message.as_str())
        });
        if known {
            return;
        }
        let patch = json!({"status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.ambient.now()),
        }]}});
        let (pods, key) = (Api::<Pod>::namespaced(self.client.clone(), &pod.key.namespace), pod.key.clone());
        tokio::spawn(async move {
            let patched =
                pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            if let Err(error) = patched {
                debug!(pod = %key, %error, "cannot write the condition PodScheduled");
            }
        });
    }
}

/// Stores an object, or removes what is gone.
fn set<K: Ord, V>(objects: &mut BTreeMap<K, V>, key: K, object: Option<V>) {
    match object {
        Some(object) => objects.insert(key, object),
        None => objects.remove(&key),
    };
}

async fn write_binding(client: Client, pod: &PodInfo, node: &str) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, &pod.key.namespace);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.key.name, "namespace": pod.key.namespace, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let answer: kube::Result<serde_json::Value> =
        pods.create_subresource("binding", &pod.key.name, &PostParams::default(), &binding).await;
    answer.map(drop)
}
