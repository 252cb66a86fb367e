//! The envelope that objects are sent and stored in.

use crate::scalars::text;
use crate::wire::{Malformed, Reader};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The bytes that every envelope begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// Returns `true` if the bytes are an envelope; JSON never begins with these bytes.
pub fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads the head of an envelope, whether or not the kind is known: the apiVersion, the kind, and the bytes
/// of the object.
pub fn head(bytes: &[u8]) -> Result<(&str, &str, &[u8]), Malformed> {
    let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(Malformed::Magic)?);
    let (mut api_version, mut kind, mut raw, mut content) = ("", "", &[][..], "");
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => {
                let mut meta = Reader(field.bytes(number)?);
                while let Some((number, field)) = meta.field()? {
                    match number {
                        1 => api_version = text(field.bytes(number)?)?,
                        2 => kind = text(field.bytes(number)?)?,
                        _ => {}
                    }
                }
            }
            2 => raw = field.bytes(number)?,
            4 => content = text(field.bytes(number)?)?,
            _ => {}
        }
    }
    if !content.is_empty() && content != MEDIA_TYPE {
        return Err(Malformed::Content(content.to_owned()));
    }
    Ok((api_version, kind, raw))
}
