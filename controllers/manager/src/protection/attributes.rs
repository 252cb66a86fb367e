//! Protection of VolumeAttributesClasses that claims or volumes refer to.

use std::collections::BTreeSet;

use apiserver_client::{Cache, Change, ObjectKey};
use apiserver_meta::finalizers::ATTRIBUTES_CLASS;
use controllers_runtime::{Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::{Api, Client, Resource};

use super::{Step, set, step};
use crate::context::{Context, Tasks};

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("vac-protection");
    let classes = context.informers.cache::<VolumeAttributesClass>();
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let volumes = context.informers.cache::<PersistentVolume>();
    context.feed(tasks, &classes, &queue);
    follow(&claims, &queue, named_by_claim);
    follow(&volumes, &queue, named_by_volume);
    let controller = Classes {
        client: context.client.clone(),
        classes: classes.clone(),
        claims: claims.clone(),
        volumes: volumes.clone(),
    };
    context.start(tasks, queue, controller, async move {
        classes.synced().await;
        claims.synced().await;
        volumes.synced().await;
    });
}

/// Enqueues a class when an object stops referring to it.
fn follow<K: Resource + Send + Sync + 'static>(
    cache: &Cache<K>,
    queue: &WorkQueue<ObjectKey>,
    named: fn(&K) -> BTreeSet<&str>,
) {
    let queue = queue.clone();
    cache.on_change(move |change| {
        let (before, now) = match change {
            Change::Applied { old, new } => (old.as_deref(), Some(new.as_ref())),
            Change::Deleted(last) => (Some(last.as_ref()), None),
        };
        let kept = now.map(named).unwrap_or_default();
        let left = before.map(named).unwrap_or_default();
        left.difference(&kept).for_each(|class| queue.add(ObjectKey::new("", class)));
    });
}

struct Classes {
    client: Client,
    classes: Cache<VolumeAttributesClass>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

impl Reconcile for Classes {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(class) = self.classes.get(key) else { return Ok(Outcome::Done) };
        let api: Api<VolumeAttributesClass> = Api::all(self.client.clone());
        match step(&class.metadata, ATTRIBUTES_CLASS) {
            Step::Add => set(&api, class.as_ref(), ATTRIBUTES_CLASS, true).await,
            Step::RemoveIfUnused if !self.is_named(&key.name) => {
                set(&api, class.as_ref(), ATTRIBUTES_CLASS, false).await
            }
            Step::Keep | Step::RemoveIfUnused => Ok(Outcome::Done),
        }
    }
}

impl Classes {
    fn is_named(&self, class: &str) -> bool {
        self.volumes.list().iter().any(|volume| named_by_volume(volume).contains(class))
            || self.claims.list().iter().any(|claim| named_by_claim(claim).contains(class))
    }
}

/// Returns the classes that a claim asks for, has, or is being changed to.
pub(super) fn named_by_claim(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let present = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let change = status.and_then(|status| status.modify_volume_status.as_ref());
    let target = change.and_then(|change| change.target_volume_attributes_class_name.as_deref());
    [wanted, present, target].into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

/// Returns the class that a volume has.
pub(super) fn named_by_volume(volume: &PersistentVolume) -> BTreeSet<&str> {
    let name = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    name.into_iter().filter(|name| !name.is_empty()).collect()
}
