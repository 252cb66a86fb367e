//! Generates the ResourceClaims of pods from templates, and releases claims whose pods are over.
//!
//! A claim is generated before the pod's status names it. If this process dies in between, the next one finds the claim
//! by its owner and its annotation. A claim whose last pod is over gives its devices back, and is deleted if it was
//! generated for that pod.

mod gone;
mod plan;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, Index, IndexBy, Object, ObjectKey, Recorder};
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{self, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};

use self::gone::Gone;
use self::plan::{Life, Step};
use crate::context::{Context, Tasks};
use crate::device_claims::{ByResourceClaim, Reference, consumers, entries, extended, is_done, is_pod};
use crate::index::ByController;
use crate::meta::{is_deleted, is_segment, name, namespace, only_this, uid};
use crate::pods::Pod;
use crate::{limits, patch};

/// A pod whose claims are looked at, or a claim whose users are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Pod(ObjectKey),
    Claim(ObjectKey),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod:{key}"),
            Self::Claim(key) => write!(f, "claim:{key}"),
        }
    }
}

/// Index of pods by the templates of their claims.
struct ByTemplate;

impl IndexBy<Pod> for ByTemplate {
    type Value = ObjectKey;

    fn values(pod: &Pod) -> Vec<ObjectKey> {
        let names = entries(pod).iter().filter_map(|entry| entry.resource_claim_template_name.as_deref());
        names.map(|name| ObjectKey::new(namespace(&pod.metadata), name)).collect()
    }
}

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("resource_claim");
    let pods = context.informers.cache::<Pod>();
    let claims = context.informers.cache::<ResourceClaim>();
    let templates = context.informers.cache::<ResourceClaimTemplate>();
    let controller = Claims {
        client: context.client.clone(),
        recorder: context.recorder.named("resource_claim"),
        owned: claims.index(),
        pods: pods.clone(),
        claims: claims.clone(),
        templates: templates.clone(),
        written_claims: Ledger::default(),
        written_pods: Ledger::default(),
        gone: Arc::default(),
    };
    follow_pods(&controller, &queue);
    let (users, changed) = (pods.index::<ByResourceClaim>(), queue.clone());
    claims.on_change(move |change| {
        // A new claim may name pods that are gone.
        if matches!(change, Change::Applied { .. }) {
            changed.add(Key::Claim(change.key()));
        }
        users.get(&change.key()).iter().for_each(|pod| changed.add(Key::Pod(ObjectKey::of(pod.as_ref()))));
    });
    let (waiting, given) = (pods.index::<ByTemplate>(), queue.clone());
    templates.on_change(move |change| {
        waiting.get(&change.key()).iter().for_each(|pod| given.add(Key::Pod(ObjectKey::of(pod.as_ref()))));
    });
    context.spawn(tasks, resync(pods.clone(), claims.clone(), queue.clone()));
    context.start(tasks, queue, controller, async move {
        pods.synced().await;
        claims.synced().await;
        templates.synced().await;
    });
}

/// Adds each pod with claims on its changes, and the claims that it no longer needs.
fn follow_pods(controller: &Claims, queue: &WorkQueue<Key>) {
    let (queue, owned) = (queue.clone(), controller.owned.clone());
    let gone = Arc::clone(&controller.gone);
    controller.pods.on_change(move |change| {
        let (replaced, is_over) = match change {
            Change::Deleted(_) => (None, true),
            Change::Applied { old, new } => {
                (old.as_ref().filter(|old| uid(&old.metadata) != uid(&new.metadata)), is_done(new))
            }
        };
        let pod = change.object();
        for over in replaced.into_iter().chain(is_over.then_some(pod)).filter(|pod| has_claims(pod)) {
            claims_of(over, &owned).into_iter().for_each(|claim| queue.add(Key::Claim(claim)));
        }
        let is_gone = matches!(change, Change::Deleted(_));
        let left = replaced.into_iter().chain(is_gone.then_some(pod)).filter(|pod| has_claims(pod));
        left.for_each(|pod| gone.add(uid(&pod.metadata)));
        if !entries(pod).is_empty() {
            queue.add(Key::Pod(change.key()));
        }
    });
}

fn has_claims(pod: &Pod) -> bool {
    !entries(pod).is_empty() || extended(pod).is_some()
}

