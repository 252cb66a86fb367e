//! What the tests with clients of other projects stand on: a `hawser apiserver` of their own, and
//! programs that are run against it.

mod program;
mod server;

pub use program::{Kubectl, Outcome, each_kubectl, run, told, words};
pub use server::Api;
