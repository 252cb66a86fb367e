//! `list`: the encoded objects, one after the other.

use std::sync::Arc;

use apiserver_api::error::ApiError;
use apiserver_api::registry::Resource;
use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Map, Value, json};

use super::view::{self, Asked, Continue, View};
use crate::body::{self, Body};
use crate::cache::{Cache, Entry};
use crate::context::Context;
use crate::filter::{Filter, Selected};
use crate::limits;
use crate::negotiate::{self, Format, Shape};
use crate::respond::{self, Answer};
use crate::table;

/// One page or all of a collection.
pub async fn list(context: &Context, resource: &Resource) -> Answer {
    let wanted = negotiate::wanted(&context.headers, true)?;
    let cache = context.server.cache(resource)?;
    let filter = Filter::parse(&cache, &context.info.namespace, &context.query)?;
    let limit = context.query.number("limit")?.unwrap_or(0);
    let place = context.query.get("continue").map(Continue::decode).transpose()?;
    let view = match page(context, &cache, place.as_ref(), limit).await {
        Err(error) if error.code == 410 && place.is_some() => return Ok(expired(place)),
        other => other?,
    };
    let after = place.as_ref().map_or("", |p| p.after.as_str());
    let selected = filter.select(&view.objects, after, usize::try_from(limit).unwrap_or(usize::MAX));
    let metadata = metadata(&cache, &view, &selected);
    let entries = selected.entries;
    match (wanted.shape, wanted.format) {
        (Shape::Object, Format::Json) => Ok(bytes(context, resource, &metadata, entries)),
        (shape, format) => values(context, resource, &metadata, &entries, shape, format),
    }
}

async fn page(
    context: &Context,
    cache: &Arc<Cache>,
    place: Option<&Continue>,
    limit: u64,
) -> Result<View, ApiError> {
    let asked = match place {
        Some(_) if context.query.get("resourceVersion").is_some_and(|v| v != "0") => {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Some(place) if place.revision == -1 => Asked::Fresh,
        Some(place) => Asked::Exact(place.revision),
        None => view::asked(context, limit)?,
    };
    view::view(&context.server, cache, &asked).await
}

fn metadata(cache: &Cache, view: &View, selected: &Selected) -> Value {
    let mut metadata = json!({"resourceVersion": view.revision.to_string()});
    if let Some(last) = selected.entries.last().filter(|_| selected.more) {
        cache.keep(view.revision, view.objects.clone());
        let token = Continue { revision: view.revision, after: last.key.to_string() };
        metadata["continue"] = token.encode().into();
        if let Some(remaining) = selected.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    metadata
}

/// 410 with a token that goes on in the present state.
fn expired(place: Option<Continue>) -> Response<Body> {
    let error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a \
         new list without the continue parameter, or use the continue token in this response to retrieve \
         the remainder of the results. Continuing with the provided token results in an inconsistent list - \
         objects that were created, modified, or deleted between the time the first chunk was returned and \
         now may show up in the list.",
    );
    let mut status = error.to_status();
    if let Some(place) = place {
        status["metadata"]["continue"] = Continue { revision: -1, ..place }.encode().into();
    }
    respond::json(410, &status)
}

/// Decoded lists: tables, metadata alone, YAML.
fn values(
    context: &Context,
    resource: &Resource,
    metadata: &Value,
    entries: &[Arc<Entry>],
    shape: Shape,
    format: Format,
) -> Answer {
    let decode = |entry: &Arc<Entry>| serde_json::from_slice::<Value>(entry.object_slice());
    let objects: Vec<Value> = entries
        .iter()
        .map(decode)
        .collect::<Result<_, _>>()
        .map_err(|error| ApiError::internal(format!("an object cannot be decoded: {error}")))?;
    let value = match shape {
        Shape::Table => table::of(context, resource, &objects, metadata)?,
        Shape::Metadata => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "items": objects.iter().map(table::metadata_only).collect::<Vec<_>>(),
        }),
        Shape::Object => {
            let mut list = Map::new();
            list.insert("kind".to_owned(), format!("{}List", resource.kind).into());
            list.insert("apiVersion".to_owned(), resource.api_version().into());
            list.insert("metadata".to_owned(), metadata.clone());
            list.insert("items".to_owned(), Value::Array(objects));
            Value::Object(list)
        }
    };
    if format == Format::Json {
        let content = Bytes::from(value.to_string());
        let response = respond::bytes(200, "application/json", Bytes::clone(&content));
        return Ok(respond::compressed(context, response, content));
    }
    Ok(respond::formatted(format, 200, &value))
}

/// The list as its objects' bytes; large ones in pieces, so that a list takes little memory
/// however slowly it is read.
fn bytes(
    context: &Context,
    resource: &Resource,
    metadata: &Value,
    entries: Vec<Arc<Entry>>,
) -> Response<Body> {
    let head = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        resource.kind,
        resource.api_version()
    );
    let size = head.len() + 2 + entries.iter().map(|e| e.object_len() + 1).sum::<usize>();
    let packed = size >= limits::GZIP_MIN && negotiate::accepts_gzip(&context.headers);
    let mut pieces = Pieces { head: Some(head), entries, next: 0, ended: false };
    let mut response = if size <= 2 * limits::LIST_PIECE && !packed {
        let mut whole = BytesMut::with_capacity(size);
        while let Some(piece) = pieces.next() {
            whole.put(piece);
        }
        Response::new(body::full(whole.freeze()))
    } else if packed {
        Response::new(zipped(pieces))
    } else {
        let frames = stream::iter(std::iter::from_fn(move || pieces.next()).map(|p| Ok(Frame::data(p))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if packed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn zipped(mut pieces: Pieces) -> Body {
    let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    let next = move || {
        use std::io::Write as _;
        let mut zip = encoder.take()?;
        loop {
            let Some(piece) = pieces.next() else {
                return Some(zip.finish().map(|rest| Frame::data(Bytes::from(rest))).map_err(Into::into));
            };
            if let Err(error) = zip.write_all(&piece) {
                return Some(Err(error.into()));
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

struct Pieces {
    head: Option<String>,
    entries: Vec<Arc<Entry>>,
    next: usize,
    ended: bool,
}

impl Pieces {
    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = BytesMut::with_capacity(limits::LIST_PIECE);
        if let Some(head) = self.head.take() {
            out.put_slice(head.as_bytes());
        }
        while let Some(entry) = self.entries.get(self.next) {
            if out.len() + entry.object_len() > limits::LIST_PIECE && !out.is_empty() {
                return Some(out.freeze());
            }
            if self.next > 0 {
                out.put_u8(b',');
            }
            out.put_slice(entry.object_slice());
            self.next += 1;
        }
        out.put_slice(b"]}");
        self.ended = true;
        Some(out.freeze())
    }
}
