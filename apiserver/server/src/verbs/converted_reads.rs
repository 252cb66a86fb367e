//! Reads of kinds that a webhook converts. The verbs and the cache do not know of it: a read is carried out in the
//! versions in which the objects are stored, and its answer is converted on its way out.

use std::sync::Arc;

use apiserver_cache::form::{Format, Shape, Wanted};
use apiserver_registry::Resource;
use apiserver_registry::definition::Custom;
use apiserver_schema::error::ApiError;
use bytes::{Bytes, BytesMut};
use futures::stream;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tower::BoxError;

use super::converted_selection::SentObjects;
use crate::body;
use crate::body::Body;
use crate::context::Context;
use crate::conversion::by_webhook;
use crate::conversion::webhook;
use crate::list_options;
use crate::negotiate;
use crate::objects::Objects;
use crate::respond;
use crate::selection::filter::Filter;
use crate::table::{Rows, metadata_only};

/// A read whose answer is converted: it is carried out as if the client wanted plain JSON objects,
/// and shaped as it asked for afterwards.
pub struct ConvertedRead {
    objects: Arc<Objects>,
    resource: Arc<Resource>,
    custom: Arc<Custom>,
    wanted: Wanted,
    /// Makes the rows, where tables are asked for.
    rows: Option<Rows>,
    watches: bool,
    /// The objects known to a watcher with selectors.
    sent: Option<SentObjects>,
}

impl ConvertedRead {
    /// `None` for requests that read nothing, or of which no webhook has to know.
    pub async fn of(context: &Context, resource: &Arc<Resource>) -> Result<Option<Self>, ApiError> {
        let (server, info) = (&context.server, &context.info);
        if !matches!(info.verb, "get" | "list" | "watch" | "deletecollection") {
            return Ok(None);
        }
        let Some(custom) = by_webhook(resource).cloned() else { return Ok(None) };
        let resource = Arc::clone(resource);
        let wanted = negotiate::wanted(&context.headers, &resource)?;
        let wanted =
            if info.verb == "get" { wanted.of_one(&resource)? } else { wanted.of_list(&resource)? };
        let rows = match wanted.shape {
            Shape::Table => Some(Rows::of(context, &resource, wanted.meta)?),
            _ => None,
        };
        let sent = match info.verb {
            "watch" => Self::sent(context, &resource, &custom).await?,
            _ => None,
        };
        Ok(Some(Self {
            objects: Arc::clone(server.objects()),
            custom,
            wanted,
            rows,
            watches: info.verb == "watch",
            sent,
            resource,
        }))
    }

    async fn sent(
        context: &Context,
        resource: &Resource,
        custom: &Custom,
    ) -> Result<Option<SentObjects>, ApiError> {
        let (server, info, query) = (&context.server, &context.info, &context.query);
        let cache = server.objects().cache(resource)?;
        let filter = Filter::parse(&cache, &info.namespace, &info.name, query, &context.budget)?;
        if !filter.looks_inside() {
            return Ok(None);
        }
        let revision = list_options::revision(query.get("resourceVersion"))?.unwrap_or(0);
        if revision == 0 || query.flag("sendInitialEvents") {
            return Ok(Some(SentObjects::new(filter, &context.budget)));
        }
        SentObjects::at(context, custom, &cache, filter, revision).await.map(Some)
    }

    /// Returns the headers of the read.
    pub fn headers(headers: &HeaderMap) -> HeaderMap {
        let mut plain = headers.clone();
        for header in [ACCEPT_ENCODING, UPGRADE, CONNECTION] {
            plain.remove(header);
        }
        plain.insert(ACCEPT, HeaderValue::from_static("application/json"));
        plain
    }

