//! Paths that do not belong to kinds: discovery, OpenAPI, version, health, metrics, token keys.

use std::sync::Arc;
use std::time::Duration;

use apiserver_schema::error::ApiError;
use apiserver_schema::{openapi, protobuf};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::addresses::Addresses;
use crate::body;
use crate::body::Body;
use crate::build::Build;
use crate::clients::Clients;
use crate::clients::accounts::Class;
use crate::context::Context;
use crate::discovery;
use crate::discovery::{Aggregated, Document};
use crate::errors::{no_such_resource, not_allowed};
use crate::health;
use crate::limits;
use crate::metrics;
use crate::negotiate;
use crate::objects::Objects;
use crate::probes;
use crate::respond;
use crate::respond::Answer;
use crate::respond::Shared;
use crate::streams::{Destination, Kubelets};
use crate::verbs::unknown;
use apiserver_cache::form::Format;

/// The time that the store has to report its size.
const SIZE: Duration = Duration::from_secs(1);

/// Answers requests for paths that do not belong to a kind.
pub async fn dispatch(context: &Context, method: &Method) -> Answer {
    let path = context.info.path.as_str();
    if !matches!(*method, Method::GET | Method::HEAD) {
        return if is_known(context, path) { Err(not_allowed()) } else { unknown(context) };
    }
    match path {
        "/" => return Ok(indented(&index(context))),
        "/version" | "/version/" => {
            let text = context.server.config().build.version_text();
            return Ok(respond::bytes(200, "application/json", text));
        }
        "/metrics" => return metrics(context, false).await,
        "/metrics/slis" => return metrics(context, true).await,
        "/openid/v1/jwks" | "/.well-known/openid-configuration" => return tokens(context, path),
        "/openapi/v2" => {
            context.server.objects().fresh_soon().await;
            return openapi_v2(context).await;
        }
        "/openapi/v3" | "/openapi/v3/" => {
            context.server.objects().fresh_soon().await;
            return openapi_v3_index(context);
        }
        _ => {}
    }
    if let Some(name) = path.strip_prefix("/openapi/v3/") {
        context.server.objects().fresh_soon().await;
        return openapi_v3(context, name).await;
    }
    if let Some((kind, check)) = probes::probe(path) {
        return Ok(health::answer(context, kind, check).await);
    }
    // The answer includes kinds established before the request. If the store does not answer, the present
    // knowledge is better than nothing.
    context.server.objects().fresh_soon().await;
    kinds(context, path)
}

/// Returns `true` if the answers of a path are the same for people and programs.
pub fn is_as_it_is(path: &str) -> bool {
    matches!(path, "/" | "/version" | "/version/")
        || ["/openapi/", "/openid/", "/.well-known/"].iter().any(|prefix| path.starts_with(prefix))
}

fn is_known(context: &Context, path: &str) -> bool {
    let fixed = is_as_it_is(path) || path.starts_with("/metrics") || probes::probe(path).is_some();
    fixed || context.server.documents().discovery().legacy(path).is_some()
}

/// Returns an indented answer, meant for people.
fn indented(value: &Value) -> Response<Body> {
    respond::bytes(200, "application/json", format!("{value:#}"))
}

fn kinds(context: &Context, path: &str) -> Answer {
    let documents = context.server.documents();
    let discovery = documents.discovery();
    let Some(legacy) = discovery.legacy(path) else { return unknown(context) };
    let ranges = negotiate::ranges(&context.headers);
    if ranges.is_empty() {
        return cached(context, legacy, JSON);
    }
    for range in &ranges {
        let protobuf = range.media == protobuf::MEDIA_TYPE;
        let json = range.accepts(JSON);
        let known = json || protobuf || range.accepts(Format::Yaml.media());
        if range.parameter("as").is_some() || range.parameter("g").is_some() {
            let group = range.parameter("g") == Some("apidiscovery.k8s.io");
            let list = range.parameter("as") == Some("APIGroupDiscoveryList");
            let version = match range.parameter("v") {
                Some("v2") => Aggregated::V2,
                Some("v2beta1") => Aggregated::V2Beta1,
                _ => continue,
            };
            let document =
                discovery.aggregated(path, version).filter(|_| group && list && (json || protobuf));
            if let Some(document) = document {
                return if protobuf {
                    let document = discovery.aggregated_protobuf(path, version)?;
                    cached(context, &document, version.protobuf_media())
                } else {
                    cached(context, document, version.media())
                };
            }
        } else if json {
            return cached(context, legacy, JSON);
        } else if protobuf {
            return cached(context, &*discovery::in_protobuf(legacy)?, protobuf::MEDIA_TYPE);
        } else if known {
            let value: Value = serde_json::from_slice(&legacy.bytes).unwrap_or_default();
            return Ok(respond::bytes(200, Format::Yaml.media(), respond::encoded(Format::Yaml, &value)?));
        }
    }
    Err(negotiate::not_acceptable())
}

