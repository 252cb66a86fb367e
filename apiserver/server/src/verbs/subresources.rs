//! What lies below an object: status, scale, binding, logs and the rest.

use std::sync::Arc;

use apiserver_api::error::ApiError;
use apiserver_api::meta;
use apiserver_api::registry::Resource;
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};

use super::decode::{self, Expected};
use super::update::{self, Part};
use super::{evict, get, no_such_resource, not_allowed, patch, pods, read, scale};
use crate::admission;
use crate::body::{self, Body};
use crate::context::Context;
use crate::encoding;
use crate::respond::{self, Answer};
use crate::storage;
use crate::streams;

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
        ("pods", "log" | "exec" | "attach" | "portforward") => to_kubelet(context, resource, request).await,
        ("nodes", "proxy") => to_node(context, resource, request).await,
        ("namespaces", "finalize") if info.verb == "update" => {
            finalize(context, resource, body::read(request.into_body()).await?).await
        }
        ("serviceaccounts", "token") if info.verb == "create" => {
            token(context, resource, body::read(request.into_body()).await?).await
        }
        ("pods" | "services", "proxy") => Err(ApiError::new(
            501,
            "NotImplemented",
            "the proxy subresource of pods and services is not served; use kubectl port-forward",
        )),
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
    update::name_matches(meta::name(&wanted), &context.info.name)?;
    let make = |old: &Value| {
        update::same_uid(context, resource, old, &wanted)?;
        let mut new = old.clone();
        new["spec"]["finalizers"] = wanted["spec"].get("finalizers").cloned().unwrap_or_else(|| json!([]));
        match meta::resource_version(&wanted) {
            "" => meta::unset(&mut new, "resourceVersion"),
            version => meta::set(&mut new, "resourceVersion", version),
        }
        Ok(new)
    };
    let updated = update::change(context, resource, Part::Whole, &make).await?;
    respond::object(context, resource, 200, updated)
}

async fn token(context: &Context, resource: &Arc<Resource>, bytes: Bytes) -> Answer {
    let expected = Expected::builtin(
        "authentication.k8s.io/v1",
        "TokenRequest",
        "io.k8s.api.authentication.v1.TokenRequest",
    );
    let request = decode::typed(context, &expected, bytes)?;
    let issuer = context.server.issuer().ok_or_else(|| {
        ApiError::new(501, "NotImplemented", "this server has no key to sign ServiceAccount tokens with")
    })?;
    let info = &context.info;
    let account = storage::require(&context.server, resource, &info.namespace, &info.name).await?;
    // The object that a token is bound to may be as new as the request.
    context.server.fresh().await?;
    Box::pin(admission::order(context, resource, "token", &request)).await?;
    let objects = context.server.bound_objects();
    let mut answer = issuer.token_request(&account.object, &request, &*objects)?;
    encoding::complete(&mut answer);
    Ok(respond::json(201, &answer))
}

async fn to_kubelet(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let (server, info) = (&context.server, &context.info);
    if !matches!(info.verb, "get" | "create") {
        return Err(not_allowed());
    }
    let pod = storage::require(server, resource, &info.namespace, &info.name).await?.object;
    let node = match meta::text(&pod, "/spec/nodeName") {
        "" => None,
        name => {
            let nodes = server.registry().lookup("", "v1", "nodes").ok_or_else(no_such_resource)?;
            storage::fetch(server, nodes, "", name).await?.map(|stored| stored.object)
        }
    };
    streams::pod_subresource(server.kubelets()?, &info.subresource, &pod, node.as_ref(), request).await
}

async fn to_node(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let (server, info) = (&context.server, &context.info);
    let (name, port) = node_and_port(&info.name)?;
    let node = storage::require(server, resource, "", name).await?.object;
    // `/api/v1/nodes/NAME/proxy`; what follows goes on as it came, still encoded.
    let path = behind(request.uri().path(), 5);
    let target = streams::node_target(&node, port, path, request.uri().query())?;
    streams::proxy(server.kubelets()?, target, request).await
}

/// `NODE`, `NODE:PORT` or `https:NODE:PORT`, whose port may be left out.
fn node_and_port(id: &str) -> Result<(&str, Option<u16>), ApiError> {
    let parts: Vec<&str> = id.split(':').collect();
    let (name, port) = match parts[..] {
        [name] => (name, ""),
        [name, port] | ["https", name, port] => (name, port),
        _ => ("", ""),
    };
    let number = if port.is_empty() { Ok(None) } else { port.parse().map(Some) };
    match number {
        Ok(port) if !name.is_empty() => Ok((name, port)),
        _ => Err(ApiError::bad_request(format!("invalid node request {id:?}"))),
    }
}

/// What follows so many parts of a path, with the slash before it.
fn behind(path: &str, parts: usize) -> &str {
    let mut rest = path;
    for _ in 0..parts {
        let begin = rest.trim_start_matches('/');
        rest = begin.find('/').map_or("", |end| &begin[end..]);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::{behind, node_and_port};

    #[test]
    fn nodes_are_named_with_and_without_a_port() {
        for (id, read) in [
            ("n", Some(("n", None))),
            ("n:", Some(("n", None))),
            ("n:10250", Some(("n", Some(10250)))),
            ("https:n:", Some(("n", None))),
            ("https:n:10250", Some(("n", Some(10250)))),
            ("n:x", None),
            ("n:70000", None),
            (":10250", None),
            ("http:n:10255", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(node_and_port(id).ok(), read, "{id}");
            if read.is_none() {
                assert_eq!(node_and_port(id).unwrap_err().message, format!("invalid node request {id:?}"));
            }
        }
    }

    #[test]
    fn paths_go_on_behind_the_proxy_of_any_node() {
        for (path, rest) in [
            ("/api/v1/nodes/n/proxy", ""),
            ("/api/v1/nodes/n/proxy/", "/"),
            ("/api/v1/nodes/n:10255/proxy/a%2Fb//c/", "/a%2Fb//c/"),
            ("/api/v1/nodes/proxy/proxy/proxy", "/proxy"),
            ("//api/v1/nodes//n/proxy/x", "/x"),
        ] {
            assert_eq!(behind(path, 5), rest, "{path}");
        }
    }
}
