//! The way of a request, from outside to inside: panic recovery, request info, authentication,
//! (audit), impersonation, authorization, flow control, routing. Each step is a function.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_schema::error::ApiError;
use futures::FutureExt;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, HeaderName, HeaderValue,
    RETRY_AFTER, WARNING,
};
use http::{HeaderMap, Request, Response, Version};
use http_body::Body as _;
use tokio::time::Instant;
use userspace_daemon::metrics::Member;

use crate::access::Access;
use crate::authorize;
use crate::authorize::Authorized;
use crate::body;
use crate::body::Body;
use crate::clients::accounts::{Account, Class};
use crate::clients::connections::Connection;
use crate::clients::delivery::Payer;
use crate::clients::{intake, lanes, task_account};
use crate::context::Context;
use crate::errors::too_many_requests;
use crate::lifetime::Lifetime;
use crate::limits;
use crate::metrics;
use crate::metrics::{Authentication, Guard, Metrics, Requests};
use crate::negotiate;
use crate::objects::Objects;
use crate::probes;
use crate::query::Query;
use crate::request::{ClientAddress, PeerCertificate, RequestInfo};
use crate::respond;
use crate::respond::Answer;
use crate::server::Server;
use crate::websocket;
use crate::{paths, streams, tunnels, verbs, warning_header};
use apiserver_auth::authentication::user_info;
use apiserver_auth::impersonation;

/// Marks a request whose client showed a certificate that no authority signed.
#[derive(Clone, Copy)]
pub struct UnknownCertificate;

/// The message to clients whose requests come after the shutdown began.
const ENDING: &str = "The apiserver is shutting down, please try again later.";

/// Answers any request.
pub async fn handle(server: Arc<Server>, mut request: Request<Body>) -> Response<Body> {
    let started = Instant::now();
    let mut audit_id = audit_id(server.ambient(), request.headers());
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    let info = Arc::new(info.upgrading(streams::requested_upgrade(request.headers()).is_some()));
    let seen = Seen::of(server.objects(), &info, &query, &request);
    let in_protobuf = negotiate::prefers_protobuf(request.headers());
    // Streams are read by programs.
    let pretty = !info.is_long_running()
        && !paths::is_as_it_is(&info.path)
        && negotiate::is_pretty(request.headers(), &query);
    let zip = pretty && negotiate::accepts_gzip(request.headers());
    if pretty {
        // It is compressed after it was indented.
        request.headers_mut().remove(ACCEPT_ENCODING);
    }
    let in_flight = (!seen.long_running).then(|| server.metrics().request_began(info.is_read()));
    // A client that waits to be asked for the body is not asked.
    let waits = request.headers().contains_key(EXPECT);
    let (parts, body) = request.into_parts();
    let (body, rest) = body::lend(body, !waits);
    let request = Request::from_parts(parts, body);
    // A client that goes away takes the work along, wherever it is.
    let pending = Pending(Some(Arc::clone(&seen.requests)));
    let mut response = if refuses(server.lifetime(), &info, &request) {
        too_late(request.version())
    } else {
        recover_panic(Arc::clone(&server), info, query, request).await
    };
    pending.answered();
    rest.drain().await;
    response = respond::compress(response).await;
    if in_protobuf {
        response = respond::as_protobuf(response).await;
    }
    if pretty {
        response = respond::pretty(response, zip).await;
    }
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    // No two are the same: in HTTP/2's table of headers each would push out one that comes again.
    audit_id.set_sensitive(true);
    headers.insert(AUDIT_ID, audit_id);
    seen.answered((server.metrics(), server.config().request_timeout), response, started, in_flight)
}

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Returns the id of a request: the client's choice, or a new one.
fn audit_id(ambient: &Ambient, headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(AUDIT_ID).filter(|value| (1..=limits::AUDIT_ID).contains(&value.len()));
    let new = || HeaderValue::from_str(&ambient.uid());
    given.cloned().or_else(|| new().ok()).unwrap_or(HeaderValue::from_static(""))
}

/// Returns `true` for a request after the end was announced and the delay is over. Probes are answered, and so
/// are the components of this process, which end after the server.
fn refuses(lifetime: &Lifetime, info: &RequestInfo, request: &Request<Body>) -> bool {
    lifetime.refusing().is_cancelled()
        && request.extensions().get::<Identity>().is_none()
        && probes::probe(&info.path).is_none()
}

fn too_late(version: Version) -> Response<Body> {
    let mut response = respond::text(429, ENDING);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    // HTTP/2 uses GOAWAY instead.
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A request that is not answered yet; dropped, it counts as aborted.
struct Pending(Option<Arc<Member<7, Requests>>>);

impl Pending {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(requests) = &self.0 {
            requests.value.aborted();
        }
    }
}

/// The facts that metrics need about a request.
struct Seen {
    requests: Arc<Member<7, Requests>>,
    long_running: bool,
    /// Sizes of answers to reads are counted.
    read: bool,
    /// The field validation of a write.
    validation: Option<&'static str>,
}