/// Returns a document that clients may keep.
fn cached(context: &Context, document: &Document, media: &'static str) -> Answer {
    let mut response = if matches_etag(context, &document.etag) {
        not_modified(&document.etag)
    } else {
        let zip = document.bytes.len() >= limits::GZIP_MIN && negotiate::accepts_gzip(&context.headers);
        let content = if zip { document.packed()? } else { Bytes::clone(&document.bytes) };
        let mut response = respond::bytes(200, media, content);
        response.extensions_mut().insert(Shared);
        if zip {
            respond::mark_gzip(response.headers_mut());
        }
        set_etag(&mut response, &document.etag);
        response
    };
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

fn matches_etag(context: &Context, etag: &str) -> bool {
    let header = context.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok()).unwrap_or_default();
    header.split(',').any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == etag
    })
}

fn not_modified(etag: &str) -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    set_etag(&mut response, etag);
    response
}

fn set_etag(response: &mut Response<Body>, etag: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{etag}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
}

async fn openapi_v2(context: &Context) -> Answer {
    let documents = context.server.documents();
    let media = preferred(context, &openapi::V2_PROTOBUF_ACCEPTED, openapi::V2_PROTOBUF_MEDIA)?;
    let make = move || if media == JSON { documents.v2() } else { documents.v2_protobuf() };
    let document = context.server.unpacked().make(make).await?;
    gzipped(context, &document.packed, &document.hash, media).await
}

const JSON: &str = "application/json";

