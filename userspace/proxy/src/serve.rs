//! `/healthz` and `/livez`, `/metrics`, `/proxyMode` and `/debug/events`; and how any page is
//! served.

use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use userspace_daemon::metrics::Format;

use crate::events::Recent;
use crate::metrics::Metrics;
use crate::status::Status;

/// What a listener serves.
pub(crate) trait Answers: Send + Sync + 'static {
    /// Answers a GET or HEAD request.
    fn answer(&self, request: &Request<Incoming>) -> BoxFuture<'static, Response<Full<Bytes>>>;
}

/// What the pages show.
#[derive(Clone)]
pub(crate) struct Pages {
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub events: Arc<Recent>,
    pub ambient: Ambient,
}

/// The paths of one listener.
pub(crate) struct Site {
    pub pages: Pages,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Health,
    Metrics,
}

/// Serves until shutdown.
pub(crate) async fn serve(listener: TcpListener, site: Arc<dyn Answers>, shutdown: CancellationToken) {
    let handler = Arc::new(move |request| respond(site.as_ref(), &request));
    userspace_daemon::serve(listener, None, handler, shutdown).await;
}

fn respond(site: &dyn Answers, request: &Request<Incoming>) -> BoxFuture<'static, Response<Full<Bytes>>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return ready(text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n"));
    }
    site.answer(request)
}

impl Answers for Site {
    fn answer(&self, request: &Request<Incoming>) -> BoxFuture<'static, Response<Full<Bytes>>> {
        let pages = &self.pages;
        match (self.kind, request.uri().path()) {
            (Kind::Health, "/healthz") => ready(pages.health(true)),
            (Kind::Health, "/livez") => ready(pages.health(false)),
            (Kind::Metrics, "/metrics") => pages.metrics(Format::accepted(request.headers())),
            // kube-proxy names its mode here; scripts compare the whole body.
            (Kind::Metrics, "/proxyMode") => ready(text(StatusCode::OK, "ebpf")),
            (Kind::Metrics, "/healthz") => ready(text(StatusCode::OK, "ok")),
            (Kind::Metrics, "/debug/events") => ready(pages.events(request.uri().query())),
            _ => ready(text(StatusCode::NOT_FOUND, "not found\n")),
        }
    }
}

impl Pages {
    fn health(&self, with_node: bool) -> Response<Full<Bytes>> {
        let health = self.status.health(self.ambient.now(), with_node);
        let code = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let counts = if with_node { &self.metrics.healthz } else { &self.metrics.livez };
        counts.get(&[code.as_str()]).value.add(1);
        match serde_json::to_vec(&health) {
            Ok(body) => json(code, body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    fn metrics(&self, format: Format) -> BoxFuture<'static, Response<Full<Bytes>>> {
        let metrics = Arc::clone(&self.metrics);
        Box::pin(async move { page(StatusCode::OK, format.media(), metrics.page(format).await.into_bytes()) })
    }

    /// A line of JSON an event; with `?after=N` only those behind number N.
    fn events(&self, query: Option<&str>) -> Response<Full<Bytes>> {
        let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let after = pairs.filter(|(name, _)| *name == "after").find_map(|(_, value)| value.parse().ok());
        page(StatusCode::OK, "application/jsonl", self.events.lines(after.unwrap_or(0)).into_bytes())
    }
}

pub(crate) fn ready(response: Response<Full<Bytes>>) -> BoxFuture<'static, Response<Full<Bytes>>> {
    Box::pin(std::future::ready(response))
}

pub(crate) fn text(code: StatusCode, body: &str) -> Response<Full<Bytes>> {
    page(code, "text/plain; charset=utf-8", body.as_bytes().to_vec())
}

/// A page of JSON, as kube-proxy sends it.
pub(crate) fn json(code: StatusCode, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = page(code, "application/json", body);
    let nosniff = header::HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

fn page(code: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