impl Seen {
    fn of(objects: &Objects, info: &RequestInfo, query: &Query, request: &Request<Body>) -> Self {
        let known = known(objects, info);
        let label = |text| if known { text } else { "" };
        let scope = match (info.namespace.is_empty(), info.name.is_empty()) {
            _ if !known => "",
            (_, false) => "resource",
            (false, true) => "namespace",
            (true, true) => "cluster",
        };
        let dry_run = if query.get("dryRun").is_some() { "All" } else { "" };
        let verb = verb(info, request.headers());
        let subresource = if info.is_resource { label(&info.subresource) } else { fixed_path(&info.path) };
        let labels = [
            verb,
            dry_run,
            label(&info.group),
            label(&info.version),
            label(&info.resource),
            subresource,
            scope,
        ];
        Self {
            requests: objects.metrics().requests(&labels),
            long_running: info.is_long_running(),
            read: matches!(verb, "GET" | "LIST"),
            validation: matches!(verb, "POST" | "PUT" | "PATCH" | "APPLY").then(|| validation(query)),
        }
    }

    /// Records an answer; one that is sent in pieces is in flight until its end.
    fn answered(
        self,
        (metrics, timeout): (&Metrics, Duration),
        mut response: Response<Body>,
        started: Instant,
        in_flight: Option<Guard>,
    ) -> Response<Body> {
        let (code, took) = (response.status().as_u16(), started.elapsed());
        let size = response.body().size_hint().exact();
        self.requests.value.ended(code, took, size.filter(|_| self.read));
        if let Some(how) = self.validation {
            metrics.fields_validated(how, took);
        }
        if code == 429 || (code == 504 && took >= timeout) {
            self.requests.value.terminated(code);
        }
        if size.is_none() {
            let body = std::mem::replace(response.body_mut(), body::empty());
            let (read, requests) = (self.read, Arc::clone(&self.requests));
            let done = move |bytes| {
                if read {
                    requests.value.sent(bytes);
                }
            };
            let guard = (in_flight, self.long_running.then(|| metrics::long_running(self.requests)));
            *response.body_mut() = body::counted(body, done, guard);
        }
        response
    }
}

/// `fieldValidation`, for metrics.
fn validation(query: &Query) -> &'static str {
    match query.get("fieldValidation") {
        None => "",
        Some("Ignore") => "Ignore",
        Some("Warn") => "Warn",
        Some("Strict") => "Strict",
        Some(_) => "invalid",
    }
}

/// Returns the verb as Kubernetes' metrics name it.
fn verb(info: &RequestInfo, headers: &http::HeaderMap) -> &'static str {
    let apply = || {
        let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        media.starts_with("application/apply-patch")
    };
    match info.verb {
        _ if matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy") => "CONNECT",
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if apply() => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "options" => "OPTIONS",
        _ => "other",
    }
}

/// Returns the fixed path that a request names, if it is not about a kind.
fn fixed_path(path: &str) -> &'static str {
    const PATHS: [&str; 7] =
        ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    PATHS.into_iter().find(|known| path.starts_with(known)).unwrap_or_default()
}

/// Returns `true` if the path names a served resource, so that metrics may use it as a label.
fn known(objects: &Objects, info: &RequestInfo) -> bool {
    info.is_resource
        && objects.kind(&info.group, &info.version, &info.resource).is_some_and(|resource| {
            info.subresource.is_empty() || resource.subresources.iter().any(|s| s.name == info.subresource)
        })
}

