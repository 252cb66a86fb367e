//! Facts and helpers that the API server shares with nodes and controllers: clock and randomness,
//! identities, quantities, times, and facts about pods. No IO lives here.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod ambient;
pub mod cron;
pub mod duration;
mod error_chain;
pub mod finalizers;
pub mod fnv;
pub mod host_ports;
pub mod identity;
pub mod intern;
pub mod label_grammar;
pub mod label_selector;
pub mod networks;
pub mod node_selector;
pub mod nodes;
pub mod pem;
pub mod period;
pub mod platform;
pub mod pod_interface;
pub mod pods;
pub mod quantity;
pub mod quota;
pub mod resources;
pub mod seeded;
pub mod time;
pub mod uid;
pub mod volumes;

pub use error_chain::error_chain;
