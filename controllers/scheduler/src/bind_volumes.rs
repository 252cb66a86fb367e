//! Writes what was chosen for the claims of a pod, and waits until these are bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, Change, Informers, Labels, ObjectKey, version_of};
use apiserver_meta::uid::Uid;
use apiserver_meta::volumes::{self, BOUND_BY_CONTROLLER, SELECTED_NODE};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::progress::Stuck;
use self::progress::{State, Versions, is_done};
use crate::cluster::NodeFacts;
use crate::cluster::storage::{BuiltIn, VolumePlan, migrates};
use crate::pod::PodInfo;

mod progress;

/// The claims of a pod could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("cannot write {what}")]
    Write {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("binding volumes")]
    Stuck(#[source] Stuck),
}

impl VolumeError {
    /// Returns the error in the words that kube-scheduler has for it in an event.
    pub fn event_text(&self) -> String {
        match self {
            Self::Write { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.message.clone(),
                other => other.to_string(),
            },
            Self::Stuck(stuck) => format!("binding volumes: {stuck}"),
        }
    }
}

/// Carries out plans for the claims of pods.
#[derive(Clone)]
pub struct VolumeBinder {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    nodes: Cache<NodeFacts>,
    csi_nodes: Cache<CSINode>,
    pods: Cache<PodInfo>,
    waiting: Waiting,
}

/// An object whose change may end a wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Claim(ObjectKey),
    Volume(String),
    Node(String),
    Pod(ObjectKey),
}

/// The waits under way, one for each pod whose claims are being bound, by what may end them.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<BTreeMap<Subject, Vec<Arc<Notify>>>>>);

/// A wait, which ends when it is dropped.
struct Wait {
    waiting: Waiting,
    subjects: Vec<Subject>,
    notify: Arc<Notify>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Subject, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, subject: &Subject) {
        for notify in self.lock().get(subject).into_iter().flatten() {
            notify.notify_one();
        }
    }

    fn begin(&self, subjects: Vec<Subject>) -> Wait {
        let notify = Arc::new(Notify::new());
        let mut waiting = self.lock();
        for subject in &subjects {
            waiting.entry(subject.clone()).or_default().push(Arc::clone(&notify));
        }
        Wait { waiting: self.clone(), subjects, notify }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        for subject in &self.subjects {
            let Some(all) = waiting.get_mut(subject) else { continue };
            all.retain(|other| !Arc::ptr_eq(other, &self.notify));
            if all.is_empty() {
                waiting.remove(subject);
            }
        }
    }
}

/// Returns what may change the progress of a plan.
fn subjects(plan: &VolumePlan) -> Vec<Subject> {
    let name = |volume: &PersistentVolume| Subject::Volume(name_of(volume).to_owned());
    let mut subjects = vec![Subject::Pod(plan.pod.clone()), Subject::Node(plan.node.to_string())];
    for (claim, volume) in &plan.take {
        subjects.extend([Subject::Claim(ObjectKey::of(claim.as_ref())), name(volume)]);
    }
    subjects.extend(plan.make.iter().map(|claim| Subject::Claim(ObjectKey::of(claim.as_ref()))));
    subjects
}

impl State for VolumeBinder {
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(key)
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(&ObjectKey::new("", name))
    }

    fn labels_of(&self, node: &str) -> Option<Labels> {
        self.nodes.get(&ObjectKey::new("", node)).map(|node| node.labels.clone())
    }

    fn is_migrated_on(&self, node: &str, driver: BuiltIn) -> bool {
        self.csi_nodes.get(&ObjectKey::new("", node)).is_some_and(|csi| migrates(&csi, driver))
    }

    fn has_pod(&self, key: &ObjectKey, uid: &Uid) -> bool {
        self.pods.get(key).is_some_and(|pod| pod.uid == *uid)
    }
}

impl VolumeBinder {
    /// Creates a binder on the caches of a component.
    pub fn new(informers: &Informers) -> Self {
        let this = Self {
            claims: informers.cache(),
            volumes: informers.cache(),
            nodes: informers.cache(),
            csi_nodes: informers.cache(),
            pods: informers.cache(),
            waiting: Waiting::default(),
        };
        let waiting = this.waiting.clone();
        this.claims.on_change(move |change| waiting.changed(&Subject::Claim(change.key())));
        let waiting = this.waiting.clone();
        this.volumes.on_change(move |change| {
            let volume = change.object();
            waiting.changed(&Subject::Volume(name_of(volume).to_owned()));
            if let Some(claim) = volumes::claim_ref(volume) {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                let key = ObjectKey { namespace: text(&claim.namespace), name: text(&claim.name) };
                waiting.changed(&Subject::Claim(key));
            }
        });
        let waiting = this.waiting.clone();
        this.nodes.on_change(move |change| waiting.changed(&Subject::Node(change.object().name.to_string())));
        let waiting = this.waiting.clone();
        this.pods.on_change(move |change| {
            if let Change::Deleted(pod) = change {
                waiting.changed(&Subject::Pod(pod.key()));
            }
        });
        this
    }

