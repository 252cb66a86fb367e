//! Tests of the binary, in one binary. `hoarding` is apart: it opens thousands of connections and measures memory,
//! so nothing runs beside it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod apiserver;
#[path = "../../../apiserver/store/tests/conformance/etcd_server.rs"]
#[allow(dead_code, reason = "outages are for the tests of the store and the server")]
mod etcd_server;
mod extenders;
mod probes;
mod shared_keys;
mod store;
