//! An object as the cache keeps it: its encoding, and what selectors ask about, extracted once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use apiserver_api::meta;
use apiserver_api::protobuf::{self, Backward, Borrowed, Message, Unencodable};
use apiserver_store::Revision;
use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::text::{Places, Text, Word};

const ADDED: &[u8] = br#"{"type":"ADDED","object":"#;
const MODIFIED: &[u8] = br#"{"type":"MODIFIED","object":"#;
const DELETED: &[u8] = br#"{"type":"DELETED","object":"#;
const END: &[u8] = b"}\n";
const VERSION: &[u8] = br#""resourceVersion":""#;

/// Stored bytes are not an object of the API.
#[derive(Debug, thiserror::Error)]
#[error("{key} does not hold a JSON object with metadata")]
pub struct Unreadable {
    /// Key in the store.
    pub key: String,
    #[source]
    pub cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// An object cannot be written in protobuf.
#[derive(Debug, thiserror::Error)]
#[error("{key} cannot be written in protobuf")]
pub struct Untranslatable {
    /// Key in the cache.
    pub key: String,
    #[source]
    pub cause: Unencodable,
}

/// What a watch event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    /// As on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One object. The bytes are those of a watch event, so that neither a list nor a watch copies
/// more than it sends; the object is a slice of them.
pub struct Entry {
    /// `NAMESPACE/NAME`, or `NAME`.
    pub key: Arc<str>,
    /// Mod revision.
    pub revision: Revision,
    /// `metadata.uid`
    uid: Text,
    /// Labels, in the order of their keys.
    labels: Box<[(Text, Text)]>,
    /// Values of the selectable fields, in the order of [`Fields`].
    fields: Box<[Text]>,
    frame: Bytes,
    /// Where the object begins in `frame`.
    start: usize,
    /// Where the digits of the resource version are in `frame`.
    version: (usize, usize),
    /// Bytes of the object's message in protobuf, once somebody has counted them; else 0.
    protobuf_len: AtomicU32,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(default, borrow)]
    labels: Option<BTreeMap<Word<'a>, Word<'a>>>,
    #[serde(default, borrow)]
    uid: Option<Word<'a>>,
    #[serde(default)]
    resource_version: Option<IgnoredAny>,
}

impl Entry {
    /// Reads stored bytes. `added` says which event the encoding is prepared for.
    pub fn read(
        key: Arc<str>,
        revision: Revision,
        stored: &[u8],
        fields: &Fields,
        added: bool,
    ) -> Result<Self, Unreadable> {
        let bad = |cause: Option<serde_json::Error>| {
            let cause = cause.map(|error| Box::new(error) as Box<dyn std::error::Error + Send + Sync>);
            Unreadable { key: key.to_string(), cause }
        };
        let text = std::str::from_utf8(stored).map_err(|_| bad(None))?;
        let head: Head<'_> = serde_json::from_str(text).map_err(|e| bad(Some(e)))?;
        let meta: Meta<'_> = serde_json::from_str(head.metadata.get()).map_err(|e| bad(Some(e)))?;
        if meta.resource_version.is_some() {
            // Foreign data: take the field out and read again.
            let mut value: Value = serde_json::from_str(text).map_err(|e| bad(Some(e)))?;
            if let Some(map) = value["metadata"].as_object_mut() {
                map.remove("resourceVersion");
            }
            return Self::read(key, revision, value.to_string().as_bytes(), fields, added);
        }
        let at = head.metadata.get().as_ptr() as usize - text.as_ptr() as usize + 1;
        let empty = head.metadata.get()[1..].trim_start() == "}";
        let intro = if added { ADDED } else { MODIFIED };
        let mut frame = BytesMut::with_capacity(intro.len() + text.len() + VERSION.len() + 24);
        frame.put_slice(intro);
        frame.put_slice(&stored[..at]);
        let begun = frame.len();
        frame.put_slice(VERSION);
        let from = frame.len();
        frame.put_slice(revision.to_string().as_bytes());
        let to = frame.len();
        frame.put_u8(b'"');
        if !empty {
            frame.put_u8(b',');
        }
        let places = Places { stored: text, before: intro.len(), from: at, inserted: frame.len() - begun };
        frame.put_slice(&stored[at..]);
        frame.put_slice(END);
        let labels = meta.labels.into_iter().flatten();
        Ok(Self {
            key,
            revision,
            uid: places.keep(meta.uid.as_ref().map_or("", |uid| &uid.0)),
            labels: labels.map(|(key, value)| (places.keep(&key.0), places.keep(&value.0))).collect(),
            fields: fields.extract(text).iter().map(|value| places.keep(value)).collect(),
            frame: frame.freeze(),
            start: intro.len(),
            version: (from, to),
            protobuf_len: AtomicU32::new(0),
        })
    }

