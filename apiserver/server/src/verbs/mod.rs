//! The generic verbs, and the routing of requests for kinds. What a verb writes goes through [`crate::write`].

mod apply;
mod components;
mod converted_reads;
mod converted_selection;
mod converted_watch;
mod create;
mod delete;
mod evict;
mod get;
mod list;
mod patch;
mod pieces;
pub mod pods;
mod proxy;
mod reviews;
mod scale;
mod scale_owners;
mod subresources;
mod update;
mod watch;
mod websocket;

use std::sync::Arc;

use apiserver_registry::{Resource, Verb};
use apiserver_schema::error::ApiError;
use bytes::Bytes;
use http::{Method, Request};

use crate::authorize::Authorized;
use crate::body;
use crate::body::Body;
use crate::context::Context;
use crate::custom;
use crate::deprecation;
use crate::errors::{no_such_resource, not_allowed};
use crate::request::is_segment;
use crate::respond;
use crate::respond::Answer;
use crate::write::Part;
use apiserver_cache::stored_version;
use converted_reads::ConvertedRead;

pub use patch::Patch;

/// Answers a request for a kind of the registry.
pub async fn dispatch(context: &Authorized, request: Request<Body>) -> Answer {
    let info = &context.info;
    let found = context.server.objects().fresh_kind(&info.group, &info.version, &info.resource).await;
    let Some(resource) = found else { return unknown(context) };
    placed(context, &resource, request.method())?;
    match ConvertedRead::of(context, &resource).await? {
        None => served(context, resource, request).await,
        Some(read) => {
            let plain = context.with_headers(ConvertedRead::headers(&context.headers));
            read.convert(served(&plain, resource, request).await?).await
        }
    }
}

async fn served(context: &Authorized, resource: Arc<Resource>, request: Request<Body>) -> Answer {
    let info = &context.info;
    // Kubernetes' routes of built-in kinds have no such method but where they pass it on.
    if request.method() == Method::HEAD && resource.custom.is_none() && info.subresource != "proxy" {
        return Err(not_allowed());
    }
    deprecation::note(context, &resource);
    load_cache(context, &resource).await?;
    if !info.subresource.is_empty() {
        return subresources::dispatch(context, &resource, request).await;
    }
    let verb = verb(info.verb).ok_or_else(not_allowed)?;
    // New objects are sent to the collection, changes to the object.
    let misplaced = match verb {
        Verb::Create => !info.name.is_empty(),
        Verb::Update | Verb::Patch => info.name.is_empty(),
        _ => false,
    };
    // Discovery does not list all verbs of a kind whose definition is being deleted.
    if misplaced || (resource.custom.is_none() && !resource.verbs.contains(&verb)) {
        return Err(not_allowed());
    }
    // ComponentStatus is the only kind that can be read and is not stored.
    match verb {
        Verb::List if !resource.stored => return components::list(context, &resource).await,
        Verb::Get if !resource.stored => return components::get(context, &resource).await,
        _ => {}
    }
    if !resource.stored {
        return reviews::create(context, &resource, body::read(request.into_body()).await?).await;
    }
    match verb {
        Verb::Get => get::get(context, &resource).await,
        Verb::List => list::list(context, &resource).await,
        Verb::Watch => watch::watch(context, &resource, request).await,
        Verb::Create => {
            create::create(context, &resource, read(context, &resource, "create", request).await?).await
        }
        Verb::Update => {
            let bytes = read(context, &resource, "update", request).await?;
            update::update(context, &resource, Part::Main, bytes).await
        }
        Verb::Patch => {
            let bytes = read(context, &resource, "patch", request).await?;
            patch::patch(context, &resource, Part::Main, bytes).await
        }
        Verb::Delete => {
            delete::delete(context, &resource, read(context, &resource, "delete", request).await?).await
        }
        Verb::DeleteCollection => {
            let bytes = read(context, &resource, "delete_collection", request).await?;
            delete::collection(context, &resource, bytes).await
        }
    }
}

/// Returns the body of a write, whose size is counted.
async fn read(
    context: &Context,
    resource: &Resource,
    verb: &str,
    request: Request<Body>,
) -> Result<Bytes, ApiError> {
    let bytes = body::read(request.into_body()).await?;
    context.server.metrics().body_read(resource, verb, bytes.len());
    Ok(bytes)
}

/// A path must name a namespace where, and only where, the kind has one.
fn placed(context: &Context, resource: &Arc<Resource>, method: &Method) -> Result<(), ApiError> {
    let info = &context.info;
    // A Namespace is in itself; no other cluster-scoped object is in a namespace, and no namespace in another
    // one.
    let itself = resource.group.is_empty() && resource.plural == "namespaces";
    let elsewhere = if resource.namespaced {
        !info.below_namespace && !info.namespace.is_empty()
    } else {
        info.below_namespace || (!itself && !info.namespace.is_empty())
    };
    let behind =
        !matches!(info.subresource.as_str(), "" | "proxy") && !info.rest.trim_matches('/').is_empty();
    if elsewhere || behind || (info.watch_path && !info.subresource.is_empty()) {
        return Err(no_such_resource());
    }
    for part in [&info.namespace, &info.name] {
        // They become parts of keys in the store.
        if !is_segment(part) {
            return Err(ApiError::bad_request(format!("\"{part}\" is not a valid path segment name")));
        }
    }
    if info.watch_path && !matches!(*method, Method::GET | Method::HEAD) {
        return Err(not_allowed());
    }
    let across = matches!(info.verb, "list" | "watch");
    if resource.namespaced && info.namespace.is_empty() && !across {
        // Collections over all namespaces can be read and nothing else.
        let other = info.verb.is_empty() && info.name.is_empty();
        return Err(if other || matches!(info.verb, "create" | "deletecollection") {
            not_allowed()
        } else {
            no_such_resource()
        });
    }
    Ok(())
}

fn verb(text: &str) -> Option<Verb> {
    Some(match text {
        "get" => Verb::Get,
        "list" => Verb::List,
        "watch" => Verb::Watch,
        "create" => Verb::Create,
        "update" => Verb::Update,
        "patch" => Verb::Patch,
        "delete" => Verb::Delete,
        "deletecollection" => Verb::DeleteCollection,
        _ => return None,
    })
}

/// 404 for a path that means nothing: as a page where no built-in group of kinds claims the path.
pub fn unknown(context: &Context) -> Answer {
    let mut parts = context.info.path.split('/').filter(|part| !part.is_empty());
    let claimed = match (parts.next(), parts.next()) {
        (Some("api" | "version"), _) => true,
        (Some("apis"), Some(group)) => {
            !group.is_empty() && context.server.objects().registry().iter().any(|kind| kind.group == group)
        }
        _ => false,
    };
    if claimed { Err(no_such_resource()) } else { Ok(respond::no_such_page()) }
}

/// Prepares every request for a custom kind before its verb: loads its objects on the first request, and
/// refuses new objects if the definition is being deleted. For built-in kinds, loads versions that are read
/// but not stored.
async fn load_cache(context: &Context, resource: &Resource) -> Result<(), ApiError> {
    if resource.custom.is_none() {
        let reads = matches!(context.info.verb, "get" | "list" | "watch" | "deletecollection");
        let lazy = reads && stored_version::is_converted(resource);
        return if lazy { context.server.objects().start_cache(resource).await } else { Ok(()) };
    }
    if context.info.verb == "create" && context.info.subresource.is_empty() {
        custom::may_create(resource)?;
    }
    context.server.objects().start_cache(resource).await
}
