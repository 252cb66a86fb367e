//! `delete` and `deletecollection`.

use std::collections::VecDeque;
use std::sync::Arc;

use apiserver_cache::Entry;
use apiserver_cache::encoding;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::ordered;
use bytes::Bytes;
use futures::future::BoxFuture;

use super::list::Page;
use crate::context::Context;
use crate::errors;
use crate::limits;
use crate::negotiate;
use crate::object_answer::object_answer;
use crate::respond;
use crate::respond::Answer;
use crate::write::delete::{Deleted, one};
use crate::write::delete_options::DeleteOptions;

/// Deletes one object.
pub async fn delete(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    // A client that cannot read the answer must not change anything.
    negotiate::wanted(&context.headers, resource)?;
    let options = DeleteOptions::read(context, bytes)?;
    warn_of_default(context, resource, &options);
    let namespace = context.info.namespace_of(resource);
    match one(context, resource, namespace, &context.info.name, &options).await? {
        Deleted::Gone(object) if !resource.behaviour.returns_deleted => {
            Ok(respond::success(200, resource, meta::name(&object), meta::uid(&object)))
        }
        Deleted::Gone(mut object) => {
            encoding::complete_kind(resource, &mut object);
            object_answer(context, resource, 200, Bytes::from(ordered::json_text(&object)))
        }
        Deleted::Waiting(bytes) => {
            // Only clients that ask in the older way are told that it is not done yet.
            let code = if options.orphan == Some(false) { 202 } else { 200 };
            object_answer(context, resource, code, bytes)
        }
    }
}

/// Warns a client that deletes objects and does not choose what becomes of their dependents.
fn warn_of_default(context: &Context, resource: &Resource, options: &DeleteOptions) {
    if let Some(warning) = resource.behaviour.delete_warning.filter(|_| options.propagation.is_none()) {
        context.warn(warning.to_owned());
    }
}

/// Deletes the objects that the selectors choose: those of the page that a list would show.
pub async fn collection(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?;
    let options = DeleteOptions::read(context, bytes)?;
    warn_of_default(context, resource, &options);
    let cache = context.server.objects().cache(resource)?;
    let mut page = match Page::read(context, resource, &cache).await? {
        Ok(page) => page,
        Err(expired) => return Ok(expired),
    };
    let wanted = wanted.of_list(resource)?;
    // Deleting takes a while, and deleted objects need not be held until the end.
    page.selected.entries.release(context.server.objects().caches(), &cache, page.revision);
    let mut chosen = page.selected.entries.clone();
    let mut gone = VecDeque::new();
    loop {
        let some = chosen.fetch(usize::MAX, limits::DELETE_COLLECTION_PAGE).await;
        let some = some.map_err(errors::store_error)?;
        if some.is_empty() {
            break;
        }
        let deletions = some.iter().map(|entry| one_of_many(context, resource, entry, &options));
        for (entry, result) in some.iter().zip(futures::future::join_all(deletions).await) {
            match result {
                Ok(_) => gone.push_back(Arc::clone(&entry.key)),
                // It was deleted meanwhile.
                Err(error) if error.code == 404 => {}
                // It is another object of that name by now, and not of the client's choice.
                Err(error) if error.code == 409 && options.uid.is_none() && options.version.is_none() => {}
                Err(error) => return Err(error),
            }
        }
    }
    page.selected.entries = page.selected.entries.only(gone);
    page.answer(context, &cache, wanted).await
}

/// Deletes the object that was chosen, and no later one of its name.
fn one_of_many<'a>(
    context: &'a Context,
    resource: &'a Resource,
    entry: &'a Entry,
    options: &DeleteOptions,
) -> BoxFuture<'a, Result<Deleted, ApiError>> {
    let uid = options.uid.clone().unwrap_or_else(|| entry.uid().to_owned());
    let options = DeleteOptions { uid: Some(uid), ..options.clone() };
    Box::pin(async move { one(context, resource, entry.namespace(), entry.name(), &options).await })
}
