//! The API server: request chain, generic verbs over the registry of kinds, the write path, discovery, OpenAPI,
//! and the listener.
//!
//! ```text
//! serve (TLS) ─┐
//! in process ──┴▶ chain ▶ verbs ▶ write (its stages, admission) ▶ objects ──CAS──▶ apiserver_store
//!                   │       ▲                                                          │
//!                   │       └── cache (snapshots, watchers) ◀─feed─────────────────────┘
//!                   └▶ paths (discovery, OpenAPI, health, metrics)
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod allocate;
mod bootstrap;
pub mod streams;

mod access;
mod addresses;
mod admission;
mod authorize;
mod body;
mod build;
mod chain;
mod circuit_breaker;
mod clients;
mod close_notify;
pub mod components;
mod connection_bounds;
mod context;
mod conversion;
mod custom;
mod decompressed;
mod deprecation;
mod discovery;
mod errors;
mod health;
mod hooks;
mod lifecycle;
mod lifetime;
pub mod limits;
mod list_options;
mod lookups;
mod lossy_text;
mod maintain;
mod metrics;
mod mime;
mod negotiate;
mod notifications;
mod object_answer;
mod objects;
pub mod parsers;
mod paths;
mod probes;
mod query;
mod request;
mod respond;
mod selection;
mod serve;
mod server;
pub mod store_check;
mod store_metrics;
mod store_quota;
mod syntax;
mod table;
mod tunnels;
mod verbs;
mod view;
mod warning_header;
mod websocket;
mod write;
mod write_coalescing;

pub use body::Body;
pub use build::Build;
pub use lifecycle::ApiService;
pub use request::PeerCertificate;
pub use serve::{listen, serve};
pub use server::{Server, ServerConfig, ServerError};
