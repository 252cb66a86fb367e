//! Durability of the embedded store: acknowledged writes survive whatever happens.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]

mod backup;
mod crash;
mod faults;
#[path = "../../../../tests/support/history.rs"]
mod history;
mod kill;
mod linear;
mod model;
mod quota;
#[path = "../../../../tests/support/seeded.rs"]
mod seeded;
mod support;
mod upkeep;
