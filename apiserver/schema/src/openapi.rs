//! The OpenAPI documents of the kinds served, compressed at build time and handed out as they are.

pub mod message;
pub mod parameters;
pub mod reduce;
pub mod shared;

struct Document {
    /// `api/v1`, `apis/apps/v1`, `apis/apps`, `version`
    name: &'static str,
    hash: &'static str,
    bytes: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/openapi_index.rs"));

static V2: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v2.json.gz"));

static V2_DEFAULT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v2-default.json.gz"));

static V2_DEFAULT_PROTOBUF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v2-default.pb.gz"));

/// The media type of [`v2_default_protobuf_gz`] in answers.
pub const V2_PROTOBUF_MEDIA: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The media types by which clients may ask for it: older ones wrote an `@`, which no media type may hold.
pub const V2_PROTOBUF_ACCEPTED: [&str; 2] =
    [V2_PROTOBUF_MEDIA, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"];

/// The media type of a v3 document as a protobuf message in answers, `openapi.v3.Document` of gnostic.
pub const V3_PROTOBUF_MEDIA: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
/// The media types by which clients may ask for it.
pub const V3_PROTOBUF_ACCEPTED: [&str; 2] =
    [V3_PROTOBUF_MEDIA, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"];

/// OpenAPI v2 of all kinds in all versions as gzip-compressed JSON.
pub fn v2_gz() -> &'static [u8] {
    V2
}

/// Changes when the document of [`v2_gz`] does; an `ETag` without quotes.
pub fn v2_hash() -> &'static str {
    V2_HASH
}

/// Returns OpenAPI v2 of the default APIs, without alpha and beta versions, as gzip-compressed JSON.
pub fn v2_default_gz() -> &'static [u8] {
    V2_DEFAULT
}

/// Changes when the document of [`v2_default_gz`] does; an `ETag` without quotes.
pub fn v2_default_hash() -> &'static str {
    V2_DEFAULT_HASH
}

/// The document of [`v2_default_gz`] as a gzip-compressed protobuf message, `openapi.v2.Document`
/// of gnostic.
pub fn v2_default_protobuf_gz() -> &'static [u8] {
    V2_DEFAULT_PROTOBUF
}

/// Changes when the message of [`v2_default_protobuf_gz`] does; an `ETag` without quotes.
pub fn v2_default_protobuf_hash() -> &'static str {
    V2_DEFAULT_PROTOBUF_HASH
}

/// The names of the documents of v3: `api/v1`, `apis/apps/v1`, and those of groups and single paths.
pub fn v3_names() -> impl Iterator<Item = &'static str> {
    DOCUMENTS.iter().map(|document| document.name)
}

/// The name of the v3 document of a group (`""` for core) and version.
pub fn v3_name(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The OpenAPI v3 document of this name as gzip-compressed JSON.
pub fn v3_gz(name: &str) -> Option<&'static [u8]> {
    document(name).map(|d| d.bytes)
}

/// Changes when the document of [`v3_gz`] does; an `ETag` without quotes.
pub fn v3_hash(name: &str) -> Option<&'static str> {
    document(name).map(|d| d.hash)
}

fn document(name: &str) -> Option<&'static Document> {
    DOCUMENTS.iter().find(|d| d.name == name)
}
