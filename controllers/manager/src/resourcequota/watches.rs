//! Watches of the kinds that quotas count by their number: only those that a quota names, while one does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_client::{ObjectKey, is_expired, paced};
use controllers_runtime::Backoff;
use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;
use kube::discovery::verbs;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Shared;
use super::record::Record;
use crate::context::Context;
use crate::discovery::{Kind, kinds};
use crate::limits::DISCOVERY_PERIOD;

/// Time between two rounds in which watches begin and end, once there were several in a short time.
const ROUND_PERIOD: Duration = Duration::from_secs(5);
/// Time by which rounds may be early: four of them at once.
const ROUND_BURST: Duration = Duration::from_secs(20);

/// Delay after a failed discovery.
const PAUSE: Duration = Duration::from_secs(1);
/// Delays after failed lists and watches of a kind.
const RETRY: Backoff = Backoff { min: PAUSE, max: Duration::from_secs(8) };

/// The kinds that can be counted, by name.
#[derive(Default)]
pub(super) struct Followed(Mutex<BTreeMap<String, Kind>>);

impl Followed {
    /// Returns a kind by its name, if the API server has it.
    pub fn get(&self, name: &str) -> Option<Kind> {
        self.lock().get(name).cloned()
    }

    fn set(&self, kinds: BTreeMap<String, Kind>) {
        *self.lock() = kinds;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kind>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if objects of a kind are counted.
fn is_countable(kind: &Kind) -> bool {
    let all = [verbs::CREATE, verbs::LIST, verbs::WATCH, verbs::DELETE];
    kind.namespaced && all.iter().all(|verb| kind.supports(verb))
}

/// Keeps a watch on each kind that a quota counts, until shutdown.
pub(super) async fn keep(context: Context, shared: Arc<Shared>) {
    let mut watches: BTreeMap<String, CancellationToken> = BTreeMap::new();
    let (mut last, mut next) = (BTreeSet::new(), Instant::now());
    // Tenants choose the kinds that their quotas count, and could change them all the time.
    let mut paid = Instant::now();
    loop {
        let wanted = shared.books().kinds();
        if wanted != last || Instant::now() >= next {
            paid = paid.max(Instant::now()) + ROUND_PERIOD;
            let early = paid.saturating_duration_since(Instant::now());
            tokio::time::sleep(early.saturating_sub(ROUND_BURST)).await;
            next = Instant::now() + discover(&context, &shared).await;
            reconcile(&context, &shared, &mut watches, &wanted);
            last = wanted;
        }
        tokio::select! {
            () = shared.changed.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Discovers kinds, if there is a quota; returns the time until it is to be done again.
async fn discover(context: &Context, shared: &Shared) -> Duration {
    if shared.books().keys().is_empty() {
        return DISCOVERY_PERIOD;
    }
    match kinds(&context.client).await {
        Ok(found) => {
            let countable = found.into_iter().filter(is_countable);
            shared.kinds.set(countable.map(|kind| (kind.name(), kind)).collect());
            DISCOVERY_PERIOD
        }
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "cannot discover the kinds that quotas count");
            PAUSE
        }
    }
}

fn reconcile(
    context: &Context,
    shared: &Arc<Shared>,
    watches: &mut BTreeMap<String, CancellationToken>,
    wanted: &BTreeSet<String>,
) {
    let kinds: BTreeMap<&String, Kind> =
        wanted.iter().filter_map(|name| Some((name, shared.kinds.get(name)?))).collect();
    watches.retain(|name, token| {
        let stays = kinds.contains_key(name);
        if !stays {
            info!(kind = name, "no quota counts the kind any more, or it is gone; watch ended");
            token.cancel();
            shared.books().forget(name);
        }
        stays
    });
    for (name, kind) in kinds {
        if !watches.contains_key(name) {
            let token = context.shutdown.child_token();
            watches.insert(name.clone(), token.clone());
            tokio::spawn(follow(Arc::clone(shared), kind, token));
        }
    }
}

/// Records the objects of a kind in the books until the watch is cancelled.
async fn follow(shared: Arc<Shared>, kind: Kind, cancelled: CancellationToken) {
    let name = kind.name();
    let api: Api<PartialObjectMeta<DynamicObject>> =
        Api::all_with(paced(shared.client.clone()), &kind.resource);
    let open = || watcher(api.clone(), watcher::Config::default());
    let mut stream = std::pin::pin!(open());
    let mut failures = 0;
    let mut listed = BTreeSet::new();
    loop {
        let event = tokio::select! {
            biased;
            () = cancelled.cancelled() => return,
            event = stream.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                if !matches!(event, Event::Init) {
                    failures = 0;
                }
                apply(&shared, &name, &mut listed, event);
            }
            Some(Err(error)) => {
                debug!(kind = name, error = &error as &dyn std::error::Error, "list or watch failed");
                tokio::time::sleep(RETRY.pause(failures)).await;
                failures += 1;
                if is_expired(&error) {
                    stream.set(open());
                }
            }
            None => return,
        }
    }
}

fn apply(
    shared: &Shared,
    kind: &str,
    listed: &mut BTreeSet<ObjectKey>,
    event: Event<PartialObjectMeta<DynamicObject>>,
) {
    let record = |object: &PartialObjectMeta<DynamicObject>| Some(Record::of_other(object.metadata.clone()));
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => {
            let key = ObjectKey::of(&object);
            shared.record(kind, &key, record(&object));
            listed.insert(key);
        }
        Event::InitDone => {
            let wakes = shared.books().complete(kind, &std::mem::take(listed), shared.now());
            shared.wake(wakes);
        }
        Event::Apply(object) => shared.record(kind, &ObjectKey::of(&object), record(&object)),
        Event::Delete(object) => shared.record(kind, &ObjectKey::of(&object), None),
    }
}
