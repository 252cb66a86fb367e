//! `list`: the encoded objects, one after the other.

use std::sync::Arc;

use apiserver_api::error::ApiError;
use apiserver_api::protobuf;
use apiserver_api::registry::Resource;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Response};
use serde_json::{Map, Value, json};

use super::pieces::{Form, Pieces};
use super::view::{self, Asked, Continue, View};
use crate::body::Body;
use crate::cache::{Cache, Entry};
use crate::context::Context;
use crate::filter::{Filter, Selected};
use crate::limits;
use crate::negotiate::{self, Format, Shape, Wanted};
use crate::respond::{self, Answer};
use crate::table;

/// The kind of metadata alone.
const PARTIAL: &str = "PartialObjectMetadata";

/// One page or all of a collection.
pub async fn list(context: &Context, resource: &Resource) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?;
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
    context.server.metrics().listed(resource, view.objects.len(), entries.len());
    match (wanted.shape, wanted.format) {
        (Shape::Object | Shape::Metadata, Format::Json) | (_, Format::Protobuf) => {
            streamed(context, &cache, &metadata, entries, wanted).await
        }
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

/// Decoded lists: tables, YAML.
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
            "kind": format!("{PARTIAL}List"), "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
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

/// A list piece by piece: in JSON as its objects' bytes, or in protobuf.
async fn streamed(
    context: &Context,
    cache: &Cache,
    metadata: &Value,
    entries: Vec<Arc<Entry>>,
    wanted: Wanted,
) -> Answer {
    let (resource, version) = (&cache.resource, cache.resource.api_version());
    let pieces = match (wanted.format, wanted.shape) {
        (Format::Protobuf, Shape::Object) => {
            let message = cache.message.ok_or_else(negotiate::not_acceptable)?;
            let kind = format!("{}List", resource.kind);
            Pieces::protobuf((&version, &kind), metadata, Form::Object(message), entries).await?
        }
        (Format::Protobuf, _) => {
            let version = "meta.k8s.io/v1";
            let message = protobuf::of_kind(version, PARTIAL).ok_or_else(negotiate::not_acceptable)?;
            let kind = format!("{PARTIAL}List");
            Pieces::protobuf((version, &kind), metadata, Form::Metadata(message), entries).await?
        }
        (_, shape) => {
            let whole = shape == Shape::Object;
            let (version, kind) =
                if whole { (version.as_str(), resource.kind.as_str()) } else { ("meta.k8s.io/v1", PARTIAL) };
            let head =
                format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#);
            Pieces::json(head, entries, whole)
        }
    };
    let packed = pieces.size() >= limits::GZIP_MIN && negotiate::accepts_gzip(&context.headers);
    let mut response = Response::new(if packed { pieces.zipped() } else { pieces.body()? });
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(wanted.format.media()));
    if packed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}
