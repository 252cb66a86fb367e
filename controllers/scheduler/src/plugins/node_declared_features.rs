//! `NodeDeclaredFeatures`: a pod runs on nodes whose kubelets have the features that it needs.

use crate::cluster::{Cluster, Node};
use crate::framework::{Actions, Change, Event, Hint, NodeFilter, Plugin, Refusal, Resource, Versions};
use crate::pod::{PodInfo, PodSpec};

#[cfg(test)]
mod tests;

/// Declared by nodes that restart all containers of a pod when one exits, if its rules ask for it.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
/// Declared by nodes that run pods of the host's network in user namespaces.
const USER_NAMESPACES: &str = "UserNamespacesHostNetworkSupport";

/// The plugin `NodeDeclaredFeatures`.
pub struct NodeDeclaredFeatures;

#[derive(PartialEq, Eq)]
struct Required(Vec<&'static str>);

impl Required {
    fn of(spec: &PodSpec) -> Self {
        let source = &spec.source;
        let mut containers = source.containers.iter().chain(source.init_containers.iter().flatten());
        let restarts_all = containers.any(|container| {
            container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
        });
        let is_on_host = source.host_network == Some(true) && source.host_users == Some(false);
        let all = [(RESTART_ALL, restarts_all), (USER_NAMESPACES, is_on_host)];
        Self(all.into_iter().filter(|(_, is_needed)| *is_needed).map(|(name, _)| name).collect())
    }
}

impl NodeFilter for Required {
    fn passes(&self, node: &Node) -> bool {
        self.0.iter().all(|name| node.features.iter().any(|feature| feature == name))
    }

    fn refusal(&self, _: &Node) -> Refusal {
        Refusal::unresolvable("node(s) didn't match Pod's required features")
    }
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn node_filter<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        let required = Required::of(spec);
        if required.0.is_empty() { None } else { Some(Box::new(required)) }
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::Node, Actions::ADD | Actions::NODE_DECLARED_FEATURE),
            Event::new(Resource::AssignedPod, Actions::UPDATE),
            Event::new(Resource::UnscheduledPod, Actions::UPDATE),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let helps = match change {
            Change::Node(Versions { old: Some(old), new: Some(new) }) => old.features != new.features,
            Change::Pod(Versions { new: Some(new), .. }) if new.uid != pod.uid => false,
            Change::Pod(Versions { old: Some(old), new: Some(new) }) => {
                Required::of(&old.spec) != Required::of(&new.spec)
            }
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}
