//! `/healthz`, `/livez` and `/readyz`, by which others learn how a daemon is.

use http::{StatusCode, header};

use crate::Handler;
use crate::page::{Page, pages, ready, text};

/// A question about a daemon's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether it does its work: `/healthz`.
    Health,
    /// Whether a restart would not help: `/livez`.
    Live,
    /// Whether it may be relied on now: `/readyz`.
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

/// Makes a handler of the three probes for a process that is well as long as it answers, such as one that
/// ends when it loses its lease. Everybody may ask.
pub fn always_well() -> Handler {
    pages(|request| Probe::at(request.uri().path()).map(|_| ready(well())))
}

fn well() -> Page {
    let mut page = text(StatusCode::OK, "ok");
    let nosniff = header::HeaderValue::from_static("nosniff");
    page.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    page
}