/// Returns the claims that a pod refers to or owns.
fn claims_of(pod: &Pod, owned: &Index<ResourceClaim, ByController>) -> BTreeSet<ObjectKey> {
    let named = entries(pod).iter().filter_map(|entry| Reference::of(pod, entry).name());
    let named = named
        .chain(extended(pod))
        .map(|claim| ObjectKey::new(namespace(&pod.metadata), claim))
        .collect::<Vec<_>>();
    let owned = owned.get(&uid(&pod.metadata).to_owned());
    named.into_iter().chain(owned.iter().map(|claim| ObjectKey::of(claim.as_ref()))).collect()
}

/// Adds all pods with claims, and all claims, from time to time.
async fn resync(pods: Cache<Pod>, claims: Cache<ResourceClaim>, queue: WorkQueue<Key>) {
    loop {
        tokio::time::sleep(limits::RESYNC).await;
        let pods = pods.list().into_iter().filter(|pod| !entries(pod).is_empty());
        pods.for_each(|pod| queue.add(Key::Pod(ObjectKey::of(pod.as_ref()))));
        claims.list().iter().for_each(|claim| queue.add(Key::Claim(ObjectKey::of(claim.as_ref()))));
    }
}

struct Claims {
    client: Client,
    recorder: Recorder,
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
    owned: Index<ResourceClaim, ByController>,
    templates: Cache<ResourceClaimTemplate>,
    /// Writes of claims: those that were generated or reserved for a pod by its key.
    written_claims: Ledger<Key>,
    written_pods: Ledger<Key>,
    gone: Arc<Gone>,
}

impl Reconcile for Claims {
    type Key = Key;

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        let is_shown =
            self.written_claims.is_shown(key, &self.claims) && self.written_pods.is_shown(key, &self.pods);
        if !is_shown {
            return Ok(Outcome::Behind);
        }
        let done = match key {
            Key::Pod(pod) => match self.pods.get(pod) {
                Some(pod) if !is_deleted(&pod.metadata) && !is_done(&pod) => self.provide(key, &pod).await,
                _ => Ok(()),
            },
            Key::Claim(claim) => match self.claims.get(claim) {
                Some(claim) => self.release(key, &claim).await,
                None => Ok(()),
            },
        };
        match done {
            // The pod or the claim went in the meantime, or will go with its namespace.
            Err(error) if error.is_not_found() || error.is_namespace_terminating() => Ok(Outcome::Done),
            done => done.map(|()| Outcome::Done),
        }
    }
}

