//! `application/vnd.kubernetes.protobuf`: JSON objects of built-in kinds to the bytes that
//! Kubernetes' own encoder makes of them, and back.
//!
//! The messages are the table of `apiserver/messages`.
//!
//! What protobuf cannot tell apart is one thing here as it is in Go: a field that is no pointer and
//! has its type's zero is left out of the JSON, unless it is a field that Go's JSON always has; that
//! one is there with its zero, also where the bytes lack it ([`complete`]). So `decode(encode(x))` is `x` in this
//! normal form.

mod complete;
mod decode;
mod encode;
mod json;
mod normal;
mod restore;
mod tree;

use serde_json::Value;

use crate::ordered;

pub use complete::{complete, complete_structs, implied};
pub use decode::decode;
pub use encode::{Unencodable, encode, encode_into};
pub use normal::{normalize, normalize_as_sent};
pub use restore::restore;

pub use crate::messages::{
    Backward, Encoded, Field, Kind, MAGIC, MEDIA_TYPE, Malformed, Message, Reading, Shape, at, head,
    is_envelope, kinds, message, messages, of_kind,
};
pub use tree::Object;

/// Returns the message of the kind that the object names.
pub fn of_object(object: &Value) -> Option<Message> {
    of_kind(object["apiVersion"].as_str()?, object["kind"].as_str()?)
}

/// The message of a definition of OpenAPI: `io.k8s.api.core.v1.Pod`.
pub fn of_definition(name: &str) -> Option<Message> {
    let mut parts = name.rsplitn(4, '.');
    let (short, version, group) = (parts.next()?, parts.next()?, parts.next()?);
    message(&format!("{group}/{version}.{short}"))
}

/// Returns an object in its envelope. Its kind is taken from the object.
pub fn to_envelope(object: &Value) -> Result<Vec<u8>, Unencodable> {
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let message = of_kind(api_version, kind)
        .ok_or_else(|| Unencodable::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() })?;
    let mut out = Backward::default();
    encode_into(&mut out, &Object::of(message, object)?)?;
    close_envelope(&mut out, api_version, kind);
    Ok(out.finish())
}

/// Puts an envelope around the contents of `out`, the message of an object of the kind.
pub fn close_envelope(out: &mut Backward, api_version: &str, kind: &str) {
    let length = out.len();
    out.put(&envelope_head(api_version, kind, length));
    // Last on the wire: no content encoding, no content type.
    out.append(ENVELOPE_TAIL);
}

/// Returns the bytes that precede a message of `length` bytes in its envelope.
pub fn envelope_head(api_version: &str, kind: &str, length: usize) -> Vec<u8> {
    let mut out = Backward::default();
    out.varint(length as u64);
    out.tag(2, crate::messages::BYTES);
    let end = out.len();
    out.bytes(2, kind.as_bytes());
    out.bytes(1, api_version.as_bytes());
    out.close(1, end);
    out.put(MAGIC);
    out.finish()
}

/// The bytes that follow it: the empty content encoding and content type.
pub const ENVELOPE_TAIL: &[u8] = &[0x1a, 0, 0x22, 0];

/// Returns the bytes that precede the items of a list. All items are fields 2 and take `items` bytes with
/// their tags and lengths; [`ENVELOPE_TAIL`] follows them.
pub fn list_head(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    items: usize,
) -> Result<Vec<u8>, Unencodable> {
    let mut list = Backward::default();
    if let Some(message) = message("meta/v1.ListMeta") {
        encode_into(&mut list, &Object::of(message, metadata)?)?;
    }
    list.close(1, 0);
    let mut out = envelope_head(api_version, kind, list.len() + items);
    out.extend_from_slice(list.as_slice());
    Ok(out)
}

/// An event of a watch: four bytes of length, highest first, and a message of the event's type and
/// the object in its envelope.
pub fn watch_frame(event: &str, object: &Object<'_>) -> Result<Vec<u8>, Unencodable> {
    let mut out = Backward::default();
    encode_into(&mut out, object)?;
    close_envelope(&mut out, &object.api_version, &object.kind);
    out.close(1, 0);
    out.close(2, 0);
    out.bytes(1, event.as_bytes());
    // Objects are far smaller than 4 GiB.
    let length = u32::try_from(out.len()).unwrap_or(u32::MAX);
    out.put(&length.to_be_bytes());
    Ok(out.finish())
}

/// The object in an envelope. Errors do not depend on the server's state.
pub fn from_envelope(bytes: &[u8]) -> Result<Value, Malformed> {
    decode::envelope(bytes, &mut decode::Budget::default())
}

/// The object in an envelope as JSON text: the same object, in a third of the time.
pub fn to_json(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    match json::envelope(bytes, &mut decode::Budget::default()) {
        Ok(text) => Ok(text),
        Err(json::Stop::Unordered) => Ok(ordered::json_text(&from_envelope(bytes)?).into_bytes()),
        Err(json::Stop::Malformed(error)) => Err(error),
    }
}

/// The apiVersion of the object in an envelope.
pub fn api_version(bytes: &[u8]) -> Result<&str, Malformed> {
    Encoded::open(bytes).map(|opened| opened.api_version)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod read_tests;
#[cfg(test)]
mod tests;
