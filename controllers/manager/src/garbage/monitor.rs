//! Watches the metadata of all kinds that can be deleted, while kinds come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::{Change, is_expired, paced};
use apiserver_meta::uid::Uid;
use controllers_runtime::{Backoff, WorkQueue};
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::graph::{Graph, Hints};
use crate::context::Context;
use crate::discovery::{Kind, kinds};
use crate::limits::{DISCOVERY_PERIOD, UNKNOWN_OWNER_DELAY};
use crate::meta::uid;
use crate::metrics::GARBAGE_SYNC_ERRORS;

/// Delay after a failed discovery.
const PAUSE: Duration = Duration::from_secs(1);
/// Name of the kind of pods.
const PODS: &str = "pods";
/// Delays after failed lists and watches of a kind.
const RETRY: Backoff = Backoff { min: PAUSE, max: Duration::from_secs(8) };
/// Resources that have no owners or dependents and too many objects.
const IGNORED: [&str; 2] = ["events", "events.events.k8s.io"];

/// State shared by watches and workers: the graph, the kinds, and the queue of objects to examine.
pub(super) struct Shared {
    pub client: Client,
    pub graph: Mutex<Graph>,
    /// Kinds by name.
    pub kinds: Mutex<BTreeMap<String, Arc<Kind>>>,
    pub queue: WorkQueue<Uid>,
    /// Number of watches that have received their first list, and number of watches.
    pub progress: watch::Sender<(usize, usize)>,
}

impl Shared {
    pub fn graph(&self) -> std::sync::MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the kind that an owner reference names, in whatever version.
    pub fn kind_of(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.values().find(|known| known.resource.group == group && known.resource.kind == kind).cloned()
    }

    pub fn follow(&self, hints: Hints) {
        for uid in hints.now {
            self.queue.add(uid);
        }
        for uid in hints.later {
            self.queue.add_after(uid, UNKNOWN_OWNER_DELAY);
        }
    }
}

/// Discovers the kinds periodically and keeps a watch on each, until shutdown.
pub(super) async fn keep_watches(context: Context, shared: Arc<Shared>) {
    let mut watches: BTreeMap<String, CancellationToken> = BTreeMap::new();
    loop {
        match kinds(&context.client).await {
            Ok(found) => reconcile_watches(&context, &shared, &mut watches, found),
            Err(error) => {
                context.config.metrics.count(&GARBAGE_SYNC_ERRORS, &[]);
                warn!(error = &error as &dyn std::error::Error, "cannot discover the kinds of the API");
            }
        }
        let pause = if watches.is_empty() { PAUSE } else { DISCOVERY_PERIOD };
        tokio::time::sleep(pause).await;
    }
}

fn reconcile_watches(
    context: &Context,
    shared: &Arc<Shared>,
    watches: &mut BTreeMap<String, CancellationToken>,
    found: Vec<Kind>,
) {
    let collectable: BTreeMap<String, Arc<Kind>> = found
        .into_iter()
        .filter(|kind| kind.is_collectable() && !IGNORED.contains(&kind.name().as_str()))
        .map(|kind| (kind.name(), Arc::new(kind)))
        .collect();
    let is_gone = |name: &&String| !collectable.contains_key(*name) && *name != PODS;
    let gone: Vec<String> = watches.keys().filter(is_gone).cloned().collect();
    for name in gone {
        info!(kind = name, "kind is gone, watch ended");
        if let Some(token) = watches.remove(&name) {
            token.cancel();
        }
        shared.graph().forget_kind(&name);
    }
    for (name, kind) in &collectable {
        if !watches.contains_key(name) {
            let token = context.shutdown.child_token();
            watches.insert(name.clone(), token.clone());
            shared.progress.send_modify(|(_, all)| *all += 1);
            if name == PODS {
                follow_pods(context, shared, kind);
            } else {
                tokio::spawn(watch_kind(Arc::clone(shared), Arc::clone(kind), token));
            }
        }
    }
    *shared.kinds.lock().unwrap_or_else(PoisonError::into_inner) = collectable;
}

/// Takes pods, of which there are most, from the cache that all controllers share. One that cannot be deserialized is not
/// in it, and is not collected.
fn follow_pods(context: &Context, shared: &Arc<Shared>, kind: &Arc<Kind>) {
    let (pods, shared, kind) = (context.pods.cache().clone(), Arc::clone(shared), Arc::clone(kind));
    let graph = Arc::clone(&shared);
    pods.on_change(move |change| {
        let (gone, present) = match change {
            Change::Applied { old, new } => {
                (old.as_ref().filter(|old| uid(&old.metadata) != uid(&new.metadata)), Some(new))
            }
            Change::Deleted(last) => (Some(last), None),
        };
        if let Some(gone) = gone {
            let hints = graph.graph().remove(&Uid::from(uid(&gone.metadata)));
            graph.follow(hints);
        }
        if let Some(present) = present {
            let hints = graph.graph().apply(&kind, &present.metadata);
            graph.follow(hints);
        }
    });
    tokio::spawn(async move {
        pods.synced().await;
        shared.progress.send_modify(|(done, _)| *done += 1);
    });
}

async fn watch_kind(shared: Arc<Shared>, kind: Arc<Kind>, cancelled: CancellationToken) {
    let api: Api<PartialObjectMeta<DynamicObject>> =
        Api::all_with(paced(shared.client.clone()), &kind.resource);
    let open = || watcher(api.clone(), watcher::Config::default());
    let mut stream = std::pin::pin!(open());
    let mut failures = 0;
    let mut listed = BTreeSet::new();
    let mut is_first = true;
    loop {
        let event = tokio::select! {
            () = cancelled.cancelled() => return,
            event = stream.next() => event,
        };
        let Some(event) = event else { return };
        match event {
            Ok(event) => {
                if !matches!(event, Event::Init) {
                    failures = 0;
                }
                let whole = matches!(event, Event::InitDone);
                apply_event(&shared, &kind, &mut listed, event);
                if whole && std::mem::take(&mut is_first) {
                    shared.progress.send_modify(|(done, _)| *done += 1);
                }
            }
            Err(error) => {
                debug!(kind = kind.name(), error = &error as &dyn std::error::Error, "list or watch failed");
                tokio::time::sleep(RETRY.pause(failures)).await;
                failures += 1;
                if is_expired(&error) {
                    stream.set(open());
                }
            }
        }
    }
}

fn apply_event(
    shared: &Shared,
    kind: &Arc<Kind>,
    listed: &mut BTreeSet<Uid>,
    event: Event<PartialObjectMeta<DynamicObject>>,
) {
    let mut graph = shared.graph();
    let hints = match event {
        Event::Init => {
            listed.clear();
            Hints::default()
        }
        Event::InitApply(object) => {
            listed.insert(Uid::from(uid(&object.metadata)));
            graph.apply(kind, &object.metadata)
        }
        Event::InitDone => graph.retain(&kind.name(), &std::mem::take(listed)),
        Event::Apply(object) => graph.apply(kind, &object.metadata),
        Event::Delete(object) => graph.remove(&Uid::from(uid(&object.metadata))),
    };
    drop(graph);
    shared.follow(hints);
}
