//! Tests of the API server through its public interface, in one binary: over requests in the process (`api`,
//! `conformance`), and over sockets.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod api;
mod conformance;
mod etcd;
#[path = "../../store/tests/conformance/etcd_server.rs"]
#[allow(dead_code, reason = "TLS and clusters are for the store's own tests")]
mod etcd_server;
#[path = "../../../tests/support/history.rs"]
mod history;
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
mod shutdown;
mod streams;
mod tls;
mod transport;
mod watch_wires;
