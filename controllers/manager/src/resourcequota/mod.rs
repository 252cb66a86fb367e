//! The controller of ResourceQuotas: publishes what a quota limits and what is used of it.
//!
//! Admission in the API servers raises `status.used` before it stores an object; this controller lowers it when objects
//! are gone, see [`account`], and calculates it for new quotas.

mod account;
mod books;
mod record;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_client::{Cache, Change, ObjectKey, Projection, version_of};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use tokio::sync::Notify;

use crate::context::{Context, Tasks};
use crate::discovery::Kind;
use crate::limits::{LIST_PAGE, QUOTA_LAG, QUOTA_RESYNC, QUOTA_WORKERS, QUOTA_WRITE_OFF, STALE};
use crate::meta::{name, uid};
use crate::patch;
use crate::pods::until;
use account::{Plan, Written};
use books::{Books, Listed, Step, Wake, Why};
use record::{MEASURED, Record};
use watches::Followed;

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let shared = Arc::new(Shared {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        books: Mutex::default(),
        kinds: Followed::default(),
        changed: Notify::new(),
        urgent: WorkQueue::new("resourcequota-priority"),
        queue: WorkQueue::new("resourcequota"),
    });
    let informers = &context.informers;
    let (pods, services) = (context.pods.cache().clone(), context.services.cache().clone());
    let (claims, quotas) = (informers.cache::<PersistentVolumeClaim>(), informers.cache::<ResourceQuota>());
    follow(&pods, &shared, "pods", Record::of_pod);
    follow(&services, &shared, "services", |service, _| Record::Service(service));
    follow(&claims, &shared, "persistentvolumeclaims", |claim, _| Record::Claim(claim));
    follow_quotas(&quotas, &shared);
    context.spawn(tasks, watches::keep(context.clone(), Arc::clone(&shared)));
    context.spawn(tasks, recalculate(Arc::clone(&shared), context.resync));
    for queue in [&shared.urgent, &shared.queue] {
        let (pods, services, claims, quotas) =
            (pods.clone(), services.clone(), claims.clone(), quotas.clone());
        let ready = async move {
            tokio::join!(pods.synced(), services.synced(), claims.synced(), quotas.synced());
        };
        let workers = context.workers(QUOTA_WORKERS);
        context.start_with(tasks, queue.clone(), Quotas(Arc::clone(&shared)), workers, ready);
    }
}

/// State shared by watches and workers.
struct Shared {
    client: Client,
    ambient: Ambient,
    books: Mutex<Books>,
    /// The kinds that are counted by their number, as discovered.
    kinds: Followed,
    /// Notified when quotas may count other kinds.
    changed: Notify,
    /// Quotas whose status is unknown.
    urgent: WorkQueue<ObjectKey>,
    queue: WorkQueue<ObjectKey>,
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.ambient.now()
    }

    /// Queues quotas to look at.
    fn wake(&self, wakes: impl IntoIterator<Item = Wake>) {
        for Wake { key, why } in wakes {
            match why {
                Why::Urgent => self.urgent.add(key),
                Why::Changed => self.queue.add(key),
                Why::Soon => self.queue.add_after(key, QUOTA_LAG),
                Why::Audited => self.queue.add_after(key, QUOTA_WRITE_OFF),
            }
        }
    }

    /// Records an object as it is now; `None` if it is gone.
    fn record(&self, kind: &str, key: &ObjectKey, record: Option<Record>) {
        let wakes = self.books().apply(kind, key, record, self.now());
        self.wake(wakes);
    }
}

fn follow<K: Projection>(
    cache: &Cache<K>,
    shared: &Arc<Shared>,
    kind: &'static str,
    record: fn(Arc<K>, Timestamp) -> Record,
) {
    let shared = Arc::clone(shared);
    cache.on_change(move |change| {
        let record = match change {
            Change::Applied { new, .. } => Some(record(Arc::clone(new), shared.now())),
            Change::Deleted(_) => None,
        };
        shared.record(kind, &change.key(), record);
    });
}

fn follow_quotas(quotas: &Cache<ResourceQuota>, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    quotas.on_change(move |change| {
        let quota = match change {
            Change::Applied { new, .. } => Some(Arc::clone(new)),
            Change::Deleted(_) => None,
        };
        let wake = shared.books().quota(&change.key(), quota, shared.now());
        if wake.as_ref().is_some_and(|wake| wake.why == Why::Urgent) {
            shared.changed.notify_one();
        }
        shared.wake(wake);
    });
}

/// Calculates all quotas again from time to time.
async fn recalculate(shared: Arc<Shared>, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        let keys = shared.books().keys();
        for key in keys {
            shared.books().recount(&key);
            shared.queue.add(key);
        }
    }
}

