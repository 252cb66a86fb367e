//! The selectable fields of a kind, and how they are found: one pass over the text of an object finds the
//! places of its fields, its labels and its uid, and nothing is copied that occurs in the text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use apiserver_schema::ordered;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::shared::{Found, Pool, Values};

/// The findings about an object's metadata.
#[derive(Default)]
pub(super) struct Meta {
    /// The place of the labels.
    pub(super) labels: Option<Range<usize>>,
    pub(super) uid: Option<Found>,
    pub(super) has_version: bool,
    /// The brace that begins them, if a field follows it directly.
    pub(super) begin: Option<usize>,
    /// The beginning of the first field after the place of the resource version.
    pub(super) version: Option<usize>,
}

/// Returns the range of a part of a text.
pub(super) fn place_in(text: &str, part: &str) -> Range<usize> {
    let at = part.as_ptr() as usize - text.as_ptr() as usize;
    at..at + part.len()
}

/// The selectable fields of a kind, as a tree, so that one pass over the bytes finds them all.
#[derive(Default)]
pub struct Fields {
    names: Vec<String>,
    pub(super) root: Node,
    /// Names are paths and nothing else, and absent fields are empty: custom resources.
    plain: bool,
    /// The values that the objects share.
    pub(super) pool: Pool,
}

/// One step of the paths to fields.
#[derive(Default)]
pub(super) struct Node {
    children: BTreeMap<String, Node>,
    /// Places of the fields that end here, times two, plus one where the path is the field's
    /// second; two names may mean one path.
    leaves: Vec<usize>,
}

impl Fields {
    /// Forgets labels and values that no object has any more.
    pub fn forget_unused(&self) {
        self.pool.forget_unused();
    }

    /// `names` are paths such as `spec.nodeName`; some names of built-in kinds mean other paths.
    pub fn new<S: AsRef<str>>(names: &[S]) -> Self {
        Self::with(names, false)
    }

    /// `names` are paths and nothing else.
    pub fn plain<S: AsRef<str>>(names: &[S]) -> Self {
        Self::with(names, true)
    }

    fn with<S: AsRef<str>>(names: &[S], plain: bool) -> Self {
        let mut root = Node::default();
        for (i, name) in names.iter().enumerate() {
            let name = name.as_ref();
            let paths = if plain { [name, name] } else { paths_of(name) };
            for (rank, path) in paths.into_iter().enumerate() {
                let mut node = &mut root;
                for part in path.split('.') {
                    node = node.children.entry(part.to_owned()).or_default();
                }
                node.leaves.push(2 * i + rank);
            }
        }
        let names = names.iter().map(|n| n.as_ref().to_owned()).collect();
        Self { names, root, plain, pool: Pool::default() }
    }

    /// The place of a field, for [`Entry::field`].
    pub fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Returns room for the values found at the paths.
    pub(super) fn nothing(&self) -> Vec<Option<Found>> {
        vec![None; 2 * self.names.len()]
    }

    /// The uid and the values, in order; a field that is absent has the value of its type's zero.
    pub(super) fn values(&self, text: &str, uid: Option<Found>, found: &[Option<Found>]) -> Values {
        let first = |pair: &[Option<Found>]| pair.iter().flatten().find(|found| !found.is_empty()).cloned();
        let absent = |name: &str| Found::Made(if self.plain { String::new() } else { absent(name) });
        let fields = self.names.iter().zip(found.chunks(2));
        let fields = fields.map(|(name, pair)| first(pair).unwrap_or_else(|| absent(name)));
        let uid = uid.unwrap_or_else(|| Found::Made(String::new()));
        self.pool.values(text, std::iter::once(uid).chain(fields))
    }
}

/// Returns the paths of a selectable field in the object; the first path that holds a value counts.
fn paths_of(field: &str) -> [&str; 2] {
    match field {
        "spec.host" => ["spec.nodeName", "spec.host"],
        "status.successful" => ["status.succeeded", "status.successful"],
        // Events name the component in one of two ways.
        "source" => ["source.component", "reportingComponent"],
        "reportingComponent" => ["reportingComponent", "source.component"],
        "reportingController" => ["reportingController", "deprecatedSource.component"],
        other => [other, other],
    }
}

fn absent(field: &str) -> String {
    match field {
        "spec.unschedulable" | "spec.hostNetwork" => "false",
        "status.replicas" | "status.successful" => "0",
        _ => "",
    }
    .to_owned()
}

