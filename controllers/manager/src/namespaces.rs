//! The namespace controller: empties a namespace that is being deleted, pods first, and finalizes it when
//! nothing is left.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_client::{Cache, Change, ObjectKey};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::error_chain;
use controllers_runtime::limits::MIN_BACKOFF;
use controllers_runtime::{Attempt, Backoff, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::discovery::verbs;
use kube::{Api, Client, ResourceExt};
use tracing::debug;

use crate::context::{Context, Tasks};
use crate::discovery::{Kind, kinds};
use crate::limits::{LIST_PAGE, NAMESPACE_BACKOFF_MAX, NAMESPACE_PERIOD, NAMESPACE_PERIOD_MAX};
use crate::meta::{is_deleted, namespace};
use crate::patch;
use crate::pods::Pod;

/// The finalizer in `spec.finalizers` that this controller is responsible for.
const FINALIZER: &str = "kubernetes";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let backoff = Backoff { min: MIN_BACKOFF, max: NAMESPACE_BACKOFF_MAX };
    let queue = WorkQueue::with_backoff("namespace", backoff);
    let namespaces = context.informers.cache::<Namespace>();
    let pods = context.informers.cache::<Pod>();
    context.feed(tasks, &namespaces, &queue);
    // Deletion usually waits for the last pod to end.
    let ended = queue.clone();
    pods.on_change(move |change| {
        if let Change::Deleted(pod) = change {
            ended.add(ObjectKey::new("", namespace(&pod.metadata)));
        }
    });
    let controller = Namespaces {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        namespaces: namespaces.clone(),
        pauses: Mutex::default(),
    };
    context.start(tasks, queue, controller, async move { namespaces.synced().await });
}

struct Namespaces {
    client: Client,
    ambient: Ambient,
    namespaces: Cache<Namespace>,
    /// Pauses after the last attempts.
    pauses: Mutex<BTreeMap<ObjectKey, Duration>>,
}

/// Result of one attempt at emptying a namespace.
#[derive(Debug, Default, PartialEq)]
struct DeletionProgress {
    /// Error of a failed discovery.
    undiscovered: Option<String>,
    /// Failed deletions and lists, with kind and reason.
    failures: Vec<String>,
    /// Number of remaining objects, by kind.
    remaining: BTreeMap<String, usize>,
    /// Number of objects that wait for each finalizer.
    finalizers: BTreeMap<String, usize>,
}

impl DeletionProgress {
    fn is_done(&self) -> bool {
        self.undiscovered.is_none() && self.failures.is_empty() && self.remaining.is_empty()
    }
}

impl DeletionProgress {
    /// Returns what has failed, if anything has.
    fn problem(&self) -> Option<String> {
        let discovery = self.undiscovered.clone().into_iter();
        let problems: Vec<_> = discovery.chain(self.failures.iter().cloned()).collect();
        (!problems.is_empty()).then(|| format!("it cannot be emptied: {}", problems.join(", ")))
    }
}

impl Reconcile for Namespaces {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(found) = self.namespaces.get(key) else {
            self.pauses().remove(key);
            return Ok(Outcome::Done);
        };
        if !is_deleted(&found.metadata) {
            return Ok(Outcome::Done);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        // The writes below depend on the current version, which the cache may not have yet.
        let live = api.get_opt(&key.name).await.attempt(|| format!("get namespace {key}"))?;
        let Some(live) = live.filter(|live| live.metadata.uid == found.metadata.uid) else {
            return Ok(Outcome::Done);
        };
        if !finalizers(&live).iter().any(|finalizer| finalizer == FINALIZER) {
            return Ok(Outcome::Done);
        }
        let progress = self.empty(&key.name).await;
        let mut noted = live.clone();
        let status = noted.status.get_or_insert_default();
        status.phase = Some("Terminating".to_owned());
        status.conditions = Some(conditions(&progress, status.conditions.take(), Time(self.ambient.now())));
        if !progress.is_done() {
            patch::update_status(&api, &live, &noted).await?;
            debug!(namespace = key.name, ?progress, "the namespace is not empty yet");
            return match progress.problem() {
                None => Ok(Outcome::After(self.pause(key))),
                Some(problem) => Err(Error::Unusable { object: format!("namespace {key}"), problem }),
            };
        }
        self.finalize(&api, live).await
    }
}

