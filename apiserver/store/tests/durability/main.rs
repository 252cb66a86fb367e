//! What the embedded store promises about the disk: acknowledged is durable, whatever happens.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]

mod crash;
mod faults;
mod kill;
mod model;
#[path = "../../../../tests/support/seeded.rs"]
mod seeded;
mod support;
mod upkeep;
