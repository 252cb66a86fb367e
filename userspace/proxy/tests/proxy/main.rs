//! Tests of the proxy as a whole, in one binary.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod events;
mod health;
mod incremental;
mod interfaces;
mod scenarios;
#[path = "../../../../tests/support/seeded.rs"]
mod seeded;
mod support;
mod worker;
