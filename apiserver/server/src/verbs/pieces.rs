//! A list's body, made of its objects one after the other in every encoding, so that a list takes
//! little memory however long it is and however slowly it is read (KEP-5116).

use std::collections::VecDeque;
use std::sync::Arc;

use apiserver_meta::error_chain;
use apiserver_schema::error::ApiError;
use apiserver_schema::ordered;
use apiserver_schema::protobuf;
use apiserver_schema::protobuf::{Backward, Message, Object};
use apiserver_store::{Revision, StoreError};
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tower::BoxError;

use crate::body;
use crate::body::Body;
use crate::clients::budget::{Budget, Charge};
use crate::context::Context;
use crate::errors::too_many_requests;
use crate::limits;
use crate::metrics::ListCount;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::selection::Entries;
use crate::table;
use crate::table::Rows;
use apiserver_cache::form::{Format, Shape, Wanted};
use apiserver_cache::{Cache, Entry, Untranslatable};

/// Field of the items in the message of every list.
const ITEMS: u16 = 2;

/// The head of a list.
pub struct Head {
    pub api_version: String,
    pub kind: String,
    pub metadata: Value,
    /// The message of each object, if the kind has one.
    pub message: Option<Message>,
    /// True if each object contains its own version and kind, as those of custom kinds do.
    pub named: bool,
    pub wanted: Wanted,
    /// Makes the rows of a table.
    pub rows: Option<Rows>,
}

/// The pieces of a list's body.
pub struct Pieces {
    head: Option<Vec<u8>>,
    entries: Entries,
    /// For metrics.
    count: ListCount,
    tail: Vec<u8>,
    begun: bool,
    items: Items,
    ended: bool,
}

enum Items {
    /// With version and kind, or without.
    Json {
        named: bool,
    },
    /// `PartialObjectMetadata` in JSON: the text before each object's metadata.
    Metadata(String),
    /// Rows in JSON.
    Rows(Rows),
    Yaml(Plain),
    Protobuf {
        form: Form,
        /// The first items, encoded when they were counted.
        kept: VecDeque<Bytes>,
        /// The charge for them.
        charge: Option<Charge>,
    },
}

/// The form in which each object is written as a value.
enum Plain {
    /// With version and kind, or without.
    Object {
        named: bool,
    },
    /// With the apiVersion of metadata.
    Metadata(&'static str),
    Rows(Rows),
}

/// An object cannot be written. The stream ends with it.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Protobuf(#[from] Untranslatable),
    #[error("the rest of the list cannot be read from the store")]
    Store(#[from] StoreError),
    #[error("{key} cannot be written as YAML")]
    Yaml { key: String, cause: String },
}

/// The form in which each object is sent in protobuf.
#[derive(Clone, Copy)]
enum Form {
    /// The object, of this message.
    Object(Message),
    /// Its metadata, in the message of `PartialObjectMetadata`.
    Metadata(Message),
}

impl Form {
    fn put(self, out: &mut Backward, entry: &Entry) -> Result<(), Untranslatable> {
        match self {
            Self::Object(message) => entry.put_protobuf(out, message),
            Self::Metadata(message) => {
                let object = json!({"metadata": entry.metadata()});
                Object::of(message, &object)
                    .and_then(|object| protobuf::encode_into(out, &object))
                    .map_err(|cause| entry.untranslatable(cause))
            }
        }
    }

    /// Bytes of the item, if they are known without encoding it.
    fn known(self, entry: &Entry) -> Option<usize> {
        match self {
            Self::Object(_) => entry.protobuf_len(),
            Self::Metadata(_) => None,
        }
    }
}

impl Pieces {
    /// Makes a list of these objects. In protobuf its length comes first, so they are counted here.
    pub async fn new(
        head: Head,
        entries: Entries,
        count: ListCount,
        budget: &Budget,
    ) -> Result<Self, ApiError> {
        match head.wanted.format {
            Format::Json => Ok(Self::json(head, entries, count)),
            Format::Yaml => Self::yaml(head, entries, count),
            Format::Protobuf => Self::protobuf(&head, entries, count, budget).await,
        }
    }

