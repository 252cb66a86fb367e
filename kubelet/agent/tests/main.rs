//! Tests of the kubelet as a whole, in one binary.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests may print")]

mod bench;
mod claims;
mod containerd;
mod fake_runtime;
mod hostile;
mod node_changes;
mod node_server;
mod pod_changes;
mod support;
mod system_logs;
