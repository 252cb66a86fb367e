//! The proxy on hand-fed caches, above a data plane in memory.

mod bandwidth;
mod events;
mod health;
mod incremental;
mod interfaces;
mod scenarios;
mod support;
mod worker;
