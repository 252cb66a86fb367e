//! Custom kinds: the kinds that CustomResourceDefinitions add to the registry while the server runs.
//!
//! ```text
//! store ─feed─▶ cache of definitions ─observe─▶ CustomKinds ─▶ requests, discovery, OpenAPI
//!                                         └───▶ dirty ─▶ driver ─▶ status, clean-up
//! ```
//!
//! The kinds follow the store and not the requests, so that they are the same after a restart and
//! on every server over the same store. One task drives all definitions; an object of a kind is
//! kept in memory only after somebody has asked for the kind.

mod builtin;
mod documents;
mod pending_creates;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apiserver_registry::definition::{AcceptedNames, Custom, Definition, GROUP};
use apiserver_registry::{Registry, Resource};
use apiserver_schema::error::ApiError;
use apiserver_schema::numbers;
use apiserver_schema::schema::Problems;
use apiserver_structural as structural;
use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::errors::no_such_resource;
use crate::metrics::Queue;
use crate::notifications::Notifications;
use apiserver_cache::{Caches, Entry};

pub use documents::Documents;
pub use pending_creates::Creating;
use pending_creates::Creations;

/// Plural of definitions.
pub const DEFINITIONS: &str = "customresourcedefinitions";

type Path = (String, String, String);

/// A group, whether it is the name of a kind rather than of a resource, and the name.
type Name = (String, bool, String);

/// The definitions and the kinds that they add, swapped as a whole with every change.
#[derive(Clone, Default)]
struct State {
    definitions: imbl::OrdMap<String, Arc<Definition>>,
    /// The kinds by group, version and plural.
    kinds: imbl::OrdMap<Path, Arc<Resource>>,
    /// The definitions that were granted a name.
    names: imbl::OrdMap<Name, Vec<String>>,
    /// Group and name of the definitions that were not granted all their names.
    refused: imbl::OrdSet<(String, String)>,
    /// Made on request.
    documents: Arc<OnceLock<Arc<Documents>>>,
}

impl State {
    /// Takes the names of a definition as it was from it, and gives it those that it has now. Whether
    /// one has become free.
    fn grant(&mut self, old: Option<&Definition>, new: Option<&Definition>) -> bool {
        let had = old.map(names_of).unwrap_or_default();
        let has = new.map(names_of).unwrap_or_default();
        for (definition, names) in [(old, &had), (new, &has)] {
            let Some(definition) = definition else { continue };
            let own = (definition.group.clone(), definition.name.clone());
            self.refused.remove(&own);
            for name in names {
                let mut owners = self.names.get(name).cloned().unwrap_or_default();
                owners.retain(|owner| *owner != definition.name);
                if has.contains(name) {
                    owners.push(definition.name.clone());
                }
                if owners.is_empty() {
                    self.names.remove(name);
                } else {
                    self.names.insert(name.clone(), owners);
                }
            }
        }
        if let Some(new) = new.filter(|new| !new.accepted) {
            self.refused.insert((new.group.clone(), new.name.clone()));
        }
        had.iter().any(|name| !has.contains(name))
    }

    /// Returns the definitions of the same group that wait for names.
    fn refused_beside(&self, definition: Option<&Definition>) -> Vec<String> {
        let Some(Definition { group, .. }) = definition else { return Vec::new() };
        let from = (group.clone(), String::new());
        let of_group = self.refused.range(from..).take_while(|(of, _)| of == group);
        of_group.map(|(_, name)| name.clone()).collect()
    }
}

/// Returns the names that a definition was granted.
fn names_of(definition: &Definition) -> BTreeSet<Name> {
    let mut names = AcceptedNames::default();
    names.add(&definition.names);
    let named = |kind: bool| move |name: String| (definition.group.clone(), kind, name);
    names.resources.into_iter().map(named(false)).chain(names.kinds.into_iter().map(named(true))).collect()
}

