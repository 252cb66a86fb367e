//! Binds claims for storage to volumes, and reclaims volumes whose claims are gone.
//!
//! ```text
//! claim ─▶ plan: a volume that suits │ ask a provisioner │ wait
//!            └▶ bind: volume, its phase, claim, its status
//! volume ─▶ plan: Available │ Bound │ Released ─▶ policy: Retain │ Delete (by its provisioner)
//! ```
//!
//! Every write names the version that it was decided on, so that of two decisions about one volume or claim only one
//! is carried out. A binding that was interrupted anywhere is finished by the next reconciliation of its claim.

mod bind;
mod collect;
mod plan;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod volume;

use std::sync::Arc;

use apiserver_client::{Cache, Change, Index, IndexBy, ObjectKey, Recorder, events};
use apiserver_meta::volumes;
use controllers_runtime::{Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, Resource};
use tokio::sync::Mutex;

use self::bind::Write;
use self::plan::{ClaimStep, Note, View};
use self::volume::Volumes;
use crate::context::{Context, Tasks};
use crate::index::ByClaim;
use crate::meta::{name, namespace};
use crate::patch;
use crate::pods::Pod;

/// Index of claims by the name of the volume that they are bound to or ask for.
struct ByVolume;

impl IndexBy<PersistentVolumeClaim> for ByVolume {
    type Value = String;

    fn values(claim: &PersistentVolumeClaim) -> Vec<String> {
        let name = volumes::volume_name(claim);
        (!name.is_empty()).then(|| name.to_owned()).into_iter().collect()
    }
}

/// Index of claims without a volume by their class.
struct ByOpenClass;

impl IndexBy<PersistentVolumeClaim> for ByOpenClass {
    type Value = String;

    fn values(claim: &PersistentVolumeClaim) -> Vec<String> {
        let is_open = volumes::volume_name(claim).is_empty();
        is_open.then(|| volumes::claim_class(claim).to_owned()).into_iter().collect()
    }
}

/// Index of volumes without a claim by their class.
struct ByFreeClass;

impl IndexBy<PersistentVolume> for ByFreeClass {
    type Value = String;

    fn values(volume: &PersistentVolume) -> Vec<String> {
        let is_free = volumes::claim_ref(volume).is_none();
        is_free.then(|| volumes::volume_class(volume).to_owned()).into_iter().collect()
    }
}

/// Index of volumes by the claim that they refer to.
struct ByReference;

impl IndexBy<PersistentVolume> for ByReference {
    type Value = ObjectKey;

    fn values(volume: &PersistentVolume) -> Vec<ObjectKey> {
        plan::claim_of(volume)
            .map(|(namespace, name)| ObjectKey::new(&namespace, &name))
            .into_iter()
            .collect()
    }
}

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let volumes = context.informers.cache::<PersistentVolume>();
    let classes = context.informers.cache::<StorageClass>();
    let pods = context.informers.cache::<Pod>();
    let claim_queue = WorkQueue::new("claims");
    let volume_queue = WorkQueue::new("volumes");
    let shared = Arc::new(Shared {
        client: context.client.clone(),
        recorder: context.recorder.named("persistentvolume-controller"),
        by_reference: volumes.index(),
        by_free_class: volumes.index(),
        pods: pods.index(),
        claims: claims.clone(),
        volumes: volumes.clone(),
        classes: classes.clone(),
        written_claims: Ledger::default(),
        written_volumes: Ledger::default(),
        choice: Mutex::new(()),
    });
    collect::add(&context.config.metrics, &volumes, &claims);
    context.feed(tasks, &claims, &claim_queue);
    context.feed(tasks, &volumes, &volume_queue);
    follow_claims(&claims, &shared, &volume_queue);
    follow_volumes(&volumes, &claims, &claim_queue);
    let (open, queue) = (claims.index::<ByOpenClass>(), claim_queue.clone());
    classes.on_change(move |change| {
        // A class that is the default now is for claims without one.
        for class in [change.key().name, String::new()] {
            open.get(&class).iter().for_each(|claim| queue.add(ObjectKey::of(claim.as_ref())));
        }
    });
    let ready = {
        let shared = Arc::clone(&shared);
        async move {
            shared.claims.synced().await;
            shared.volumes.synced().await;
            shared.classes.synced().await;
            pods.synced().await;
        }
    };
    let ready_too = {
        let shared = Arc::clone(&shared);
        async move {
            shared.claims.synced().await;
            shared.volumes.synced().await;
        }
    };
    let of_volumes = Volumes { shared: Arc::clone(&shared), claim_queue: claim_queue.clone() };
    context.start(tasks, claim_queue, Claims { shared }, ready);
    context.start(tasks, volume_queue, of_volumes, ready_too);
}

