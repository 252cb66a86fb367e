//! Subresources of objects: status, scale, binding, logs and the rest.

use std::sync::Arc;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::{evict, get, patch, pods, proxy, read, scale, update, websocket};
use crate::admission;
use crate::body;
use crate::body::Body;
use crate::context::Context;
use crate::errors::{no_such_resource, not_allowed};
use crate::respond;
use crate::respond::Answer;
use crate::streams;
use crate::streams::{Caller, NodeRequest};
use crate::websocket::is_asked;
use crate::write;
use crate::write::change::{name_matches, same_uid};
use crate::write::decode::Expected;
use crate::write::{Part, Update, answer, decode};
use apiserver_cache::encoding;

/// Answers a request for a subresource.
pub async fn dispatch(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let info = &context.info;
    let known = resource.subresources.iter().any(|s| s.name == info.subresource);
    if !known || info.name.is_empty() {
        return Err(no_such_resource());
    }
    match (resource.plural.as_str(), info.subresource.as_str()) {
        (_, "status") | ("certificatesigningrequests", "approval") => {
            part(context, resource, Part::Status, request).await
        }
        (_, "scale") => scale::dispatch(context, resource, body::read(request.into_body()).await?).await,
        ("pods", "binding" | "eviction") => {
            if info.verb != "create" {
                return Err(not_allowed());
            }
            let bytes = body::read(request.into_body()).await?;
            if info.subresource == "binding" {
                pods::bind(context, resource, bytes).await
            } else {
                evict::evict(context, resource, bytes).await
            }
        }
        ("pods", "ephemeralcontainers" | "resize") => {
            pods::containers(context, resource, body::read(request.into_body()).await?).await
        }
        ("pods", "exec" | "attach" | "portforward") | ("pods" | "services" | "nodes", "proxy")
            if context.query.all("dryRun").next().is_some() =>
        {
            // The effects behind a connection cannot be tried without being done.
            Err(ApiError::bad_request("dryRun is not supported"))
        }
        ("pods", "log" | "exec" | "attach" | "portforward") => to_kubelet(context, resource, request).await,
        ("nodes", "proxy") => to_node(context, resource, request).await,
        ("namespaces", "finalize") if info.verb == "update" => {
            finalize(context, resource, body::read(request.into_body()).await?).await
        }
        ("serviceaccounts", "token") if info.verb == "create" => {
            token(context, resource, body::read(request.into_body()).await?).await
        }
        ("pods" | "services", "proxy") => proxy::to_backend(context, resource, request).await,
        _ => Err(not_allowed()),
    }
}

async fn part(context: &Context, resource: &Arc<Resource>, part: Part, request: Request<Body>) -> Answer {
    match context.info.verb {
        "get" => get::get(context, resource).await,
        "update" => {
            update::update(context, resource, part, read(context, resource, "update", request).await?).await
        }
        "patch" => {
            patch::patch(context, resource, part, read(context, resource, "patch", request).await?).await
        }
        _ => Err(not_allowed()),
    }
}

/// The namespace controller takes its finalizer away here, and only here.
async fn finalize(context: &Context, resource: &Arc<Resource>, bytes: Bytes) -> Answer {
    let wanted = decode::object(context, resource, bytes)?;
    name_matches(meta::name(&wanted), &context.info.name)?;
    let make = |old: &Value| {
        same_uid(context, resource, old, &wanted)?;
        let mut new = old.clone();
        new["spec"]["finalizers"] = wanted["spec"].get("finalizers").cloned().unwrap_or_else(|| json!([]));
        match meta::resource_version(&wanted) {
            "" => meta::unset(&mut new, "resourceVersion"),
            version => meta::set(&mut new, "resourceVersion", version),
        }
        Ok(new)
    };
    let updated = write::update(context, resource, Update::of(context, Part::Whole, &make)).await?;
    answer::updated(context, resource, updated)
}

async fn token(context: &Context, resource: &Arc<Resource>, bytes: Bytes) -> Answer {
    let expected = Expected::builtin(
        "authentication.k8s.io/v1",
        "TokenRequest",
        "io.k8s.api.authentication.v1.TokenRequest",
    );
    let request = decode::below(context, &expected, bytes)?;
    let issuer = context.server.access().issuer().ok_or_else(|| {
        ApiError::new(501, "NotImplemented", "this server has no key to sign ServiceAccount tokens with")
    })?;
    let info = &context.info;
    let account = context.server.objects().require(resource, &info.namespace, &info.name).await?;
    // The object that a token is bound to may be as new as the request.
    context.server.objects().fresh().await?;
    Box::pin(admission::order(context, resource, "token", &request)).await?;
    let objects = context.server.access().bound_objects();
    let mut answer = issuer.token_request(&account.object, &request, &*objects)?;
    encoding::complete(&mut answer);
    Ok(respond::json(201, &answer))
}

async fn to_kubelet(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let (server, info) = (&context.server, &context.info);
    let served = if info.subresource == "log" {
        *request.method() == Method::GET
    } else {
        matches!(*request.method(), Method::GET | Method::POST)
    };
    if !served {
        return Err(not_allowed());
    }
    let pod = server.objects().require(resource, &info.namespace, &info.name).await?.object;
    let node = match meta::text(&pod, "/spec/nodeName") {
        "" => None,
        name => {
            let nodes = server.objects().registry().lookup("", "v1", "nodes").ok_or_else(no_such_resource)?;
            server.objects().fetch(nodes, "", name).await?.map(|stored| stored.object)
        }
    };
    let own = server.addresses().own_addresses();
    let caller = Caller { kubelets: server.kubelets()?, own: &own, budget: &context.budget, webhook: false };
    if info.subresource == "log" && is_asked(request.headers()) {
        let mut plain = Request::new(body::empty());
        *plain.uri_mut() = request.uri().clone();
        let log = streams::pod_subresource(caller, "log", &pod, node.as_ref(), plain).await?;
        return if log.status() == StatusCode::OK { websocket::serve_log(request, log) } else { Ok(log) };
    }
    streams::pod_subresource(caller, &info.subresource, &pod, node.as_ref(), request).await
}

async fn to_node(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let (server, info) = (&context.server, &context.info);
    if !proxy::METHODS.contains(request.method()) {
        return Err(not_allowed());
    }
    let asked = NodeRequest::parse(&info.name)?;
    let node = server.objects().require(resource, "", asked.name).await?.object;
    // The path after the subresource is passed on as it came, still encoded.
    let target = streams::node_target(&node, &asked, &info.rest, request.uri().query())?;
    let own = server.addresses().own_addresses();
    let caller = Caller { kubelets: server.kubelets()?, own: &own, budget: &context.budget, webhook: false };
    streams::proxy(caller, target, request).await
}
