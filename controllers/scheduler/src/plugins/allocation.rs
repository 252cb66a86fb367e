//! The amounts of resources that scores look at: those that nodes have, and those that pods use.

use crate::cluster::Node;
use crate::resources::{Resources, is_scalar};

/// A resource that scores look at, with its weight (`ResourceSpec`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceWeight {
    pub name: String,
    pub weight: i64,
}

/// Returns CPU and memory, with equal weights.
pub fn default_resources() -> Vec<ResourceWeight> {
    ["cpu", "memory"].map(|name| ResourceWeight { name: name.to_owned(), weight: 1 }).into()
}

/// The requests of pods that count as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Requests, with assumed ones of CPU and memory for containers that have none.
    Assumed,
    /// Requests alone.
    Requested,
}

/// The resources that decide the scores of nodes for one pod.
#[derive(Debug)]
pub struct Shares<'a> {
    shares: Vec<Share<'a>>,
    counting: Counting,
}

#[derive(Debug)]
struct Share<'a> {
    name: &'a str,
    weight: i64,
    /// Amount that the pod requests.
    request: i64,
}

/// A resource of a node: amounts that are allocatable, used by pods, and used once the pod is there too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    pub weight: i64,
    pub allocatable: i64,
    pub used: i64,
    pub with_pod: i64,
}

impl<'a> Shares<'a> {
    pub fn new(resources: &'a [ResourceWeight], requests: &Resources, counting: Counting) -> Self {
        let share = |resource: &'a ResourceWeight| Share {
            name: &resource.name,
            weight: resource.weight,
            request: requests.get(&resource.name),
        };
        // Scalar resources that the pod does not request are left out.
        let counts = |share: &Share<'_>| share.request != 0 || !is_scalar(share.name);
        Self { shares: resources.iter().map(share).filter(counts).collect(), counting }
    }

    /// Returns `true` if the pod requests nothing of the resources.
    pub fn are_unrequested(&self) -> bool {
        self.shares.iter().all(|share| share.request == 0)
    }

    /// Returns the resources that a node has.
    pub fn of<'b>(&'b self, node: &'b Node) -> impl Iterator<Item = Amounts> + 'b {
        self.shares.iter().filter_map(|share| {
            let allocatable = node.allocatable.get(share.name);
            if allocatable == 0 {
                return None;
            }
            let used = match (share.name, self.counting) {
                ("cpu", Counting::Assumed) => node.scored.cpu,
                ("memory", Counting::Assumed) => node.scored.memory,
                (name, _) => node.requested.get(name),
            };
            Some(Amounts { weight: share.weight, allocatable, used, with_pod: used + share.request })
        })
    }
}
