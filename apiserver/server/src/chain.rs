//! The way of a request, from outside to inside: panic recovery, request info, authentication,
//! (audit), flow control, impersonation, authorization, routing. Each step is a function that
//! calls the next.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use apiserver_api::auth::Identity;
use apiserver_api::error::ApiError;
use futures::FutureExt;
use http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderName, HeaderValue, WARNING};
use http::{Request, Response};
use rustls::pki_types::CertificateDer;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use crate::auth::user_info;
use crate::body::{self, Body};
use crate::context::Context;
use crate::limits;
use crate::negotiate;
use crate::query::Query;
use crate::rbac::{self, Attributes};
use crate::request::RequestInfo;
use crate::respond::{self, Answer};
use crate::server::Server;
use crate::{paths, storage, verbs};

/// The client certificate that TLS verified, in a request's extensions.
#[derive(Clone)]
pub struct PeerCertificate(pub CertificateDer<'static>);

/// Answers any request.
pub async fn handle(server: Arc<Server>, request: Request<Body>) -> Response<Body> {
    let started = Instant::now();
    let audit_id = server.ambient().uid();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    let known = known(&server, &info);
    let in_protobuf = negotiate::prefers_protobuf(request.headers());
    let in_flight = server.metrics().request_began(info.is_read());
    let mut response = recover_panic(Arc::clone(&server), info.clone(), query, request).await;
    drop(in_flight);
    if in_protobuf {
        response = respond::as_protobuf(response).await;
    }
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    if let Ok(value) = HeaderValue::from_str(&audit_id) {
        headers.insert(HeaderName::from_static("audit-id"), value);
    }
    server.metrics().request_ended(&info, known, response.status().as_u16(), started.elapsed());
    response
}

/// Whether metrics may be labelled with what the path says.
fn known(server: &Server, info: &RequestInfo) -> bool {
    info.is_resource
        && server.kind(&info.group, &info.version, &info.resource).is_some_and(|resource| {
            info.subresource.is_empty() || resource.subresources.iter().any(|s| s.name == info.subresource)
        })
}

/// A panic of one request is an answer to it and no more.
async fn recover_panic(
    server: Arc<Server>,
    info: RequestInfo,
    query: Query,
    request: Request<Body>,
) -> Response<Body> {
    let path = info.path.clone();
    let work = AssertUnwindSafe(authenticate(server, info, query, request)).catch_unwind().boxed();
    match work.await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => respond::refusal(&error),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(%path, panic = %text, "a request panicked");
            respond::refusal(&ApiError::internal(
                "this request caused apiserver to panic. Look in the logs for details.",
            ))
        }
    }
}

/// Who asks: an identity from a client in the process, a certificate, a token, or nobody.
async fn authenticate(
    server: Arc<Server>,
    info: RequestInfo,
    query: Query,
    mut request: Request<Body>,
) -> Answer {
    let given = request.extensions_mut().remove::<Identity>();
    let identity = match given {
        Some(identity) => identity,
        None => {
            let certificate = request.extensions().get::<PeerCertificate>().map(|c| c.0.clone());
            let authorization = request.headers().get(AUTHORIZATION);
            match server.authenticator() {
                Some(authenticator) => authenticator.authenticate(certificate.as_ref(), authorization)?,
                None if certificate.is_some() || authorization.is_some() => {
                    return Err(ApiError::new(401, "Unauthorized", "Unauthorized"));
                }
                None => Identity::anonymous(),
            }
        }
    };
    if !server.config().anonymous && identity.user == "system:anonymous" {
        return Err(ApiError::new(401, "Unauthorized", "Unauthorized"));
    }
    let context = Context::new(server, info, query, request.headers().clone(), identity);
    // Audit has its place here: the request is known, and who makes it.
    let answer = flow(context, request).await;
    tracing::trace!("answered");
    answer
}

/// No more requests at one time than the server can carry.
async fn flow(context: Context, request: Request<Body>) -> Answer {
    if context.info.is_long_running() {
        return impersonate(context, request).await;
    }
    // A client may give up sooner than the server would.
    let patience = context.query.duration("timeout")?.filter(|asked| !asked.is_zero());
    let timeout = patience.map_or(limits::REQUEST_TIMEOUT, |asked| asked.min(limits::REQUEST_TIMEOUT));
    let server = Arc::clone(&context.server);
    let _turn = turn(&server, context.info.is_read()).await?;
    tokio::time::timeout(timeout, impersonate(context, request)).await.unwrap_or_else(|_| {
        Err(ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted time"))
    })
}

async fn turn(server: &Server, read: bool) -> Result<SemaphorePermit<'_>, ApiError> {
    let semaphore = if read { server.reads() } else { server.writes() };
    match tokio::time::timeout(limits::FLOW_WAIT, semaphore.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => {
            let error = ApiError::new(429, "TooManyRequests", "Too many requests, please try again later.");
            Err(storage::retry_after(error, 1))
        }
    }
}

/// As whom the request is carried out.
async fn impersonate(mut context: Context, request: Request<Body>) -> Answer {
    let authorizer = context.server.authorizer();
    if let Some(identity) = rbac::impersonation::evaluate(&context.headers, authorizer, &context.identity)? {
        tracing::debug!(user = %user_info(&context.identity), as_user = %identity.user, "impersonated");
        context.identity = identity;
    }
    authorize(context, request).await
}

/// Whether it may be.
async fn authorize(context: Context, request: Request<Body>) -> Answer {
    if context.server.config().rbac {
        let info = &context.info;
        let attributes = Attributes {
            identity: &context.identity,
            verb: info.verb,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &info.path,
            is_resource: info.is_resource,
        };
        let decision = context.server.authorizer().authorize(&attributes);
        if !decision.allowed {
            return Err(rbac::forbidden(&attributes, &decision));
        }
    }
    route(context, request).await
}

/// To a verb on a kind, or to one of the other paths.
async fn route(context: Context, request: Request<Body>) -> Answer {
    let head = request.method() == http::Method::HEAD;
    let answer = if context.info.is_resource {
        verbs::dispatch(&context, request).boxed().await
    } else {
        paths::dispatch(&context, request.method()).await
    };
    let mut response = answer.unwrap_or_else(|error| respond::refusal(&error));
    for warning in context.warnings() {
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    if head {
        *response.body_mut() = body::empty();
    }
    Ok(response)
}
