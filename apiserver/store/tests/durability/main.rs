//! What the embedded store promises about the disk: acknowledged is durable, whatever happens.

mod crash;
mod faults;
mod kill;
mod model;
mod support;
mod upkeep;
