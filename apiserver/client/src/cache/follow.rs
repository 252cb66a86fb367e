//! The task that keeps a cache: it lists and watches.
//!
//! A watch begins with all objects and a bookmark behind them, so that neither side ever holds the whole list. Where the
//! API server does not know that, or the stream ends before the bookmark, the objects are listed in pages, and the watch
//! begins behind them.

use std::any::TypeId;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use tokio::time::Instant;
use tracing::debug;

use super::{Cache, Informers, Listed, Listing, ObjectKey, Projection, Update};
use crate::limits;
use crate::media::Encoding;
use crate::object::Metadata;
use crate::outage::Outage;
use crate::readable::Readable;
use crate::source::{Batch, Begin, Error, Event, Events, Source, Verb};

/// Lists and watches until shutdown, with growing delays after errors.
pub(super) async fn list_and_watch<K>(informers: Informers, source: Source<K::Object>, cache: Cache<K>)
where
    K: Projection<Object: Listed> + Send + Sync,
{
    let outage = Outage::new(K::Object::plural(&()).into_owned());
    let mut follower = Follower { source, cache, outage, streams: true, version: None };
    let endless = async {
        loop {
            let Err(error) = follower.follow().await;
            let pause = follower.outage.record_failure(&error);
            let jitter = Duration::from_millis(informers.ambient.random.next_u64() % 50);
            tokio::time::sleep(pause + jitter).await;
        }
    };
    tokio::select! {
        biased;
        () = informers.shutdown.cancelled() => {}
        () = endless => {}
    }
}

/// A cache, and where it is taken from.
struct Follower<K: Projection> {
    source: Source<K::Object>,
    cache: Cache<K>,
    outage: Outage,
    /// The API server can begin a watch with all objects, as far as is known.
    streams: bool,
    /// The version up to which the cache shows everything; `None` if all objects are to be read.
    version: Option<String>,
}