/// JSON, or the media type of protobuf where the client prefers it under one of its names; 406.
fn preferred(context: &Context, accepted: &[&str], media: &'static str) -> Result<&'static str, ApiError> {
    let ranges = negotiate::ranges(&context.headers);
    if ranges.is_empty() {
        return Ok(JSON);
    }
    let choose = |range: &negotiate::Range| {
        if range.accepts(JSON) {
            Some(JSON)
        } else {
            accepted.contains(&range.media.as_str()).then_some(media)
        }
    };
    ranges.iter().find_map(choose).ok_or_else(|| {
        let text = format!("only the following media types are accepted: {JSON}, {media}");
        ApiError::new(406, "NotAcceptable", text)
    })
}

fn openapi_v3_index(context: &Context) -> Answer {
    let index = Document::of(Bytes::from(context.server.documents().v3_index().to_string()));
    if matches_etag(context, &index.etag) {
        return Ok(not_modified(&index.etag));
    }
    let mut response = respond::bytes(200, JSON, index.bytes);
    set_etag(&mut response, &index.etag);
    Ok(response)
}

async fn openapi_v3(context: &Context, name: &str) -> Answer {
    let documents = context.server.documents();
    let media = preferred(context, &openapi::V3_PROTOBUF_ACCEPTED, openapi::V3_PROTOBUF_MEDIA)?;
    let wanted = name.to_owned();
    let make = move || match media {
        JSON => documents.v3(&wanted),
        _ => documents.v3_protobuf(&wanted),
    };
    let document = context.server.unpacked().make(make).await?;
    let Some(document) = document else { return Ok(respond::no_such_page()) };
    let asked = context.query.get("hash");
    if asked.is_some_and(|hash| hash != document.hash) {
        // The address of what has changed since.
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        let place = format!("/openapi/v3/{name}?hash={}", document.hash);
        if let Ok(place) = HeaderValue::from_str(&place) {
            response.headers_mut().insert(LOCATION, place);
        }
        set_etag(&mut response, &document.hash);
        return Ok(response);
    }
    let mut response = gzipped(context, &document.packed, &document.hash, media).await?;
    if asked.is_some() {
        // The address changes with the content.
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        if let Some(expires) = in_a_year(context).and_then(|date| HeaderValue::from_str(&date).ok()) {
            headers.insert(EXPIRES, expires);
        }
    }
    Ok(response)
}

/// Returns a year from now, as HTTP writes dates.
fn in_a_year(context: &Context) -> Option<String> {
    let now = context.server.ambient().now();
    let then = now.checked_add(jiff::SignedDuration::from_hours(365 * 24)).ok()?;
    Some(then.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
}

/// Returns a document that is kept compressed.
async fn gzipped(context: &Context, packed: &Bytes, hash: &str, media: &'static str) -> Answer {
    if matches_etag(context, hash) {
        return Ok(not_modified(hash));
    }
    let plain = !negotiate::accepts_gzip(&context.headers);
    let content = if plain { context.server.unpacked().of(packed).await? } else { Bytes::clone(packed) };
    let mut response = respond::bytes(200, media, content);
    response.extensions_mut().insert(Shared);
    if !plain {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    set_etag(&mut response, hash);
    Ok(response)
}

fn index(context: &Context) -> Value {
    let documents = context.server.documents();
    let mut paths: Vec<String> = documents.discovery().paths().map(str::to_owned).collect();
    paths.extend(
        [
            "/apis/",
            "/healthz",
            "/livez",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    if context.server.access().issuer().is_some_and(|issuer| issuer.is_discoverable()) {
        paths.extend(["/.well-known/openid-configuration", "/openid/v1/jwks"].map(str::to_owned));
    }
    paths.sort();
    paths.dedup();
    json!({"paths": paths})
}

/// `/metrics` and `/metrics/slis`, as text unless OpenMetrics is asked for.
async fn metrics(context: &Context, slis: bool) -> Answer {
    let format = userspace_daemon::metrics::Format::accepted(&context.headers);
    let metrics = context.server.metrics();
    let page = if slis {
        metrics.sli_page(format)
    } else {
        let size = tokio::time::timeout(SIZE, context.server.objects().store().size_bytes()).await;
        let size = size.ok().and_then(Result::ok).flatten();
        let server = &context.server;
        metrics.page(
            format,
            &metrics::State {
                caches: caches(server.objects()),
                store_bytes: size,
                usage: server.objects().store().usage(),
                build: build_labels(&server.config().build),
                taken: taken(server.addresses()).await,
                clients: clients(server.clients()),
                tunnels: server.kubelets().map(tunnels).unwrap_or_default(),
            },
        )
    };
    let page = Bytes::from(page);
    Ok(respond::bytes_compressed(&context.headers, 200, format.media(), page))
}

/// Returns the numbers of allocated addresses and node ports.
async fn taken(addresses: &Addresses) -> metrics::Taken {
    let Ok(allocator) = addresses.allocator() else { return metrics::Taken::default() };
    let ports = tokio::time::timeout(SIZE, allocator.ports_taken()).await.ok().flatten();
    metrics::Taken { addresses: allocator.addresses_taken(), ports }
}

fn clients(clients: &Clients) -> metrics::Clients {
    let connections = clients.connections();
    let counts = connections.counts();
    metrics::Clients {
        held: Class::ALL.map(Class::name).into_iter().zip(clients.accounts().held()).collect(),
        connections: vec![
            ("handshake", counts.handshakes),
            ("unauthenticated", counts.unknown),
            ("authenticated", counts.known),
        ],
        closed: vec![
            ("displaced", connections.displaced.value()),
            ("flood", connections.flooded.value()),
            ("idle", connections.idled.value()),
        ],
        cut: connections.cut.value(),
        refused: connections.refused.value(),
    }
}

/// Returns the figures of the watch caches, one for each kind.
fn caches(objects: &Objects) -> Vec<metrics::CacheState> {
    let custom = objects.caches().live_custom();
    let caches = objects.caches().iter().chain(&custom).map(|cache| {
        let snapshot = cache.snapshot();
        metrics::CacheState {
            group: cache.resource.group.clone(),
            resource: cache.resource.plural.clone(),
            objects: snapshot.objects.len(),
            revision: snapshot.revision,
            received: cache.counts.received.value(),
            initial: cache.counts.initial.value(),
            loads: cache.counts.loads.value(),
            terminated: cache.counts.terminated.value(),
            capacity: cache.capacity(),
            cache: Arc::clone(cache),
        }
    });
    // Two versions of a kind are one to those who count objects.
    let mut by_kind: Vec<metrics::CacheState> = Vec::new();
    for state in caches {
        if !by_kind.iter().any(|s| s.group == state.group && s.resource == state.resource) {
            by_kind.push(state);
        }
    }
    by_kind
}

/// Returns the build information as labels.
fn build_labels(build: &Build) -> Vec<(&'static str, String)> {
    let version = build.version();
    let labels = [
        ("build_date", "buildDate"),
        ("compiler", "compiler"),
        ("git_commit", "gitCommit"),
        ("git_tree_state", "gitTreeState"),
        ("git_version", "gitVersion"),
        ("go_version", "goVersion"),
        ("major", "major"),
        ("minor", "minor"),
        ("platform", "platform"),
    ];
    let text = |key: &str| version[key].as_str().unwrap_or_default().to_owned();
    labels.into_iter().map(|(label, key)| (label, text(key))).collect()
}

fn tunnels(kubelets: &Kubelets) -> metrics::Tunnels {
    let tunnels = kubelets.tunnels();
    metrics::Tunnels {
        open: tunnels.open(),
        kubelets: tunnels.dials(Destination::Kubelet),
        pods: tunnels.dials(Destination::Pod),
    }
}

fn tokens(context: &Context, path: &str) -> Answer {
    let issuer = context.server.access().issuer().filter(|issuer| issuer.is_discoverable());
    let issuer = issuer.ok_or_else(no_such_resource)?;
    let mut response = if path == "/openid/v1/jwks" {
        respond::bytes(200, "application/jwk-set+json", issuer.jwks().to_string())
    } else {
        let about = issuer.discovery(&context.server.config().jwks_uri);
        respond::bytes(200, JSON, about.to_string())
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Ok(response)
}
