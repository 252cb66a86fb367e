//! Bodies: those of requests are read within limits and decoded to JSON values.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use apiserver_api::error::ApiError;
use apiserver_api::protobuf::{self, Malformed};
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::BoxError;

use crate::limits;

/// The body of requests and answers.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is there at once.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No body.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// A body that says at its end how many bytes it had, and holds on to something until then.
pub fn counted<G: Send + Unpin + 'static>(
    body: Body,
    done: impl FnOnce(u64) + Send + 'static,
    guard: G,
) -> Body {
    Counted { body, bytes: 0, done: Some(Box::new(done)), _guard: guard }.boxed_unsync()
}

struct Counted<G> {
    body: Body,
    bytes: u64,
    done: Option<Box<dyn FnOnce(u64) + Send>>,
    _guard: G,
}

impl<G> Drop for Counted<G> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(self.bytes);
        }
    }
}

impl<G: Unpin> http_body::Body for Counted<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The whole body, within the limit. A body that is too large is read to its end and forgotten, up
/// to another limit: a client that is still sending would not see the answer.
pub async fn read(mut body: Body) -> Result<Bytes, ApiError> {
    let (mut kept, mut seen) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| ApiError::bad_request(format!("the request's body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen <= limits::BODY {
            kept.extend_from_slice(&data);
        } else if seen > limits::DRAINED_BODY {
            break;
        }
    }
    if seen <= limits::BODY {
        return Ok(kept.freeze());
    }
    Err(ApiError::new(
        413,
        "RequestEntityTooLarge",
        format!("Request entity too large: limit is {}", limits::BODY),
    ))
}

/// A decoded body, and the text where it was JSON, for the search for repeated fields.
pub struct Decoded {
    pub value: Value,
    pub json: Option<Bytes>,
}

/// Decodes an object by its media type.
pub fn decode(content_type: &str, bytes: Bytes) -> Result<Decoded, ApiError> {
    match content_type {
        "" | "application/json" | "*/*" | "text/json" => {
            let value = json(&bytes)?;
            Ok(Decoded { value, json: Some(bytes) })
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            Ok(Decoded { value: yaml(&bytes)?, json: None })
        }
        protobuf::MEDIA_TYPE => Ok(Decoded { value: from_protobuf(&bytes)?, json: None }),
        other => Err(unsupported(other, &["application/json", "application/yaml", protobuf::MEDIA_TYPE])),
    }
}

/// An object of a built-in kind in its envelope. Other kinds have no such form, which is 415.
fn from_protobuf(bytes: &[u8]) -> Result<Value, ApiError> {
    protobuf::from_envelope(bytes).map_err(|error| match error {
        Malformed::Kind { api_version, .. } if is_foreign(&api_version) => {
            unsupported(protobuf::MEDIA_TYPE, &["application/json", "application/yaml"])
        }
        error => {
            ApiError::bad_request(format!("the body of the request cannot be decoded from protobuf: {error}"))
        }
    })
}

/// Whether the group, if there is one, has no built-in kinds.
fn is_foreign(api_version: &str) -> bool {
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    let asked = group(api_version);
    asked.is_some() && !protobuf::kinds().any(|(version, ..)| group(version) == asked)
}

/// 415.
pub fn unsupported(media: &str, accepted: &[&str]) -> ApiError {
    let media = if media.is_empty() { "none" } else { media };
    ApiError::new(
        415,
        "UnsupportedMediaType",
        format!(
            "the body of the request was in an unknown format ({media}) - accepted media types include: {}",
            accepted.join(", ")
        ),
    )
}

/// JSON; nesting is limited by the parser.
pub fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::bad_request("the request's body is empty, an object is expected"));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::bad_request(format!("the body of the request is not JSON: {error}")))
}

/// YAML, with the parser's budget for aliases, nodes and nesting.
pub fn yaml(bytes: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| ApiError::bad_request("the body of the request is not UTF-8"))?;
    let budget = serde_saphyr::budget! {
        max_depth: limits::YAML_DEPTH,
        max_documents: 1,
        max_total_scalar_bytes: 2 * limits::BODY,
    };
    let options = serde_saphyr::options! { budget: budget };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ApiError::bad_request(format!("the body of the request is not YAML: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_give_the_same_and_bombs_are_refused() {
        let yaml = decode("application/yaml", Bytes::from_static(b"a: 1\nb: [x, \"1\", true]\n")).unwrap();
        let json = decode("application/json", Bytes::from_static(br#"{"a":1,"b":["x","1",true]}"#)).unwrap();
        assert_eq!(yaml.value, json.value);
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
            d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
            g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
        assert_eq!(decode("application/yaml", Bytes::from(bomb)).map(|d| d.value).unwrap_err().code, 400);
        assert_eq!(
            decode("application/json", Bytes::from("[".repeat(100_000))).map(|d| d.value).unwrap_err().code,
            400
        );
        let cbor = decode("application/cbor", Bytes::from_static(b"\xa0"));
        assert_eq!(cbor.map(|d| d.value).unwrap_err().code, 415);
    }
}
