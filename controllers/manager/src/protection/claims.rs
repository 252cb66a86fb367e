//! Protection of PersistentVolumeClaims that pods use.

use apiserver_client::{Cache, Change, Index, ObjectKey};
use apiserver_meta::finalizers::CLAIM;
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaim};
use kube::api::ListParams;
use kube::{Api, Client};

use super::{Step, set, step};
use crate::context::{Context, Tasks};
use crate::index::ByClaim;
use crate::limits::LIST_PAGE;
use crate::meta::{is_controlled_by, is_deleted, name, namespace, uid};
use crate::pods::{Pod, claim_of, volumes};

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("pvc-protection");
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let pods = context.informers.cache::<Pod>();
    context.feed(tasks, &claims, &queue);
    let freed = queue.clone();
    pods.on_change(move |change| {
        for pod in ended(change) {
            let claims = volumes(pod).iter().filter_map(|volume| claim_of(pod, volume));
            claims.for_each(|claim| freed.add(ObjectKey::new(namespace(&pod.metadata), &claim)));
        }
    });
    let controller = Claims { client: context.client.clone(), claims: claims.clone(), pods: pods.index() };
    context.start(tasks, queue, controller, async move {
        claims.synced().await;
        pods.synced().await;
    });
}

struct Claims {
    client: Client,
    claims: Cache<PersistentVolumeClaim>,
    pods: Index<Pod, ByClaim>,
}

impl Reconcile for Claims {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(claim) = self.claims.get(key) else { return Ok(Outcome::Done) };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        match step(&claim.metadata, CLAIM) {
            Step::Keep => Ok(Outcome::Done),
            Step::Add => set(&api, claim.as_ref(), CLAIM, true).await,
            Step::RemoveIfUnused if self.is_used(&claim).await? => Ok(Outcome::Done),
            Step::RemoveIfUnused => set(&api, claim.as_ref(), CLAIM, false).await,
        }
    }
}

impl Claims {
    /// Returns `true` if a pod uses the claim. If the cache shows none, the server is queried, because a claim
    /// that is removed too early loses data.
    async fn is_used(&self, claim: &PersistentVolumeClaim) -> Result<bool> {
        let namespace = namespace(&claim.metadata);
        if self.pods.any(&ObjectKey::of(claim), |pod| uses(pod, claim)) {
            return Ok(true);
        }
        let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut page = ListParams::default().limit(LIST_PAGE);
        loop {
            let pods = api.list(&page).await.attempt(|| format!("list pods of {namespace}"))?;
            let next = pods.metadata.continue_.filter(|token| !token.is_empty());
            if pods.items.into_iter().any(|pod| uses(&pod.into(), claim)) {
                return Ok(true);
            }
            match next {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(false),
            }
        }
    }
}

/// Returns the pods in a change that no longer use their claims: a deleted one, one that was replaced by
/// another with the same name, and one that the kubelet has finished with.
fn ended(change: &Change<Pod>) -> impl Iterator<Item = &Pod> {
    let (replaced, over) = match change {
        Change::Deleted(pod) => (None, Some(pod)),
        Change::Applied { old, new } => (
            old.as_ref().filter(|old| uid(&old.metadata) != uid(&new.metadata)),
            Some(new).filter(|pod| is_shut_down(pod)),
        ),
    };
    replaced.into_iter().chain(over).map(AsRef::as_ref)
}

/// Returns `true` if the pod prevents the removal of the claim. A pod without a node does not, because no
/// kubelet starts a pod with a claim that is being deleted.
pub(super) fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.node_name().is_empty() {
        return false;
    }
    volumes(pod).iter().any(|volume| {
        if claim_of(pod, volume).as_deref() != Some(name(&claim.metadata)) {
            return false;
        }
        // The claim of an ephemeral volume is deleted with its pod, which may itself wait for the claim.
        volume.ephemeral.is_none() || !is_shut_down(pod) && is_controlled_by(&claim.metadata, &pod.metadata)
    })
}

/// Returns `true` if the kubelet has finished with the pod or never had it, so that only finalizers keep it.
fn is_shut_down(pod: &Pod) -> bool {
    is_deleted(&pod.metadata) && pod.metadata.grace() == Some(0)
}
