//! Selectors of kinds that a webhook converts: they see the version that is asked for, and the cache
//! holds the one that is kept.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use apiserver_api::definition::Custom;
use apiserver_api::error::ApiError;
use apiserver_api::meta;
use apiserver_api::registry::Resource;
use serde_json::Value;

use super::conversion::by_webhook;
use super::webhook;
use crate::cache::{Cache, Entry};
use crate::filter::{Filter, Selected};
use crate::limits;
use crate::server::Server;
use crate::verbs::view::{self, Asked, View};

/// What [`Filter::select`] selects, of the objects in the version of `resource`.
pub async fn select(
    server: &Server,
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
    let mut chosen = VecDeque::new();
    while limit == 0 || chosen.len() <= limit {
        let page: Vec<Arc<Entry>> = entries.by_ref().take(limits::CONVERTED_PAGE).collect();
        if page.is_empty() {
            break;
        }
        let values = converted(server, custom, &page).await?;
        let matching = page.into_iter().zip(&values).filter(|(_, value)| filter.matches_value(value));
        chosen.extend(matching.map(|(entry, _)| entry));
    }
    let more = limit != 0 && chosen.len() > limit;
    if more {
        chosen.truncate(limit);
    }
    Ok(Selected::page(chosen, more, None))
}

async fn converted(server: &Server, custom: &Custom, entries: &[Arc<Entry>]) -> Result<Vec<Value>, ApiError> {
    let mut values: Vec<Value> = entries.iter().map(|entry| entry.value(None)).collect();
    webhook::convert(server, custom, &mut values).await?;
    Ok(values)
}

/// What a watcher knows of the objects that it selects.
pub struct Chosen {
    filter: Arc<Filter>,
    known: BTreeSet<(String, String)>,
}

impl Chosen {
    /// Of a watcher that is sent the present state.
    pub fn new(filter: Arc<Filter>) -> Self {
        Self { filter, known: BTreeSet::new() }
    }

    /// Of a watcher that knows the state at a revision. Where that is forgotten nobody can watch from
    /// it either.
    pub async fn at(
        server: &Server,
        custom: &Custom,
        cache: &Arc<Cache>,
        filter: Arc<Filter>,
        revision: i64,
    ) -> Result<Self, ApiError> {
        let mut chosen = Self::new(filter);
        let Ok(view) = view::view(server, cache, &Asked::Exact(revision)).await else { return Ok(chosen) };
        let mut entries = chosen.filter.outside().select(&view, "", 0).entries;
        loop {
            let page: Vec<Arc<Entry>> = entries.by_ref().take(limits::CONVERTED_PAGE).collect();
            if page.is_empty() {
                return Ok(chosen);
            }
            let values = converted(server, custom, &page).await?;
            let matching = values.iter().filter(|value| chosen.filter.matches_value(value));
            let keys: Vec<_> = matching.map(key).collect();
            chosen.known.extend(keys);
        }
    }

    /// What an event of this type about the object is to the watcher; `None`: nothing.
    pub fn event(&mut self, event: &str, object: &Value) -> Option<&'static str> {
        let key = key(object);
        let now = event != "DELETED" && self.filter.matches_value(object);
        let before = if now { !self.known.insert(key) } else { self.known.remove(&key) };
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
