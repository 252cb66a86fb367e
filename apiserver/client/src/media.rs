//! Encodings of objects, and their media types.

use apiserver_messages::{MEDIA_TYPE, of_kind};
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};

/// The media types of built-in kinds, in the order in which client-go asks for them.
pub(crate) const PROTOBUF_OR_JSON: &str = "application/vnd.kubernetes.protobuf, application/json";
pub(crate) const JSON: &str = "application/json";

/// The encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    /// Returns the encoding of a `Content-Type`; JSON if it names none.
    pub fn of(content_type: &str) -> Self {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        if media.eq_ignore_ascii_case(MEDIA_TYPE) { Self::Protobuf } else { Self::Json }
    }
}

/// Returns the media types in which the objects of a kind can be read.
pub(crate) fn accept(api_version: &str, kind: &str) -> &'static str {
    let is_known =
        of_kind(api_version, kind).is_some() && of_kind(api_version, &format!("{kind}List")).is_some();
    if is_known { PROTOBUF_OR_JSON } else { JSON }
}

/// Lets a request that accepts either encoding accept JSON alone.
pub(crate) fn insist_on_json(headers: &mut HeaderMap) {
    if headers.get(ACCEPT).is_some_and(|accepted| accepted == PROTOBUF_OR_JSON) {
        headers.insert(ACCEPT, HeaderValue::from_static(JSON));
    }
}
