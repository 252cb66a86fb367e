//! The API server: request chain, generic verbs over the registry of kinds, watch cache that
//! serves bytes, patch, discovery, OpenAPI, and the listener.
//!
//! ```text
//! serve (TLS) ─┐
//! in process ──┴▶ chain ▶ verbs ▶ admission ▶ storage ──CAS──▶ apiserver_store
//!                   │       ▲                                      │
//!                   │       └── cache (snapshots, watchers) ◀─feed─┘
//!                   └▶ paths (discovery, OpenAPI, health, metrics)
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod allocate;
pub mod auth;
pub mod bootstrap;
pub mod rbac;
pub mod streams;

mod admission;
mod authorize;
mod body;
mod build;
mod chain;
mod clients;
pub mod components;
mod context;
mod cork;
mod custom;
mod deprecation;
mod discovery;
mod farewell;
mod filter;
mod health;
mod hooks;
pub mod limits;
mod maintain;
mod measured;
mod metrics;
mod mime;
mod negotiate;
mod nodes;
pub mod parsers;
mod paths;
mod patience;
mod query;
mod request;
mod respond;
mod room;
mod selection;
mod serve;
mod server;
mod services;
mod storage;
pub mod stored;
mod syntax;
mod table;
mod text;
mod unpacked;
mod verbs;
mod warning_header;
mod wire;

pub use body::Body;
pub use build::Build;
pub use chain::PeerCertificate;
pub use serve::{listen, serve};
pub use server::{ApiService, Server, ServerConfig, ServerError};
