//! The parts that daemons share: listeners that strangers cannot exhaust, tunnels, metrics, TLS, private files, logs, signals,
//! the kernel's notices about the network, and the memory of the process.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod addresses;
pub mod heap;
pub mod limits;
mod listener;
pub mod logging;
pub mod metrics;
pub mod netlink;
pub mod page;
mod places;
pub mod private_file;
pub mod probes;
pub mod relay;
pub mod shutdown;
pub mod tls;
pub mod tunnel;

pub use listener::{accept, next_connection, serve};
pub use page::Handler;
pub use places::{Bounds, Place, Places};
