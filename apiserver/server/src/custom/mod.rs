//! Custom kinds: what CustomResourceDefinitions add to the registry while the server runs.
//!
//! ```text
//! store ─feed─▶ cache of definitions ─observe─▶ CustomKinds ─▶ requests, discovery, OpenAPI
//!                                         └───▶ dirty ─▶ driver ─▶ status, clean-up
//! ```
//!
//! The kinds follow the store and not the requests, so that they are the same after a restart and
//! on every server over the same store. One task drives all definitions; an object of a kind is
//! kept in memory only after somebody has asked for the kind.

pub mod conversion;
mod documents;
mod driver;
mod webhook;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apiserver_api::definition::{Custom, Definition, GROUP};
use apiserver_api::error::ApiError;
use apiserver_api::registry::{Registry, Resource};
use apiserver_api::schema::Problems;
use apiserver_api::structural;
use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::Notify;

use crate::cache::{Caches, Entry};
use crate::context::Context;
use crate::convert;

pub use documents::Documents;
pub use driver::run;

/// Plural of definitions.
pub const DEFINITIONS: &str = "customresourcedefinitions";

type Path = (String, String, String);

/// The definitions and the kinds that they add, swapped as a whole with every change.
#[derive(Clone, Default)]
struct State {
    definitions: imbl::OrdMap<String, Arc<Definition>>,
    /// By group, version and plural.
    kinds: imbl::OrdMap<Path, Arc<Resource>>,
    /// Made when somebody asks.
    documents: Arc<OnceLock<Arc<Documents>>>,
}

/// The custom kinds of a server.
pub struct CustomKinds {
    caches: Arc<Caches>,
    state: ArcSwap<State>,
    /// Names of definitions that the driver has not looked at since they changed.
    dirty: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl CustomKinds {
    /// None yet.
    pub fn new(caches: Arc<Caches>) -> Self {
        Self { caches, state: ArcSwap::default(), dirty: Mutex::default(), wake: Notify::new() }
    }

    /// The kind behind `/apis/GROUP/VERSION/…/PLURAL`.
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let state = self.state.load();
        if state.kinds.is_empty() {
            return None;
        }
        state.kinds.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// A definition by its name.
    pub fn definition(&self, name: &str) -> Option<Arc<Definition>> {
        self.state.load().definitions.get(name).cloned()
    }

    /// The definitions of a group.
    pub fn of_group(&self, group: &str) -> Vec<Arc<Definition>> {
        self.state.load().definitions.values().filter(|d| d.group == group).cloned().collect()
    }

    /// Discovery and OpenAPI of the built-in kinds and of these.
    pub fn documents(&self, builtin: &Registry) -> Arc<Documents> {
        let state = self.state.load_full();
        let make = || Arc::new(Documents::new(builtin, state.kinds.values().cloned().collect()));
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
        let group = [&old, &new].into_iter().flatten().next().map(|d| d.group.clone()).unwrap_or_default();
        // Caches first: who finds the kind finds its cache.
        if old.as_ref().map(|d| d.shape) != new.as_ref().map(|d| d.shape) {
            self.replace_caches(old.as_deref(), new.as_deref(), &kinds);
        }
        self.state.store(Arc::new(state));
        // A name may have become free.
        for other in self.of_group(&group).iter().filter(|other| !other.accepted) {
            self.mark(&other.name);
        }
    }

    /// Puts the caches of what is served now in the place of those of before.
    fn replace_caches(&self, old: Option<&Definition>, new: Option<&Definition>, kinds: &[Arc<Resource>]) {
        let prefix = |definition: &Definition| format!("{}/", definition.storage_prefix());
        let prefixes: BTreeSet<String> = old.into_iter().chain(new).map(prefix).collect();
        for at in prefixes {
            let own = new.is_some_and(|definition| prefix(definition) == at);
            self.caches.set_custom(&at, if own { kinds } else { &[] });
        }
    }

    /// Has the driver look at a definition.
    fn mark(&self, name: &str) {
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        dirty.insert(name.to_owned());
        drop(dirty);
        self.wake.notify_one();
    }

    /// What the driver has to look at; waits until there is something.
    async fn next(&self) -> BTreeSet<String> {
        loop {
            let waiting = self.wake.notified();
            let taken = std::mem::take(&mut *self.dirty.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
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

/// What happens to every request for a custom kind before its verb: warnings of deprecation, the
/// first load of its objects, and no new objects where the definition goes. Of built-in kinds those
/// versions are loaded that are read and not kept.
pub async fn admit(context: &Context, resource: &Resource) -> Result<(), ApiError> {
    let Some(custom) = &resource.custom else {
        let reads = matches!(context.info.verb, "get" | "list" | "watch" | "deletecollection");
        let lazy = reads && convert::is_converted(resource);
        return if lazy { context.server.start_cache(resource).await } else { Ok(()) };
    };
    if let Some(text) = custom.deprecation() {
        context.warn(text);
    }
    if context.info.verb == "create" && context.info.subresource.is_empty() {
        may_create(resource)?;
    }
    context.server.start_cache(resource).await
}

/// 403 for new objects, posted or applied, of a kind whose definition goes.
pub fn may_create(resource: &Resource) -> Result<(), ApiError> {
    if resource.custom.as_ref().is_some_and(|custom| custom.definition.terminating) {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::forbidden(&resource.group, &resource.plural, "", why));
    }
    Ok(())
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
    for field in &mut problems.unknown_fields {
        *field = format!("unknown field \"{field}\"");
    }
    problems
}