impl Namespaces {
    fn pauses(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Duration>> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long to wait for finalizers this time.
    fn pause(&self, key: &ObjectKey) -> Duration {
        let mut pauses = self.pauses();
        let next = pauses.entry(key.clone()).or_insert(NAMESPACE_PERIOD);
        let pause = *next;
        *next = (pause * 2).min(NAMESPACE_PERIOD_MAX);
        pause
    }

    async fn finalize(&self, api: &Api<Namespace>, mut live: Namespace) -> Result<Outcome> {
        let name = live.name_any();
        if let Some(list) = live.spec.get_or_insert_default().finalizers.as_mut() {
            list.retain(|finalizer| finalizer != FINALIZER);
        }
        let done = api.replace_subresource("finalize", &name, &PostParams::default(), &live).await;
        match done.attempt(|| format!("finalize namespace {name}")) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Outcome::Done),
        }
    }

    /// Deletes everything in the namespace and counts what is left. Other kinds follow once no pod is left,
    /// so that pods keep what they use until they have ended.
    async fn empty(&self, namespace: &str) -> DeletionProgress {
        let mut progress = DeletionProgress::default();
        let kinds = match kinds(&self.client).await {
            Ok(kinds) => kinds,
            Err(error) => {
                progress.undiscovered = Some(error_chain(&error));
                return progress;
            }
        };
        let inside = kinds.iter().filter(|kind| kind.namespaced && kind.supports(verbs::LIST));
        let (pods, others): (Vec<_>, Vec<_>) =
            inside.partition(|kind| kind.resource.group.is_empty() && kind.resource.plural == "pods");
        for kind in pods {
            self.empty_kind(namespace, kind, &mut progress).await;
        }
        if !progress.remaining.is_empty() {
            return progress;
        }
        for kind in others {
            self.empty_kind(namespace, kind, &mut progress).await;
        }
        progress
    }

    async fn empty_kind(&self, namespace: &str, kind: &Kind, progress: &mut DeletionProgress) {
        if let Err(error) = self.try_kind(namespace, kind, progress).await {
            // A kind that vanished in the meantime or does not support deletion has nothing left to delete.
            let status = if let Error::Api { cause, .. } = &error { code(cause) } else { 0 };
            if status != 404 && status != 405 {
                progress.failures.push(format!("{}: {}", kind.name(), error_chain(&error)));
            }
        }
    }

    async fn try_kind(&self, namespace: &str, kind: &Kind, progress: &mut DeletionProgress) -> Result<()> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        let what = || format!("list {} in namespace {namespace}", kind.name());
        let listed = api.list_metadata(&ListParams::default().limit(LIST_PAGE)).await.attempt(what)?;
        if listed.items.is_empty() {
            return Ok(());
        }
        let what = || format!("delete {} in namespace {namespace}", kind.name());
        if kind.supports(verbs::DELETE_COLLECTION) {
            let all = ListParams::default();
            api.delete_collection(&DeleteParams::background(), &all).await.attempt(what)?;
        } else if kind.supports(verbs::DELETE) {
            for object in &listed.items {
                match api.delete(&object.name_any(), &DeleteParams::background()).await.attempt(what) {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
        } else {
            // Kinds such as reviews, which are not stored.
            return Ok(());
        }
        let what = || format!("list {} in namespace {namespace}", kind.name());
        let left = api.list_metadata(&ListParams::default().limit(LIST_PAGE)).await.attempt(what)?;
        if left.items.is_empty() {
            return Ok(());
        }
        let more =
            left.metadata.remaining_item_count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        progress.remaining.insert(kind.name(), left.items.len() + more);
        for finalizer in left.items.iter().flat_map(|object| object.finalizers()) {
            *progress.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        Ok(())
    }
}

fn finalizers(namespace: &Namespace) -> &[String] {
    namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_deref()).unwrap_or_default()
}

fn code(error: &kube::Error) -> u16 {
    if let kube::Error::Api(status) = error { status.code } else { 0 }
}

/// Returns the five conditions of a namespace that is being deleted; `True` always reports a problem.
fn conditions(
    progress: &DeletionProgress,
    old: Option<Vec<NamespaceCondition>>,
    now: Time,
) -> Vec<NamespaceCondition> {
    let counts = |map: &BTreeMap<String, usize>, verb: &str| {
        let list: Vec<_> =
            map.iter().map(|(name, count)| format!("{name} {verb} {count} resource instances")).collect();
        (!list.is_empty()).then(|| list.join(", "))
    };
    let failures = (!progress.failures.is_empty()).then(|| progress.failures.join(", "));
    let remaining = counts(&progress.remaining, "has");
    let waiting = counts(&progress.finalizers, "in");
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            ("DiscoveryFailed", progress.undiscovered.clone()),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            ("GroupVersionParsingFailed", None),
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            ("ContentDeletionFailed", failures),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            ("SomeResourcesRemain", remaining.map(|list| format!("Some resources are remaining: {list}"))),
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            (
                "SomeFinalizersRemain",
                waiting.map(|list| format!("Some content in the namespace has finalizers remaining: {list}")),
            ),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ];
    let old = old.unwrap_or_default();
    let ours: Vec<NamespaceCondition> = rows
        .into_iter()
        .map(|(kind, (bad, problem), (good, message))| {
            let status = if problem.is_some() { "True" } else { "False" };
            let before = old.iter().find(|c| c.type_ == kind && c.status == status);
            NamespaceCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: Some(if problem.is_some() { bad } else { good }.to_owned()),
                message: Some(problem.unwrap_or_else(|| message.to_owned())),
                last_transition_time: before
                    .and_then(|c| c.last_transition_time.clone())
                    .or_else(|| Some(now.clone())),
            }
        })
        .collect();
    let others = old.into_iter().filter(|c| ours.iter().all(|mine| mine.type_ != c.type_));
    others.chain(ours.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn conditions_say_what_remains_and_keep_their_times() {
        let mut progress = DeletionProgress::default();
        progress.remaining.insert("pods".to_owned(), 2);
        progress.finalizers.insert("example.com/x".to_owned(), 1);
        let first = conditions(&progress, None, Time(at(1)));
        let find =
            |list: &[NamespaceCondition], kind: &str| list.iter().find(|c| c.type_ == kind).cloned().unwrap();
        let remaining = find(&first, "NamespaceContentRemaining");
        assert_eq!(
            (remaining.status.as_str(), remaining.reason.as_deref()),
            ("True", Some("SomeResourcesRemain"))
        );
        assert!(remaining.message.unwrap().contains("pods has 2"));
        assert!(!progress.is_done());

        let done = conditions(&DeletionProgress::default(), Some(first), Time(at(9)));
        assert_eq!(find(&done, "NamespaceContentRemaining").last_transition_time, Some(Time(at(9))));
        assert_eq!(find(&done, "NamespaceDeletionDiscoveryFailure").last_transition_time, Some(Time(at(1))));
        assert_eq!(done.len(), 5);
        assert!(DeletionProgress::default().is_done());
    }
}
