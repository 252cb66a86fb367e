//! `/healthz` and `/livez`, `/metrics`, `/proxyMode` and `/debug/events`.

use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use userspace_daemon::Handler;
use userspace_daemon::metrics::Format;
use userspace_daemon::page::{Answer, Page, json, pages, ready, text, typed};

use crate::events::Recent;
use crate::metrics::Metrics;
use crate::status::Status;

/// The sources of the pages.
#[derive(Clone)]
pub(crate) struct Pages {
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub events: Arc<Recent>,
    pub ambient: Ambient,
}

/// The pages of one listener.
pub(crate) struct Site {
    pub pages: Pages,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Health,
    Metrics,
}

impl Site {
    /// Returns the handler of the listener.
    pub fn handler(self) -> Handler {
        pages(move |request| self.answer(request))
    }

    fn answer(&self, request: &Request<Incoming>) -> Option<Answer> {
        let pages = &self.pages;
        Some(match (self.kind, request.uri().path()) {
            (Kind::Health, "/healthz") => ready(pages.health(true)),
            (Kind::Health, "/livez") => ready(pages.health(false)),
            (Kind::Metrics, "/metrics") => pages.metrics(Format::accepted(request.headers())),
            // kube-proxy returns the name of its mode here; scripts compare the whole body.
            (Kind::Metrics, "/proxyMode") => ready(text(StatusCode::OK, "ebpf")),
            (Kind::Metrics, "/healthz") => ready(text(StatusCode::OK, "ok")),
            (Kind::Metrics, "/debug/events") => ready(pages.events(request.uri().query())),
            _ => return None,
        })
    }
}

impl Pages {
    fn health(&self, with_node: bool) -> Page {
        let health = self.status.health(self.ambient.now(), with_node);
        let code = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let counts = if with_node { &self.metrics.healthz } else { &self.metrics.livez };
        counts.get(&[code.as_str()]).value.add(1);
        match serde_json::to_vec(&health) {
            Ok(body) => json(code, body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    fn metrics(&self, format: Format) -> Answer {
        let metrics = Arc::clone(&self.metrics);
        Box::pin(async move { typed(StatusCode::OK, format.media(), metrics.page(format).await) })
    }

    /// Returns the events as JSON lines; with `?after=N` only those after number N.
    fn events(&self, query: Option<&str>) -> Page {
        let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let after = pairs.filter(|(name, _)| *name == "after").find_map(|(_, value)| value.parse().ok());
        typed(StatusCode::OK, "application/jsonl", self.events.lines(after.unwrap_or(0)))
    }
}
