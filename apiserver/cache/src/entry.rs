//! An object as the cache keeps it: its encoding, and what selectors ask about, extracted once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_schema::ordered::Metadata;
use apiserver_schema::protobuf;
use apiserver_schema::protobuf::{Backward, Message, Object, Unencodable};
use apiserver_store::Revision;
use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::DeserializeSeed as _;
use serde_json::Value;
use serde_json::value::RawValue;

use super::fields::{Fields, Meta, Node, Scan, place_in};
use super::shared::{Found, Labels, Values};
use crate::encoding;

const ADDED: &[u8] = br#"{"type":"ADDED","object":"#;
const MODIFIED: &[u8] = br#"{"type":"MODIFIED","object":"#;
const DELETED: &[u8] = br#"{"type":"DELETED","object":"#;
const END: &[u8] = b"}\n";
/// The number of bytes that a label takes besides its text: two texts and their share of a node.
const LABEL: usize = 96;
/// An answer has room for the end of its line.
const LINE_END: usize = 1;
const VERSION: &[u8] = br#""resourceVersion":""#;
/// The text between a kind and a version.
const API_VERSION: &[u8] = br#"","apiVersion":""#;

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

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    /// Returns the type as on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One object. The bytes are those that the store keeps, shared with it if it keeps them as JSON, and the
/// resource version, which they lack, is inserted wherever the object is sent.
pub struct Entry {
    /// `NAMESPACE/NAME`, or `NAME`.
    pub key: Arc<str>,
    /// Mod revision.
    pub revision: Revision,
    /// Labels, in the order of their keys.
    labels: Arc<Labels>,
    /// `metadata.uid`, and values of the selectable fields in the order of [`Fields`].
    values: Values,
    /// The object without its resource version.
    stored: Bytes,
    splice: Splice,
    /// The number of bytes of the object's message in protobuf, once it has been counted; else 0.
    protobuf_len: AtomicU32,
}

/// The place at which the resource version is inserted. Objects are shorter than 4 GiB.
#[derive(Clone, Copy)]
struct Splice {
    /// The brace that begins the metadata.
    begin: u32,
    at: u32,
    beside: Beside,
}

/// The neighbour of the resource version, from which a comma divides it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A field in front of it, and none behind it.
    Before,
    /// A field behind it.
    Behind,
}

impl Splice {
    fn new(place: Metadata) -> Self {
        let short = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let beside = match place.followed {
            true => Beside::Behind,
            false if place.version > place.begin + 1 => Beside::Before,
            false => Beside::Nothing,
        };
        Self { begin: short(place.begin), at: short(place.version), beside }
    }

    fn at(self) -> usize {
        self.at as usize
    }

    fn begin(self) -> usize {
        self.begin as usize
    }

    /// Bytes of the object with that version.
    fn len(self, stored: &[u8], revision: Revision) -> usize {
        let comma = usize::from(self.beside != Beside::Nothing);
        stored.len() + VERSION.len() + digits(revision) + 1 + comma
    }

    /// Writes the text from `from` on, with the version at its place.
    fn put(self, out: &mut impl BufMut, stored: &[u8], from: usize, revision: Revision) {
        out.put_slice(&stored[from..self.at()]);
        if self.beside == Beside::Before {
            out.put_u8(b',');
        }
        out.put_slice(VERSION);
        let mut digits = [0; DIGITS];
        out.put_slice(decimal(revision, &mut digits));
        out.put_slice(if self.beside == Beside::Behind { b"\"," } else { b"\"" });
        out.put_slice(&stored[self.at()..]);
    }
}

/// Digits of the largest revision.
const DIGITS: usize = 19;

/// Returns the number of digits of a revision, which is not negative.
fn digits(revision: Revision) -> usize {
    revision.max(1).ilog10() as usize + 1
}

