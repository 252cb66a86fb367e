//! The check that requests fit.

use std::ops::ControlFlow;

use super::FitArgs;
use crate::cluster::{DeviceClasses, Node, NodeFacts};
use crate::framework::{Code, NodeFilter, Refusal};
use crate::resources::{Resources, is_extended};

/// The requests of a pod that must fit.
pub struct Room<'a> {
    requests: &'a Resources,
    /// Further resources that are checked.
    scalar: Vec<Scalar<'a>>,
}

struct Scalar<'a> {
    name: &'a str,
    amount: i64,
    /// A class of devices serves the resource on nodes that do not have it themselves; DynamicResources checks these.
    is_served: bool,
}

/// A node with what its pods use.
pub struct Use<'a> {
    facts: &'a NodeFacts,
    requested: &'a Resources,
    pods: usize,
}

impl<'a> Use<'a> {
    /// Returns the node without pods.
    pub fn none(facts: &'a NodeFacts) -> Self {
        static NOTHING: Resources = Resources::NONE;
        Self { facts, requested: &NOTHING, pods: 0 }
    }

    fn of(node: &'a Node) -> Self {
        Self { facts: &node.facts, requested: &node.requested, pods: node.pod_count() }
    }
}

/// A resource that a node lacks.
struct Lack<'a> {
    resource: &'a str,
    /// The node would lack it without pods too.
    for_good: bool,
}

impl<'a> Room<'a> {
    pub fn new(requests: &'a Resources, args: Option<&FitArgs>, classes: &DeviceClasses) -> Self {
        let is_ignored = |name: &str| {
            let Some(args) = args.filter(|_| is_extended(name)) else { return false };
            let group = name.split('/').next().unwrap_or_default();
            args.ignored_resources.contains(name) || args.ignored_resource_groups.contains(group)
        };
        let scalar = requests.scalar.iter().filter(|(name, amount)| **amount != 0 && !is_ignored(name));
        let scalar = scalar.map(|(name, amount)| Scalar {
            name,
            amount: *amount,
            is_served: classes.serving(name).is_some(),
        });
        Self { requests, scalar: scalar.collect() }
    }

    /// Returns `true` if a node lacks nothing.
    pub fn is_in(&self, node: &Use<'_>) -> bool {
        self.each_lack(node, |_| ControlFlow::Break(())).is_continue()
    }

    /// Shows what a node lacks, until it is told to stop.
    #[inline]
    fn each_lack(&self, node: &Use<'_>, mut see: impl FnMut(Lack<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        if i64::try_from(node.pods).unwrap_or(i64::MAX) >= node.facts.max_pods {
            see(Lack { resource: "pods", for_good: false })?;
        }
        let (wanted, all, used) = (self.requests, &node.facts.allocatable, node.requested);
        let mut check = |resource: &str, wanted: i64, all: i64, used: i64| {
            if wanted > 0 && wanted > all - used {
                see(Lack { resource, for_good: wanted > all })?;
            }
            ControlFlow::Continue(())
        };
        check("cpu", wanted.cpu, all.cpu, used.cpu)?;
        check("memory", wanted.memory, all.memory, used.memory)?;
        check("ephemeral-storage", wanted.ephemeral_storage, all.ephemeral_storage, used.ephemeral_storage)?;
        for Scalar { name, amount, is_served } in &self.scalar {
            let of = |amounts: &Resources| amounts.scalar.get(*name).copied().unwrap_or_default();
            let all = of(all);
            if all > 0 || !is_served {
                check(name, *amount, all, of(used))?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl NodeFilter for Room<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.is_in(&Use::of(node))
    }

    fn refusal(&self, node: &Node) -> Refusal {
        let (mut reasons, mut code) = (Vec::new(), Code::Unschedulable);
        let see = |lack: Lack<'_>| {
            reasons.push(match lack.resource {
                "pods" => "Too many pods".to_owned(),
                resource => format!("Insufficient {resource}"),
            });
            if lack.for_good {
                code = Code::Unresolvable;
            }
            ControlFlow::Continue(())
        };
        let _ = self.each_lack(&Use::of(node), see);
        Refusal { code, plugin: "", reasons }
    }
}
