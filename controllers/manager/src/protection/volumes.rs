//! Protection of PersistentVolumes that are bound to a claim.

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::finalizers::VOLUME;
use controllers_runtime::{Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};

use super::{Step, set, step};
use crate::context::{Context, Tasks};

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("pv-protection");
    let volumes = context.informers.cache::<PersistentVolume>();
    context.feed(tasks, &volumes, &queue);
    let controller = Volumes { client: context.client.clone(), volumes: volumes.clone() };
    context.start(tasks, queue, controller, async move { volumes.synced().await });
}

struct Volumes {
    client: Client,
    volumes: Cache<PersistentVolume>,
}

impl Reconcile for Volumes {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(volume) = self.volumes.get(key) else { return Ok(Outcome::Done) };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match step(&volume.metadata, VOLUME) {
            Step::Add => set(&api, volume.as_ref(), VOLUME, true).await,
            Step::RemoveIfUnused if !is_bound(&volume) => set(&api, volume.as_ref(), VOLUME, false).await,
            Step::Keep | Step::RemoveIfUnused => Ok(Outcome::Done),
        }
    }
}

/// Returns `true` if the volume's status says that it is bound to a claim.
pub(super) fn is_bound(volume: &PersistentVolume) -> bool {
    volume.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}
