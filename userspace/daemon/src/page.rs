//! Short pages: the answers of listeners for health, probes and metrics.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;

/// An answer with its whole body.
pub type Page = Response<Full<Bytes>>;

/// The future of a page.
pub type Answer = BoxFuture<'static, Page>;

/// Answers requests. Their bodies are not read.
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// Makes a page of any media type.
pub fn typed(code: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Page {
    let mut page = Response::new(Full::new(body.into()));
    *page.status_mut() = code;
    page.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    page
}

/// Makes a page of plain text.
pub fn text(code: StatusCode, body: impl Into<Bytes>) -> Page {
    typed(code, "text/plain; charset=utf-8", body)
}

/// Makes a page of JSON.
pub fn json(code: StatusCode, body: impl Into<Bytes>) -> Page {
    let mut page = typed(code, "application/json", body);
    let nosniff = HeaderValue::from_static("nosniff");
    page.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    page
}

/// Wraps a finished page.
pub fn ready(page: Page) -> Answer {
    Box::pin(std::future::ready(page))
}

/// Returns a handler for GET and HEAD of the paths that `find` knows; others get 405 or 404, with the texts
/// of Go's HTTP server.
pub fn pages(find: impl Fn(&Request<Incoming>) -> Option<Answer> + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| {
        if !is_read(request.method()) {
            return ready(text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n"));
        }
        find(&request).unwrap_or_else(|| ready(text(StatusCode::NOT_FOUND, "404 page not found\n")))
    })
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}