    fn json(head: Head, entries: Entries, count: ListCount) -> Self {
        let Head { api_version, kind, metadata, named, wanted, rows, .. } = head;
        if named && rows.is_none() && wanted.shape == Shape::Object {
            // A list of custom objects is a map to Kubernetes, with its keys in the order of the alphabet.
            let head = format!(r#"{{"apiVersion":"{api_version}","items":["#).into_bytes();
            let tail =
                format!("],\"kind\":\"{kind}\",\"metadata\":{}}}\n", with_continue(metadata)).into_bytes();
            let items = Items::Json { named };
            return Self { head: Some(head), entries, tail, begun: false, items, ended: false, count };
        }
        let mut text = format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":"#).into_bytes();
        match protobuf::message("meta/v1.ListMeta") {
            Some(message) => ordered::write_message(&mut text, message, &metadata),
            None => text.extend_from_slice(metadata.to_string().as_bytes()),
        }
        let (name, items) = match (rows, wanted.shape) {
            (Some(rows), _) => {
                text.extend_from_slice(br#","columnDefinitions":"#);
                ordered::columns(&mut text, &rows.columns());
                ("rows", Items::Rows(rows))
            }
            (None, Shape::Object) => ("items", Items::Json { named }),
            (None, _) => {
                let intro =
                    format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"{api_version}","metadata":"#);
                ("items", Items::Metadata(intro))
            }
        };
        text.extend_from_slice(format!(r#","{name}":["#).as_bytes());
        let head = Some(text);
        Self { head, entries, tail: b"]}\n".to_vec(), begun: false, items, ended: false, count }
    }

    /// The keys in the order of the alphabet, as others write them.
    fn yaml(head: Head, entries: Entries, count: ListCount) -> Result<Self, ApiError> {
        let Head { api_version, kind, metadata, named, wanted, rows, .. } = head;
        let text = |value: Value| {
            serde_saphyr::to_string(&value)
                .map_err(|error| ApiError::internal(format!("the list cannot be written as YAML: {error}")))
        };
        let nothing = if entries.is_empty() { " []\n" } else { "\n" };
        let about = text(json!({"kind": kind, "metadata": metadata}))?;
        let (begin, end, items) = match (rows, wanted.shape) {
            (Some(rows), _) => {
                let begin = text(json!({"apiVersion": api_version, "columnDefinitions": rows.columns()}))?;
                (format!("{begin}{about}rows:{nothing}"), String::new(), Plain::Rows(rows))
            }
            (None, shape) => {
                let begin = format!("{}items:{nothing}", text(json!({"apiVersion": api_version}))?);
                let whole = shape == Shape::Object;
                (begin, about, if whole { Plain::Object { named } } else { Plain::Metadata(wanted.meta) })
            }
        };
        let (head, tail, items) = (Some(begin.into_bytes()), end.into_bytes(), Items::Yaml(items));
        Ok(Self { head, entries, tail, begun: false, items, ended: false, count })
    }

    /// Counts a protobuf list. Objects of unknown length are encoded twice, except for the first ones, which
    /// are kept as long as the client's budget has room for them.
    async fn protobuf(
        head: &Head,
        entries: Entries,
        count: ListCount,
        budget: &Budget,
    ) -> Result<Self, ApiError> {
        let form = match head.wanted.shape {
            Shape::Object => head.message.map(Form::Object),
            // The older version's message is the same.
            _ => protobuf::of_kind("meta.k8s.io/v1", "PartialObjectMetadata").map(Form::Metadata),
        };
        let form = form.ok_or_else(negotiate::not_acceptable)?;
        let mut lengths = Lengths::new(form, budget);
        let (mut counted, mut work) = (entries.clone(), 0);
        while let Ok(batch) = counted.take(limits::LIST_PIECE)
            && !batch.is_empty()
        {
            for entry in &batch {
                work += lengths.add(entry).map_err(|error| failed(&error))?;
            }
            if work > limits::LIST_PIECE {
                // Others have their turn between the pieces, and the memory of a large object.
                work = 0;
                lengths.scratch = Backward::default();
                tokio::task::yield_now().await;
            }
        }
        let head = protobuf::list_head(&head.api_version, &head.kind, &head.metadata, lengths.size)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let items = Items::Protobuf { form, kept: lengths.kept, charge: lengths.charge };
        Ok(Self {
            head: Some(head),
            entries,
            tail: protobuf::ENVELOPE_TAIL.to_vec(),
            begun: false,
            items,
            ended: false,
            count,
        })
    }

    /// Returns the answer: at once where it is small, else piece by piece, compressed where the client takes
    /// that. The objects are those of a state of `cache`, at this revision.
    pub async fn respond(
        mut self,
        context: &Context,
        cache: &Arc<Cache>,
        revision: Revision,
        format: Format,
    ) -> Answer {
        let (mut first, mut size) = (VecDeque::new(), 0);
        while size < limits::GZIP_MIN
            && let Some(piece) = self.next().await
        {
            let piece = piece.map_err(|error| failed(&error))?;
            size += piece.len();
            first.push_back(piece);
            if self.is_slow() {
                tokio::task::yield_now().await;
            }
        }
        let packed = size >= limits::GZIP_MIN && negotiate::accepts_gzip(&context.headers);
        let body = if self.ended && !packed {
            body::full(joined(first, size))
        } else {
            // They wait until the client has taken enough of its earlier answers.
            let charge = context.budget.try_charge(size).ok_or_else(too_many_requests)?;
            self.entries.release(context.server.objects().caches(), cache, revision);
            let body = self.stream(first, charge);
            if packed { respond::zipped(body) } else { body }
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.media()));
        if packed {
            respond::mark_gzip(response.headers_mut());
        }
        Ok(response)
    }

    /// Returns `true` if a piece takes long enough that other tasks should have their turn.
    fn is_slow(&self) -> bool {
        !matches!(self.items, Items::Json { .. })
    }

    fn stream(self, first: VecDeque<Bytes>, charge: Charge) -> Body {
        let pieces =
            stream::unfold((first, charge, self), |(mut first, mut charge, mut pieces)| async move {
                if let Some(piece) = first.pop_front() {
                    charge.shrink(piece.len());
                    return Some((Ok(Frame::data(piece)), (first, charge, pieces)));
                }
                if pieces.is_slow() {
                    tokio::task::yield_now().await;
                }
                let piece = pieces.next().await?.map(Frame::data).map_err(BoxError::from);
                Some((piece, (first, charge, pieces)))
            });
        StreamBody::new(pieces).boxed_unsync()
    }

    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        if self.ended {
            return None;
        }
        let piece = self.piece().await;
        self.ended |= piece.is_err();
        Some(piece)
    }

    async fn piece(&mut self) -> Result<Bytes, Broken> {
        let mut out = BytesMut::with_capacity(limits::LIST_PIECE);
        if let Some(head) = self.head.take() {
            out.put_slice(&head);
        }
        let mut scratch = Backward::default();
        // Rows and messages are shorter than the objects that they are made of.
        while !self.ended && out.len() < limits::LIST_PIECE / 2 {
            let batch = self.entries.fetch(limits::LIST_PIECE - out.len(), usize::MAX).await?;
            for entry in &batch {
                if std::mem::replace(&mut self.begun, true)
                    && matches!(self.items, Items::Json { .. } | Items::Metadata(_) | Items::Rows(_))
                {
                    out.put_u8(b',');
                }
                if out.is_empty() {
                    // A large object gets the room that it needs; growing would double it.
                    out.reserve(entry.object_len());
                }
                self.items.put(&mut out, &mut scratch, entry)?;
            }
            self.count.returned(batch.len() as u64);
            self.ended = self.entries.have_ended();
        }
        if self.ended {
            out.put_slice(&self.tail);
        }
        Ok(out.freeze())
    }
}

/// The lengths of a list's items in protobuf, and the first of them as they are sent.
struct Lengths {
    form: Form,
    number: usize,
    /// The size of all items.
    size: usize,
    kept: VecDeque<Bytes>,
    /// Bytes of those that are kept.
    used: usize,
    charge: Option<Charge>,
    scratch: Backward,
}

impl Lengths {
    fn new(form: Form, budget: &Budget) -> Self {
        let (kept, scratch) = (VecDeque::new(), Backward::default());
        Self { form, number: 0, size: 0, kept, used: 0, charge: budget.try_charge(0), scratch }
    }

    /// Counts an object; gives the length of what had to be encoded for that.
    fn add(&mut self, entry: &Entry) -> Result<usize, Untranslatable> {
        // Those of known length cost nothing to leave.
        let known = self.form.known(entry);
        let room = if known.is_some() { limits::LIST_KEPT } else { limits::LIST_KEPT_FIRST };
        let keep = self.kept.len() == self.number && self.used < room;
        self.number += 1;
        if let Some(length) = known.filter(|_| !keep) {
            self.size += length + 1 + varint_len(length);
            return Ok(0);
        }
        self.scratch.clear();
        self.form.put(&mut self.scratch, entry)?;
        self.scratch.close(ITEMS, 0);
        let length = self.scratch.len();
        if keep && self.charge.as_mut().is_some_and(|charge| charge.try_grow(length)) {
            self.used += length;
            self.kept.push_back(Bytes::copy_from_slice(self.scratch.as_slice()));
        }
        self.size += length;
        Ok(entry.object_len())
    }
}

impl Items {
    fn put(&mut self, out: &mut BytesMut, scratch: &mut Backward, entry: &Entry) -> Result<(), Broken> {
        match self {
            Self::Json { named: true } => entry.put_object(out),
            Self::Json { named: false } => entry.put_item(out),
            Self::Metadata(intro) => {
                out.put_slice(intro.as_bytes());
                out.put_slice(entry.metadata_text().as_bytes());
                out.put_u8(b'}');
            }
            Self::Rows(rows) => {
                let mut text = Vec::new();
                ordered::row(&mut text, &rows.row(&entry.value(None)));
                out.put_slice(&text);
            }
            Self::Yaml(plain) => {
                let value = match plain {
                    Plain::Object { named: true } => entry.value(None),
                    Plain::Object { named: false } => entry.item(),
                    Plain::Metadata(meta) => table::metadata_only(&entry.value(None), meta),
                    Plain::Rows(rows) => rows.row(&entry.value(None)),
                };
                let text = serde_saphyr::to_string(&[value])
                    .map_err(|error| Broken::Yaml { key: entry.key.to_string(), cause: error.to_string() })?;
                out.put_slice(text.as_bytes());
            }
            Self::Protobuf { form, kept, charge } => match kept.pop_front() {
                Some(item) => {
                    out.put_slice(&item);
                    charge.iter_mut().for_each(|charge| charge.shrink(item.len()));
                }
                None => {
                    scratch.clear();
                    form.put(scratch, entry)?;
                    scratch.close(ITEMS, 0);
                    out.put_slice(scratch.as_slice());
                }
            },
        }
        Ok(())
    }
}

/// Returns the metadata of a list of custom objects, which always have a `continue`.
fn with_continue(mut metadata: Value) -> Value {
    if let Value::Object(metadata) = &mut metadata {
        metadata.entry("continue").or_insert_with(|| "".into());
    }
    metadata
}

fn joined(mut pieces: VecDeque<Bytes>, size: usize) -> Bytes {
    if pieces.len() < 2 {
        return pieces.pop_front().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(size);
    pieces.into_iter().for_each(|piece| whole.put(piece));
    whole.freeze()
}

fn failed(error: &dyn std::error::Error) -> ApiError {
    ApiError::internal(error_chain(error))
}

/// Bytes of a length on the wire.
fn varint_len(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_lengths_at_their_bounds_take_one_more_byte() {
        for (value, length) in [(0, 1), (1, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3)] {
            assert_eq!(varint_len(value), length, "{value}");
        }
    }

    /// `Pieces::protobuf` writes the list's own fields, so they must be those of every list.
    #[test]
    fn list_messages_of_all_kinds_have_metadata_and_items_at_the_same_numbers() {
        let lists = protobuf::kinds().filter(|(_, kind, _)| kind.ends_with("List"));
        let lists: Vec<_> =
            lists.filter(|(_, _, m)| m.fields().iter().any(|f| f.name() == "items")).collect();
        assert!(lists.len() > 50);
        for (version, kind, message) in lists {
            let numbers: Vec<_> = message.fields().iter().map(|f| (f.number, f.name())).collect();
            assert_eq!(numbers, [(1, "metadata"), (ITEMS, "items")], "{version} {kind}");
        }
    }
}