/// Number of steps of one reconciliation: the end of an audit, a write, and one for a change of the quota meanwhile.
const STEPS: usize = 4;

/// The controller.
struct Quotas(Arc<Shared>);

impl Reconcile for Quotas {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let shared = &self.0;
        let expired = shared.books().expire(&key.namespace, shared.now());
        shared.wake(expired.into_iter().filter(|wake| wake.key != *key));
        for _ in 0..STEPS {
            let step = shared.books().step(key, shared.now());
            match step {
                Step::Nothing => break,
                Step::Busy => return Ok(Outcome::After(STALE)),
                Step::Write(plan) => self.write(key, &plan).await?,
                Step::Confirm(kinds) => {
                    let Some(version) = self.current(&key.namespace, kinds).await? else {
                        return Ok(Outcome::After(QUOTA_LAG));
                    };
                    shared.books().confirm(key, version);
                }
            }
        }
        let due = shared.books().due(key, shared.now());
        // The times themselves are not over yet.
        let pause = |at| (until(at, shared.now()) + Duration::from_millis(1)).min(QUOTA_RESYNC);
        Ok(due.map_or(Outcome::Done, |at| Outcome::After(pause(at))))
    }
}

impl Quotas {
    /// Writes a status.
    async fn write(&self, key: &ObjectKey, plan: &Plan) -> Result<()> {
        let shared = &self.0;
        let api: Api<ResourceQuota> = Api::namespaced(shared.client.clone(), &key.namespace);
        let mut guard = Unfinished { shared, key, plan, written: Some(Written::Unknown) };
        let (written, result) = match patch::write_status(&api, plan.old.as_ref(), &plan.new).await {
            Ok(Some(quota)) => (Written::Done(Box::new(quota)), Ok(())),
            // The texts differ, and the amounts do not.
            Ok(None) => (Written::Refused, Ok(())),
            Err(error) if is_refusal(&error) => (Written::Refused, Err(error)),
            Err(error) => (Written::Unknown, Err(error)),
        };
        guard.written = Some(written);
        result
    }

    /// Returns the version at which the API server was asked for all objects of these kinds in a namespace, if the
    /// watches have shown those.
    async fn current(&self, namespace: &str, kinds: BTreeSet<String>) -> Result<Option<u64>> {
        let known: Vec<Kind> = kinds.iter().filter_map(|kind| self.0.kinds.get(kind)).collect();
        let is_undiscovered = |kind: &str| kinds.contains(kind) && self.0.kinds.get(kind).is_none();
        if MEASURED.iter().any(|kind| is_undiscovered(kind)) {
            return Ok(None);
        }
        // Other kinds that are not served are not followed, and their amounts are left as they are.
        let lists = join_all(known.iter().map(|kind| list(&self.0.client, namespace, kind))).await;
        let (mut listed, mut newest) = (Vec::new(), 0);
        for list in lists {
            let (objects, version) = list?;
            listed.extend(objects);
            newest = newest.max(version);
        }
        Ok(self.0.books().is_current(namespace, &listed).then_some(newest))
    }
}

/// A write that ends as unknown if it is given up.
struct Unfinished<'a> {
    shared: &'a Shared,
    key: &'a ObjectKey,
    plan: &'a Plan,
    written: Option<Written>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(written) = self.written.take() {
            self.shared.books().finish(self.key, self.plan, written, self.shared.now());
        }
    }
}

/// Returns `true` if the error proves that nothing was written.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Api { cause, .. }
        if matches!(&**cause, kube::Error::Api(status) if (400..500).contains(&status.code)))
}

/// Returns the names and versions of the objects of a kind in a namespace, as the API server has them, and its version.
async fn list(client: &Client, namespace: &str, kind: &Kind) -> Result<(Vec<Listed>, u64)> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind.resource);
    let (mut listed, mut params) = (Vec::new(), ListParams::default().limit(LIST_PAGE));
    loop {
        let page = api.list_metadata(&params).await;
        let page = page.attempt(|| format!("list {} in namespace {namespace}", kind.name()))?;
        listed.extend(page.items.iter().map(|object| Listed {
            kind: kind.name(),
            name: name(&object.metadata).to_owned(),
            uid: uid(&object.metadata).to_owned(),
            version: version_of(&object.metadata),
        }));
        if let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) {
            params = params.continue_token(&token);
            continue;
        }
        let version = page.metadata.resource_version.and_then(|text| text.parse().ok());
        // Without a version all that the watches show later counts as late.
        return Ok((listed, version.unwrap_or(u64::MAX)));
    }
}
