//! PodGroups, and which of their pods have a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use crate::pod::PodInfo;

/// PodGroups with their pods. Nothing is counted unless the pods of a group are scheduled together.
#[derive(Debug, Default)]
pub struct Groups {
    are_scheduled: bool,
    objects: BTreeMap<ObjectKey, Arc<PodGroup>>,
    members: BTreeMap<ObjectKey, Members>,
}

/// The pods of a group: those that have a node, whichever scheduler has placed them, and those that wait for this one.
#[derive(Debug, Default)]
pub struct Members {
    unscheduled: BTreeMap<Uid, Arc<PodInfo>>,
    /// Those that are bound, or counted on a node until they are.
    scheduled: BTreeSet<Uid>,
}

impl Members {
    /// Returns the number of pods.
    pub fn len(&self) -> usize {
        self.unscheduled.len() + self.scheduled.len()
    }

    pub fn is_empty(&self) -> bool {
        self.unscheduled.is_empty() && self.scheduled.is_empty()
    }

    /// Returns the number of pods that have a node.
    pub fn scheduled(&self) -> usize {
        self.scheduled.len()
    }

    /// Returns the pods that have no node, ordered by uid.
    pub fn unscheduled(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.unscheduled.values()
    }
}

/// Returns the key of the group that a pod names.
pub fn group_of(pod: &PodInfo) -> Option<ObjectKey> {
    Some(ObjectKey::new(pod.namespace(), pod.group.as_deref()?))
}

impl Groups {
    /// Returns the groups of a cluster whose pods are scheduled together (`GenericWorkload`), or are not.
    pub fn new(are_scheduled: bool) -> Self {
        Self { are_scheduled, ..Self::default() }
    }

    /// Returns `true` if pods of groups are scheduled together, and the pod names one.
    pub fn concern(&self, pod: &PodInfo) -> bool {
        self.are_scheduled && pod.group.is_some()
    }

    /// Replaces a PodGroup, and returns it as it was; `None` if it is new. Another one of the same name is new: pods wait for
    /// one to be added.
    pub fn set_object(&mut self, key: &ObjectKey, new: Option<Arc<PodGroup>>) -> Option<Arc<PodGroup>> {
        let Some(new) = new else { return self.objects.remove(key) };
        let uid = new.metadata.uid.clone();
        self.objects.insert(key.clone(), new).filter(|old| old.metadata.uid == uid)
    }

    pub fn object(&self, key: &ObjectKey) -> Option<&Arc<PodGroup>> {
        self.objects.get(key)
    }

    /// Returns the pods of a group; `None` if it has none.
    pub fn members(&self, key: &ObjectKey) -> Option<&Members> {
        self.members.get(key)
    }

    /// Returns the group of a pod, if pods of groups are scheduled together.
    pub fn scheduled_with(&self, pod: &PodInfo) -> Option<ObjectKey> {
        if self.concern(pod) { group_of(pod) } else { None }
    }

    /// Adds a pod that waits for a node, or updates it; returns `true` if its group was without it.
    pub fn waits(&mut self, pod: &Arc<PodInfo>) -> bool {
        let Some(key) = self.scheduled_with(pod) else { return false };
        let members = self.members.entry(key).or_default();
        !members.scheduled.contains(&pod.uid)
            && members.unscheduled.insert(pod.uid.clone(), Arc::clone(pod)).is_none()
    }

    /// Removes a pod that is gone, or has finished.
    pub fn gone(&mut self, pod: &PodInfo) {
        let Some(key) = self.scheduled_with(pod) else { return };
        let Some(members) = self.members.get_mut(&key) else { return };
        members.unscheduled.remove(&pod.uid);
        members.scheduled.remove(&pod.uid);
        if members.is_empty() {
            self.members.remove(&key);
        }
    }

    /// Hears that a pod is counted on a node.
    pub(super) fn placed(&mut self, pod: &Arc<PodInfo>) {
        if let Some(key) = self.scheduled_with(pod) {
            let members = self.members.entry(key).or_default();
            members.unscheduled.remove(&pod.uid);
            members.scheduled.insert(pod.uid.clone());
        }
    }