/// A panic of one request is an answer to it and no more.
async fn recover_panic(
    server: Arc<Server>,
    info: Arc<RequestInfo>,
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

/// Determines the identity: a client in the process, a certificate, a token, or, where `anonymous` requests are
/// accepted, nobody's; 401.
fn identify(
    access: &Access,
    metrics: &Metrics,
    anonymous: bool,
    request: &mut Request<Body>,
) -> Result<Identity, ApiError> {
    let unauthorized = || ApiError::new(401, "Unauthorized", "Unauthorized");
    let identity = match request.extensions_mut().remove::<Identity>() {
        Some(identity) => identity,
        None => {
            websocket::move_token(request.headers_mut())?;
            let certificate = request.extensions().get::<PeerCertificate>().map(|c| c.0.clone());
            let authorization = request.headers().get(AUTHORIZATION);
            match access.authenticator() {
                Some(authenticator) => {
                    if let Some(left) = certificate.as_ref().and_then(|c| authenticator.seconds_left(c)) {
                        metrics.certificate_shown(left);
                    }
                    authenticator.authenticate(certificate.as_ref(), authorization)?
                }
                None if certificate.is_some() || authorization.is_some() => return Err(unauthorized()),
                None => Identity::anonymous(),
            }
        }
    };
    // A good token counts with any certificate; an anonymous request with a wrong certificate is refused.
    let wrong = request.extensions().get::<UnknownCertificate>().is_some();
    if (wrong || !anonymous) && identity.user == "system:anonymous" {
        return Err(unauthorized());
    }
    Ok(identity)
}

/// Authenticates the request.
async fn authenticate(
    server: Arc<Server>,
    info: Arc<RequestInfo>,
    query: Query,
    mut request: Request<Body>,
) -> Answer {
    let began = Instant::now();
    let identity = identify(server.access(), server.metrics(), server.config().anonymous, &mut request);
    let (result, user) = match &identity {
        Ok(identity) => (Authentication::Success, identity.user.as_str()),
        Err(_) => (Authentication::Failure, ""),
    };
    server.metrics().authenticated(result, user, began.elapsed());
    let identity = identity?;
    // Streams need the headers again to be upgraded; others leave them here.
    let headers = if info.is_long_running() {
        request.headers().clone()
    } else {
        std::mem::take(request.headers_mut())
    };
    let connection = request.extensions_mut().remove::<Arc<Connection>>();
    let own = server.clients().accounts().of(&identity);
    let account = match &connection {
        // So that nobody else can use up the share of probes.
        Some(connection) if lanes::is_probe(&info) => {
            server.clients().accounts().probes(&connection.network_key())
        }
        _ => Arc::clone(&own),
    };
    let mut context = Context::new(server, info, query, headers, identity);
    // Clients in the process are not charged.
    if let Some(connection) = connection {
        request.extensions_mut().insert(ClientAddress(connection.address()));
        if own.class() != Class::Anonymous {
            connection.authenticated(&own);
        }
        context.budget = connection.budget(Arc::clone(&account));
    }
    let refusable = context.info.is_read();
    // People read logs, and stop for a while.
    let streams = context.info.is_long_running() && context.info.verb != "watch";
    let stall = if streams { limits::STALL_OF_LOGS } else { limits::STALL };
    // Audit belongs here: the request and its author are known.
    let work = flow(context, request, &account);
    let answer = task_account::on_behalf_of(Arc::clone(&account), work).await;
    tracing::trace!("answered");
    let mut response = answer.unwrap_or_else(|error| respond::refusal(&error));
    response.extensions_mut().insert(Payer { account, refusable, stall });
    Ok(response)
}

/// No more requests at one time than the server can carry, and none by those who make it hold too much.
async fn flow(mut context: Context, request: Request<Body>, account: &Arc<Account>) -> Answer {
    let server = Arc::clone(&context.server);
    let lane = lanes::lane(&context.info, &context.identity);
    let Some(_request) = context.budget.try_charge(limits::HELD_BY_REQUEST) else {
        server.clients().connections().refused.add(1);
        return Err(too_many_requests());
    };
    if context.info.is_long_running() {
        return route(authorized(context)?, request).await;
    }
    // A client may give up sooner than the server would.
    let asked = context.query.duration("timeout")?.filter(|asked| !asked.is_zero());
    let most = server.config().request_timeout;
    let timeout = asked.map_or(most, |asked| asked.min(most));
    let (parts, body) = request.into_parts();
    let (body, received) = intake::meter(body, &context.budget, server.clients().lanes().heavy(lane))?;
    let read = context.info.is_read();
    let place = Arc::new(server.clients().lanes().place(lane, account, read, Some(received)));
    context.place = Arc::clone(&place);
    let writes = context.info.is_resource && !read;
    let work = async {
        let context = authorized(context)?;
        // A slow sender takes no place from others.
        let body = if writes { intake::arrived(body).await } else { body };
        let _turn = place.take().await?;
        route(context, Request::from_parts(parts, body)).await
    };
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        Err(ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted time"))
    })
}

/// Replaces the identity by the impersonated one, if that is allowed.
fn authorized(mut context: Context) -> Result<Authorized, ApiError> {
    let authorizer = context.server.access().authorizer();
    if let Some(identity) = impersonation::evaluate(&context.headers, authorizer, &context.identity)? {
        tracing::debug!(user = %user_info(&context.identity), as_user = %identity.user, "impersonated");
        context.identity = identity;
    }
    authorize::authorize(context)
}

/// To a verb on a kind, or to one of the other paths.
async fn route(context: Authorized, request: Request<Body>) -> Answer {
    let head = request.method() == http::Method::HEAD;
    let answer = if context.info.is_resource {
        verbs::dispatch(&context, request).boxed().await
    } else if let Some(node) = tunnels::node(&context.info) {
        tunnels::open(&context, node, request)
    } else {
        paths::dispatch(&context, request.method()).await
    };
    let mut response = answer.unwrap_or_else(|error| respond::refusal(&error));
    for value in warning_header::values(&context.warnings()) {
        response.headers_mut().append(WARNING, value);
    }
    if head {
        *response.body_mut() = body::empty();
    }
    Ok(response)
}