/// Reconciles the volumes of a claim that changes or goes.
fn follow_claims(
    claims: &Cache<PersistentVolumeClaim>,
    shared: &Arc<Shared>,
    volumes: &WorkQueue<ObjectKey>,
) {
    let (by_reference, queue) = (shared.by_reference.clone(), volumes.clone());
    claims.on_change(move |change| {
        let referring = by_reference.get(&change.key());
        referring.iter().for_each(|volume| queue.add(ObjectKey::of(volume.as_ref())));
        let named = volumes::volume_name(change.object());
        if !named.is_empty() {
            queue.add(ObjectKey::new("", named));
        }
    });
}

/// Reconciles the claims that a change of a volume may help: those that refer to it or that it refers to, and those
/// that wait for one of its class.
fn follow_volumes(
    volumes: &Cache<PersistentVolume>,
    claims: &Cache<PersistentVolumeClaim>,
    queue: &WorkQueue<ObjectKey>,
) {
    let (by_volume, open, queue) = (claims.index::<ByVolume>(), claims.index::<ByOpenClass>(), queue.clone());
    volumes.on_change(move |change: &Change<PersistentVolume>| {
        let volume = change.object();
        let named = by_volume.get(&change.key().name);
        named.iter().for_each(|claim| queue.add(ObjectKey::of(claim.as_ref())));
        match plan::claim_of(volume) {
            Some((namespace, name)) => queue.add(ObjectKey::new(&namespace, &name)),
            None if volumes::volume_phase(volume) == "Available" => {
                let waiting = open.get(&volumes::volume_class(volume).to_owned());
                waiting.iter().for_each(|claim| queue.add(ObjectKey::of(claim.as_ref())));
            }
            None => {}
        }
    });
}

/// State that both reconcilers share.
struct Shared {
    client: Client,
    recorder: Recorder,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    by_reference: Index<PersistentVolume, ByReference>,
    by_free_class: Index<PersistentVolume, ByFreeClass>,
    pods: Index<Pod, ByClaim>,
    written_claims: Ledger<ObjectKey>,
    written_volumes: Ledger<ObjectKey>,
    /// Held while a volume is chosen and taken, so that workers do not all choose the same one.
    choice: Mutex<()>,
}

impl Shared {
    fn note<K: Resource<DynamicType = ()>>(&self, about: &K, note: Note) {
        let Note { is_warning, reason, message } = note;
        if is_warning {
            self.recorder.warning(events::reference(about), reason, message);
        } else {
            self.recorder.normal(events::reference(about), reason, message);
        }
    }

    fn volume_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    fn claim_api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), namespace(&claim.metadata))
    }

    fn wrote_volume(&self, volume: &PersistentVolume) {
        self.written_volumes.wrote(&ObjectKey::of(volume), volume);
    }

    /// Returns `true` if the cache shows what was written for a volume.
    fn shows_volume(&self, key: &ObjectKey) -> bool {
        self.written_volumes.is_shown(key, &self.volumes)
    }

    /// Returns `true` if the cache shows what was written for a claim.
    fn shows_claim(&self, key: &ObjectKey) -> bool {
        self.written_claims.is_shown(key, &self.claims)
    }

    /// Writes the claim; returns it as written, or as it was if nothing differed.
    async fn write_claim(
        &self,
        old: PersistentVolumeClaim,
        new: &PersistentVolumeClaim,
        is_status: bool,
    ) -> Result<PersistentVolumeClaim> {
        let api = self.claim_api(&old);
        let written = if is_status {
            patch::write_status(&api, &old, new).await?
        } else {
            patch::update(&api, &old, new).await?
        };
        let Some(written) = written else { return Ok(old) };
        self.written_claims.wrote(&ObjectKey::of(&written), &written);
        Ok(written)
    }

    /// Writes the volume; returns it as written, or as it was if nothing differed.
    async fn write_volume(
        &self,
        old: PersistentVolume,
        new: &PersistentVolume,
        is_status: bool,
    ) -> Result<PersistentVolume> {
        let api = self.volume_api();
        let written = if is_status {
            patch::write_status(&api, &old, new).await?
        } else {
            patch::update(&api, &old, new).await?
        };
        let Some(written) = written else { return Ok(old) };
        self.wrote_volume(&written);
        Ok(written)
    }
}

/// Reconciles claims.
struct Claims {
    shared: Arc<Shared>,
}

