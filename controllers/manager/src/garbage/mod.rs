//! The garbage collector: deletes objects whose owners are all gone, releases owners that wait for their
//! dependents, and orphans dependents if that was requested.

mod graph;
mod monitor;
mod object;
mod plan;
mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use apiserver_client::Recorder;
use apiserver_meta::uid::Uid;
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::context::{Context, Tasks};
use crate::discovery::Kind;
use crate::limits::DISCOVERY_PERIOD;
use crate::meta::{is_deleted, is_segment, owners};
use graph::Graph;
use monitor::{Shared, keep_watches};
use object::{Deletion, FOREGROUND, ORPHAN, Object};
use plan::{Owner, Traits, Verdict, decide};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let shared = Arc::new(Shared {
        client: context.client.clone(),
        graph: Mutex::new(Graph::default()),
        kinds: Mutex::new(BTreeMap::new()),
        queue: WorkQueue::new("garbage-collector"),
        progress: watch::Sender::new((0, 0)),
    });
    context.spawn(tasks, keep_watches(context.clone(), Arc::clone(&shared)));
    let queue = shared.queue.clone();
    let ready = first_lists(Arc::clone(&shared));
    let recorder = context.recorder.named("garbage-collector-controller");
    context.start(tasks, queue, Collector { shared, recorder }, ready);
}

/// Waits for the first lists, so that owners are found in the graph instead of being queried one by one. A
/// kind that cannot be listed delays this only for a limited time, since the server is queried for unknown
/// owners.
async fn first_lists(shared: Arc<Shared>) {
    let mut progress = shared.progress.subscribe();
    let all = progress.wait_for(|(done, all)| *all > 0 && done == all);
    if tokio::time::timeout(DISCOVERY_PERIOD, all).await.is_err() {
        warn!("some kinds cannot be listed; garbage collection continues without them");
    }
    let (hints, objects) = {
        let mut graph = shared.graph();
        (graph.complete(), graph.len())
    };
    shared.follow(hints);
    debug!(objects, "ownership graph is complete");
}

struct Collector {
    shared: Arc<Shared>,
    recorder: Recorder,
}

impl Reconcile for Collector {
    type Key = Uid;

    async fn reconcile(&self, uid: &Uid) -> Result<Outcome> {
        let (object, dependents, is_owned) = {
            let graph = self.shared.graph();
            let Some(object) = graph.get(uid) else { return Ok(Outcome::Done) };
            let owners = object.owners();
            let is_owned = owners.iter().all(|owner| graph.owner(object, &owner.uid) == Some(Owner::Solid));
            (Arc::clone(object), graph.dependents(uid), is_owned)
        };
        if object.deletion.has_begun {
            return self.process_finalizers(&object, &dependents).await;
        }
        if is_owned {
            return Ok(Outcome::Done);
        }
        self.collect(&object, &dependents).await
    }
}

impl Collector {
    fn api(&self, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
        let client = self.shared.client.clone();
        if kind.namespaced {
            Api::namespaced_with(client, namespace, &kind.resource)
        } else {
            Api::all_with(client, &kind.resource)
        }
    }

    fn api_of(&self, object: &Object) -> Api<DynamicObject> {
        self.api(object.kind(), object.namespace())
    }

    /// Returns the current metadata if the server still has the same object.
    async fn live(&self, object: &Object) -> Result<Option<ObjectMeta>> {
        let found = self.api_of(object).get_metadata_opt(&object.name).await;
        let found = found.attempt(|| format!("get {} {}", object.kind().name(), object.key()))?;
        Ok(found
            .map(|found| found.metadata)
            .filter(|meta| meta.uid.as_deref().is_some_and(|uid| object.uid == *uid)))
    }

