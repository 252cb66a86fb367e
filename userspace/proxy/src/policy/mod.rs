//! NetworkPolicies of the pods of this node, compiled to tables.
//!
//! ```text
//!  NetworkPolicy ─ object ─┐
//!  Pod, Namespace ─ pods ──┼─▶ classes (address ▶ class) ─▶ compile ─▶ PolicyTables ─▶ DataPlane
//!  interfaces ─────────────┘
//! ```
//!
//! Only policies that select a pod of this node matter, and only their peers. Addresses that the same peers
//! match are one class, so that the programs judge a packet with two look-ups, however many policies there
//! are. Everything here is pure.

mod classes;
mod compile;
mod dns;
mod enforce;
mod number;
mod object;
mod pods;
mod selector;

pub use compile::{Inputs, LocalPod, compile};
pub(crate) use dns::{dns_service, is_dns};
pub use enforce::PolicyObjects;
pub(crate) use enforce::{Enforcer, local_pods, mark, waiting};
pub use object::{Namespaces, Peer, Policy, PolicyProjection, Port, Ports, Rule};
pub use pods::{NamedPort, NamespaceLabels, PolicyNamespace, PolicyPod};
pub use selector::{Labels, Selector};
