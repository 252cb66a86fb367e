//! Paths that are no kinds: discovery, OpenAPI, version, health, metrics, token keys.

use std::io::Read as _;
use std::time::Duration;

use apiserver_api::error::ApiError;
use apiserver_api::openapi;
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::context::Context;
use crate::discovery::{Aggregated, Document};
use crate::health;
use crate::metrics;
use crate::negotiate;
use crate::respond::{self, Answer};
use crate::server::Server;
use crate::verbs::{no_such_resource, not_allowed};

/// The version of Kubernetes whose API is served.
pub const KUBERNETES: (&str, &str, &str) = ("1", "36", "0");
/// The store has this long to say how large it is.
const SIZE: Duration = Duration::from_secs(1);

/// Answers what is not a kind.
pub async fn dispatch(context: &Context, method: &Method) -> Answer {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(not_allowed());
    }
    let path = context.info.path.as_str();
    match path {
        "/" => return Ok(indented(&index(context))),
        "/version" | "/version/" => return Ok(indented(&version())),
        "/metrics" => return metrics(context, false).await,
        "/metrics/slis" => return metrics(context, true).await,
        "/openid/v1/jwks" | "/.well-known/openid-configuration" => return tokens(context, path),
        "/openapi/v2" => {
            fresh(context).await;
            return openapi_v2(context);
        }
        "/openapi/v3" | "/openapi/v3/" => {
            fresh(context).await;
            return Ok(respond::json(200, &context.server.documents().v3_index()));
        }
        _ => {}
    }
    if let Some(name) = path.strip_prefix("/openapi/v3/") {
        fresh(context).await;
        return openapi_v3(context, name);
    }
    if let Some((kind, check)) = health::path(path) {
        return Ok(health::answer(context, kind, check).await);
    }
    fresh(context).await;
    discovery(context, path)
}

/// For people, whoever asks.
fn indented(value: &Value) -> Response<Body> {
    respond::bytes(200, "application/json", format!("{value:#}"))
}

/// What is served is what was established before the request. Where the store cannot be asked,
/// what is known is better than nothing.
async fn fresh(context: &Context) {
    if let Err(error) = context.server.fresh().await {
        tracing::debug!(%error, "discovery may be out of date");
    }
}

fn discovery(context: &Context, path: &str) -> Answer {
    let documents = context.server.documents();
    let discovery = documents.discovery();
    for range in negotiate::ranges(&context.headers) {
        let group = range.parameter("g") == Some("apidiscovery.k8s.io");
        let list = range.parameter("as") == Some("APIGroupDiscoveryList");
        let version = match range.parameter("v") {
            Some("v2") => Aggregated::V2,
            Some("v2beta1") => Aggregated::V2Beta1,
            _ if range.accepts("application/json") && range.parameter("as").is_none() => break,
            _ => continue,
        };
        if let Some(document) = discovery.aggregated(path, version).filter(|_| group && list) {
            return Ok(cached(context, document, version.media()));
        }
    }
    match discovery.legacy(path) {
        Some(document) => Ok(cached(context, document, "application/json")),
        None => Err(no_such_resource()),
    }
}

/// A document that clients may keep.
fn cached(context: &Context, document: &Document, media: &'static str) -> Response<Body> {
    let mut response = if matches_etag(context, &document.etag) {
        not_modified()
    } else {
        let response = respond::bytes(200, media, Bytes::clone(&document.bytes));
        respond::compressed(context, response, Bytes::clone(&document.bytes))
    };
    set_etag(&mut response, &document.etag);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn matches_etag(context: &Context, etag: &str) -> bool {
    let header = context.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok()).unwrap_or_default();
    header.split(',').any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == etag
    })
}

fn not_modified() -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

fn set_etag(response: &mut Response<Body>, etag: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{etag}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
}

fn openapi_v2(context: &Context) -> Answer {
    for range in negotiate::ranges(&context.headers) {
        if openapi::V2_PROTOBUF_ACCEPTED.contains(&range.media.as_str()) {
            let (bytes, hash) = (openapi::v2_protobuf_gz(), openapi::v2_protobuf_hash());
            return gzipped(context, &Bytes::from_static(bytes), hash, openapi::V2_PROTOBUF_MEDIA);
        } else if range.accepts("application/json") {
            break;
        }
    }
    let document = context.server.documents().v2()?;
    gzipped_json(context, &document.packed, &document.hash)
}

