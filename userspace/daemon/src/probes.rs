//! `/healthz`, `/livez` and `/readyz`: the health of a daemon for others.

use http::{StatusCode, header};

use crate::Handler;
use crate::page::{Page, pages, ready, text};

/// A question about a daemon's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It works: `/healthz`.
    Health,
    /// It does not need a restart: `/livez`.
    Live,
    /// It can be relied on now: `/readyz`.
    Ready,
}

impl Probe {
    /// Returns the probe that is served at a path.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/healthz" => Some(Self::Health),
            "/livez" => Some(Self::Live),
            "/readyz" => Some(Self::Ready),
            _ => None,
        }
    }
}

/// Returns a handler of the three probes for a process that is healthy as long as it answers, such as one
/// that ends when it loses its lease. They need no credentials.
pub fn always_well() -> Handler {
    pages(|request| Probe::at(request.uri().path()).map(|_| ready(well())))
}

/// Returns the page of a probe that succeeds.
pub fn well() -> Page {
    let mut page = text(StatusCode::OK, "ok");
    let nosniff = header::HeaderValue::from_static("nosniff");
    page.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    page
}
