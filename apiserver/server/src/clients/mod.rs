//! Limits on the connections, the memory and the places in flight that clients may take of the server.

pub mod accounts;
pub mod budget;
pub mod connection_admission;
pub mod connections;
pub mod delivery;
pub mod frame_limit;
pub mod intake;
pub mod lanes;
pub mod task_account;

use std::sync::Arc;

use accounts::Accounts;
use connections::Connections;
use lanes::Lanes;

/// The clients of a server: what they hold of it, and what they may.
pub struct Clients {
    accounts: Arc<Accounts>,
    lanes: Lanes,
    connections: Arc<Connections>,
}

impl Clients {
    /// No clients yet. `in_flight`: reads and writes at one time; `connections`: connections at one time.
    pub fn new(in_flight: [usize; 2], connections: usize) -> Self {
        Self {
            accounts: Accounts::new(in_flight),
            lanes: Lanes::new(in_flight),
            connections: Connections::new(connections),
        }
    }

    /// Returns the accounts of the memory and the places that clients take at present.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// Returns the places of requests in flight.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Returns the open connections.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }
}