fn openapi_v3(context: &Context, name: &str) -> Answer {
    let mut parts = name.split('/');
    let (group, version) = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("api"), Some(version), None, None) => ("", version),
        (Some("apis"), Some(group), Some(version), None) => (group, version),
        _ => return Err(no_such_resource()),
    };
    let document = context.server.documents().v3(group, version)?.ok_or_else(no_such_resource)?;
    let mut response = gzipped_json(context, &document.packed, &document.hash)?;
    if context.query.get("hash") == Some(document.hash.as_str()) {
        // The address changes with the content.
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    }
    Ok(response)
}

fn gzipped_json(context: &Context, packed: &Bytes, hash: &str) -> Answer {
    let ranges = negotiate::ranges(&context.headers);
    if !ranges.is_empty() && !ranges.iter().any(|r| r.accepts("application/json")) {
        return Err(ApiError::new(406, "NotAcceptable", "only application/json is served here"));
    }
    gzipped(context, packed, hash, "application/json")
}

/// A document that is kept compressed.
fn gzipped(context: &Context, packed: &Bytes, hash: &str, media: &'static str) -> Answer {
    if matches_etag(context, hash) {
        let mut response = not_modified();
        set_etag(&mut response, hash);
        return Ok(response);
    }
    let plain = !negotiate::accepts_gzip(&context.headers);
    let content = if plain {
        let mut out = Vec::new();
        GzDecoder::new(&packed[..])
            .read_to_end(&mut out)
            .map_err(|error| ApiError::internal(format!("the document cannot be unpacked: {error}")))?;
        Bytes::from(out)
    } else {
        Bytes::clone(packed)
    };
    let mut response = respond::bytes(200, media, content);
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
            "/healthz",
            "/livez",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    paths.sort();
    paths.dedup();
    json!({"paths": paths})
}

fn version() -> Value {
    let (major, minor, patch) = KUBERNETES;
    json!({
        "major": major, "minor": minor,
        "gitVersion": format!("v{major}.{minor}.{patch}+hawser.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// As Go spells it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `/metrics` and `/metrics/slis`, as text unless OpenMetrics is asked for.
async fn metrics(context: &Context, slis: bool) -> Answer {
    let ranges = negotiate::ranges(&context.headers);
    let open = ranges.iter().find(|r| r.media == "application/openmetrics-text" || r.accepts("text/plain"));
    let format = if open.is_some_and(|r| r.media == "application/openmetrics-text") {
        metrics::Format::OpenMetrics
    } else {
        metrics::Format::Text
    };
    let metrics = context.server.metrics();
    let page = if slis {
        metrics.sli_page(format)
    } else {
        let size = tokio::time::timeout(SIZE, context.server.store().size_bytes()).await;
        let size = size.ok().and_then(Result::ok).flatten();
        metrics.page(format, &state(&context.server, size))
    };
    Ok(respond::bytes(200, format.media(), page))
}

fn state(server: &Server, store_bytes: Option<u64>) -> metrics::State {
    let custom = server.caches().live_custom();
    let caches = server.caches().iter().chain(&custom).map(|cache| {
        let snapshot = cache.snapshot();
        metrics::CacheState {
            group: cache.resource.group.clone(),
            resource: cache.resource.plural.clone(),
            objects: snapshot.objects.len(),
            revision: snapshot.revision,
            received: cache.counts.received.value(),
            initial: cache.counts.initial.value(),
            loads: cache.counts.loads.value(),
        }
    });
    // Two versions of a kind are one to those who count objects.
    let mut by_kind: Vec<metrics::CacheState> = Vec::new();
    for state in caches {
        if !by_kind.iter().any(|s| s.group == state.group && s.resource == state.resource) {
            by_kind.push(state);
        }
    }
    let version = version();
    let build = [
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
    let build = build.into_iter().map(|(label, key)| (label, text(key))).collect();
    metrics::State { caches: by_kind, store_bytes, build }
}

fn tokens(context: &Context, path: &str) -> Answer {
    let issuer = context.server.issuer().ok_or_else(no_such_resource)?;
    if path == "/openid/v1/jwks" {
        let mut response = respond::json(200, &issuer.jwks());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/jwk-set+json"));
        return Ok(response);
    }
    Ok(respond::json(200, &issuer.discovery(&context.server.config().external_url)))
}
