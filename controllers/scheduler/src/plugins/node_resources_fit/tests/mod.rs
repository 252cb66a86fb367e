//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

mod changes;
mod devices;
mod fits;
mod scores;
