//! How objects lie in the store: JSON or the protobuf envelope, both read wherever they are found.
//!
//! What others read too is written as Kubernetes writes it: built-in kinds in the envelope, custom
//! resources and the kinds that define them as JSON. A store of our own gets JSON, because the cache
//! answers with the very bytes that it reads and splices; an envelope would have to be decoded for
//! every change and at every start, and nobody would gain by it.

use apiserver_api::protobuf::{self, Malformed, Unencodable};
use apiserver_api::registry::Resource;
use bytes::Bytes;
use serde_json::Value;

use crate::convert;

/// A stored value is neither JSON nor the envelope of a known kind.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("its envelope cannot be read")]
    Protobuf(#[from] Malformed),
}

/// A stored object in the version that `resource` serves.
pub fn read(resource: &Resource, stored: &[u8]) -> Result<Value, Unreadable> {
    let mut object: Value = if protobuf::is_envelope(stored) {
        protobuf::from_envelope(stored)?
    } else {
        serde_json::from_slice(stored)?
    };
    convert::upgrade(&mut object);
    if let Some(convert) = convert::from_storage(resource)
        && object["apiVersion"] != resource.api_version()
    {
        convert(&mut object);
    }
    Ok(object)
}

/// The bytes that Kubernetes would store for an object of the storage version.
pub fn as_kubernetes(resource: &Resource, object: &Value) -> Result<Bytes, Unencodable> {
    // Their servers keep them in the encoding of custom resources.
    let defining = matches!(resource.group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io");
    if defining || protobuf::of_object(object).is_none() {
        return Ok(Bytes::from(object.to_string()));
    }
    protobuf::to_envelope(object).map(Bytes::from)
}