    /// `metadata.uid`, empty if there is none.
    pub fn uid(&self) -> &str {
        self.uid.get(&self.frame)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(label, _)| label.get(&self.frame).cmp(key)).ok()?;
        Some(self.labels[at].1.get(&self.frame))
    }

    /// The value of the selectable field at this place in [`Fields`].
    pub fn field(&self, place: usize) -> &str {
        self.fields.get(place).map_or("", |field| field.get(&self.frame))
    }

    /// The object with its resource version, JSON.
    pub fn object(&self) -> Bytes {
        self.frame.slice(self.start..self.frame.len() - END.len())
    }

    /// Bytes of [`Entry::object`].
    pub fn object_len(&self) -> usize {
        self.frame.len() - END.len() - self.start
    }

    /// The object without a copy.
    pub fn object_slice(&self) -> &[u8] {
        &self.frame[self.start..self.frame.len() - END.len()]
    }

    /// The object with another resource version, as a deletion carries it.
    pub fn object_at(&self, revision: Revision) -> Bytes {
        let mut out = BytesMut::with_capacity(self.frame.len() + 8);
        self.put_at(&mut out, revision);
        out.freeze()
    }

    fn put_at(&self, out: &mut BytesMut, revision: Revision) {
        out.put_slice(&self.frame[self.start..self.version.0]);
        out.put_slice(revision.to_string().as_bytes());
        out.put_slice(&self.frame[self.version.1..self.frame.len() - END.len()]);
    }

    /// The watch event that adds the object.
    pub fn added(&self) -> Bytes {
        if self.start == ADDED.len() { self.frame.clone() } else { framed(ADDED, self.object_slice()) }
    }

    /// The watch event that changes the object.
    pub fn modified(&self) -> Bytes {
        if self.start == MODIFIED.len() { self.frame.clone() } else { framed(MODIFIED, self.object_slice()) }
    }

    /// The watch event that says that this object, last seen so, went at `revision`.
    pub fn deleted(&self, revision: Revision) -> Bytes {
        let mut out = BytesMut::with_capacity(self.frame.len() + 16);
        out.put_slice(DELETED);
        self.put_at(&mut out, revision);
        out.put_slice(END);
        out.freeze()
    }

    /// The object decoded, with another resource version if one is given.
    pub fn value(&self, revision: Option<Revision>) -> Value {
        // The bytes were read when the entry was made, so they can be read again.
        let mut value = serde_json::from_slice(self.object_slice()).unwrap_or(Value::Null);
        if let Some(revision) = revision {
            meta::set(&mut value, "resourceVersion", revision.to_string());
        }
        value
    }

    /// Its metadata as it is encoded; the rest is only skipped.
    pub fn metadata_text(&self) -> &str {
        serde_json::from_str(text_in(self.object_slice())).map_or("{}", |head: Head<'_>| head.metadata.get())
    }

    /// Its metadata decoded.
    pub fn metadata(&self) -> Value {
        serde_json::from_str(self.metadata_text()).unwrap_or(Value::Null)
    }

    /// Puts the object's message, without an envelope, into `out`. Nothing of it is kept but its
    /// length.
    pub fn put_protobuf(&self, out: &mut Backward, message: Message) -> Result<(), Untranslatable> {
        let before = out.len();
        let object = Borrowed::parse(text_in(self.object_slice())).unwrap_or(Borrowed::Null);
        protobuf::encode_into(out, message, &object).map_err(|cause| self.untranslatable(cause))?;
        self.protobuf_len.store(u32::try_from(out.len() - before).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of the object's message, if they have been counted.
    pub fn protobuf_len(&self) -> Option<usize> {
        Some(self.protobuf_len.load(Ordering::Relaxed) as usize).filter(|length| *length > 0)
    }

    /// The watch event in protobuf, of this object as it was at `revision`.
    pub fn protobuf_frame(
        &self,
        event: EventType,
        revision: Option<Revision>,
        message: Message,
    ) -> Result<Bytes, Untranslatable> {
        let object = revision.map_or_else(|| self.object(), |revision| self.object_at(revision));
        let object = Borrowed::parse(text_in(&object)).unwrap_or(Borrowed::Null);
        protobuf::watch_frame(event.name(), message, &object)
            .map(Bytes::from)
            .map_err(|cause| self.untranslatable(cause))
    }

    /// The error of this object.
    pub fn untranslatable(&self, cause: Unencodable) -> Untranslatable {
        Untranslatable { key: self.key.to_string(), cause }
    }

    /// Namespace, empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }
}

/// The text of an object. The bytes were read when the entry was made, so they can be read again.
fn text_in(object: &[u8]) -> &str {
    std::str::from_utf8(object).unwrap_or_default()
}

fn framed(intro: &[u8], object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(intro.len() + object.len() + END.len());
    out.put_slice(intro);
    out.put_slice(object);
    out.put_slice(END);
    out.freeze()
}

/// The selectable fields of a kind, as a tree, so that one pass over the bytes finds them all.
#[derive(Default)]
pub struct Fields {
    names: Vec<String>,
    root: Node,
    /// Names are paths and nothing else, and absent fields are empty: custom resources.
    plain: bool,
}

#[derive(Default)]
struct Node {
    children: BTreeMap<String, Node>,
    /// Places of the fields that end here, times two, plus one where the path is the field's
    /// second; two names may mean one path.
    leaves: Vec<usize>,
}

impl Fields {
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
        Self { names: names.iter().map(|n| n.as_ref().to_owned()).collect(), root, plain }
    }

    /// The place of a field in [`Entry::fields`].
    pub fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// The values, in order; a field that is absent has the value of its type's zero.
    pub fn extract<'a>(&self, text: &'a str) -> Vec<Cow<'a, str>> {
        let mut found: Vec<Option<Cow<'a, str>>> = vec![None; 2 * self.names.len()];
        if !self.names.is_empty() {
            // The caller has parsed the same text, so this cannot fail half way.
            let _ = Pick { node: &self.root, found: &mut found }
                .deserialize(&mut serde_json::Deserializer::from_str(text));
        }
        let first =
            |pair: &[Option<Cow<'a, str>>]| pair.iter().flatten().find(|text| !text.is_empty()).cloned();
        let values = self.names.iter().zip(found.chunks(2));
        let absent = |name: &str| Cow::Borrowed(if self.plain { "" } else { absent(name) });
        values.map(|(name, pair)| first(pair).unwrap_or_else(|| absent(name))).collect()
    }
}

