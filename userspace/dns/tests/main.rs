//! The server through real sockets: its own on loopback, upstreams that hang and lie, and real clients in
//! namespaces that the tests make.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by panicking")]

mod clients;
mod forgery;
mod forward;
mod plugins;
mod server;
mod stale;
mod support;
mod tls;
