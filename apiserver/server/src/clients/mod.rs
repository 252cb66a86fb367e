//! Limits on the connections, the memory and the places in flight that clients may take of the server.

pub mod accounts;
pub mod budget;
pub mod connection_admission;
pub mod connections;
pub mod delivery;
pub mod frame_limit;
pub mod intake;
pub mod lanes;
