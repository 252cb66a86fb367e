//! The tables that decide about one packet, as in the programs. Pure: works on a [`Snapshot`].

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

/// One look-up in a table, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Name of the map; empty if the step follows from what is known already.
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

/// The outcome for the packet, as far as one hook decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verdict")]
pub enum Outcome {
    /// The destination is unchanged: no service is concerned.
    NotAService,
    /// No interface is an uplink: our programs do not see packets from outside.
    NoUplink,
    /// This hook leaves it to the next one.
    Left {
        to: &'static str,
    },
    /// The sender gets an error.
    Refused {
        reason: String,
    },
    Dropped {
        reason: String,
    },
    /// It leaves the cluster, and takes the node's address; or it is a reply to such a packet.
    Masqueraded {
        /// The source that the destination sees; `None` for a reply.
        source: Option<SourceChange>,
        /// The pod that gets a reply.
        #[serde(serialize_with = "wire::optional_place")]
        pod: Option<(IpAddr, u16)>,
        /// The way of the packet from here.
        way: String,
    },
    /// It goes to a backend, which is known for packets, but not for sockets with a choice.
    Translated {
        service: String,
        /// The backend that gets it.
        #[serde(serialize_with = "wire::optional_place")]
        backend: Option<(IpAddr, u16)>,
        /// The backends that may get it, if the flow does not exist yet.
        candidates: Vec<Candidate>,
        /// The source that the backend sees in place of the client, if any.
        source: Option<SourceChange>,
        /// The way of the packet from here.
        way: String,
    },
}

/// A replacement of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceChange {
    pub address: IpAddr,
    /// The port of an existing flow; that of a new one is chosen when the flow is made.
    pub port: Option<u16>,
    pub reason: &'static str,
}

/// The steps of one hook.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// The place of the packet or the system call.
    pub hook: &'static str,
    pub steps: Vec<Step>,
    pub outcome: Outcome,
}

/// The counters of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Connections, or first datagrams, that got a backend.
    pub connections: u64,
    /// Connections that found no backend.
    pub refused: u64,
}

/// Hooks in the order in which they see the packet, down to the one that decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub paths: Vec<Path>,
    /// The counters of the service concerned.
    pub counted: Option<Counted>,
}

impl Explanation {
    /// Returns the final outcome for the packet.
    pub fn outcome(&self) -> &Outcome {
        // There is always at least one hook.
        self.paths.last().map_or(&Outcome::NotAService, |path| &path.outcome)
    }
}

/// Predicts the decision of the programs.
pub fn explain(snapshot: &Snapshot, query: &Query) -> Explanation {
    let mut paths = Vec::new();
    match query.from {
        From::Host => paths.push(decide::socket(snapshot, query)),
        From::Pod => {
            paths.push(decide::socket(snapshot, query));
            // With a source the query is about a packet: of a socket without hooks, or of a virtual machine.
            let left = paths.iter().any(|path| match path.outcome {
                Outcome::Left { .. } => true,
                // The call goes on as it is; its packets may leave the cluster.
                Outcome::NotAService => snapshot.masquerade.is_some(),
                _ => false,
            });
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
