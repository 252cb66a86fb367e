//! Tests of both stores through their public interface, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests may panic and print"
)]

mod conformance;
mod durability;
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