/// A revision in decimal, in the buffer.
fn decimal(revision: Revision, buffer: &mut [u8; DIGITS]) -> &[u8] {
    let (mut rest, mut at) = (revision.unsigned_abs(), DIGITS);
    while at > 0 {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    &buffer[at..]
}

impl Entry {
    /// Reads stored bytes.
    pub fn read(
        key: Arc<str>,
        revision: Revision,
        stored: Bytes,
        fields: &Fields,
    ) -> Result<Self, Unreadable> {
        let mut found = fields.nothing();
        let (stored, splice, meta) = open(&key, stored, &fields.root, &mut found)?;
        let text = text_in(&stored);
        let labels = meta.labels.and_then(|range| text.get(range)).unwrap_or("null");
        let labels = fields.pool.labels(labels).map_err(|error| bad(&key, Some(error)))?;
        let values = fields.values(text, meta.uid, &found);
        let protobuf_len = AtomicU32::new(0);
        Ok(Self { key, revision, labels, values, stored, splice, protobuf_len })
    }

    /// Stored bytes with their resource version, for an answer.
    pub fn answer(key: &str, revision: Revision, stored: Bytes) -> Result<Bytes, Unreadable> {
        let (stored, splice, _) = open(key, stored, &Node::default(), &mut Vec::new())?;
        let mut out = BytesMut::with_capacity(splice.len(&stored, revision) + LINE_END);
        splice.put(&mut out, &stored, 0, revision);
        Ok(out.freeze())
    }

    /// [`Entry::answer`] of bytes that this server has just written, without a resource version.
    pub fn answer_at(revision: Revision, stored: &Bytes, metadata: Metadata) -> Bytes {
        let splice = Splice::new(metadata);
        let mut out = BytesMut::with_capacity(splice.len(stored, revision) + LINE_END);
        splice.put(&mut out, stored, 0, revision);
        out.freeze()
    }

    /// Returns the approximate number of bytes of memory that the object takes: its text, its labels, and the
    /// fields besides them.
    pub fn weight(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| LABEL + key.len() + value.len()).sum();
        size_of::<Self>() + self.key.len() + self.stored.len() + labels + self.values.weight()
    }

    /// Returns `true` if the object's text contains this word; much cheaper than to decode it.
    pub fn mentions(&self, word: &str) -> bool {
        text_in(&self.stored).contains(word)
    }

    /// `metadata.uid`, empty if there is none.
    pub fn uid(&self) -> &str {
        self.values.get(0, &self.stored)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// The value of the selectable field at this place in [`Fields`].
    pub fn field(&self, place: usize) -> &str {
        self.values.get(place + 1, &self.stored)
    }

    /// The bytes of [`Entry::field`].
    pub fn field_bytes(&self, place: usize) -> &[u8] {
        self.values.bytes(place + 1, &self.stored)
    }

    /// The object with its resource version, JSON.
    pub fn object(&self) -> Bytes {
        self.object_at(self.revision)
    }

    /// Bytes of [`Entry::object`].
    pub fn object_len(&self) -> usize {
        self.splice.len(&self.stored, self.revision)
    }

    /// Adds the object to a buffer.
    pub fn put_object(&self, out: &mut BytesMut) {
        self.splice.put(out, &self.stored, 0, self.revision);
    }

    /// Adds the object to a buffer without its version and kind, which a list of built-in objects names
    /// for all of them.
    pub fn put_item(&self, out: &mut BytesMut) {
        match self.names_end() {
            Some(end) => {
                out.put_u8(b'{');
                self.splice.put(out, &self.stored, end, self.revision);
            }
            None => out.put_slice(ordered::json_text(&self.item()).as_bytes()),
        }
    }

    /// The object decoded, without its version and kind.
    pub fn item(&self) -> Value {
        let mut value = self.value(None);
        if let Value::Object(object) = &mut value {
            object.remove("apiVersion");
            object.remove("kind");
        }
        value
    }

    /// Returns the beginning of the first field after kind and version, which are the first fields of objects
    /// of built-in kinds.
    fn names_end(&self) -> Option<usize> {
        let head = &self.stored[..self.splice.begin()];
        let rest = head.strip_prefix(ordered::BEGIN)?.strip_prefix(b"\"")?;
        let length = rest.iter().position(|byte| *byte == b'"')?;
        let rest = rest[length..].strip_prefix(API_VERSION)?;
        let length = rest.iter().position(|byte| *byte == b'"')?;
        let rest = rest[length..].strip_prefix(b"\",")?;
        Some(head.len() - rest.len())
    }

    /// The object with another resource version, as a deletion carries it.
    pub fn object_at(&self, revision: Revision) -> Bytes {
        let mut out = BytesMut::with_capacity(self.splice.len(&self.stored, revision) + LINE_END);
        self.splice.put(&mut out, &self.stored, 0, revision);
        out.freeze()
    }

    /// The watch event that adds the object.
    pub fn added(&self) -> Bytes {
        self.framed(ADDED, self.revision)
    }

    /// The watch event that changes the object.
    pub fn modified(&self) -> Bytes {
        self.framed(MODIFIED, self.revision)
    }

    /// Returns the watch event that this object, last seen in this state, was deleted at `revision`.
    pub fn deleted(&self, revision: Revision) -> Bytes {
        self.framed(DELETED, revision)
    }

    fn framed(&self, intro: &[u8], revision: Revision) -> Bytes {
        let size = intro.len() + self.splice.len(&self.stored, revision) + END.len();
        let mut out = BytesMut::with_capacity(size);
        out.put_slice(intro);
        self.splice.put(&mut out, &self.stored, 0, revision);
        out.put_slice(END);
        out.freeze()
    }

    /// The object decoded, with another resource version if one is given.
    pub fn value(&self, revision: Option<Revision>) -> Value {
        // The bytes were read when the entry was made, so they can be read again.
        let mut value = serde_json::from_slice(&self.stored).unwrap_or(Value::Null);
        meta::set(&mut value, "resourceVersion", revision.unwrap_or(self.revision).to_string());
        value
    }

    /// Some of the object's fields, without its resource version.
    pub fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T, serde_json::Error> {
        serde_json::from_str(text_in(&self.stored))
    }

    /// Returns its metadata with the resource version, in the order of their type. Nothing else is read.
    pub fn metadata_text(&self) -> String {
        if self.stored.starts_with(ordered::BEGIN) {
            return self.stored_metadata();
        }
        let mut out = Vec::new();
        if let Some(message) = protobuf::message("meta/v1.ObjectMeta") {
            ordered::write_message(&mut out, message, &self.metadata());
        }
        String::from_utf8(out).unwrap_or_default()
    }

    /// Returns its metadata as they are stored, with the resource version.
    fn stored_metadata(&self) -> String {
        let begin = self.splice.begin();
        let mut rest = serde_json::Deserializer::from_slice(&self.stored[begin..]);
        let found = <&RawValue>::deserialize(&mut rest).map_or("{}", RawValue::get);
        let end = begin + found.len();
        let mut out = Vec::with_capacity(self.splice.len(&self.stored[begin..end], self.revision));
        self.splice.put(&mut out, &self.stored[..end], begin, self.revision);
        String::from_utf8(out).unwrap_or_default()
    }

    /// Returns its metadata decoded.
    pub fn metadata(&self) -> Value {
        serde_json::from_str(&self.stored_metadata()).unwrap_or(Value::Null)
    }

    /// Puts the object's message, without an envelope, into `out`. Nothing of it is kept but its
    /// length.
    pub fn put_protobuf(&self, out: &mut Backward, message: Message) -> Result<(), Untranslatable> {
        let before = out.len();
        let object = self.fields_of(message, self.revision)?;
        protobuf::encode_into(out, &object).map_err(|cause| self.untranslatable(cause))?;
        self.protobuf_len.store(u32::try_from(out.len() - before).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// The object's fields, read from the stored bytes, with that resource version.
    fn fields_of(&self, message: Message, revision: Revision) -> Result<Object<'_>, Untranslatable> {
        let object = Object::parse(message, text_in(&self.stored));
        let mut object = object.map_err(|cause| self.untranslatable(cause))?;
        object.set_resource_version(revision.to_string());
        Ok(object)
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
        let object = self.fields_of(message, revision.unwrap_or(self.revision))?;
        protobuf::watch_frame(event.name(), &object)
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

/// Locates the metadata and the fields below `node` in one pass. If another writer stored a resource version,
/// it is removed, so the returned bytes differ.
fn open(
    key: &str,
    stored: Bytes,
    node: &Node,
    found: &mut Vec<Option<Found>>,
) -> Result<(Bytes, Splice, Meta), Unreadable> {
    let text = std::str::from_utf8(&stored).map_err(|_| bad(key, None))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let scanned = Scan { text, node, found }.deserialize(&mut deserializer);
    let meta = scanned.and_then(|meta| deserializer.end().map(|()| meta));
    let meta = meta.map_err(|e| bad(key, Some(e)))?;
    if !meta.has_version {
        let splice = match (meta.begin, meta.version) {
            (Some(begin), Some(version)) => Splice::new(Metadata { begin, version, followed: true }),
            _ => splice_of(text, meta.version).map_err(|e| bad(key, Some(e)))?,
        };
        return Ok((stored, splice, meta));
    }
    let mut value: Value = serde_json::from_str(text).map_err(|e| bad(key, Some(e)))?;
    let removed = value["metadata"].as_object_mut().and_then(|metadata| metadata.remove("resourceVersion"));
    if removed.is_none() {
        return Err(bad(key, None));
    }
    open(key, encoding::exact(&value), node, found)
}

/// Returns the place of the resource version in a text that is not as compact as ours, or in which no field
/// follows it.
fn splice_of(text: &str, version: Option<usize>) -> Result<Splice, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let metadata = serde_json::from_str::<Object<'_>>(text)?.metadata.get();
    let place = place_in(text, metadata);
    let begin = place.start;
    if let Some(version) = version {
        return Ok(Splice::new(Metadata { begin, version, followed: true }));
    }
    // Directly after the brace if the metadata are empty.
    let empty = metadata[1..].trim_start() == "}";
    let version = if empty { begin + 1 } else { place.end - 1 };
    Ok(Splice::new(Metadata { begin, version, followed: false }))
}

fn bad(key: &str, cause: Option<serde_json::Error>) -> Unreadable {
    let cause = cause.map(|error| Box::new(error) as Box<dyn std::error::Error + Send + Sync>);
    Unreadable { key: key.to_owned(), cause }
}

/// The text of an object. The bytes were read when the entry was made, so they can be read again.
fn text_in(object: &[u8]) -> &str {
    std::str::from_utf8(object).unwrap_or_default()
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