/// A key, borrowed from the text unless it has escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads a whole object once: finds its metadata, and the fields below the node.
pub(super) struct Scan<'n, 'f, 't> {
    pub(super) text: &'t str,
    pub(super) node: &'n Node,
    pub(super) found: &'f mut Vec<Option<Found>>,
}

impl<'de> DeserializeSeed<'de> for Scan<'_, '_, '_> {
    type Value = Meta;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_, '_, '_> {
    type Value = Meta;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = None;
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            let node = self.node.children.get(key.as_ref());
            if key == "metadata" {
                let sorted = !self.text.as_bytes().starts_with(ordered::BEGIN);
                let scan = ScanMetadata { text: self.text, sorted, node, found: &mut *self.found };
                metadata = Some(map.next_value_seed(scan)?);
            } else if let Some(node) = node {
                map.next_value_seed(Pick { text: self.text, node, found: &mut *self.found })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        metadata.ok_or_else(|| serde::de::Error::missing_field("metadata"))
    }
}

/// Reads the metadata in the same pass.
struct ScanMetadata<'n, 'f, 't> {
    text: &'t str,
    /// `true` if the keys are in the order of their names.
    sorted: bool,
    node: Option<&'n Node>,
    found: &'f mut Vec<Option<Found>>,
}

impl<'de> DeserializeSeed<'de> for ScanMetadata<'_, '_, '_> {
    type Value = Meta;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ScanMetadata<'_, '_, '_> {
    type Value = Meta;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut meta, mut is_first) = (Meta::default(), true);
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            if let Cow::Borrowed(key) = &key {
                // In front of the quote.
                let at = place_in(self.text, key).start - 1;
                if is_first {
                    meta.begin = self.text[..at].ends_with('{').then(|| at - 1);
                }
                if meta.version.is_none() && ordered::follows_version(key, self.sorted) {
                    meta.version = Some(at);
                }
            }
            is_first = false;
            let node = self.node.and_then(|node| node.children.get(key.as_ref()));
            let known = matches!(key.as_ref(), "labels" | "uid" | "resourceVersion");
            if !known {
                match node {
                    Some(node) => {
                        map.next_value_seed(Pick { text: self.text, node, found: &mut *self.found })?;
                    }
                    None => drop(map.next_value::<IgnoredAny>()?),
                }
                continue;
            }
            let value = map.next_value::<&'de RawValue>()?.get();
            match key.as_ref() {
                "labels" => meta.labels = Some(place_in(self.text, value)),
                "uid" => meta.uid = leaf(self.text, value).map_err(serde::de::Error::custom)?,
                // Null is none.
                _ => meta.has_version = value != "null",
            }
            if let Some(node) = node {
                let mut deserializer = serde_json::Deserializer::from_str(value);
                // It was read a moment ago, so it can be read again.
                let _ =
                    Pick { text: self.text, node, found: &mut *self.found }.deserialize(&mut deserializer);
            }
        }
        Ok(meta)
    }
}

struct Pick<'n, 'f, 't> {
    text: &'t str,
    node: &'n Node,
    found: &'f mut Vec<Option<Found>>,
}

impl<'de> DeserializeSeed<'de> for Pick<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.node.children.is_empty() {
            let value = <&'de RawValue>::deserialize(deserializer)?.get();
            let found = leaf(self.text, value).map_err(serde::de::Error::custom)?;
            for &i in &self.node.leaves {
                self.found[i].clone_from(&found);
            }
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

/// Returns the value that selectors compare, from JSON that is a part of `text`; `None` for null.
fn leaf(text: &str, json: &str) -> Result<Option<Found>, serde_json::Error> {
    if let Some(plain) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'))
        && !plain.contains('\\')
    {
        return Ok(Some(Found::There(place_in(text, plain))));
    }
    let made = match serde_json::from_str(json)? {
        Value::String(text) => text,
        Value::Null => return Ok(None),
        Value::Array(list) => join(&list),
        other => other.to_string(),
    };
    // Numbers, and lists of one, occur in the text too.
    Ok(Some(match json.find(&made) {
        Some(at) => Found::There(place_in(text, &json[at..at + made.len()])),
        None => Found::Made(made),
    }))
}

/// `status.podIPs` and its like: the addresses with commas.
fn join(list: &[Value]) -> String {
    let texts: Vec<&str> = list.iter().filter_map(|v| v.as_str().or_else(|| v["ip"].as_str())).collect();
    texts.join(",")
}

impl<'de> Visitor<'de> for Pick<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            match self.node.children.get(key.as_ref()) {
                Some(node) => {
                    map.next_value_seed(Pick { text: self.text, node, found: &mut *self.found })?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