impl Reconcile for Claims {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let shared = &self.shared;
        let Some(claim) = shared.claims.get(key) else {
            shared.written_claims.forget(key);
            return Ok(Outcome::Done);
        };
        if !shared.shows_claim(key) {
            return Ok(Outcome::Behind);
        }
        let named = volumes::volume_name(&claim);
        if !named.is_empty() && !shared.shows_volume(&ObjectKey::new("", named)) {
            return Ok(Outcome::Behind);
        }
        self.take_step(claim.as_ref()).await
    }
}

impl Claims {
    async fn take_step(&self, claim: &PersistentVolumeClaim) -> Result<Outcome> {
        let shared = &self.shared;
        let choice = shared.choice.lock().await;
        let step = self.decide(claim);
        let volume = match step {
            ClaimStep::Bind(volume) => volume,
            other => {
                drop(choice);
                return self.carry_out(claim, other).await;
            }
        };
        let mut bound = (PersistentVolume::clone(&volume), claim.clone());
        // The first write takes the volume, after which no other claim chooses it.
        bound = self.write_next(bound).await?;
        drop(choice);
        for _ in 1..bind::WRITES {
            bound = self.write_next(bound).await?;
        }
        Ok(Outcome::Done)
    }

    fn decide(&self, claim: &PersistentVolumeClaim) -> ClaimStep {
        let shared = &self.shared;
        let key = ObjectKey::of(claim);
        let class = volumes::claim_class(claim);
        let found = shared.classes.get(&ObjectKey::new("", class));
        let all = if volumes::has_class(claim) { Vec::new() } else { shared.classes.list() };
        let default = volumes::default_class(all.iter().map(AsRef::as_ref));
        // What was written last for a volume took it, or gave it back, which its next change tells.
        let mut free = shared.by_free_class.get(&class.to_owned());
        free.retain(|volume| shared.shows_volume(&ObjectKey::of(volume.as_ref())));
        let waits = |pod: &&Arc<Pod>| pod.node_name().is_empty() && !pod.is_finished();
        let waiting = shared.pods.get(&key);
        let waiting_pods = waiting.iter().filter(waits).map(|pod| name(&pod.metadata).to_owned());
        let view = View {
            named: shared.volumes.get(&ObjectKey::new("", volumes::volume_name(claim))),
            referring: shared.by_reference.get(&key),
            free,
            class: found.as_deref(),
            default_class: default.map(|class| name(&class.metadata)),
            waiting_pods: waiting_pods.collect(),
        };
        plan::claim(claim, &view)
    }

    async fn carry_out(&self, claim: &PersistentVolumeClaim, step: ClaimStep) -> Result<Outcome> {
        let shared = &self.shared;
        match step {
            // Needs the choice to be held, see above.
            ClaimStep::Bind(_) => {}
            ClaimStep::Phase(phase, note) => {
                let new = bind::with_claim_phase(claim, phase, None)?;
                let changes = volumes::claim_phase(claim) != phase;
                if let Some(new) = &new {
                    shared.write_claim(claim.clone(), new, true).await?;
                }
                // The loss of a volume is reported once, why a claim waits whenever it was looked at.
                if let Some(note) = note.filter(|_| changes || phase != "Lost") {
                    shared.note(claim, note);
                }
            }
            ClaimStep::AssignClass(class) => {
                let mut new = claim.clone();
                new.spec.get_or_insert_default().storage_class_name = Some(class);
                shared.write_claim(claim.clone(), &new, false).await?;
            }
            ClaimStep::Provision(provisioner) => {
                if let Some(new) = bind::asking(claim, &provisioner) {
                    let written = shared.write_claim(claim.clone(), &new, false).await;
                    if let Err(error) = written {
                        let message = format!("Error saving claim: {}", error.api_message());
                        shared.note(claim, Note::warning("ProvisioningFailed", message));
                        return Err(error);
                    }
                }
                shared.note(claim, plan::external(&provisioner));
            }
            ClaimStep::Report(note) => shared.note(claim, note),
        }
        Ok(Outcome::Done)
    }

    /// Carries out the next write of a binding; returns both as they are then.
    async fn write_next(
        &self,
        (volume, claim): (PersistentVolume, PersistentVolumeClaim),
    ) -> Result<(PersistentVolume, PersistentVolumeClaim)> {
        let shared = &self.shared;
        Ok(match bind::next(&volume, &claim)? {
            None => (volume, claim),
            Some(Write::Volume(new)) => (shared.write_volume(volume, &new, false).await?, claim),
            Some(Write::VolumeStatus(new)) => (shared.write_volume(volume, &new, true).await?, claim),
            Some(Write::Claim(new)) => (volume, shared.write_claim(claim, &new, false).await?),
            Some(Write::ClaimStatus(new)) => (volume, shared.write_claim(claim, &new, true).await?),
        })
    }
}
