//! Durability of the embedded store: acknowledged writes survive whatever happens.

mod backup;
mod crash;
mod faults;
#[path = "../../../../tests/support/history.rs"]
mod history;
mod kill;
mod linear;
mod model;
mod quota;
mod support;
mod upkeep;
