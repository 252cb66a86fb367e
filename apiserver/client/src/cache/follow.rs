//! The task that keeps a cache: it lists and watches.

use std::any::TypeId;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use tokio::time::Instant;

use super::{Cache, Informers, Listed, Listing, ObjectKey, Projection, Selection};
use crate::object::Metadata;
use crate::outage::{Outage, is_expired};
use crate::readable::Readable;

/// Lists and watches until shutdown, with growing delays after errors.
pub(super) async fn list_and_watch<K>(
    informers: Informers,
    api: Api<Readable<K::Object>>,
    selection: Selection,
    cache: Cache<K>,
) where
    K: Projection<Object: Listed> + Send + Sync,
{
    let config = watcher::Config::default().labels(&selection.labels).fields(&selection.fields);
    let open = || watcher(api.clone(), config.clone());
    let mut stream = std::pin::pin!(open());
    let mut listing = Listing::default();
    let mut outage = Outage::new(K::Object::plural(&()).into_owned());
    loop {
        let event = tokio::select! {
            biased;
            () = informers.shutdown.cancelled() => return,
            event = stream.next() => event,
        };
        match event {
            Some(Ok(mut event)) => {
                prepare::<K>(&mut event);
                // `Init` precedes the request of a list; every other event is an answer.
                if !matches!(event, Event::Init) {
                    outage.record_answer();
                }
                apply_event(&cache, &mut listing, event);
            }
            Some(Err(error)) => {
                let pause = outage.record_failure(&error);
                let jitter = Duration::from_millis(informers.ambient.random.next_u64() % 50);
                tokio::time::sleep(pause + jitter).await;
                if is_expired(&error) {
                    // The watcher would begin the next watch at the same version again.
                    stream.set(open());
                }
            }
            None => return,
        }
    }
}

pub(super) fn apply_event<K: Projection<Object: Resource<DynamicType = ()>>>(
    cache: &Cache<K>,
    listing: &mut Listing<K>,
    event: Event<Readable<K::Object>>,
) {
    match event {
        Event::Init => *listing = Listing { begin: Some(Instant::now()), ..Listing::default() },
        Event::InitApply(object) => {
            let key = ObjectKey::of(&object);
            match object.object() {
                Some(object) => {
                    let version = version_of(object.meta());
                    listing.read.push((Arc::new(K::project(object)), version));
                }
                None => drop(listing.unreadable.insert(key)),
            }
        }
        Event::InitDone => cache.replace(std::mem::take(listing)),
        Event::Apply(object) => {
            if let Some(object) = object.object() {
                cache.apply(object);
            }
        }
        Event::Delete(object) => cache.take(&ObjectKey::of(&object), version_of(object.meta())),
    }
}

/// Returns the version of an object, a number that grows with each change of any object of its kind (KEP-5504); 0 if it
/// has none.
pub fn version_of<M: Metadata + ?Sized>(meta: &M) -> u64 {
    meta.resource_version().parse().unwrap_or(0)
}

/// Reduces the object of an event to what is stored: without `managedFields`, which take up half of an object's memory
/// and are not used by any reader.
pub(super) fn prepare<K: Projection<Object: Listed>>(event: &mut Event<Readable<K::Object>>) {
    let (Event::Apply(Readable::Object(object)) | Event::InitApply(Readable::Object(object))) = event else {
        return;
    };
    object.meta_mut().managed_fields = None;
    if TypeId::of::<K>() == TypeId::of::<K::Object>() {
        // Vectors that were read from JSON have room for up to four times as many elements; their copies have none.
        **object = K::Object::clone(object);
    }
}
