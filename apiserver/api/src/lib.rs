//! The resource registry as data: kinds, scopes, verbs, schemas, selectable fields, columns,
//! defaulting and validation. No IO and nothing asynchronous lives here.

pub mod ambient;
pub mod auth;
pub mod error;
pub mod registry;
pub mod selector;
