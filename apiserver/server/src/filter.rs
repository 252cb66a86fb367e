//! Which objects of a kind a request selects, decided on what the cache extracted.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use apiserver_api::error::ApiError;
use apiserver_api::meta;
use apiserver_api::registry::Resource;
use apiserver_api::selector::{FieldSelector, LabelSelector};
use serde_json::Value;

use crate::cache::{Cache, Entry, Objects, Trigger};
use crate::query::Query;
use crate::verbs::view::View;

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
    /// Whether `prefix` and a name are a key.
    named_by_prefix: bool,
}

#[derive(Clone, Copy)]
enum Place {
    Name,
    Namespace,
    Field(usize),
}

impl Filter {
    /// Reads `labelSelector` and `fieldSelector`; errors are 400. `name`: the one object that the
    /// path or the field selector names; empty if there is none.
    pub fn parse(cache: &Cache, namespace: &str, name: &str, query: &Query) -> Result<Arc<Self>, ApiError> {
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
        Ok(Arc::new(Self { namespace, prefix, labels, fields, places, named_by_prefix }))
    }

    /// Where the keys of the collection begin.
    pub fn prefix(&self) -> &str {
        &self.prefix
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
                Place::Field(i) => Cow::Borrowed(entry.field(*i)),
            };
            (value == term.value.as_str()) != term.negated
        });
        fields && (self.labels.is_everything() || self.labels.matches_with(|key| entry.label(key)))
    }

    /// Whether it asks for more than the place of an object.
    pub fn looks_inside(&self) -> bool {
        !self.labels.is_everything() || self.places.iter().any(|place| matches!(place, Place::Field(_)))
    }

    /// What it asks for of the place of an object.
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
        })
    }

    /// Whether an object of a custom kind is selected that is in the namespace.
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

    /// The one name that can match, if the selector demands one.
    pub fn name(&self) -> Option<&str> {
        self.fields.requires_exact("metadata.name")
    }

    /// The coarse choice for a watch.
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

    /// The value that the field demands by which kinds are indexed.
    fn node(&self) -> Option<&str> {
        self.fields.requires_exact("spec.nodeName").or_else(|| self.fields.requires_exact("spec.host"))
    }

    /// The selected objects from the key `start` below the collection's own on (empty: from the
    /// first), at most `limit` (0: all).
    pub fn select(self: &Arc<Self>, view: &View, start: &str, limit: usize) -> Selected {
        let from = format!("{}{start}", self.prefix);
        let below = |entry: &&Arc<Entry>| entry.key.starts_with(&self.prefix);
        if let Some(name) = self.name().filter(|_| self.named_by_prefix) {
            let key = format!("{}{name}", self.prefix);
            let one = view.objects.get(key.as_str()).filter(|_| key >= from);
            return self.chosen(one.into_iter(), limit);
        }
        if let (Some(index), Some(value)) = (&view.index, self.node()) {
            return self.chosen(index.range(value, &from).take_while(below), limit);
        }
        if limit == 0 {
            let walk = Walk { objects: view.objects.clone(), filter: Arc::clone(self), from };
            let entries = Entries { ready: VecDeque::new(), walk: Some(walk) };
            return Selected { entries, last: None, remaining: None };
        }
        let all = view.objects.range::<_, str>((Included(from.as_str()), Unbounded)).map(|(_, entry)| entry);
        let mut all = all.take_while(below);
        if !self.is_everything() {
            return self.chosen(all, limit);
        }
        let entries: VecDeque<_> = all.by_ref().take(limit).cloned().collect();
        let known = if from.is_empty() {
            Some(view.objects.len())
        } else {
            view.counted.get(&self.mark(&from)).copied()
        };
        let remaining = match known {
            Some(known) => known.saturating_sub(entries.len()),
            None if entries.len() < limit => 0,
            None => all.count(),
        };
        Selected::page(entries, remaining > 0, Some(remaining))
    }

    /// What is counted of a state, in [`View::counted`]: the objects of this collection from a key on.
    pub fn mark(&self, from: &str) -> String {
        format!("{} {from}", self.prefix)
    }

    fn chosen<'a>(&self, range: impl Iterator<Item = &'a Arc<Entry>>, limit: usize) -> Selected {
        let mut range = range.filter(|entry| self.matches(entry));
        let entries = range.by_ref().take(if limit == 0 { usize::MAX } else { limit }).cloned().collect();
        Selected::page(entries, range.next().is_some(), None)
    }
}

/// Whether objects can be asked for by a namespace: kinds without selectable fields of their own
/// take it whether they have one or not.
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

/// One page, or all.
pub struct Selected {
    pub entries: Entries,
    /// The last of the page's objects, if the limit cut something off behind it.
    pub last: Option<Arc<Entry>>,
    /// How much, where that is known.
    pub remaining: Option<usize>,
}

impl Selected {
    /// A page of these; `more` if the limit cut something off behind them.
    pub fn page(ready: VecDeque<Arc<Entry>>, more: bool, remaining: Option<usize>) -> Self {
        let last = ready.back().filter(|_| more).cloned();
        Self { entries: Entries { ready, walk: None }, last, remaining }
    }
}

/// The objects selected, one after the other. Those of a whole collection are looked up in its
/// state as they are asked for, so that they take no memory until then.
#[derive(Clone)]
pub struct Entries {
    ready: VecDeque<Arc<Entry>>,
    walk: Option<Walk>,
}

#[derive(Clone)]
struct Walk {
    objects: Objects,
    filter: Arc<Filter>,
    /// The next key, or one before it.
    from: String,
}

/// So many objects are looked up at one time.
const STRIDE: usize = 64;

impl Entries {
    /// These objects.
    pub fn of(entries: Vec<Arc<Entry>>) -> Self {
        Self { ready: entries.into(), walk: None }
    }

    /// Whether there are no more.
    pub fn is_empty(&mut self) -> bool {
        self.fill();
        self.ready.is_empty()
    }

    /// Puts back what was taken last.
    pub fn put_back(&mut self, entry: Arc<Entry>) {
        self.ready.push_front(entry);
    }

    fn fill(&mut self) {
        let Some(walk) = self.walk.as_mut().filter(|_| self.ready.is_empty()) else { return };
        let filter = &walk.filter;
        let range = walk.objects.range::<_, str>((Included(walk.from.as_str()), Unbounded));
        let below = range.map(|(_, entry)| entry).take_while(|entry| entry.key.starts_with(&filter.prefix));
        let all = filter.is_everything();
        self.ready.extend(below.filter(|entry| all || filter.matches(entry)).take(STRIDE).cloned());
        match self.ready.back() {
            Some(last) if self.ready.len() == STRIDE => walk.from = format!("{}\0", last.key),
            _ => self.walk = None,
        }
    }
}

impl Iterator for Entries {
    type Item = Arc<Entry>;

    fn next(&mut self) -> Option<Arc<Entry>> {
        self.fill();
        self.ready.pop_front()
    }
}