    /// Hears that a pod is no longer counted on a node. If it is there, it waits for another one.
    pub(super) fn removed(&mut self, pod: &Arc<PodInfo>) {
        let Some(key) = self.scheduled_with(pod) else { return };
        let Some(members) = self.members.get_mut(&key) else { return };
        if members.scheduled.remove(&pod.uid) {
            members.unscheduled.insert(pod.uid.clone(), Arc::clone(pod));
        }
    }
}

/// Covers the 4 cases that Kubernetes tests of the state of a group, but for the copies of it, which there are none of here.
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::Cluster;
    use crate::testing;

    fn member(name: &str, node: Option<&str>) -> Arc<PodInfo> {
        testing::pod_of(name, json!({"schedulingGroup": {"podGroupName": "g"}, "nodeName": node}))
    }

    fn cluster() -> Cluster {
        let mut cluster = testing::cluster(&[testing::node("n", json!({}))], &[]);
        cluster.groups = Groups::new(true);
        cluster
    }

    fn key() -> ObjectKey {
        ObjectKey::new("default", "g")
    }

    /// Returns the numbers of pods, and of those with a node, and the names of those without.
    fn counts(cluster: &Cluster) -> (usize, usize, Vec<String>) {
        let Some(members) = cluster.groups.members(&key()) else { return Default::default() };
        let names = members.unscheduled().map(|pod| pod.name().to_owned()).collect();
        (members.len(), members.scheduled(), names)
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn pods_are_counted_by_whether_they_have_a_node() {
        let mut cluster = cluster();
        let (a, b) = (member("a", None), member("b", None));
        assert!(cluster.groups.waits(&a) && cluster.groups.waits(&b), "they are new");
        assert_eq!(counts(&cluster), (2, 0, texts(&["a", "b"])));
        cluster.place(&a, &"n".into());
        assert_eq!(counts(&cluster), (2, 1, texts(&["b"])), "it is assumed");
        assert!(!cluster.groups.waits(&a) && !cluster.groups.waits(&b));
        assert_eq!(counts(&cluster), (2, 1, texts(&["b"])), "an update changes nothing");
        cluster.place(&member("a", Some("n")), &"n".into());
        cluster.place(&member("foreign", Some("n")), &"n".into());
        assert_eq!(counts(&cluster), (3, 2, texts(&["b"])), "bound pods count, whoever has bound them");
    }

    #[test]
    fn pod_that_loses_its_place_waits_again_and_one_that_is_gone_does_not() {
        let mut cluster = cluster();
        let a = member("a", None);
        cluster.groups.waits(&a);
        cluster.place(&a, &"n".into());
        cluster.remove_pod(&a);
        assert_eq!(counts(&cluster), (1, 0, texts(&["a"])));
        cluster.place(&a, &"n".into());
        cluster.groups.gone(&a);
        cluster.remove_pod(&a);
        assert_eq!(counts(&cluster), Default::default());
        cluster.groups.gone(&a);
    }

    #[test]
    fn trial_leaves_the_counts_as_they_were() {
        let mut cluster = cluster();
        let (bound, waiting) = (member("bound", Some("n")), member("waiting", None));
        cluster.place(&bound, &"n".into());
        cluster.groups.waits(&waiting);
        let before = counts(&cluster);
        let id = testing::named(&cluster, "n").id;
        let mut trial = cluster.trial();
        trial.remove(&bound);
        trial.add(&waiting, id);
        assert_eq!(counts(&trial), (2, 1, texts(&["bound"])));
        drop(trial);
        assert_eq!(counts(&cluster), before);
    }

    #[test]
    fn group_that_is_made_again_is_new() {
        let group = |uid: &str| {
            let object = json!({"metadata": {"name": "g", "namespace": "ns", "uid": uid},
                "spec": {"schedulingPolicy": {"basic": {}}}});
            Some(Arc::new(serde_json::from_value::<PodGroup>(object).unwrap()))
        };
        let mut groups = Groups::default();
        assert!(groups.set_object(&key(), group("1")).is_none());
        assert!(groups.set_object(&key(), group("1")).is_some());
        assert!(groups.set_object(&key(), group("2")).is_none());
        assert!(groups.set_object(&key(), None).is_some());
    }

    #[test]
    fn nothing_is_counted_unless_groups_are_scheduled() {
        let mut cluster = cluster();
        cluster.groups = Groups::default();
        cluster.groups.waits(&member("a", None));
        cluster.place(&member("b", Some("n")), &"n".into());
        assert!(cluster.groups.members(&key()).is_none());
    }
}