impl Claims {
    fn api(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Generates the claims of a pod, names them in its status, and reserves those that are allocated for a pod that the
    /// scheduler has not seen.
    async fn provide(&self, key: &Key, pod: &Arc<Pod>) -> Result<()> {
        let space = namespace(&pod.metadata);
        let owned = self.owned.get(&uid(&pod.metadata).to_owned());
        let (mut made, mut reserve) = (Vec::new(), Vec::new());
        for entry in entries(pod) {
            let named = Reference::of(pod, entry).name();
            let named = named.and_then(|claim| self.claims.get(&ObjectKey::new(space, claim)));
            match plan::step(pod, entry, named, &owned) {
                Step::Nothing => {}
                Step::Record(claim) => made.push((entry.name.clone(), claim)),
                Step::Generate => made.push((entry.name.clone(), self.generate(key, pod, entry).await?)),
                Step::Reserve(claim) => reserve.push(claim),
                Step::Unsupported => return Err(self.unsupported(pod, entry)),
            }
        }
        if !made.is_empty() {
            let old = pod.to_api();
            let mut new = old.clone();
            new.status.get_or_insert_default().resource_claim_statuses =
                Some(plan::with_statuses(pod, &made));
            let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), space);
            if let Some(written) = patch::write_status(&api, &old, &new).await? {
                self.written_pods.wrote(key, &written);
            }
        }
        for claim in reserve {
            let new = plan::reserved(&claim, pod);
            if let Some(written) = patch::write_status(&self.api(space), claim.as_ref(), &new).await? {
                self.written_claims.wrote(key, &written);
            }
        }
        Ok(())
    }

    /// Generates the claim for an entry of a pod; returns its name.
    async fn generate(&self, key: &Key, pod: &Pod, entry: &PodResourceClaim) -> Result<String> {
        let template = entry.resource_claim_template_name.as_deref().unwrap_or_default();
        let space = namespace(&pod.metadata);
        let Some(found) = self.templates.get(&ObjectKey::new(space, template)) else {
            let problem = format!(
                "resource claim template \"{template}\": resourceclaimtemplate.resource.k8s.io \"{template}\" not found"
            );
            return Err(self.unusable(pod, entry, problem));
        };
        let claim = plan::claim_for(pod, &entry.name, &found);
        let created = self.api(space).create(&PostParams::default(), &claim).await;
        let created = created
            .attempt(|| format!("create the claim {} of pod {space}/{}", entry.name, name(&pod.metadata)));
        match created {
            Ok(claim) => {
                self.written_claims.wrote(key, &claim);
                Ok(name(&claim.metadata).to_owned())
            }
            Err(error) if error.is_namespace_terminating() => Err(error),
            Err(error) => {
                self.report(pod, entry, &format!("create ResourceClaim : {}", error.api_message()));
                Err(error)
            }
        }
    }

    fn unsupported(&self, pod: &Pod, entry: &PodResourceClaim) -> Error {
        let pod_key = ObjectKey::of(pod);
        let problem = format!(
            "checking for claim before creating it: pod \"{pod_key}\", spec.resourceClaim \"{}\": none of the supported \
             fields are set",
            entry.name
        );
        self.unusable(pod, entry, problem)
    }

    fn unusable(&self, pod: &Pod, entry: &PodResourceClaim, problem: String) -> Error {
        self.report(pod, entry, &problem);
        let object = format!("pod {}, PodResourceClaim {}", ObjectKey::of(pod), entry.name);
        Error::Unusable { object, problem }
    }

    fn report(&self, pod: &Pod, entry: &PodResourceClaim, problem: &str) {
        let message = format!("PodResourceClaim {}: {problem}", entry.name);
        self.recorder.warning(reference(pod), "FailedResourceClaimCreation", message);
    }

    /// Removes the users of a claim that are over, and then what nobody needs any more: its devices, its finalizer, and
    /// a generated claim itself.
    async fn release(&self, key: &Key, claim: &ResourceClaim) -> Result<()> {
        let api = self.api(namespace(&claim.metadata));
        let mut over = BTreeSet::new();
        for one in consumers(claim).iter().filter(|one| is_pod(one)) {
            if self.is_over(namespace(&claim.metadata), &one.name, &one.uid).await? {
                over.insert(one.uid.as_str());
            }
        }
        let remaining = plan::remaining(claim, |one| over.contains(one.uid.as_str()));
        let has_lost = remaining.len() < consumers(claim).len();
        let mut current = claim.clone();
        if let Some(written) = patch::write_status(&api, claim, &plan::released(claim, remaining)).await? {
            self.written_claims.wrote(key, &written);
            current = written;
        }
        if let Some(free) = plan::unprotected(&current, has_lost)
            && let Some(written) = patch::update(&api, &current, &free).await?
        {
            self.written_claims.wrote(key, &written);
        }
        if consumers(&current).is_empty()
            && !is_deleted(&current.metadata)
            && self.is_left_over(&current).await?
        {
            let claim = name(&current.metadata);
            let options = only_this(&current.metadata, DeleteParams::default());
            let deleted = api.delete(claim, &options).await;
            let deleted =
                deleted.attempt(|| format!("delete unused generated claim {}", ObjectKey::of(&current)))?;
            if let Some(left) = deleted.left() {
                self.written_claims.wrote(key, &left);
            }
        }
        Ok(())
    }

    /// Returns `true` if a pod does not use its claims any more.
    async fn is_over(&self, namespace: &str, name: &str, uid: &str) -> Result<bool> {
        // No pod has a name that would lead the request below to another path.
        if self.gone.contains(uid) || !is_segment(name) {
            return Ok(true);
        }
        match plan::life(uid, self.pods.get(&ObjectKey::new(namespace, name)).as_deref()) {
            Life::Needed => Ok(false),
            Life::Over => Ok(true),
            // The scheduler may be faster than the cache: its reservation must not be lost.
            Life::Unknown => {
                let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), namespace);
                let live = api.get_opt(name).await.attempt(|| format!("get pod {namespace}/{name}"))?;
                Ok(plan::life(uid, live.map(Pod::from).as_ref()) != Life::Needed)
            }
        }
    }

    /// Returns `true` if a claim was generated for a pod that is over, although an object of its name is still there.
    /// Otherwise the garbage collector deletes the claim.
    async fn is_left_over(&self, claim: &ResourceClaim) -> Result<bool> {
        let space = namespace(&claim.metadata);
        match plan::owning_pod(claim) {
            Some(owner) if self.pods.get(&ObjectKey::new(space, &owner.name)).is_some() => {
                self.is_over(space, &owner.name, &owner.uid).await
            }
            _ => Ok(false),
        }
    }
}