    /// Converts an answer.
    pub async fn convert(self, answer: Response<Body>) -> Result<Response<Body>, ApiError> {
        if !answer.status().is_success() {
            return Ok(answer);
        }
        if self.watches {
            return Ok(self.events(answer));
        }
        let (parts, body) = answer.into_parts();
        let unread = |error: BoxError| ApiError::internal(format!("the answer cannot be read: {error}"));
        let bytes = body.collect().await.map_err(unread)?.to_bytes();
        let mut value: Value = match serde_json::from_slice(&bytes) {
            Ok(value) => value,
            Err(_) => return Ok(Response::from_parts(parts, body::full(bytes))),
        };
        let list_kind = self.resource.list_kind();
        let value = if value["kind"] == list_kind.as_str() {
            let Value::Array(mut items) = value["items"].take() else {
                return Ok(respond::json(parts.status.as_u16(), &value));
            };
            webhook::convert(self.objects.webhook_caller(), &self.custom, &mut items).await?;
            self.list(value, items)
        } else if value["kind"] == self.resource.kind.as_str() {
            webhook::convert(self.objects.webhook_caller(), &self.custom, std::slice::from_mut(&mut value))
                .await?;
            self.object(value, true)
        } else {
            value
        };
        if self.wanted.format != Format::Yaml {
            return Ok(respond::json(parts.status.as_u16(), &value));
        }
        let text = serde_saphyr::to_string(&value)
            .map_err(|error| ApiError::internal(format!("the object cannot be written as YAML: {error}")))?;
        let mut response = Response::new(body::full(text));
        *response.status_mut() = parts.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        Ok(response)
    }

    fn list(&self, mut list: Value, items: Vec<Value>) -> Value {
        let meta = self.wanted.meta;
        match (&self.rows, self.wanted.shape) {
            (Some(rows), _) => json!({
                "kind": "Table", "apiVersion": meta, "metadata": list["metadata"],
                "columnDefinitions": rows.columns(),
                "rows": items.iter().map(|item| rows.row(item)).collect::<Vec<_>>(),
            }),
            (None, Shape::Object) => {
                list["items"] = Value::Array(items);
                list
            }
            (None, _) => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": meta, "metadata": list["metadata"],
                "items": items.iter().map(|item| metadata_only(item, meta)).collect::<Vec<_>>(),
            }),
        }
    }

    fn object(&self, object: Value, first: bool) -> Value {
        match (&self.rows, self.wanted.shape) {
            (Some(rows), _) => rows.one(&object, first),
            (None, Shape::Object) => object,
            (None, _) => metadata_only(&object, self.wanted.meta),
        }
    }

    /// Returns the events of a watch, converted as they come.
    fn events(self, answer: Response<Body>) -> Response<Body> {
        let (parts, body) = answer.into_parts();
        let state = ConvertedWatch { read: self, body, partial: BytesMut::new(), first: true, ended: false };
        let frames = stream::unfold(state, |mut state| async move {
            let frame = state.next().await?;
            Some((frame.map(Frame::data), state))
        });
        Response::from_parts(parts, StreamBody::new(frames).boxed_unsync())
    }
}

/// A watch under way.
struct ConvertedWatch {
    read: ConvertedRead,
    body: Body,
    /// The beginning of an event whose rest has not come yet.
    partial: BytesMut,
    /// Columns are named once.
    first: bool,
    ended: bool,
}

impl ConvertedWatch {
    /// Returns the next events: all that came together are converted by one review.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        while !self.ended {
            let frame = match self.body.frame().await? {
                Ok(frame) => frame,
                Err(error) => return Some(Err(error)),
            };
            let Ok(data) = frame.into_data() else { continue };
            self.partial.extend_from_slice(&data);
            let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { continue };
            let lines = self.partial.split_to(end + 1);
            let events = self.converted(&lines).await;
            // None of them may be for this watcher.
            if !events.is_empty() {
                return Some(Ok(events));
            }
        }
        None
    }

    async fn converted(&mut self, lines: &[u8]) -> Bytes {
        let events = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut events: Vec<Value> = events.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let ours = |event: &Value| event["type"] != "ERROR" && event["type"] != "BOOKMARK";
        let mut objects: Vec<Value> =
            events.iter_mut().filter(|event| ours(event)).map(|event| event["object"].take()).collect();
        if let Err(error) =
            webhook::convert(self.read.objects.webhook_caller(), &self.read.custom, &mut objects).await
        {
            // The client begins anew, as after any error.
            self.ended = true;
            return respond::event("ERROR", &error.to_status());
        }
        let mut objects = objects.into_iter();
        let mut out = BytesMut::new();
        for mut event in events {
            if ours(&event) {
                let object = objects.next().unwrap_or_default();
                if let Some(sent) = &mut self.read.sent {
                    let Some(kind) = sent.event(event["type"].as_str().unwrap_or_default(), &object) else {
                        continue;
                    };
                    event["type"] = kind.into();
                }
                event["object"] = self.read.object(object, std::mem::take(&mut self.first));
            }
            out.extend_from_slice(&respond::event(
                event["type"].as_str().unwrap_or_default(),
                &event["object"],
            ));
        }
        out.freeze()
    }
}
