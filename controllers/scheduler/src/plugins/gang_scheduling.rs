//! `GangScheduling`: no pod of a gang is bound before as many of its pods have a node as its PodGroup asks for.

use apiserver_client::ObjectKey;

use crate::cluster::groups::{Members, group_of};
use crate::cluster::{Cluster, NodeId};
use crate::framework::{
    Actions, Change, Code, Event, Hint, Permission, Permit, Plugin, Reach, Refusal, Resource, Versions,
};
use crate::limits;
use crate::pod::PodInfo;

/// The plugin `GangScheduling`.
#[derive(Debug)]
pub struct GangScheduling;

/// Returns the number of pods that a gang needs; `None` if the group is none, or not known.
fn needed(cluster: &Cluster, key: &ObjectKey) -> Option<usize> {
    let gang = cluster.groups.object(key)?.spec.scheduling_policy.gang.as_ref()?;
    Some(usize::try_from(gang.min_count).unwrap_or(0))
}

/// The thing that keeps the pods of a group out of the queue.
enum Lack {
    Group,
    Pods,
}

/// Returns what a group lacks before its pods may be tried.
fn lack(cluster: &Cluster, key: &ObjectKey) -> Option<Lack> {
    if cluster.groups.object(key).is_none() {
        return Some(Lack::Group);
    }
    let there = cluster.groups.members(key).map_or(0, Members::len);
    (there < needed(cluster, key)?).then_some(Lack::Pods)
}

impl Plugin for GangScheduling {
    fn name(&self) -> &'static str {
        "GangScheduling"
    }

    fn pre_enqueue(&self, pod: &PodInfo, cluster: &Cluster) -> Option<Refusal> {
        let key = group_of(pod)?;
        Some(Refusal::unresolvable(match lack(cluster, &key)? {
            Lack::Group => {
                format!("waiting for pods's pod group {:?} to appear in scheduling queue", key.name)
            }
            Lack::Pods => "waiting for minCount pods from a gang to appear in scheduling queue".to_owned(),
        }))
    }

    fn permit(&self, pod: &PodInfo, _: NodeId, cluster: &Cluster) -> Permission {
        let Some(key) = group_of(pod) else { return Permission::default() };
        if cluster.groups.object(&key).is_none() {
            let (name, namespace) = (&key.name, &key.namespace);
            let reason = format!(
                "failed to get podGroup {namespace}/{name}: podgroup.scheduling.k8s.io {name:?} not found"
            );
            return Permission::refuse(Refusal::new(Code::Error, reason));
        }
        let (Some(needed), Some(members)) = (needed(cluster, &key), cluster.groups.members(&key)) else {
            return Permission::default();
        };
        if members.scheduled() < needed {
            let reason = "waiting for minCount pods from a gang to be scheduled".to_owned();
            let answer = Permit::Wait { reason, timeout: limits::GANG_WAIT };
            return Permission { answer, activates_group: Some(key), ..Permission::default() };
        }
        Permission { allows_group: Some(key), ..Permission::default() }
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::AssignedPod, Actions::ADD),
            Event::new(Resource::UnscheduledPod, Actions::ADD),
            Event::new(Resource::PodGroup, Actions::ADD),
        ]
    }

    fn reach(&self, change: &Change<'_>, cluster: &Cluster) -> Reach {
        let key = match change {
            Change::Pod(Versions { new: Some(added), .. }) => group_of(added),
            Change::PodGroup(Versions { new: Some(added), .. }) => Some(ObjectKey::of(added.as_ref())),
            _ => return Reach::All,
        };
        // PreEnqueue would refuse the others once more as long as their group lacks something.
        match key.filter(|key| lack(cluster, key).is_none()) {
            Some(key) => Reach::Group(key),
            None => Reach::None,
        }
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let concerns = match change {
            Change::Pod(Versions { new: Some(added), .. }) => {
                pod.group.is_some() && added.group == pod.group && added.namespace() == pod.namespace()
            }
            Change::PodGroup(Versions { new: Some(added), .. }) => {
                group_of(pod).is_some_and(|key| key == ObjectKey::of(added.as_ref()))
            }
            _ => true,
        };
        if concerns { Hint::Queue } else { Hint::Skip }
    }
}

#[cfg(test)]
mod tests;
