//! What the daemons of a node share: listeners that strangers cannot exhaust.

pub mod limits;
mod listener;
pub mod metrics;
mod places;
pub mod tls;

pub use listener::{Handler, Page, accept, serve};
pub use places::{Bounds, Place, Places};
