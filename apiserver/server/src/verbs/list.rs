//! `list`: the encoded objects, one after the other.

use std::sync::Arc;

use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, status_text};
use apiserver_store::Revision;
use http::Response;
use serde_json::{Value, json};

use super::converted_selection;
use super::pieces::{Head, Pieces};
use crate::body::Body;
use crate::context::Context;
use crate::list_options::ListOptions;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::selection::Selected;
use crate::selection::filter::Filter;
use crate::table::Rows;
use crate::view;
use crate::view::{Asked, Continue, View};
use apiserver_cache::Cache;
use apiserver_cache::form::{Shape, Wanted};

/// One page or all of a collection.
pub async fn list(context: &Context, resource: &Resource) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?;
    let cache = context.server.objects().cache(resource)?;
    let page = match Page::read(context, resource, &cache).await? {
        Ok(page) => page,
        Err(expired) => return Ok(expired),
    };
    page.answer(context, &cache, wanted.of_list(resource)?).await
}

/// The objects selected by a request with list options.
pub struct Page {
    /// The objects, which may be put in the place of others before they are shown.
    pub selected: Selected,
    /// Revision of the state that they are chosen of.
    pub revision: Revision,
    /// The number of objects in that state.
    fetched: usize,
    metadata: Value,
}

impl Page {
    /// Reads the options and selects; the inner error is the answer to a token that is too old.
    pub async fn read(
        context: &Context,
        resource: &Resource,
        cache: &Arc<Cache>,
    ) -> Result<Result<Self, Response<Body>>, ApiError> {
        let options = ListOptions::read(&context.query)?;
        let filter = Filter::parse(
            cache,
            &context.info.namespace,
            &context.info.name,
            &context.query,
            &context.budget,
        )?;
        let place = options.token.as_deref().map(Continue::decode).transpose()?;
        let view = match view::view(context.server.objects(), cache, &asked(&options, place.as_ref())?).await
        {
            Err(error) if error.code == 410 && place.is_some() => return Ok(Err(expired(place))),
            other => other?,
        };
        let start = place.as_ref().map_or("", |place| place.start.as_str());
        let selected =
            converted_selection::select(context, resource, &filter, &view, start, options.limit).await?;
        let metadata = metadata(cache, &filter, &view, &selected);
        let fetched = view.past.objects.len();
        Ok(Ok(Self { selected, revision: view.revision, fetched, metadata }))
    }

    /// Returns the objects in the form that the client wants.
    pub async fn answer(mut self, context: &Context, cache: &Arc<Cache>, wanted: Wanted) -> Answer {
        let count = context.server.metrics().listed(&cache.resource, self.fetched);
        let custom = cache.resource.custom.is_some() && wanted.shape == Shape::Object;
        if custom && self.metadata.get("continue").is_none() {
            // Lists of custom resources state that nothing follows.
            self.metadata["continue"] = "".into();
        }
        let head = head(context, cache, wanted, self.metadata)?;
        let pieces = Pieces::new(head, self.selected.entries, count, &context.budget).await?;
        pieces.respond(context, cache, self.revision, wanted.format).await
    }
}

fn asked(options: &ListOptions, place: Option<&Continue>) -> Result<Asked, ApiError> {
    let Some(place) = place else { return view::asked(options) };
    if options.version.as_ref().is_some_and(|version| version != "0") {
        return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
    }
    Ok(match place.revision {
        revision if revision < 0 => Asked::Fresh,
        revision => Asked::Exact(revision),
    })
}

fn metadata(cache: &Cache, filter: &Filter, view: &View, selected: &Selected) -> Value {
    let revision: Revision = view.revision;
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let Some(last) = &selected.last {
        let next = Continue::after(revision, last, filter.prefix());
        let mark = filter.mark(&format!("{}{}", filter.prefix(), next.start));
        cache.retain(revision, &view.past, &mark, selected.remaining);
        metadata["continue"] = next.encode().into();
        if let Some(remaining) = selected.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    metadata
}

/// Returns 410 with a token that continues in the present state.
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
    respond::bytes(410, "application/json", status_text(&status))
}

/// Returns the head of the list: its type and metadata, and the form of its items.
fn head(context: &Context, cache: &Arc<Cache>, wanted: Wanted, metadata: Value) -> Result<Head, ApiError> {
    let resource = &cache.resource;
    let rows = match wanted.shape {
        Shape::Table => Some(Rows::of(context, resource, wanted.meta)?),
        _ => None,
    };
    Ok(match wanted.shape {
        Shape::Object => Head {
            api_version: resource.api_version(),
            kind: resource.list_kind(),
            metadata,
            message: cache.message,
            named: resource.custom.is_some(),
            wanted,
            rows,
        },
        shape => Head {
            api_version: wanted.meta.to_owned(),
            kind: if shape == Shape::Table { "Table" } else { "PartialObjectMetadataList" }.to_owned(),
            metadata,
            message: None,
            named: true,
            wanted,
            rows,
        },
    })
}
