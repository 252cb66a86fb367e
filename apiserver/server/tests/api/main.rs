//! The API over HTTP requests, in process: a server on the embedded store and a simulated disk.

#![allow(clippy::unwrap_used, reason = "a test")]

mod admission;
mod answers;
mod apply;
mod authorization;
mod bad_input;
mod bad_queries;
mod bad_rules;
mod bounded;
mod contention;
mod crds;
mod crds_kubectl;
mod crds_many;
mod crds_webhook;
mod deep;
mod deletions;
mod discovery;
mod documents;
mod enablement;
mod envelope;
mod eviction;
mod explain;
mod expressions;
mod faults;
mod generations;
mod harness;
mod health;
#[path = "../../../../tests/support/history.rs"]
mod history;
mod key_order;
mod kinds;
mod kubectl;
mod limits;
mod linear;
mod lists;
mod managed;
mod metrics;
mod model;
mod node_tokens;
mod nodes;
mod normal;
mod own_objects;
mod patched;
mod pointers;
mod pretty;
mod protobuf;
mod ranges;
mod reads;
mod reference;
mod resources;
#[path = "../../../../tests/support/seeded.rs"]
mod seeded;
mod selectors;
mod several;
mod signers;
mod stale;
mod subresources;
mod sweep;
mod validation;
mod watch_options;
mod watches;
mod writes;
