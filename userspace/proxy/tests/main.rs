//! Tests of the proxy as a whole, in one binary.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what this machine has not")]

mod machine;
mod node;
mod policy;
mod proxy;
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
mod semantics;
