//! The cluster's DNS server, on every node: Services, EndpointSlices and pods as records, other names
//! forwarded and cached.
//!
//! ```text
//!  Service, EndpointSlice, Namespace, Pod ─ caches ─▶ Index ─ compile ─▶ Zone ──┐ swapped whole
//!  Corefile, resolv.conf ───────────────────────────────────────────▶ Routes ──┤
//!                                                                               ▼
//!  datagrams, connections ──────────────── Query ───────────────────────────▶ Engine ─▶ answer
//!                                                                               │ unknown: Work
//!                                                        upstreams ◀── Pool ◀───┘
//! ```
//!
//! A query of the cluster's names is answered from an immutable [`cluster::Zone`] without a lock and without
//! an allocation. Nothing is withdrawn without an API server: the zone stays as it was.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod answer;
mod buckets;
pub mod cache;
pub mod clients;
pub mod cluster;
pub mod corefile;
pub mod engine;
pub mod forward;
pub mod hosts;
mod imports;
mod index;
pub mod limits;
mod listeners;
pub mod loops;
pub mod metrics;
pub mod name;
mod objects;
mod peers;
mod plugins;
pub mod query;
mod registrar;
mod rights;
pub mod routes;
mod run;
pub mod server;
pub mod slices;
mod syntax;
#[cfg(test)]
mod testing;
mod waiting;
pub mod wire;

pub use run::{Config, Handover, StartError, check, run};
