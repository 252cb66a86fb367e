//! A list's body, made of its objects one after the other, so that a list takes little memory however
//! slowly it is read.

use std::collections::VecDeque;
use std::sync::Arc;

use apiserver_api::error::ApiError;
use apiserver_api::protobuf::{self, Backward, Message};
use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tower::BoxError;

use crate::body::{self, Body};
use crate::cache::{Entry, Untranslatable};
use crate::limits;

/// Field of the items in the message of every list.
const ITEMS: u16 = 2;

/// What stands before the metadata of each object in JSON.
const METADATA: &[u8] = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;

/// The pieces of a list's body.
pub struct Pieces {
    head: Option<Vec<u8>>,
    entries: Vec<Arc<Entry>>,
    tail: &'static [u8],
    /// Of the whole body; about so much for metadata in JSON.
    size: usize,
    next: usize,
    items: Items,
    ended: bool,
}

enum Items {
    Json,
    /// `PartialObjectMetadata` in JSON.
    Metadata,
    Protobuf {
        form: Form,
        scratch: Backward,
        /// The first items, encoded when they were counted.
        kept: VecDeque<Bytes>,
    },
}

/// What is sent of each object.
#[derive(Clone, Copy)]
pub enum Form {
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
                protobuf::encode_into(out, message, &object).map_err(|cause| entry.untranslatable(cause))
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
    /// A list in JSON, of whole objects or of their metadata; `head` ends where the items begin.
    pub fn json(head: String, entries: Vec<Arc<Entry>>, whole: bool) -> Self {
        let commas = entries.len().saturating_sub(1);
        let size = head.len() + 2 + commas + entries.iter().map(|e| e.object_len()).sum::<usize>();
        let head = Some(head.into_bytes());
        let items = if whole { Items::Json } else { Items::Metadata };
        Self { head, entries, tail: b"]}", size, next: 0, items, ended: false }
    }

    /// A list in protobuf. Its length stands at its beginning, so objects whose length is not known
    /// yet are encoded twice, but for the first ones, which are kept.
    pub async fn protobuf(
        kind: (&str, &str),
        metadata: &Value,
        form: Form,
        entries: Vec<Arc<Entry>>,
    ) -> Result<Self, ApiError> {
        let (mut scratch, mut kept) = (Backward::default(), VecDeque::new());
        let (mut size, mut room, mut work) = (0, limits::LIST_KEPT, 0);
        for (i, entry) in entries.iter().enumerate() {
            let keep = kept.len() == i && room > 0;
            let length = match form.known(entry).filter(|_| !keep) {
                Some(length) => length + 1 + varint_len(length),
                None => {
                    scratch.clear();
                    form.put(&mut scratch, entry).map_err(|error| failed(&error))?;
                    scratch.close(ITEMS, 0);
                    if keep {
                        room = room.saturating_sub(scratch.len());
                        kept.push_back(Bytes::copy_from_slice(scratch.as_slice()));
                    }
                    work += entry.object_len();
                    scratch.len()
                }
            };
            size += length;
            if work > limits::LIST_PIECE {
                // Others have their turn between the pieces.
                work = 0;
                tokio::task::yield_now().await;
            }
        }
        let head = protobuf::list_head(kind.0, kind.1, metadata, size)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let tail = protobuf::ENVELOPE_TAIL;
        size += head.len() + tail.len();
        let items = Items::Protobuf { form, scratch, kept };
        Ok(Self { head: Some(head), entries, tail, size, next: 0, items, ended: false })
    }

    /// Bytes of the whole body.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All in one.
    pub fn whole(mut self) -> Result<Bytes, ApiError> {
        let mut whole = BytesMut::with_capacity(self.size);
        while let Some(piece) = self.next() {
            whole.put(piece.map_err(|error| failed(&error))?);
        }
        Ok(whole.freeze())
    }

    /// One after the other.
    pub fn stream(mut self) -> Body {
        let next = move || self.next().map(|piece| piece.map(Frame::data).map_err(BoxError::from));
        StreamBody::new(stream::iter(std::iter::from_fn(next))).boxed_unsync()
    }

    /// One after the other, compressed.
    pub fn zipped(mut self) -> Body {
        let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
        let next = move || {
            use std::io::Write as _;
            let mut zip = encoder.take()?;
            loop {
                let Some(piece) = self.next() else {
                    return Some(zip.finish().map(|rest| Frame::data(Bytes::from(rest))).map_err(Into::into));
                };
                let written = piece.map_err(BoxError::from).and_then(|piece| Ok(zip.write_all(&piece)?));
                if let Err(error) = written {
                    return Some(Err(error));
                }
                // The encoder holds back what it still wants to compare with.
                if !zip.get_ref().is_empty() {
                    let out = std::mem::take(zip.get_mut());
                    encoder = Some(zip);
                    return Some(Ok(Frame::data(Bytes::from(out))));
                }
            }
        };
        StreamBody::new(stream::iter(std::iter::from_fn(next))).boxed_unsync()
    }

    /// The whole body at once where that is no more than two pieces.
    pub fn body(self) -> Result<Body, ApiError> {
        if self.size <= 2 * limits::LIST_PIECE { self.whole().map(body::full) } else { Ok(self.stream()) }
    }

    fn next(&mut self) -> Option<Result<Bytes, Untranslatable>> {
        if self.ended {
            return None;
        }
        let mut out = BytesMut::with_capacity(limits::LIST_PIECE.min(self.size));
        if let Some(head) = self.head.take() {
            out.put_slice(&head);
        }
        while let Some(entry) = self.entries.get(self.next) {
            if out.len() + entry.object_len() > limits::LIST_PIECE && !out.is_empty() {
                return Some(Ok(out.freeze()));
            }
            if self.next > 0 && !matches!(self.items, Items::Protobuf { .. }) {
                out.put_u8(b',');
            }
            match &mut self.items {
                Items::Json => entry.put_object(&mut out),
                Items::Metadata => {
                    out.put_slice(METADATA);
                    out.put_slice(entry.metadata_text().as_bytes());
                    out.put_u8(b'}');
                }
                Items::Protobuf { form, scratch, kept } => match kept.pop_front() {
                    Some(item) => out.put_slice(&item),
                    None => {
                        scratch.clear();
                        if let Err(error) = form.put(scratch, entry) {
                            self.ended = true;
                            return Some(Err(error));
                        }
                        scratch.close(ITEMS, 0);
                        out.put_slice(scratch.as_slice());
                    }
                },
            }
            self.next += 1;
        }
        out.put_slice(self.tail);
        self.ended = true;
        Some(Ok(out.freeze()))
    }
}

fn failed(error: &Untranslatable) -> ApiError {
    ApiError::internal(format!("{error}: {}", error.cause))
}

/// Bytes of a length on the wire.
fn varint_len(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_lengths() {
        for (value, length) in [(0, 1), (1, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3)] {
            assert_eq!(varint_len(value), length, "{value}");
        }
    }

    /// `Pieces::protobuf` writes the list's own fields, so they must be those of every list.
    #[test]
    fn every_list_has_its_metadata_and_items_at_the_same_numbers() {
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