    /// Handles an object that is being deleted and has asked for something to happen first.
    async fn process_finalizers(&self, object: &Object, dependents: &[Arc<Object>]) -> Result<Outcome> {
        if object.deletion.orphan {
            for dependent in dependents {
                self.unlink(dependent, &BTreeSet::from([object.uid.to_string()])).await?;
            }
            return self.drop_finalizer(object, ORPHAN).await;
        }
        if !object.deletion.foreground {
            return Ok(Outcome::Done);
        }
        if !dependents.iter().any(|dependent| dependent.blocks(&object.uid)) {
            return self.drop_finalizer(object, FOREGROUND).await;
        }
        for dependent in dependents.iter().filter(|dependent| !dependent.deletion.has_begun) {
            self.shared.queue.add(dependent.uid.clone());
        }
        // The end of each dependent triggers a reconciliation.
        Ok(Outcome::Done)
    }

    async fn collect(&self, object: &Object, dependents: &[Arc<Object>]) -> Result<Outcome> {
        let Some(live) = self.live(object).await?.filter(|live| !is_deleted(live)) else {
            return Ok(Outcome::Done);
        };
        let references = owners(&live);
        references.iter().for_each(|reference| self.report_owner_elsewhere(object, reference));
        let seen: Vec<_> = {
            let graph = self.shared.graph();
            references.iter().map(|reference| graph.owner(object, &owner_uid(reference))).collect()
        };
        let mut states = Vec::new();
        for (reference, seen) in references.iter().zip(seen) {
            let state = match seen {
                Some(state) => state,
                None => self.ask(object, reference).await?,
            };
            states.push((reference.uid.clone(), state));
        }
        let deletion = Deletion::of(&live);
        let traits = Traits {
            has_dependents: !dependents.is_empty(),
            foreground: deletion.foreground,
            orphan: deletion.orphan,
        };
        match decide(&states, traits) {
            Verdict::Keep => {}
            Verdict::Unlink(gone) => {
                self.write_owners(object, &live, |owner| !gone.contains(&owner.uid)).await?
            }
            Verdict::Delete(policy) => {
                let mut judged = live.resource_version.clone();
                let awaits = |dependent: &Arc<Object>| dependent.deletion.awaits_dependents();
                if policy == PropagationPolicy::Foreground && dependents.iter().any(awaits) {
                    // Owners in a cycle would wait for each other forever.
                    self.unblock(object, &live).await?;
                    judged = None;
                }
                self.delete(object, judged, policy).await?;
            }
        }
        Ok(Outcome::Done)
    }

