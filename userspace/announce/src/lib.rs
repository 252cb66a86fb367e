//! Announces addresses of load balancers on the links of a node: one live node answers ARP and NDP for each, and
//! another one takes over when it dies.
//!
//! ```text
//!  Desired (nodes, addresses, links) ──▶ Announcer ──▶ frames: probe, announcement, answer
//!  frames of others ────────────────────▶   │      ──▶ pings
//!  pongs of other nodes ────────────────▶   └──────▶ notes: announced, contested
//! ```
//!
//! The [`Announcer`] decides without IO, on times and events that it is given; [`run`] is its edge. Nothing here
//! knows Kubernetes, and nothing here writes to an API: nodes choose by a hash over those that answer each other
//! ([`choice`]), and ask the link before they take an address ([`address`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod address;
mod announcer;
mod choice;
mod limits;
mod peers;
mod run;
mod socket;
mod wire;

#[cfg(test)]
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
#[cfg(test)]
mod simulation;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

pub use run::{AnnounceError, Announcing, run};
pub use wire::Mac;

/// The default port of pings between nodes.
pub const DEFAULT_PORT: u16 = 10_256;

/// The addresses to announce, and the nodes among which one is chosen for each. All nodes get the same, but for
/// `links` and `willing`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The nodes that may announce, by name.
    pub nodes: BTreeMap<Arc<str>, Member>,
    /// The addresses, each with the nodes that may announce it; `None` for all.
    pub addresses: BTreeMap<IpAddr, Option<BTreeSet<Arc<str>>>>,
    /// The interfaces of this node on which addresses are announced.
    pub links: Vec<Link>,
    /// This node can forward what it would attract.
    pub willing: bool,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The addresses at which other nodes reach it, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// It is known to be well. Others announce only if none is.
    pub ready: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Kernel index.
    pub index: u32,
    /// The networks on the link itself.
    pub networks: Vec<IpNetwork>,
}

/// News for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// This node has begun to announce the address.
    Announced(IpAddr),
    /// This node no longer announces the address.
    Withdrawn(IpAddr),
    /// This node is to announce the address, but a machine that is no announcer of the cluster answers for it.
    Contested(IpAddr, Mac),
}