impl<K> Follower<K>
where
    K: Projection<Object: Listed> + Send + Sync,
{
    /// Follows until something fails, which leaves in `version` where to go on.
    async fn follow(&mut self) -> Result<Infallible, Error> {
        loop {
            let events = match self.version.clone() {
                Some(version) => self.resume(&version).await?,
                None => match self.state().await? {
                    Some(events) => events,
                    None => continue,
                },
            };
            self.apply_all(events).await?;
        }
    }

    async fn resume(&mut self, version: &str) -> Result<Events<K::Object>, Error> {
        let begun = self.source.watch(Begin::After(version)).await;
        if begun.as_ref().is_err_and(Error::loses_version) {
            self.version = None;
        }
        begun
    }

    /// Applies the events of a watch up to its end.
    async fn apply_all(&mut self, mut events: Events<K::Object>) -> Result<(), Error> {
        while let Some(batch) = events.batch(limits::WATCH_SILENCE).await {
            self.apply(batch)?;
        }
        Ok(())
    }

    fn apply(&mut self, batch: Batch<K::Object>) -> Result<(), Error> {
        if !batch.events.is_empty() {
            self.outage.record_answer();
        }
        if let Some(last) = batch.events.last() {
            let version = match last {
                Event::Applied(object) | Event::Deleted(object) => object.meta().resource_version.clone(),
                Event::Bookmark { version, .. } => Some(version.clone()),
                Event::Failed(_) => None,
            };
            self.version = version.filter(|version| !version.is_empty());
        }
        apply_events(&self.cache, batch.events, batch.encoding);
        if self.version.is_none() {
            return Err(Error::NoVersion(Verb::Watch));
        }
        let Some(failure) = batch.failure else { return Ok(()) };
        if failure.loses_version() {
            self.version = None;
        }
        Err(failure)
    }

    /// Reads all objects; returns the watch that goes on behind them, if one has begun.
    async fn state(&mut self) -> Result<Option<Events<K::Object>>, Error> {
        if self.streams {
            match self.streamed().await {
                Ok(events) => return Ok(Some(events)),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    let kind = K::Object::plural(&());
                    debug!(%kind, %error, "cannot stream the list, reading it in pages");
                    self.streams = !matches!(error, Error::Unmarked);
                }
            }
        }
        self.paged().await?;
        Ok(None)
    }

    /// Reads all objects from the beginning of a watch.
    async fn streamed(&mut self) -> Result<Events<K::Object>, Error> {
        let mut listing = Listing::new();
        let begun = tokio::time::timeout(limits::STATE_SILENCE, self.source.watch(Begin::State));
        let mut events = begun.await.map_err(|_| Error::Unmarked)??;
        while let Some(Batch { events: arrived, failure, encoding }) =
            events.batch(limits::STATE_SILENCE).await
        {
            self.outage.record_answer();
            let mut arrived = arrived.into_iter();
            while let Some(event) = arrived.next() {
                match event {
                    Event::Applied(object) => listing.add(object, encoding),
                    Event::Deleted(object) => listing.remove(&ObjectKey::of(&object)),
                    Event::Bookmark { version, ends_state: true } => {
                        self.show(listing, version);
                        self.apply(Batch { events: arrived.collect(), failure, encoding })?;
                        return Ok(events);
                    }
                    Event::Bookmark { .. } | Event::Failed(_) => {}
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        Err(if events.is_silent { Error::Unmarked } else { Error::Unfinished })
    }

    /// Reads all objects page by page. Where the rest of a list is no longer known, everything is read at once.
    async fn paged(&mut self) -> Result<(), Error> {
        let (mut listing, mut limit, mut next) = (Listing::new(), Some(limits::PAGE), None::<String>);
        loop {
            let page = match self.source.page(limit, next.as_deref()).await {
                Ok(page) => page,
                Err(error) if error.is_expired() && next.is_some() => {
                    (listing, limit, next) = (Listing::new(), None, None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.outage.record_answer();
            page.items.into_iter().for_each(|object| listing.add(object, page.encoding));
            next = page.next;
            if next.is_none() {
                self.show(listing, page.version);
                return Ok(());
            }
        }
    }

    fn show(&mut self, mut listing: Listing<K>, version: String) {
        listing.version = number(&version);
        self.cache.replace(listing);
        self.version = Some(version).filter(|version| !version.is_empty());
    }
}

impl<K: Projection<Object: Listed>> Listing<K> {
    /// Returns a list that is requested now.
    pub(super) fn new() -> Self {
        Self { begin: Some(Instant::now()), ..Self::default() }
    }

    pub(super) fn add(&mut self, mut object: Readable<K::Object>, encoding: Encoding) {
        prepare::<K>(&mut object, encoding);
        let key = ObjectKey::of(&object);
        match object.object() {
            Some(object) => {
                let version = version_of(object.meta());
                self.read.push((Arc::new(K::project(object)), version));
            }
            None => drop(self.unreadable.insert(key)),
        }
    }

    /// Takes out an object, which API servers do not ask for.
    fn remove(&mut self, key: &ObjectKey) {
        self.read.retain(|(object, _)| object.names() != (&key.namespace, &key.name));
        self.unreadable.remove(key);
    }
}

/// Applies events of a watch that have arrived together, at once.
pub(super) fn apply_events<K: Projection<Object: Listed>>(
    cache: &Cache<K>,
    events: Vec<Event<K::Object>>,
    encoding: Encoding,
) {
    let (mut updates, mut newest) = (Vec::with_capacity(events.len()), 0);
    for event in events {
        match event {
            Event::Applied(mut object) => {
                prepare::<K>(&mut object, encoding);
                if let Some(object) = object.object() {
                    newest = newest.max(version_of(object.meta()));
                    updates.push(Update::Put(Arc::new(K::project(object))));
                }
            }
            Event::Deleted(object) => {
                newest = newest.max(version_of(object.meta()));
                updates.push(Update::Take(ObjectKey::of(&object)));
            }
            Event::Bookmark { version, .. } => newest = newest.max(number(&version)),
            Event::Failed(_) => {}
        }
    }
    cache.update(updates, newest);
}

/// Returns the version of an object, a number that grows with each change of any object of its kind (KEP-5504); 0 if it
/// has none.
pub fn version_of<M: Metadata + ?Sized>(meta: &M) -> u64 {
    number(meta.resource_version())
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// Reduces an object that was read to what is stored: without `managedFields`, which take up half of an object's memory
/// and are not used by any reader.
pub(super) fn prepare<K: Projection<Object: Listed>>(object: &mut Readable<K::Object>, encoding: Encoding) {
    let Readable::Object(object) = object else { return };
    object.meta_mut().managed_fields = None;
    if encoding == Encoding::Json && TypeId::of::<K>() == TypeId::of::<K::Object>() {
        // Vectors that were read from JSON have room for up to four times as many elements; their copies have none.
        **object = K::Object::clone(object);
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