    /// Records an event if an owner is in a namespace from which it cannot own the object.
    fn report_owner_elsewhere(&self, object: &Object, owner: &OwnerReference) {
        let graph = self.shared.graph();
        let is_elsewhere = graph.get(&owner_uid(owner)).is_some_and(|found| !object.can_be_owned_by(found));
        drop(graph);
        if !is_elsewhere {
            return;
        }
        let (resource, namespace) = (&object.kind().resource, object.namespace());
        let about = ObjectReference {
            api_version: Some(resource.api_version.clone()),
            kind: Some(resource.kind.clone()),
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            name: Some(object.name.to_string()),
            uid: Some(object.uid.to_string()),
            ..ObjectReference::default()
        };
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        let message = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in \
             namespace {namespace:?}"
        );
        self.recorder.warning(about, "OwnerRefInvalidNamespace", message);
    }

    /// Queries the server for an owner that the graph does not know.
    async fn ask(&self, object: &Object, reference: &OwnerReference) -> Result<Owner> {
        let Some(kind) = self.shared.kind_of(&reference.api_version, &reference.kind) else {
            // The kind may be new, or its API server unavailable: not a reason to delete anything.
            let problem =
                format!("the kind of its owner, {} {}, is unknown", reference.api_version, reference.kind);
            return Err(Error::Unusable {
                object: format!("{} {}", object.kind().name(), object.key()),
                problem,
            });
        };
        if kind.namespaced && !object.kind().namespaced {
            warn!(kind = object.kind().name(), object = %object.key(), "a cluster-wide object cannot be owned from a namespace");
            return Ok(Owner::Solid);
        }
        // Any other name would be read as another path.
        if !is_segment(&reference.name) {
            return Ok(Owner::Absent);
        }
        let found = self.api(&kind, object.namespace()).get_metadata_opt(&reference.name).await;
        let found = found.attempt(|| format!("get {} {}", kind.name(), reference.name))?;
        let Some(meta) = found.map(|found| found.metadata) else { return Ok(Owner::Absent) };
        if meta.uid.as_deref() != Some(&reference.uid) {
            return Ok(Owner::Absent);
        }
        Ok(if Deletion::of(&meta).awaits_dependents() { Owner::Waiting } else { Owner::Solid })
    }

    /// Removes references to the owners `gone` from an object, if it still exists.
    async fn unlink(&self, object: &Object, gone: &BTreeSet<String>) -> Result<()> {
        let Some(live) = self.live(object).await? else { return Ok(()) };
        self.write_owners(object, &live, |owner| !gone.contains(&owner.uid)).await
    }

    async fn write_owners(
        &self,
        object: &Object,
        live: &ObjectMeta,
        keep: impl Fn(&OwnerReference) -> bool,
    ) -> Result<()> {
        let left: Vec<&OwnerReference> = owners(live).iter().filter(|owner| keep(owner)).collect();
        if left.len() == owners(live).len() {
            return Ok(());
        }
        let left = if left.is_empty() { Value::Null } else { json!(left) };
        self.patch(object, live, json!({"ownerReferences": left})).await
    }

    async fn unblock(&self, object: &Object, live: &ObjectMeta) -> Result<()> {
        let free: Vec<OwnerReference> = owners(live)
            .iter()
            .map(|owner| OwnerReference { block_owner_deletion: Some(false), ..owner.clone() })
            .collect();
        if free == owners(live) {
            return Ok(());
        }
        self.patch(object, live, json!({"ownerReferences": free})).await
    }

    async fn drop_finalizer(&self, object: &Object, finalizer: &str) -> Result<Outcome> {
        let Some(live) = self.live(object).await? else { return Ok(Outcome::Done) };
        let all = live.finalizers.clone().unwrap_or_default();
        let left: Vec<&String> = all.iter().filter(|known| *known != finalizer).collect();
        if left.len() != all.len() {
            let left = if left.is_empty() { Value::Null } else { json!(left) };
            self.patch(object, &live, json!({"finalizers": left})).await?;
        }
        Ok(Outcome::Done)
    }

    /// Patches the metadata of exactly the version that was read.
    async fn patch(&self, object: &Object, live: &ObjectMeta, mut metadata: Value) -> Result<()> {
        metadata["uid"] = json!(live.uid);
        metadata["resourceVersion"] = json!(live.resource_version);
        let body = Patch::Merge(json!({"metadata": metadata}));
        let patched = self.api_of(object).patch(&object.name, &PatchParams::default(), &body).await;
        let patched =
            patched.attempt(|| format!("update {} {}", object.kind().name(), object.key())).map(drop);
        if patched.as_ref().is_err_and(Error::is_not_found) { Ok(()) } else { patched }
    }

    /// Deletes an object. `judged` is the version whose owners were examined; a newer version is examined
    /// again.
    async fn delete(&self, object: &Object, judged: Option<String>, policy: PropagationPolicy) -> Result<()> {
        let options = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(Preconditions {
                uid: Some(object.uid.to_string()),
                resource_version: judged,
            }),
            ..DeleteParams::default()
        };
        debug!(kind = object.kind().name(), object = %object.key(), "deleting an object whose owners are gone");
        let deleted = self.api_of(object).delete(&object.name, &options).await;
        let deleted =
            deleted.attempt(|| format!("delete {} {}", object.kind().name(), object.key())).map(drop);
        if deleted.as_ref().is_err_and(Error::is_not_found) { Ok(()) } else { deleted }
    }
}

fn owner_uid(reference: &OwnerReference) -> Uid {
    Uid::from(reference.uid.as_str())
}