/// Where a selectable field is found in the object: at the first path that holds a value.
fn paths_of(field: &str) -> [&str; 2] {
    match field {
        "spec.host" => ["spec.nodeName", "spec.host"],
        "status.successful" => ["status.succeeded", "status.successful"],
        // Events name the component in one of two ways.
        "source" => ["source.component", "reportingComponent"],
        "reportingComponent" => ["reportingComponent", "source.component"],
        other => [other, other],
    }
}

fn absent(field: &str) -> &'static str {
    match field {
        "spec.unschedulable" | "spec.hostNetwork" => "false",
        "status.replicas" | "status.successful" => "0",
        _ => "",
    }
}

struct Pick<'n, 'f, 'de> {
    node: &'n Node,
    found: &'f mut Vec<Option<Cow<'de, str>>>,
}

impl<'de> DeserializeSeed<'de> for Pick<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.node.children.is_empty() {
            let text = text_of(<&RawValue>::deserialize(deserializer)?.get());
            for &i in &self.node.leaves {
                self.found[i].clone_from(&text);
            }
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

/// The text of a value: a string without escapes as it stands there.
fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    if let Some(inner) = inner.filter(|inner| !inner.contains('\\')) {
        return Some(Cow::Borrowed(inner));
    }
    match serde_json::from_str(raw).unwrap_or(Value::Null) {
        Value::String(text) => Some(Cow::Owned(text)),
        Value::Null => None,
        Value::Array(list) => Some(Cow::Owned(join(&list))),
        other => Some(Cow::Owned(other.to_string())),
    }
}

