//! Selection of the objects of a kind that a request asks for, decided on what the cache extracted.

use std::borrow::Cow;
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use apiserver_registry::Resource;
use apiserver_registry::{FieldSelector, LabelSelector};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use crate::clients::budget::{Budget, Charge};
use crate::errors::too_many_requests;
use crate::limits;
use crate::query::Query;
use crate::selection::{Entries, Selected};
use crate::view::View;
use apiserver_cache::{Cache, Entry, Past, Trigger};

/// Namespace, label selector and field selector of a list, watch or collection delete.
pub struct Filter {
    /// Empty: all.
    namespace: String,
    /// The prefix of the namespace's keys in the map.
    prefix: String,
    labels: LabelSelector,
    fields: FieldSelector,
    /// For each term of `fields` where its value is.
    places: Vec<Place>,
    /// True if `prefix` and a name form a key.
    named_by_prefix: bool,
    /// For the selectors, which live as long as the answer.
    _charge: Option<Charge>,
}

#[derive(Clone, Copy)]
enum Place {
    Name,
    Namespace,
    Field(usize),
}

impl Filter {
    /// Reads `labelSelector` and `fieldSelector`; errors are 400. `name`: the one object that the
    /// path or the field selector names; empty if there is none. 429 where the budget has no room for
    /// selectors of that length.
    pub fn parse(
        cache: &Cache,
        namespace: &str,
        name: &str,
        query: &Query,
        budget: &Budget,
    ) -> Result<Arc<Self>, ApiError> {
        let length = |name: &str| query.get(name).map_or(0, str::len);
        let bytes = limits::HELD_BY_SELECTOR * (length("labelSelector") + length("fieldSelector"));
        let charge = budget.try_charge(bytes).ok_or_else(too_many_requests)?;
        let labels =
            query.get("labelSelector").map_or(Ok(LabelSelector::everything()), LabelSelector::parse)?;
        let mut fields =
            query.get("fieldSelector").map_or(Ok(FieldSelector::everything()), FieldSelector::parse)?;
        if !name.is_empty() && fields.is_everything() {
            fields = FieldSelector::exact("metadata.name", name);
        }
        let place = |path: &str| match path {
            "metadata.name" => Ok(Place::Name),
            "metadata.namespace" if has_namespace(&cache.resource) => Ok(Place::Namespace),
            other => cache.fields.index(other).map(Place::Field).ok_or_else(|| unsupported(cache, other)),
        };
        let places = fields.terms().iter().map(|t| place(&t.path)).collect::<Result<_, _>>()?;
        if !name.is_empty() && fields.requires_exact("metadata.name") != Some(name) {
            return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        let asked = fields.requires_exact("metadata.namespace").filter(|_| cache.resource.namespaced);
        let namespace = if namespace.is_empty() { asked.unwrap_or_default() } else { namespace }.to_owned();
        let namespace = if cache.resource.namespaced { namespace } else { String::new() };
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let named_by_prefix = !cache.resource.namespaced || !namespace.is_empty();
        let _charge = Some(charge);
        Ok(Arc::new(Self { namespace, prefix, labels, fields, places, named_by_prefix, _charge }))
    }

    /// Returns the prefix of the collection's keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns `true` if only the namespace narrows the selection.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Returns `true` if an object is selected.
    pub fn matches(&self, entry: &Entry) -> bool {
        if !entry.key.starts_with(&self.prefix) {
            return false;
        }
        let fields = self.fields.terms().iter().zip(&self.places).all(|(term, place)| {
            let value = match place {
                Place::Name => Cow::Borrowed(entry.name()),
                Place::Namespace => Cow::Borrowed(entry.namespace()),
                Place::Field(i) => Cow::Borrowed(entry.field(*i)),
            };
            (value == term.value.as_str()) != term.negated
        });
        fields && (self.labels.is_everything() || self.labels.matches_with(|key| entry.label(key)))
    }

    /// Returns `true` if it selects by more than name and namespace.
    pub fn looks_inside(&self) -> bool {
        !self.labels.is_everything() || self.places.iter().any(|place| matches!(place, Place::Field(_)))
    }

    /// Returns the part of the filter that selects by name and namespace.
    pub fn outside(&self) -> Arc<Self> {
        let keep = |place: &Place| !matches!(place, Place::Field(_));
        let terms = self.fields.terms().iter().zip(&self.places).filter(|(_, place)| keep(place));
        Arc::new(Self {
            namespace: self.namespace.clone(),
            prefix: self.prefix.clone(),
            labels: LabelSelector::everything(),
            fields: FieldSelector::of(terms.map(|(term, _)| term.clone()).collect()),
            places: self.places.iter().copied().filter(keep).collect(),
            named_by_prefix: self.named_by_prefix,
            // A caller that looks inside also holds this filter, which is charged.
            _charge: None,
        })
    }

    /// Returns `true` if an object of a custom kind, in the right namespace already, is selected.
    pub fn matches_value(&self, object: &Value) -> bool {
        let fields = self.fields.terms().iter().zip(&self.places).all(|(term, place)| {
            let value = match place {
                Place::Name => meta::name(object).to_owned(),
                Place::Namespace => meta::namespace(object).to_owned(),
                Place::Field(_) => match term.path.split('.').try_fold(object, |value, key| value.get(key)) {
                    None | Some(Value::Null) => String::new(),
                    Some(Value::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                },
            };
            (value == term.value) != term.negated
        });
        fields && self.labels.matches_object(object)
    }

    /// Returns the one name that can match, if the selector demands one.
    pub fn name(&self) -> Option<&str> {
        self.fields.requires_exact("metadata.name")
    }

    /// Returns the coarse choice for a watch.
    pub fn trigger(&self, cache: &Cache) -> Trigger {
        if let Some(name) = self.name().filter(|_| self.named_by_prefix) {
            return Trigger::Object(format!("{}{name}", self.prefix));
        }
        if let Some(value) = cache.indexed().and_then(|_| self.node())
            && !value.is_empty()
        {
            return Trigger::Field(value.to_owned());
        }
        if self.namespace.is_empty() { Trigger::All } else { Trigger::Namespace(self.namespace.clone()) }
    }

    /// Returns the value of the field by which kinds are indexed, if it is required.
    fn node(&self) -> Option<&str> {
        self.fields.requires_exact("spec.nodeName").or_else(|| self.fields.requires_exact("spec.host"))
    }

    /// Returns the objects from a key on among which the selected ones are, in the order of their keys.
    pub fn range<'a>(
        &'a self,
        past: &'a Past,
        from: &'a str,
    ) -> Box<dyn Iterator<Item = &'a Arc<Entry>> + 'a> {
        let below = |entry: &&Arc<Entry>| entry.key.starts_with(&self.prefix);
        if let Some(name) = self.name().filter(|_| self.named_by_prefix) {
            let key = format!("{}{name}", self.prefix);
            let one = past.objects.get(key.as_str()).filter(|_| *key >= *from);
            return Box::new(one.into_iter());
        }
        if let (Some(index), Some(value)) = (&past.index, self.node()) {
            return Box::new(index.range(value, from).take_while(below));
        }
        let all = past.objects.range::<_, str>((Included(from), Unbounded)).map(|(_, entry)| entry);
        Box::new(all.take_while(below))
    }

    /// Returns the selected objects from the key `start` below the collection's own on (empty: from the
    /// first), at most `limit` (0: all).
    pub fn select(self: &Arc<Self>, view: &View, start: &str, limit: usize) -> Selected {
        let from = format!("{}{start}", self.prefix);
        if limit == 0 {
            let entries = Entries::span(&view.past, self, from, None);
            return Selected { entries, last: None, remaining: None };
        }
        let everything = self.is_everything();
        let mut selected = self.range(&view.past, &from).filter(|entry| everything || self.matches(entry));
        let (mut last, mut count) = (None, 0);
        for entry in selected.by_ref().take(limit) {
            (last, count) = (Some(&entry.key), count + 1);
        }
        let known = if from.is_empty() {
            Some(view.past.objects.len())
        } else {
            view.counted.get(&self.mark(&from)).copied()
        };
        let remaining = everything.then(|| match known {
            Some(known) => known.saturating_sub(count),
            None if count < limit => 0,
            None => selected.by_ref().count(),
        });
        let more = remaining.map_or_else(|| selected.next().is_some(), |remaining| remaining > 0);
        let last = last.filter(|_| more).map(Arc::clone);
        drop(selected);
        let entries = Entries::span(&view.past, self, from, last.clone());
        Selected { entries, last, remaining }
    }

    /// Returns the key for counts in [`View::counted`]: the objects of this collection from a key on.
    pub fn mark(&self, from: &str) -> String {
        format!("{} {from}", self.prefix)
    }
}

/// Returns `true` if objects can be selected by namespace: kinds without selectable fields of their own accept
/// that field whether they have a namespace or not.
fn has_namespace(resource: &Resource) -> bool {
    resource.namespaced || (resource.custom.is_none() && resource.selectable.is_empty())
}

/// 400, in the words of the kind.
fn unsupported(cache: &Cache, field: &str) -> ApiError {
    let resource = &cache.resource;
    ApiError::bad_request(if resource.custom.is_some() || !resource.selectable.is_empty() {
        match resource.kind.as_str() {
            kind @ ("Job" | "ReplicaSet") if resource.custom.is_none() => {
                format!("field label {field:?} not supported for {kind}")
            }
            _ => format!("field label not supported: {field}"),
        }
    } else {
        format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    })
}
