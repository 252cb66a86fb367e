//! Which table decides what for one packet, as the programs decide it. Pure: on a [`Snapshot`].

mod choose;
mod decide;
mod query;

use std::net::IpAddr;

use serde::Serialize;

pub use self::query::{From, Query, QueryError};
use super::{Snapshot, wire};

/// Both ends of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Ends {
    #[serde(with = "wire::place")]
    pub source: (IpAddr, u16),
    #[serde(with = "wire::place")]
    pub destination: (IpAddr, u16),
}

/// One look into a table, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Name of the map; empty for what follows from what is known already.
    pub table: &'static str,
    pub finding: String,
}

/// A backend that may get the connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    pub address: IpAddr,
    pub port: u16,
    pub local: bool,
    /// Share of the new connections, 0 to 1.
    pub share: f64,
}

/// What becomes of the packet, as far as one hook decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verdict")]
pub enum Outcome {
    /// It goes where it says: no service is concerned.
    NotAService,
    /// No interface is an uplink: nothing of ours sees what comes from outside.
    NoUplink,
    /// This hook leaves it to the next one.
    Left {
        to: &'static str,
    },
    /// The sender is told that nobody is there.
    Refused {
        reason: String,
    },
    Dropped {
        reason: String,
    },
    /// It goes to a backend; which one is known for packets, but not for sockets with a choice.
    Translated {
        service: String,
        /// Who gets it.
        #[serde(serialize_with = "wire::optional_place")]
        backend: Option<(IpAddr, u16)>,
        /// Who may get it, where the flow does not exist yet.
        candidates: Vec<Candidate>,
        /// What the backend sees in place of the client, if anything.
        source: Option<SourceChange>,
        /// How the packet goes on.
        way: String,
    },
}

/// The source is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceChange {
    pub address: IpAddr,
    /// The port of an existing flow; for a new one it is found when the flow is made.
    pub port: Option<u16>,
    pub reason: &'static str,
}

/// What one hook does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// Where the packet, or the system call, is.
    pub hook: &'static str,
    pub steps: Vec<Step>,
    pub outcome: Outcome,
}

/// What a service has counted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Connections, or first datagrams, that got a backend.
    pub connections: u64,
    /// Those that found none.
    pub refused: u64,
}

/// Hooks in the order in which they see the packet, down to the one that decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub paths: Vec<Path>,
    /// Of the service concerned.
    pub counted: Option<Counted>,
}

impl Explanation {
    /// What becomes of the packet in the end.
    pub fn outcome(&self) -> &Outcome {
        // There is always a hook that was asked.
        self.paths.last().map_or(&Outcome::NotAService, |path| &path.outcome)
    }
}

/// Tells what the programs would do.
pub fn explain(snapshot: &Snapshot, query: &Query) -> Explanation {
    let mut paths = Vec::new();
    match query.from {
        From::Host => paths.push(decide::socket(snapshot, query)),
        From::Pod => {
            paths.push(decide::socket(snapshot, query));
            // With a source the question is about a packet: of a socket without hooks, or of a
            // virtual machine.
            let left = paths.iter().any(|path| matches!(path.outcome, Outcome::Left { .. }));
            if query.source.is_some() || left {
                paths.push(decide::packet(snapshot, query, "pod"));
            }
        }
        From::Uplink if snapshot.uplinks == Some(0) => paths.push(decide::no_uplink()),
        From::Uplink => {
            if snapshot.xdp > 0 {
                paths.push(decide::packet(snapshot, query, "xdp"));
            }
            let decided = paths.iter().any(|path| !matches!(path.outcome, Outcome::Left { .. }));
            if !decided {
                paths.push(decide::packet(snapshot, query, "uplink"));
            }
        }
    }
    let services = snapshot.frontends.values().map(|known| known.value.service);
    let service = snapshot.flows.values().map(|flow| flow.service).chain(services).next();
    let counted = service.and_then(|service| snapshot.counted.get(&service));
    let counted = counted.map(|&(connections, refused)| Counted { connections, refused });
    Explanation { paths, counted }
}

#[cfg(test)]
mod tests;