/// `status.podIPs` and its like: the addresses with commas.
fn join(list: &[Value]) -> String {
    let texts: Vec<&str> = list.iter().filter_map(|v| v.as_str().or_else(|| v["ip"].as_str())).collect();
    texts.join(",")
}

impl<'de> Visitor<'de> for Pick<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.node.children.get(key.as_ref()) {
                Some(node) => map.next_value_seed(Pick { node, found: self.found })?,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stored: &str, fields: &[&str]) -> Entry {
        Entry::read("ns/a".into(), 42, stored.as_bytes(), &Fields::new(fields), true).unwrap()
    }

    #[test]
    fn the_resource_version_is_spliced_in_and_replaced_on_deletion() {
        let entry = read(r#"{"kind":"Pod","metadata":{"name":"a","labels":{"x":"y"}},"spec":{}}"#, &[]);
        let object: Value = serde_json::from_slice(&entry.object()).unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], "42");
        assert_eq!((entry.label("x"), entry.label("y")), (Some("y"), None));
        let event: Value = serde_json::from_slice(&entry.deleted(1000)).unwrap();
        assert_eq!(event["type"], "DELETED");
        assert_eq!(event["object"]["metadata"]["resourceVersion"], "1000");
        assert_eq!(event["object"]["metadata"]["name"], "a");
        let event: Value = serde_json::from_slice(&entry.modified()).unwrap();
        assert_eq!(event["type"], "MODIFIED");
    }

    #[test]
    fn empty_metadata_and_a_foreign_resource_version_are_handled() {
        let entry = read(r#"{"metadata":{}}"#, &[]);
        assert_eq!(&entry.object()[..], br#"{"metadata":{"resourceVersion":"42"}}"#);
        let entry = read(r#"{"metadata":{"resourceVersion":"7","name":"a"}}"#, &[]);
        let object: Value = serde_json::from_slice(&entry.object()).unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], "42");
    }

    #[test]
    fn fields_are_found_in_one_pass_and_absent_ones_have_their_zero() {
        let fields = ["spec.nodeName", "status.phase", "spec.unschedulable", "status.podIPs"];
        let entry = read(
            r#"{"metadata":{"name":"a"},"spec":{"containers":[{"nodeName":"no"}],"nodeName":"n1"},
               "status":{"podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}}"#,
            &fields,
        );
        let values: Vec<&str> = (0..4).map(|place| entry.field(place)).collect();
        assert_eq!(values, ["n1", "", "false", "10.0.0.1,fd00::1"]);
    }

    /// Labels and fields are found in the encoding, on either side of the version that was put in.
    #[test]
    fn texts_are_found_wherever_metadata_stands() {
        let spec = r#""spec":{"nodeName":"n1","host":"a\"b"}"#;
        let meta = r#""metadata":{"uid":"u-1","labels":{"z":"1","a":"\u0062","m":""}}"#;
        for stored in [format!("{{{spec},{meta}}}"), format!("{{{meta},{spec}}}")] {
            for added in [true, false] {
                let fields = Fields::plain(&["spec.nodeName", "spec.host"]);
                let entry = Entry::read("ns/a".into(), 1_000_000, stored.as_bytes(), &fields, added).unwrap();
                assert_eq!((entry.uid(), entry.field(0), entry.field(1)), ("u-1", "n1", "a\"b"));
                let labels = ["z", "a", "m", "x"].map(|key| entry.label(key));
                assert_eq!(labels, [Some("1"), Some("b"), Some(""), None]);
            }
        }
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        assert!(Entry::read("a".into(), 1, b"k8s\0...", &Fields::default(), true).is_err());
        assert!(Entry::read("a".into(), 1, b"[]", &Fields::default(), true).is_err());
    }
}
