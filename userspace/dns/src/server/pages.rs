//! `/health`, `/ready` and `/metrics` as CoreDNS has them, and `/healthz`, `/livez` and `/readyz` as
//! Kubernetes does.

use std::sync::Arc;

use http::StatusCode;
use userspace_daemon::Handler;
use userspace_daemon::metrics::Format;
use userspace_daemon::page::{Answer, pages as handler, ready, text, typed};

use super::Readiness;
use crate::engine::Engine;

/// Returns the handler of the pages.
pub fn pages(engine: Arc<Engine>, readiness: Arc<Readiness>) -> Handler {
    handler(move |request| -> Option<Answer> {
        Some(match request.uri().path() {
            "/health" | "/healthz" | "/livez" => ready(text(StatusCode::OK, "OK")),
            "/ready" | "/readyz" if readiness.get() => ready(text(StatusCode::OK, "OK")),
            "/ready" | "/readyz" => ready(text(StatusCode::SERVICE_UNAVAILABLE, "kubernetes")),
            "/metrics" => {
                let format = Format::accepted(request.headers());
                let routes = engine.routes.load();
                let caches: Vec<_> = routes
                    .iter()
                    .filter_map(|route| Some((route.zone.to_string(), Arc::clone(route.cache.as_ref()?))))
                    .collect();
                let page = engine.metrics.page(format, &caches, engine.zone.load().len());
                ready(typed(StatusCode::OK, format.media(), page))
            }
            _ => return None,
        })
    })
}
