//! Phases of volumes, and what happens to those whose claims are gone.

use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::volumes;
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;

use super::plan::{self, VolumeStep};
use super::{Shared, bind};
use crate::meta::{name, uid};

/// Reconciles volumes.
pub(super) struct Volumes {
    pub shared: Arc<Shared>,
    pub claim_queue: WorkQueue<ObjectKey>,
}

impl Reconcile for Volumes {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let shared = &self.shared;
        let Some(volume) = shared.volumes.get(key) else {
            shared.written_volumes.forget(key);
            return Ok(Outcome::Done);
        };
        let claim = plan::claim_of(&volume).map(|(namespace, name)| ObjectKey::new(&namespace, &name));
        let is_stale =
            !shared.shows_volume(key) || claim.as_ref().is_some_and(|claim| !shared.shows_claim(claim));
        if is_stale {
            return Ok(Outcome::Behind);
        }
        self.take_step(&volume).await?;
        Ok(Outcome::Done)
    }
}

impl Volumes {
    async fn take_step(&self, volume: &PersistentVolume) -> Result<()> {
        let shared = &self.shared;
        let claim = self.claim(volume).await?;
        match plan::volume(volume, claim.as_ref()) {
            VolumeStep::Phase(phase) => {
                self.set_phase(volume.clone(), phase, "").await?;
            }
            VolumeStep::Release => self.release(volume).await?,
            VolumeStep::Unbind => {
                let written = shared.write_volume(volume.clone(), &bind::unbound(volume), false).await?;
                self.set_phase(written, "Available", "").await?;
            }
            VolumeStep::Claim => {
                let claim = plan::claim_of(volume);
                claim
                    .iter()
                    .for_each(|(namespace, name)| self.claim_queue.add(ObjectKey::new(namespace, name)));
            }
            VolumeStep::Mismatch => {
                if let Some(claim) = &claim {
                    let (of_volume, of_claim) = plan::mismatch(volume, claim);
                    shared.note(volume, of_volume);
                    shared.note(claim, of_claim);
                }
            }
        }
        Ok(())
    }

    /// Returns the claim that a volume refers to. If the cache does not show it, the server is asked, because a
    /// volume that is released too early may lose its data; one that is released already stays so.
    async fn claim(&self, volume: &PersistentVolume) -> Result<Option<PersistentVolumeClaim>> {
        let Some((namespace, claim)) = plan::claim_of(volume) else { return Ok(None) };
        let wanted =
            volumes::claim_ref(volume).and_then(|reference| reference.uid.clone()).unwrap_or_default();
        if wanted.is_empty() {
            return Ok(None);
        }
        let is_meant = |found: &PersistentVolumeClaim| uid(&found.metadata) == wanted;
        let cached = self.shared.claims.get(&ObjectKey::new(&namespace, &claim));
        if let Some(found) = cached.filter(|found| is_meant(found)) {
            return Ok(Some(PersistentVolumeClaim::clone(&found)));
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.shared.client.clone(), &namespace);
        let found = api.get_opt(&claim).await;
        let found = found.attempt(|| format!("get the claim {namespace}/{claim} of a volume"))?;
        Ok(found.filter(is_meant))
    }

    async fn set_phase(
        &self,
        volume: PersistentVolume,
        phase: &str,
        message: &str,
    ) -> Result<PersistentVolume> {
        match bind::with_volume_phase(&volume, phase, message) {
            Some(new) => self.shared.write_volume(volume, &new, true).await,
            None => Ok(volume),
        }
    }

    /// Releases a volume and acts on its policy. A failure stays visible.
    async fn release(&self, volume: &PersistentVolume) -> Result<()> {
        let mut volume = volume.clone();
        if !matches!(volumes::volume_phase(&volume), "Released" | "Failed") {
            tracing::info!(volume = name(&volume.metadata), "the claim of a volume is gone, releasing it");
            volume = self.set_phase(volume, "Released", "").await?;
        }
        let Some(note) = plan::reclaim(&volume) else { return Ok(()) };
        if volumes::volume_phase(&volume) != "Failed" {
            volume = self.set_phase(volume, "Failed", &note.message).await?;
            self.shared.note(&volume, note);
        }
        Ok(())
    }
}
