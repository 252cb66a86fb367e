//! Reads of kinds that a webhook converts. The verbs and the cache do not know of it: a read is carried out in the
//! versions in which the objects are stored, and its answer is converted on its way out.

use std::sync::Arc;

use apiserver_cache::form::{Format, Shape, Wanted};
use apiserver_registry::Resource;
use apiserver_registry::definition::Custom;
use apiserver_schema::error::ApiError;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::converted_selection::SentObjects;
use super::converted_watch::ConvertedWatch;
use crate::body;
use crate::body::Body;
use crate::clients::accounts::Account;
use crate::clients::budget::Budget;
use crate::clients::task_account;
use crate::context::Context;
use crate::conversion::{Caller, by_webhook, webhook};
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
    shaper: Shaper,
    /// False for `deletecollection`: the objects in its answer are deleted already.
    refusable: bool,
    /// For a watch.
    watch: Option<Watch>,
}

/// The parts of a watch.
struct Watch {
    /// The objects known to a watcher with selectors.
    sent: Option<SentObjects>,
    account: Option<Arc<Account>>,
    budget: Budget,
    stop: CancellationToken,
}

/// Shapes converted objects as a client asked for.
pub struct Shaper {
    wanted: Wanted,
    /// Makes the rows, where tables are asked for.
    rows: Option<Rows>,
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
        let watch = match info.verb {
            "watch" => Some(Watch {
                sent: Self::sent(context, &resource, &custom).await?,
                account: task_account::current(),
                budget: context.budget.clone(),
                stop: server.lifetime().refusing().clone(),
            }),
            _ => None,
        };
        let (objects, shaper) = (Arc::clone(server.objects()), Shaper { wanted, rows });
        Ok(Some(Self { objects, resource, custom, shaper, refusable: info.is_read(), watch }))
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
        if let Some(Watch { sent, account, budget, stop }) = self.watch {
            let Self { objects, custom, shaper, .. } = self;
            let watch = ConvertedWatch { objects, custom, shaper, sent, account, budget, stop };
            return Ok(watch.events(answer));
        }
        let (parts, body) = answer.into_parts();
        let unread = |error: BoxError| ApiError::internal(format!("the answer cannot be read: {error}"));
        let bytes = body.collect().await.map_err(unread)?.to_bytes();
        let mut value: Value = match serde_json::from_slice(&bytes) {
            Ok(value) => value,
            Err(_) => return Ok(Response::from_parts(parts, body::full(bytes))),
        };
        drop(bytes);
        let caller = Caller { refusable: self.refusable, ..self.objects.webhook_caller() };
        let list_kind = self.resource.list_kind();
        let value = if value["kind"] == list_kind.as_str() {
            let Value::Array(mut items) = value["items"].take() else {
                return Ok(respond::json(parts.status.as_u16(), &value));
            };
            webhook::convert(caller, &self.custom, &mut items).await?;
            self.shaper.list(value, items)
        } else if value["kind"] == self.resource.kind.as_str() {
            webhook::convert(caller, &self.custom, std::slice::from_mut(&mut value)).await?;
            self.shaper.object(value, true)
        } else {
            value
        };
        if self.shaper.wanted.format != Format::Yaml {
            return Ok(respond::json(parts.status.as_u16(), &value));
        }
        let text = serde_saphyr::to_string(&value)
            .map_err(|error| ApiError::internal(format!("the object cannot be written as YAML: {error}")))?;
        let mut response = Response::new(body::full(text));
        *response.status_mut() = parts.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        Ok(response)
    }
}

impl Shaper {
    /// Returns `true` if objects are sent as they are.
    pub fn sends_objects(&self) -> bool {
        self.rows.is_none() && self.wanted.shape == Shape::Object
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

    /// Returns an object in its shape; the `first` one of a table names the columns.
    pub fn object(&self, object: Value, first: bool) -> Value {
        match (&self.rows, self.wanted.shape) {
            (Some(rows), _) => rows.one(&object, first),
            (None, Shape::Object) => object,
            (None, _) => metadata_only(&object, self.wanted.meta),
        }
    }
}
