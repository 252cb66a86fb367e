//! Announcers on a real link, in network namespaces.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod bed;
mod takeover;
