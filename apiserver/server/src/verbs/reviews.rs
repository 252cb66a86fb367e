//! Kinds that are answered and forgotten: reviews of tokens and access, bindings.

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::validation::names;
use bytes::Bytes;

use super::pods;
use crate::context::Context;
use crate::errors::{no_such_resource, not_allowed};
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::write::{Part, Tracking, Write, decode, options, own};
use apiserver_auth::review;
use apiserver_cache::encoding;

/// Answers the object that was sent.
pub async fn create(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    if context.info.verb != "create" {
        return Err(not_allowed());
    }
    negotiate::check_plain(&context.headers)?;
    options::check_options(context, "CreateOptions")?;
    let mut object = decode::object(context, resource, bytes)?;
    decode::drop_repeated_owners(context, &mut object, false);
    // Clients do not write these, so nobody owns them.
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        apiserver_schema::meta::unset(&mut object, field);
    }
    apiserver_schema::meta::drop_empty(&mut object);
    let has_status = object.get("status").is_some();
    encoding::normalize_as(resource, &mut object);
    // A status that was not sent has no owner.
    if let Some(fields) = object.as_object_mut().filter(|_| !has_status) {
        fields.remove("status");
    }
    let (part, tracking) = (Part::Main, Tracking::Update);
    let write = Write { context, resource, part, tracking, current: None };
    own::update(&write, &mut object).await?;
    let server = &context.server;
    let mut answer = match resource.kind.as_str() {
        "TokenReview" => {
            server.objects().fresh().await?;
            server.access().authenticator().ok_or_else(no_such_resource)?.token_review(&object)?
        }
        "Binding" => {
            let pods = server.objects().registry().lookup("", "v1", "pods").ok_or_else(no_such_resource)?;
            let name = apiserver_schema::meta::name(&object);
            if let Some(fault) = names::path_segment(name).first().filter(|_| !name.is_empty()) {
                return Err(ApiError::bad_request(format!("Name parameter invalid: {name:?}: {fault}")));
            }
            return pods::bind_to(context, pods, name, &object).await;
        }
        kind => {
            let namespace = context.info.namespace.as_str();
            review::review(kind, server.access().authorizer(), &context.identity, namespace, &object)?
        }
    };
    if resource.kind == "SelfSubjectReview" {
        let now = time::rfc3339(server.ambient().now());
        apiserver_schema::meta::set(&mut answer, "creationTimestamp", now);
    }
    encoding::complete(&mut answer);
    Ok(respond::json(201, &answer))
}
