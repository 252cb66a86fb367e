//! The resource registry as data: kinds, scopes, verbs, schemas, selectable fields, columns,
//! defaulting and validation. No IO and nothing asynchronous lives here.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod base64_text;
pub mod builtin;
pub mod cel;
pub mod certificate;
pub mod columns;
pub mod conversion;
pub mod defaulting;
pub mod definition;
mod deleted;
mod diff;
mod disabled;
pub mod disruption;
pub mod enablement;
pub mod error;
pub mod image;
pub mod lifecycle;
pub mod managed;
pub mod meta;
pub mod numbers;
pub mod openapi;
pub mod ordered;
pub mod protobuf;
pub mod quoted;
pub mod registry;
pub mod repeats;
pub mod schema;
pub mod selector;
pub mod signing;
pub mod structural;
pub mod validation;
pub mod warnings;
