//! One object of a kind as an answer, in the shape and the encoding that the client accepts.

use std::sync::Arc;

use apiserver_cache::form::{Format, Shape};
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use bytes::{Bytes, BytesMut};
use serde_json::Value;

use crate::context::Context;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::table::{Rows, metadata_only};

/// One object of a kind, encoded, in the shape that the client wants.
pub fn object_answer(context: &Context, resource: &Resource, code: u16, object: Bytes) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?.of_one(resource)?;
    if wanted.shape == Shape::Object && wanted.format == Format::Json {
        let text = ended(object);
        return Ok(respond::bytes_compressed(&context.headers, code, "application/json", text));
    }
    let value: Value = serde_json::from_slice(&object)
        .map_err(|error| ApiError::internal(format!("an object cannot be decoded: {error}")))?;
    let value = match wanted.shape {
        Shape::Object => value,
        Shape::Metadata | Shape::MetadataList => metadata_only(&value, wanted.meta),
        Shape::Table => Rows::of(context, &Arc::new(resource.clone()), wanted.meta)?.one(&value, true),
    };
    let content = respond::encoded(wanted.format, &value)?;
    Ok(respond::bytes_compressed(&context.headers, code, wanted.format.media(), content))
}

/// Ends the line of an object that is encoded already, without a copy where there is room for it.
fn ended(object: Bytes) -> Bytes {
    let mut text = object.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len() + 1);
        copy.extend_from_slice(&shared);
        copy
    });
    text.extend_from_slice(b"\n");
    text.freeze()
}
