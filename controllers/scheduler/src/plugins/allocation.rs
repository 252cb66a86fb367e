//! The amounts of resources that scores look at: those that nodes have, and those that pods use.

use k8s_openapi::api::resource::v1::DeviceClass;

use crate::cluster::devices::{Devices, Target};
use crate::cluster::{DeviceClasses, Node};
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
    /// The class whose devices count on nodes that do not have the resource themselves.
    class: Option<&'a DeviceClass>,
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
    pub fn new(
        resources: &'a [ResourceWeight],
        requests: &Resources,
        counting: Counting,
        classes: &'a DeviceClasses,
    ) -> Self {
        let share = |resource: &'a ResourceWeight| Share {
            name: &resource.name,
            weight: resource.weight,
            request: requests.get(&resource.name),
            class: classes.serving(&resource.name).map(AsRef::as_ref),
        };
        // Scalar resources that the pod does not request are left out.
        let counts = |share: &Share<'_>| share.request != 0 || !is_scalar(share.name);
        Self { shares: resources.iter().map(share).filter(counts).collect(), counting }
    }

    /// Returns `true` if the pod requests nothing of the resources.
    pub fn are_unrequested(&self) -> bool {
        self.shares.iter().all(|share| share.request == 0)
    }

    /// Returns `true` if devices may count, whose numbers depend on more than a template and a node.
    pub fn depend_on_devices(&self) -> bool {
        self.shares.iter().any(|share| share.class.is_some())
    }

    /// Returns the resources that a node has, itself or as devices.
    pub fn of<'b>(
        &'b self,
        node: &'b Node,
        devices: Option<&'b Devices>,
    ) -> impl Iterator<Item = Amounts> + 'b {
        self.shares.iter().filter_map(move |share| {
            let allocatable = node.allocatable.get(share.name);
            let (allocatable, used) = match (share.name, self.counting) {
                _ if allocatable == 0 => {
                    let target = Target { name: &node.name, labels: &node.labels };
                    let totals = devices?.totals(share.class?, target);
                    (totals.all, totals.used)
                }
                ("cpu", Counting::Assumed) => (allocatable, node.scored.cpu),
                ("memory", Counting::Assumed) => (allocatable, node.scored.memory),
                (name, _) => (allocatable, node.requested.get(name)),
            };
            (allocatable != 0).then(|| Amounts {
                weight: share.weight,
                allocatable,
                used,
                with_pod: used + share.request,
            })
        })
    }
}