/// The custom kinds of a server.
pub struct CustomKinds {
    caches: Arc<Caches>,
    state: ArcSwap<State>,
    /// The names of definitions that the driver has not looked at since they changed, with the time from
    /// which they wait.
    dirty: Mutex<BTreeMap<String, Instant>>,
    wake: Notify,
    queue: Arc<Queue>,
    creations: Arc<Creations>,
    /// Told when kinds come or go.
    notifications: Arc<Notifications>,
}

impl CustomKinds {
    /// None yet.
    pub fn new(caches: Arc<Caches>, notifications: Arc<Notifications>, queue: Arc<Queue>) -> Self {
        let (state, dirty, wake, creations) = Default::default();
        Self { caches, state, dirty, wake, queue, creations, notifications }
    }

    /// Returns the groups and versions of the kinds.
    pub fn versions(&self) -> BTreeSet<(String, String)> {
        let state = self.state.load();
        state.kinds.keys().map(|(group, version, _)| (group.clone(), version.clone())).collect()
    }

    /// Returns the kind behind `/apis/GROUP/VERSION/…/PLURAL`.
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let state = self.state.load();
        if state.kinds.is_empty() {
            return None;
        }
        state.kinds.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// Returns a definition by its name.
    pub fn definition(&self, name: &str) -> Option<Arc<Definition>> {
        self.state.load().definitions.get(name).cloned()
    }

    /// Returns a guard to be held while a new object of a custom kind is written, `None` for other kinds; 403
    /// or 404 if its definition is being deleted, is gone or was replaced.
    pub fn create(&self, resource: &Resource) -> Result<Option<Creating>, ApiError> {
        let Some(custom) = &resource.custom else { return Ok(None) };
        let asked = &custom.definition;
        // Counted before the look: either the driver that clears the definition away sees the creation, or
        // the creation sees the deletion.
        let creating = self.creations.begin(&asked.name);
        match self.definition(&asked.name).filter(|now| now.uid == asked.uid) {
            None => Err(no_such_resource()),
            Some(now) if now.terminating => Err(terminating(resource)),
            Some(_) => Ok(Some(creating)),
        }
    }

    /// Waits for the creations of a definition that is being deleted; returns `false` if this server does not
    /// know of the deletion yet, so that there may be further ones.
    pub async fn created(&self, name: &str) -> bool {
        let known = self.definition(name).is_none_or(|definition| definition.terminating);
        if known {
            self.creations.none(name).await;
        }
        known
    }

    /// Returns those of the names that other definitions of the group than the one called `name` have been
    /// granted.
    pub fn taken(&self, group: &str, name: &str, names: &Value) -> AcceptedNames {
        let state = self.state.load();
        let mut taken = AcceptedNames::default();
        taken.add(names);
        let by_other = |kind: bool, wanted: &String| {
            let owners = state.names.get(&(group.to_owned(), kind, wanted.clone()));
            owners.is_some_and(|owners| owners.iter().any(|owner| owner != name))
        };
        taken.resources.retain(|wanted| by_other(false, wanted));
        taken.kinds.retain(|wanted| by_other(true, wanted));
        taken
    }

    /// Discovery and OpenAPI of the built-in kinds and of these, of the server at this address.
    pub fn documents(&self, builtin: &Registry, address: Option<SocketAddr>) -> Arc<Documents> {
        let state = self.state.load_full();
        let make = || {
            let address = address.map(|address| address.to_string()).unwrap_or_default();
            Arc::new(Documents::new(builtin, state.kinds.values().cloned().collect(), &address))
        };
        Arc::clone(state.documents.get_or_init(make))
    }

