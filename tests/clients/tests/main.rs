//! Clients of other projects against `hawser apiserver`, in one binary.

#![allow(clippy::unwrap_used, reason = "a test")]

mod client_go;
mod kube_rs;
mod kubectl;
mod languages;
