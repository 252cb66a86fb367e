//! Selectors of kinds that a webhook converts: they see the version of the request, and the cache holds the version
//! in which objects are stored.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use apiserver_registry::Resource;
use apiserver_registry::definition::Custom;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use crate::clients::budget::{Budget, Charge};
use crate::context::Context;
use crate::conversion::by_webhook;
use crate::conversion::webhook;
use crate::errors;
use crate::errors::too_many_requests;
use crate::limits;
use crate::objects::Objects;
use crate::selection::filter::Filter;
use crate::selection::{Entries, Selected};
use crate::view;
use crate::view::{Asked, View};
use apiserver_cache::{Cache, Entry};

/// Returns the objects that [`Filter::select`] selects, in the version of `resource`.
pub async fn select(
    context: &Context,
    resource: &Resource,
    filter: &Arc<Filter>,
    view: &View,
    start: &str,
    limit: usize,
) -> Result<Selected, ApiError> {
    let Some(custom) = by_webhook(resource).filter(|_| filter.looks_inside()) else {
        return Ok(filter.select(view, start, limit));
    };
    let mut entries = filter.outside().select(view, start, 0).entries;
    // The keys are held until the answer has been sent.
    let mut charge = context.budget.try_charge(0);
    let mut chosen = VecDeque::new();
    while limit == 0 || chosen.len() <= limit {
        let page = next_page(&mut entries).await?;
        if page.is_empty() {
            break;
        }
        let values = converted(context.server.objects(), custom, &page).await?;
        let matching = page.iter().zip(&values).filter(|(_, value)| filter.matches_value(value));
        for (entry, _) in matching {
            let bytes = limits::HELD_BY_KEY + entry.key.len();
            if !charge.as_mut().is_some_and(|charge| charge.try_grow(bytes)) {
                return Err(too_many_requests());
            }
            chosen.push_back(Arc::clone(&entry.key));
        }
    }
    let more = limit != 0 && chosen.len() > limit;
    if more {
        chosen.truncate(limit);
    }
    let last = chosen.back().filter(|_| more).cloned();
    Ok(Selected { entries: Entries::keys(&view.past, chosen, charge), last, remaining: None })
}

/// Returns the entries that the webhook is asked about in one call.
async fn next_page(entries: &mut Entries) -> Result<Vec<Arc<Entry>>, ApiError> {
    entries.fetch(usize::MAX, limits::CONVERTED_PAGE).await.map_err(errors::store_error)
}

async fn converted(
    objects: &Objects,
    custom: &Custom,
    entries: &[Arc<Entry>],
) -> Result<Vec<Value>, ApiError> {
    let mut values: Vec<Value> = entries.iter().map(|entry| entry.value(None)).collect();
    webhook::convert(objects.webhook_caller(), custom, &mut values).await?;
    Ok(values)
}

/// The objects that a watcher with selectors has been sent.
pub struct SentObjects {
    filter: Arc<Filter>,
    known: BTreeSet<(String, String)>,
    /// For `known`.
    charge: Charge,
}

impl SentObjects {
    /// Returns the state of a watcher that is sent the present objects.
    pub fn new(filter: Arc<Filter>, budget: &Budget) -> Self {
        Self { filter, known: BTreeSet::new(), charge: budget.charge(0) }
    }

    /// Returns the state of a watcher that knows the objects at a revision. If that revision is compacted,
    /// nobody can watch from it either.
    pub async fn at(
        context: &Context,
        custom: &Custom,
        cache: &Arc<Cache>,
        filter: Arc<Filter>,
        revision: i64,
    ) -> Result<Self, ApiError> {
        let mut sent = Self::new(filter, &context.budget);
        let objects = context.server.objects();
        let Ok(view) = view::view(objects, cache, &Asked::Exact(revision)).await else {
            return Ok(sent);
        };
        let mut entries = sent.filter.outside().select(&view, "", 0).entries;
        loop {
            let page = next_page(&mut entries).await?;
            if page.is_empty() {
                return Ok(sent);
            }
            let values = converted(objects, custom, &page).await?;
            let matching = values.iter().filter(|value| sent.filter.matches_value(value));
            let keys: Vec<_> = matching.map(key).collect();
            for key in keys {
                sent.know(key);
            }
        }
    }

    /// Adds an object; returns true if it was known before.
    fn know(&mut self, key: (String, String)) -> bool {
        let bytes = Self::weight(&key);
        let new = self.known.insert(key);
        if new {
            self.charge.grow(bytes);
        }
        !new
    }

    /// Removes an object; returns true if it was known.
    fn forget(&mut self, key: &(String, String)) -> bool {
        let known = self.known.remove(key);
        if known {
            self.charge.shrink(Self::weight(key));
        }
        known
    }

    fn weight((namespace, name): &(String, String)) -> usize {
        2 * limits::HELD_BY_KEY + namespace.len() + name.len()
    }

    /// Returns the type of the event that the watcher is sent for an event about the object; `None` if it is
    /// sent nothing.
    pub fn event(&mut self, event: &str, object: &Value) -> Option<&'static str> {
        let key = key(object);
        let now = event != "DELETED" && self.filter.matches_value(object);
        let before = if now { self.know(key) } else { self.forget(&key) };
        match (before, now) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }
}

fn key(object: &Value) -> (String, String) {
    (meta::namespace(object).to_owned(), meta::name(object).to_owned())
}