    /// Takes a definition as the store has it; called by the feed, for one definition after the
    /// other.
    fn take(&self, name: &str, entry: Option<&Entry>) {
        let new = entry.and_then(|entry| Definition::read(Arc::new(entry.object())));
        let before = self.state.load();
        let old = before.definitions.get(name);
        self.mark(name);
        if old.map(|d| d.hash) == new.as_ref().map(|d| d.hash) {
            return;
        }
        let mut state = State { documents: Arc::default(), ..State::clone(&before) };
        let old = old.cloned();
        for kind in old.iter().flat_map(Definition::resources) {
            state.kinds.remove(&path(&kind));
        }
        let new = new.map(Arc::new);
        let kinds: Vec<Arc<Resource>> = new.iter().flat_map(Definition::resources).map(Arc::new).collect();
        for kind in &kinds {
            state.kinds.insert(path(kind), Arc::clone(kind));
        }
        match &new {
            Some(new) => state.definitions.insert(name.to_owned(), Arc::clone(new)),
            None => state.definitions.remove(name),
        };
        let freed = state.grant(old.as_deref(), new.as_deref());
        // Caches first, so that a request that finds the kind finds its cache.
        if old.as_ref().map(|d| d.shape) != new.as_ref().map(|d| d.shape) {
            self.replace_caches(old.as_deref(), new.as_deref(), &kinds);
        }
        let waiting = if freed { state.refused_beside(old.as_deref()) } else { Vec::new() };
        self.state.store(Arc::new(state));
        self.notifications.api_services.notify_one();
        waiting.iter().for_each(|other| self.mark(other));
    }

    /// Replaces the earlier caches by those of the kinds that are served now.
    fn replace_caches(&self, old: Option<&Definition>, new: Option<&Definition>, kinds: &[Arc<Resource>]) {
        let prefix = |definition: &Definition| format!("{}/", definition.storage_prefix());
        let prefixes: BTreeSet<String> = old.into_iter().chain(new).map(prefix).collect();
        for at in prefixes {
            let own = new.is_some_and(|definition| prefix(definition) == at);
            self.caches.set_custom(&at, if own { kinds } else { &[] });
        }
    }

    /// Makes the driver look at a definition.
    fn mark(&self, name: &str) {
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        if !dirty.contains_key(name) {
            dirty.insert(name.to_owned(), Instant::now());
            self.queue.added(dirty.len());
        }
        drop(dirty);
        self.wake.notify_one();
    }

    /// Returns the definitions that the driver has to look at; waits until there is one.
    pub async fn next(&self) -> BTreeMap<String, Instant> {
        loop {
            let waiting = self.wake.notified();
            let taken = std::mem::take(&mut *self.dirty.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                self.queue.emptied();
                return taken;
            }
            waiting.await;
        }
    }
}

fn path(resource: &Resource) -> Path {
    (resource.group.clone(), resource.version.clone(), resource.plural.clone())
}

/// Has the custom kinds follow the definitions in the cache.
pub fn observe(caches: &Caches, kinds: &Arc<CustomKinds>) {
    let Some(cache) = caches.cache(GROUP, "v1", DEFINITIONS) else { return };
    let kinds = Arc::clone(kinds);
    cache.observe(Box::new(move |old: Option<&Entry>, new: Option<&Entry>| {
        if let Some(entry) = new.or(old) {
            kinds.take(entry.name(), new);
        }
    }));
}

/// Returns 403 for new objects, posted or applied, of a kind whose definition is being deleted.
pub fn may_create(resource: &Resource) -> Result<(), ApiError> {
    if resource.custom.as_ref().is_some_and(|custom| custom.definition.terminating) {
        return Err(terminating(resource));
    }
    Ok(())
}

fn terminating(resource: &Resource) -> ApiError {
    let why = "create not allowed while custom resource definition is terminating";
    ApiError::forbidden(&resource.group, &resource.plural, "", why)
}

/// Checks the metadata of a decoded object and takes out what its schema does not know.
pub fn check(custom: &Custom, object: &mut Value) -> Problems {
    let schema = custom.schema();
    let mut problems = Problems::default();
    match structural::coerce(schema, object, true, false) {
        Ok(unknown) => problems.unknown_fields = unknown,
        Err(error) => {
            problems.type_errors.push(error);
            return problems;
        }
    }
    problems.unknown_fields.extend(schema.prune(object));
    schema.prune_nulls(object);
    numbers::normalize_numbers(object);
    problems
}