    /// Writes what is planned, and returns once all claims are bound, or `off` is cancelled: what has begun to be written then
    /// is written, and nothing more. Each write names the version that the choice was based on, so that no volume is given
    /// twice and no claim gets two nodes.
    ///
    /// # Errors
    ///
    /// Returns why the pod has to be placed anew.
    pub async fn bind(
        &self,
        client: &Client,
        plan: &VolumePlan,
        off: &CancellationToken,
    ) -> Result<(), VolumeError> {
        let wait = self.waiting.begin(subjects(plan));
        let mut written = Versions::default();
        for (claim, volume) in plan.take.iter().take_while(|_| !off.is_cancelled()) {
            written.volumes.push(self.take(client, claim, volume).await?);
        }
        for claim in plan.make.iter().take_while(|_| !off.is_cancelled()) {
            written.claims.push(self.select(client, claim).await?);
        }
        let bound = async {
            while !is_done(plan, &written, self)? {
                wait.notify.notified().await;
            }
            Ok(())
        };
        match off.run_until_cancelled(tokio::time::timeout(plan.timeout, bound)).await {
            Some(bound) => bound.unwrap_or(Err(Stuck::Timeout)).map_err(VolumeError::Stuck),
            None => Ok(()),
        }
    }

    /// Reserves a volume for a claim, unless it is by now; returns the version of the volume.
    async fn take(
        &self,
        client: &Client,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<u64, VolumeError> {
        let name = name_of(volume);
        if let Some(now) = self.volume(name).filter(|now| volumes::bound_to(now, claim).is_none()) {
            return Ok(version_of(&now.metadata));
        }
        let reference = volumes::claim_ref(volume).map_or(Value::Null, |reference| json!(reference));
        let mut patch = json!({
            "metadata": {"resourceVersion": volume.metadata.resource_version},
            "spec": {"claimRef": reference},
        });
        if volumes::is_annotated(&volume.metadata, BOUND_BY_CONTROLLER) {
            patch["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
        }
        let api: Api<PersistentVolume> = Api::all(client.clone());
        let written = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.map(|volume| version_of(&volume.metadata)).map_err(|source| {
            let what = format!("the claim of PersistentVolume {name}");
            VolumeError::Write { what, source: Box::new(source) }
        })
    }

    /// Tells for which node the volume of a claim is to be made, unless the claim says so by now; returns its version.
    async fn select(&self, client: &Client, claim: &PersistentVolumeClaim) -> Result<u64, VolumeError> {
        let key = ObjectKey::of(claim);
        let node = volumes::selected_node(claim);
        if let Some(now) = self.claim(&key).filter(|now| volumes::selected_node(now) == node) {
            return Ok(version_of(&now.metadata));
        }
        let patch = json!({"metadata": {
            "resourceVersion": claim.metadata.resource_version, "annotations": {SELECTED_NODE: node}}});
        let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &key.namespace);
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.map(|claim| version_of(&claim.metadata)).map_err(|source| {
            let what = format!("the node of PersistentVolumeClaim {key}");
            VolumeError::Write { what, source: Box::new(source) }
        })
    }
}

fn name_of(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_end_with_changes_of_their_subjects_and_are_forgotten() {
        let waiting = Waiting::default();
        let (claim, other) = (Subject::Claim(ObjectKey::new("ns", "c")), Subject::Volume("v".to_owned()));
        let ends = async |wait: &Wait| timeout(Duration::from_secs(60), wait.notify.notified()).await.is_ok();
        let wait = waiting.begin(vec![claim.clone()]);
        let second = waiting.begin(vec![claim.clone(), other.clone()]);
        waiting.changed(&other);
        assert!(!ends(&wait).await && ends(&second).await);
        waiting.changed(&claim);
        assert!(ends(&wait).await && ends(&second).await, "a change before the wait is not missed");
        drop(second);
        assert_eq!(waiting.lock().keys().collect::<Vec<_>>(), [&claim]);
        drop(wait);
        assert!(waiting.lock().is_empty());
    }
}
