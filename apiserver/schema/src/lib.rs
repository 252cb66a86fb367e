//! Objects as the API server reads and writes them: the type graph of the built-in kinds and the operations
//! along it, JSON and protobuf, the published OpenAPI documents, metadata, errors, and the rules that objects
//! of every kind follow.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod base64_text;
pub mod deleted;
pub mod error;
pub mod limits;
pub mod meta;
pub mod numbers;
pub mod openapi;
pub mod ordered;
pub mod protobuf;
pub mod quoted;
pub mod repeats;
pub mod schema;
pub mod validation;

pub(crate) use apiserver_messages as messages;

/// The built-in kinds that are served, as JSON: groups, versions, scopes and verbs, in the order of discovery.
pub const RESOURCES: &str = include_str!("../data/resources.json");
