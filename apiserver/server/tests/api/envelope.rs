//! Envelopes by an implementation that is not ours: the structs that prost generated from the files
//! that Kubernetes publishes.

use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message;

/// The type and the object of an envelope.
#[track_caller]
pub fn open<T: Message + Default>(bytes: &[u8]) -> (String, String, T) {
    let unknown = Unknown::decode(bytes.strip_prefix(b"k8s\0").expect("an envelope")).unwrap();
    assert_eq!(unknown.content_type.as_deref(), Some(""));
    assert_eq!(unknown.content_encoding.as_deref(), Some(""));
    let meta = unknown.type_meta.unwrap();
    let object = T::decode(unknown.raw.unwrap().as_slice()).unwrap();
    (meta.api_version.unwrap(), meta.kind.unwrap(), object)
}

/// An object in its envelope.
pub fn seal(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    let meta = TypeMeta { api_version: Some(api_version.to_owned()), kind: Some(kind.to_owned()) };
    let unknown = Unknown { type_meta: Some(meta), raw: Some(object.encode_to_vec()), ..Unknown::default() };
    [&b"k8s\0"[..], &unknown.encode_to_vec()].concat()
}
