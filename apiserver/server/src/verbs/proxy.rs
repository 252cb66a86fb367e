//! `proxy` of pods and Services: finds the pod that a request is for, and passes it on.

use std::sync::Arc;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use http::{Method, Request};
use serde_json::Value;

use crate::body::Body;
use crate::context::Context;
use crate::errors::{no_such_resource, not_allowed};
use crate::request::ClientAddress;
use crate::respond::Answer;
use crate::server::Server;
use crate::streams;
use crate::streams::{Backend, Caller, Proxy, ProxyName};

/// Methods that are passed on.
pub const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

/// Passes a request on to a pod, or to one of the pods of a Service.
pub async fn to_backend(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let (server, info) = (&context.server, &context.info);
    if !METHODS.contains(request.method()) {
        return Err(not_allowed());
    }
    let backend = if resource.plural == "pods" {
        let asked = ProxyName::parse(&info.name, "pod")?;
        let pod = server.objects().require(resource, &info.namespace, asked.name).await?.object;
        streams::pod_backend(&pod, &asked)?
    } else {
        let asked = ProxyName::parse(&info.name, "service")?;
        service_backend(context, resource, &asked).await?
    };
    let (namespace, plural, name) = (&info.namespace, &resource.plural, &info.name);
    let proxy = Proxy {
        prefix: format!("/api/v1/namespaces/{namespace}/{plural}/{name}/proxy"),
        rest: &info.rest,
        client: request.extensions().get::<ClientAddress>().map(|client| client.0),
    };
    if let Some(redirect) = streams::slash_redirect(&proxy, &request) {
        return Ok(redirect);
    }
    let own = server.addresses().own_addresses();
    let caller = Caller { kubelets: server.kubelets()?, own: &own, budget: &context.budget, webhook: false };
    streams::pass_on(caller, backend, &proxy, request).await
}

/// A ready pod of a Service, as its Endpoints have it; 503 if there is none.
async fn service_backend(
    context: &Context,
    services: &Arc<Resource>,
    asked: &ProxyName<'_>,
) -> Result<Backend, ApiError> {
    let (server, namespace) = (&context.server, &context.info.namespace);
    let service;
    let port = match asked.port.parse() {
        Ok(number) => {
            service = server.objects().require(services, namespace, asked.name).await?.object;
            streams::port_name(&service, asked, number)?
        }
        Err(_) => asked.port,
    };
    let endpoints = kind(server, "endpoints")?;
    // It is the Service that cannot be reached, whichever object of it is missing.
    let endpoints = server.objects().referred(endpoints, namespace, asked.name).await?;
    let endpoints: Value = endpoints.ok_or_else(|| ApiError::not_found("", "services", asked.name))?;
    if endpoints["subsets"].as_array().is_none_or(Vec::is_empty) {
        return Err(streams::no_endpoints(asked.name));
    }
    let pods = kind(server, "pods")?;
    let seed = server.ambient().random.next_u64();
    for candidate in streams::candidates(&endpoints, (namespace, port), seed) {
        let pod: Option<Value> = server.objects().referred(pods, namespace, candidate.pod).await?;
        if let Some(backend) = pod.and_then(|pod| candidate.backend(&pod, asked)) {
            return Ok(backend);
        }
    }
    Err(streams::no_endpoints(&context.info.name))
}

fn kind<'a>(server: &'a Server, plural: &str) -> Result<&'a Arc<Resource>, ApiError> {
    server.objects().registry().lookup("", "v1", plural).ok_or_else(no_such_resource)
}
