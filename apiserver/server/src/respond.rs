//! Answers: their encoding, `Status`, compression.

use std::io::Write as _;

use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, status_text};
use apiserver_schema::ordered;
use apiserver_schema::protobuf;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};
use tower::BoxError;

use crate::body;
use crate::body::Body;
use crate::limits;
use crate::negotiate;
use apiserver_cache::form::Format;

/// The result of every verb.
pub type Answer = Result<Response<Body>, ApiError>;

/// JSON with a status code.
pub fn json(code: u16, value: &Value) -> Response<Body> {
    bytes(code, "application/json", line(value))
}

/// JSON as Kubernetes' encoder writes it: with a line's end behind it.
pub fn line(value: &Value) -> String {
    let mut text = ordered::json_text(value);
    text.push('\n');
    text
}

/// One event of a watch as a line of JSON.
pub fn event(event: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{event}\",\"object\":{}}}\n", ordered::json_text(object)))
}

/// Bytes with a media type.
pub fn bytes(code: u16, media: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full(content));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// Plain text.
pub fn text(code: u16, content: impl Into<Bytes>) -> Response<Body> {
    bytes(code, "text/plain; charset=utf-8", content)
}

/// Returns 404 for an unknown path, in the words of Go's server.
pub fn no_such_page() -> Response<Body> {
    let mut response = text(404, "404 page not found\n");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns a refusal as `Status`.
pub fn refusal(error: &ApiError) -> Response<Body> {
    let mut response = bytes(error.code, "application/json", status_text(&error.to_status()));
    let seconds = error.details.as_ref().and_then(|d| d["retryAfterSeconds"].as_u64());
    if let Some(value) = seconds.and_then(|s| HeaderValue::from_str(&s.to_string()).ok()) {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// `Status` of something done.
pub fn success(code: u16, resource: &Resource, name: &str, uid: &str) -> Response<Body> {
    let mut details = json!({"name": name, "group": resource.group, "kind": resource.plural, "uid": uid});
    if let Some(map) = details.as_object_mut() {
        map.retain(|_, v| v != "");
    }
    json(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
    )
}

/// Returns a value in the format agreed on.
pub fn encoded(format: Format, value: &Value) -> Result<Bytes, ApiError> {
    match format {
        Format::Json => Ok(Bytes::from(line(value))),
        Format::Yaml => serde_saphyr::to_string(value)
            .map(Bytes::from)
            .map_err(|error| ApiError::internal(format!("the object cannot be written as YAML: {error}"))),
        Format::Protobuf => protobuf::to_envelope(value).map(Bytes::from).map_err(|error| {
            ApiError::internal(format!("the object cannot be written as protobuf: {error}"))
        }),
    }
}

/// In the extensions of an answer: its bytes are a document that all answers share.
#[derive(Clone, Copy)]
pub struct Shared;

/// Marks an answer that a node or pod has given: it is sent unchanged, whatever it contains.
#[derive(Clone, Copy)]
pub struct PassedOn;

/// Returns a JSON answer as protobuf, for a client that prefers it. What has no such form, is compressed,
/// comes in pieces or from elsewhere stays as it is.
pub async fn as_protobuf(response: Response<Body>) -> Response<Body> {
    let plain = response.headers().get(CONTENT_TYPE).is_some_and(|media| media == Format::Json.media())
        && !response.headers().contains_key(CONTENT_ENCODING);
    let size = response.body().size_hint().exact().unwrap_or(u64::MAX);
    let passed_on = response.extensions().get::<PassedOn>().is_some();
    if !plain || passed_on || size == 0 || size > limits::BODY as u64 {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.extensions.remove::<Shared>();
    let content = match body.collect().await {
        Ok(content) => content.to_bytes(),
        // A body of known size is in memory, and that cannot fail to be read.
        Err(error) => return refusal(&ApiError::internal(format!("the answer cannot be read: {error}"))),
    };
    let encoded = serde_json::from_slice::<Value>(&content).ok().and_then(|v| protobuf::to_envelope(&v).ok());
    let content = match encoded {
        Some(encoded) => {
            parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(protobuf::MEDIA_TYPE));
            Bytes::from(encoded)
        }
        None => content,
    };
    Response::from_parts(parts, body::full(content))
}

/// Holds the content of an answer that is to be compressed.
#[derive(Clone)]
struct Compressible(Bytes);

/// Returns the same answer, to be compressed if it is large and the client takes it.
fn compressible(headers: &HeaderMap, mut response: Response<Body>, content: Bytes) -> Response<Body> {
    if content.len() >= limits::GZIP_MIN && negotiate::accepts_gzip(headers) {
        response.extensions_mut().insert(Compressible(content));
    }
    response
}

/// Returns an answer with this content, compressed before it is sent if it is large and the client takes it.
pub fn bytes_compressed(
    headers: &HeaderMap,
    code: u16,
    media: &'static str,
    content: Bytes,
) -> Response<Body> {
    compressible(headers, bytes(code, media, Bytes::clone(&content)), content)
}

/// Compresses an answer that wants it, away from the threads that serve requests.
pub async fn compress(mut response: Response<Body>) -> Response<Body> {
    let Some(Compressible(content)) = response.extensions_mut().remove::<Compressible>() else {
        return response;
    };
    let Ok(Ok(packed)) = tokio::task::spawn_blocking(move || gzip(&content)).await else { return response };
    let (parts, _) = response.into_parts();
    let mut response = Response::from_parts(parts, body::full(packed));
    mark_gzip(response.headers_mut());
    response
}

/// Says that the body is compressed, since the client takes it so.
pub fn mark_gzip(headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// Returns the same answer for people: JSON is indented. With `zip` it is then compressed, if it is large.
pub async fn pretty(response: Response<Body>, zip: bool) -> Response<Body> {
    let json = response.headers().get(CONTENT_TYPE).is_some_and(|media| {
        media
            .to_str()
            .is_ok_and(|media| media == "application/json" || media.starts_with("application/json;"))
    });
    let at_once = response.body().size_hint().exact().is_some();
    if response.headers().contains_key(CONTENT_ENCODING) || !(json || zip && at_once) {
        return response;
    }
    let (mut parts, mut body) = response.into_parts();
    parts.extensions.remove::<Shared>();
    parts.headers.remove(CONTENT_LENGTH);
    if json {
        body = indented(body);
    }
    if !at_once {
        // Only lists come in pieces, and only those that are large enough.
        if zip {
            mark_gzip(&mut parts.headers);
            body = zipped(body);
        }
        return Response::from_parts(parts, body);
    }
    let content = match body.collect().await {
        Ok(content) => content.to_bytes(),
        // A body of known size is in memory, and that cannot fail to be read.
        Err(error) => return refusal(&ApiError::internal(format!("the answer cannot be read: {error}"))),
    };
    let packed = if zip && content.len() >= limits::GZIP_MIN { gzip(&content).ok() } else { None };
    match packed {
        Some(packed) => {
            mark_gzip(&mut parts.headers);
            Response::from_parts(parts, body::full(packed))
        }
        None => Response::from_parts(parts, body::full(content)),
    }
}

fn indented(body: Body) -> Body {
    let mut indent = Indent::default();
    let body = body.map_frame(move |frame| {
        frame.map_data(|data| {
            let mut out = Vec::with_capacity(data.len() * 2);
            indent.put(&data, &mut out);
            Bytes::from(out)
        })
    });
    body.boxed_unsync()
}

/// Returns a body compressed as it comes.
pub fn zipped(body: Body) -> Body {
    let zip = GzEncoder::new(Vec::new(), Compression::fast());
    let pieces = stream::unfold((body, Some(zip)), |(mut body, zip)| async move {
        let mut zip = zip?;
        loop {
            let Some(frame) = body.frame().await else {
                let rest = zip.finish().map(|rest| Frame::data(Bytes::from(rest)));
                return Some((rest.map_err(BoxError::from), (body, None)));
            };
            let written = frame.and_then(|frame| match frame.into_data() {
                Ok(data) => Ok(zip.write_all(&data)?),
                Err(_) => Ok(()),
            });
            if let Err(error) = written {
                return Some((Err(error), (body, None)));
            }
            // The encoder holds back bytes that it still wants to compare with.
            if !zip.get_ref().is_empty() {
                let out = Frame::data(Bytes::from(std::mem::take(zip.get_mut())));
                return Some((Ok(out), (body, Some(zip))));
            }
            // Others have their turn between the pieces.
            tokio::task::yield_now().await;
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Indents JSON that has no white space, as it comes: two spaces a level, as Go does it.
#[derive(Default)]
struct Indent {
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// A brace or bracket has just been opened.
    opened: bool,
}

impl Indent {
    fn put(&mut self, data: &[u8], out: &mut Vec<u8>) {
        for &byte in data {
            // The newline after it is dropped.
            if self.depth == 0 && byte == b'\n' {
                continue;
            }
            if self.in_text {
                self.in_text = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                out.push(byte);
                continue;
            }
            if matches!(byte, b'}' | b']') {
                self.depth = self.depth.saturating_sub(1);
                if !std::mem::take(&mut self.opened) {
                    self.line(out);
                }
                out.push(byte);
                continue;
            }
            if std::mem::take(&mut self.opened) {
                self.line(out);
            }
            out.push(byte);
            match byte {
                b'"' => self.in_text = true,
                // It is indented already.
                b'\n' | b' ' => {}
                b'{' | b'[' => (self.depth, self.opened) = (self.depth + 1, true),
                b',' => self.line(out),
                b':' => out.push(b' '),
                _ => {}
            }
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', 2 * self.depth));
    }
}

/// Compressed at the fastest level.
pub fn gzip(content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 4), Compression::fast());
    encoder.write_all(content)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node's list under the length of its JSON ended in an unexpected EOF.
    #[tokio::test]
    async fn passed_on_answers_are_not_encoded_again() {
        let list = r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#;
        let answer = || bytes(200, Format::Json.media(), Bytes::from(list));
        let own = as_protobuf(answer()).await;
        assert_eq!(own.headers()[CONTENT_TYPE], protobuf::MEDIA_TYPE);
        let mut passed = answer();
        passed.extensions_mut().insert(PassedOn);
        let passed = as_protobuf(passed).await;
        assert_eq!(passed.headers()[CONTENT_TYPE], Format::Json.media());
        assert_eq!(passed.into_body().collect().await.unwrap().to_bytes(), list);
    }

    #[test]
    fn json_is_indented_however_it_is_cut() {
        let value = json!({"a": [], "b": {}, "c": [1, {"x": "}\\\"],{:\\"}], "d": "é", "e": [[null, true]]});
        let text = line(&value);
        let whole = serde_json::to_string_pretty(&value).unwrap();
        for cut in 0..text.len() {
            let (mut indent, mut out) = (Indent::default(), Vec::new());
            let (first, rest) = text.as_bytes().split_at(cut);
            indent.put(first, &mut out);
            indent.put(rest, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), whole);
        }
    }
}
