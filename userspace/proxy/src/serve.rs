//! `/healthz` and `/livez`, `/metrics` and `/proxyMode`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use apiserver_api::ambient::Ambient;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::metrics::{Code, Metrics};
use crate::status::Status;

/// Time a client has to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause when the process is out of file descriptors or the like.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the pages show.
#[derive(Clone)]
pub(crate) struct Pages {
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub ambient: Ambient,
}

/// Which paths a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    Health,
    Metrics,
}

/// Serves until shutdown.
pub(crate) async fn serve(listener: TcpListener, site: Site, pages: Pages, shutdown: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, ?site, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (pages, shutdown) = (pages.clone(), shutdown.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = pages.answer(site, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = shutdown.cancelled() => {}
                result = connection => if let Err(error) = result {
                    debug!(%error, ?site, "a connection ended early");
                },
            }
        });
    }
}

impl Pages {
    fn answer<B>(&self, site: Site, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        }
        match (site, request.uri().path()) {
            (Site::Health, "/healthz") => self.health(true),
            (Site::Health, "/livez") => self.health(false),
            (Site::Metrics, "/metrics") => self.metrics(),
            (Site::Metrics, "/proxyMode") => text(StatusCode::OK, "ebpf"),
            (Site::Metrics, "/healthz") => text(StatusCode::OK, "ok"),
            _ => text(StatusCode::NOT_FOUND, "not found\n"),
        }
    }

    fn health(&self, with_node: bool) -> Response<Full<Bytes>> {
        let health = self.status.health(self.ambient.now(), with_node);
        let code = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let counts = if with_node { &self.metrics.healthz } else { &self.metrics.livez };
        counts.get_or_create(&Code { code: code.as_u16() }).inc();
        match serde_json::to_vec(&health) {
            Ok(body) => page(code, "application/json", body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        match self.metrics.text() {
            Ok(body) => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                page(StatusCode::OK, kind, body.into_bytes())
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

fn text(code: StatusCode, body: &str) -> Response<Full<Bytes>> {
    page(code, "text/plain; charset=utf-8", body.as_bytes().to_vec())
}

fn page(code: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
