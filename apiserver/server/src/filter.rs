//! Which objects of a kind a request selects, decided on what the cache extracted.

use std::borrow::Cow;

use apiserver_api::error::ApiError;
use apiserver_api::selector::{FieldSelector, LabelSelector};

use crate::cache::{Cache, Entry, Objects, Trigger};
use crate::query::Query;

/// Namespace, label selector and field selector of a list, watch or collection delete.
pub struct Filter {
    /// Empty: all.
    namespace: String,
    /// Where objects of the namespace begin in the map.
    prefix: String,
    labels: LabelSelector,
    fields: FieldSelector,
    /// For each term of `fields` where its value is.
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
enum Place {
    Name,
    Namespace,
    Field(usize),
}

impl Filter {
    /// Reads `labelSelector` and `fieldSelector`; errors are 400.
    pub fn parse(cache: &Cache, namespace: &str, query: &Query) -> Result<Self, ApiError> {
        let labels =
            query.get("labelSelector").map_or(Ok(LabelSelector::everything()), LabelSelector::parse)?;
        let fields =
            query.get("fieldSelector").map_or(Ok(FieldSelector::everything()), FieldSelector::parse)?;
        fields.supported(&cache.resource)?;
        let place = |path: &str| match path {
            "metadata.name" => Some(Place::Name),
            "metadata.namespace" => Some(Place::Namespace),
            other => cache.fields.index(other).map(Place::Field),
        };
        let unsupported = |path: &str| ApiError::bad_request(format!("field label not supported: {path}"));
        let places = fields.terms().iter().map(|t| place(&t.path).ok_or_else(|| unsupported(&t.path)));
        let places = places.collect::<Result<_, _>>()?;
        let asked = fields.requires_exact("metadata.namespace").filter(|_| cache.resource.namespaced);
        let namespace = if namespace.is_empty() { asked.unwrap_or_default() } else { namespace }.to_owned();
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        Ok(Self { namespace, prefix, labels, fields, places })
    }

    /// Whether nothing but the namespace narrows the choice.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether an object is selected.
    pub fn matches(&self, entry: &Entry) -> bool {
        if !entry.key.starts_with(&self.prefix) {
            return false;
        }
        let fields = self.fields.terms().iter().zip(&self.places).all(|(term, place)| {
            let value = match place {
                Place::Name => Cow::Borrowed(entry.name()),
                Place::Namespace => Cow::Borrowed(entry.namespace()),
                Place::Field(i) => Cow::Borrowed(entry.fields[*i].as_str()),
            };
            (value == term.value.as_str()) != term.negated
        });
        fields && (self.labels.is_everything() || self.labels.matches(&entry.labels))
    }

    /// The one name that can match, if the selector demands one.
    pub fn name(&self) -> Option<&str> {
        self.fields.requires_exact("metadata.name")
    }

    /// The coarse choice for a watch.
    pub fn trigger(&self, cache: &Cache) -> Trigger {
        if let Some(name) = self.name()
            && (!cache.resource.namespaced || !self.namespace.is_empty())
        {
            return Trigger::Object(format!("{}{name}", self.prefix));
        }
        if let Some(value) = cache.indexed().and_then(|_| self.fields.requires_exact("spec.nodeName"))
            && !value.is_empty()
        {
            return Trigger::Field(value.to_owned());
        }
        if self.namespace.is_empty() { Trigger::All } else { Trigger::Namespace(self.namespace.clone()) }
    }

    /// The selected objects after the key `after` (empty: from the first), at most `limit` (0: all).
    pub fn select(&self, objects: &Objects, after: &str, limit: usize) -> Selected {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let limit = if limit == 0 { usize::MAX } else { limit };
        let from = if after.is_empty() { Included(self.prefix.as_str()) } else { Excluded(after) };
        let mut range = objects
            .range::<_, str>((from, Unbounded))
            .map(|(_, entry)| entry)
            .take_while(|entry| entry.key.starts_with(&self.prefix));
        let mut entries = Vec::new();
        while entries.len() < limit {
            match range.next() {
                Some(entry) if self.is_everything() || self.matches(entry) => entries.push(entry.clone()),
                Some(_) => {}
                None => return Selected { entries, more: false, remaining: None },
            }
        }
        if self.is_everything() {
            let remaining = range.count();
            return Selected { entries, more: remaining > 0, remaining: Some(remaining) };
        }
        let more = range.any(|entry| self.matches(entry));
        Selected { entries, more, remaining: None }
    }
}

/// One page.
pub struct Selected {
    pub entries: Vec<std::sync::Arc<Entry>>,
    /// Whether the limit cut something off.
    pub more: bool,
    /// How much, where that is known.
    pub remaining: Option<usize>,
}
