//! One object of a kind as an answer, in the shape and the encoding that the client accepts.

use std::sync::Arc;

use apiserver_cache::form::{Format, Shape};
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

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
    if wanted.format == Format::Json && matches!(wanted.shape, Shape::Metadata | Shape::MetadataList) {
        let text = Bytes::from(metadata_text(&object, wanted.meta).map_err(unreadable)?);
        return Ok(respond::bytes_compressed(&context.headers, code, "application/json", text));
    }
    let value: Value = serde_json::from_slice(&object).map_err(unreadable)?;
    let value = match wanted.shape {
        Shape::Object => value,
        Shape::Metadata | Shape::MetadataList => metadata_only(&value, wanted.meta),
        Shape::Table => Rows::of(context, &Arc::new(resource.clone()), wanted.meta)?.one(&value, true),
    };
    let content = respond::encoded(wanted.format, &value)?;
    Ok(respond::bytes_compressed(&context.headers, code, wanted.format.media(), content))
}

fn unreadable(error: serde_json::Error) -> ApiError {
    ApiError::internal(format!("an object cannot be decoded: {error}"))
}

/// Returns the `PartialObjectMetadata` of an object in JSON, like [`metadata_only`], with the text of its metadata as it is:
/// the object is not decoded, because controllers ask for this with each pod that they create.
fn metadata_text(object: &[u8], api_version: &str) -> serde_json::Result<String> {
    #[derive(Deserialize)]
    struct Parts<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    let Parts { metadata } = serde_json::from_slice(object)?;
    let metadata = metadata.map_or("null", RawValue::get);
    Ok(format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"{api_version}","metadata":{metadata}}}"#)
        + "\n")
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_alone_are_the_same_as_those_of_the_whole_object() {
        let metadata = json!({"name": "é}{\"", "labels": {"metadata": "a"}});
        for object in [
            json!({"kind": "Pod", "spec": {"metadata": {"name": "no"}}, "metadata": metadata}),
            json!({"kind": "Pod", "spec": {}}),
        ] {
            let text = metadata_text(object.to_string().as_bytes(), "meta.k8s.io/v1").unwrap();
            assert!(text.ends_with('\n'));
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value, metadata_only(&object, "meta.k8s.io/v1"));
        }
    }
}
