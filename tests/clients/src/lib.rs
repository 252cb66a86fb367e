//! Support for tests with third-party clients: a `hawser apiserver` per test, and programs that are run
//! against it.

mod program;
mod server;

pub use program::{Kubectl, Outcome, client_path, each_kubectl, run, words};
pub use server::Api;
