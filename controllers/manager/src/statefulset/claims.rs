//! The claims of a StatefulSet's pods, and who owns them under its retention policy.

use apiserver_client::Object;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use crate::meta::{controller_reference, name, owners};

pub(super) fn templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_deref()).unwrap_or_default()
}

/// Returns the name of the claim of a template for the pod with this ordinal.
pub(super) fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i64) -> String {
    format!("{}-{}-{ordinal}", name(&template.metadata), name(&set.metadata))
}

/// Events after which the claims of a pod are deleted. All others retain them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// The set is deleted.
    pub when_deleted: bool,
    /// The pod is scaled down.
    pub when_scaled: bool,
}

/// Returns the retention policy of a set.
pub(super) fn policy(set: &StatefulSet) -> Policy {
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    // An unknown policy retains.
    let deletes = |value: Option<&String>| value.is_some_and(|value| value == "Delete");
    Policy {
        when_deleted: deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
        when_scaled: deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
    }
}

/// A pod and its set, which may own the claims of the pod.
#[derive(Clone)]
pub(super) struct Parties {
    set: OwnerReference,
    pod: OwnerReference,
    policy: Policy,
    scaled_down: bool,
}

impl Parties {
    /// `scaled_down` tells that the set no longer wants the pod.
    pub fn new<P>(set: &StatefulSet, pod: &P, scaled_down: bool) -> Self
    where
        P: Object<Kind: Resource<DynamicType = ()>>,
    {
        Self {
            set: controller_reference(set),
            pod: controller_reference(pod),
            policy: policy(set),
            scaled_down,
        }
    }

    /// Returns `true` if the policy wants the set as an owner.
    fn wants_set(&self) -> bool {
        self.policy.when_deleted && !self.wants_pod()
    }

    /// Returns `true` if the policy wants the pod as an owner.
    fn wants_pod(&self) -> bool {
        self.policy.when_scaled && self.scaled_down
    }

    fn names_either(&self, reference: &OwnerReference) -> bool {
        is_same_name(reference, &self.set) || is_same_name(reference, &self.pod)
    }

    /// Returns `true` if the claim belongs to a former set or pod of the same name.
    pub fn is_stale(&self, claim: &ObjectMeta) -> bool {
        has_stale(claim, &self.set) || has_stale(claim, &self.pod)
    }

    /// Returns `true` if another object manages the claim, although the policy is to delete it.
    pub fn is_managed_elsewhere(&self, claim: &ObjectMeta) -> bool {
        if self.policy == Policy::default() {
            return false;
        }
        owners(claim).iter().any(|reference| {
            if self.names_either(reference) {
                ![&self.set.uid, &self.pod.uid].contains(&&reference.uid)
            } else {
                reference.controller == Some(true)
            }
        })
    }

    /// Returns the owners that the claim should have; `None` if it has them, or if it belongs to others and must not
    /// be touched.
    pub fn wanted_owners(&self, claim: &ObjectMeta) -> Option<Vec<OwnerReference>> {
        if self.is_stale(claim) {
            return None;
        }
        let (has_set, has_pod) = (has(claim, &self.set), has(claim, &self.pod));
        let mut wanted: Vec<_> =
            owners(claim).iter().filter(|reference| !self.names_either(reference)).cloned().collect();
        if self.is_managed_elsewhere(claim) {
            return (has_set || has_pod).then_some(wanted);
        }
        let uids = [&self.set.uid, &self.pod.uid];
        let powerless = owners(claim)
            .iter()
            .any(|reference| uids.contains(&&reference.uid) && reference.controller != Some(true));
        if !powerless && has_set == self.wants_set() && has_pod == self.wants_pod() {
            return None;
        }
        if self.wants_set() {
            wanted.push(self.set.clone());
        }
        if self.wants_pod() {
            wanted.push(self.pod.clone());
        }
        Some(wanted)
    }

    /// Returns `true` if a new pod must not use the claim: it goes with the pod that had this name before, after a
    /// scale down that was taken back.
    pub fn blocks_new_pod(&self, claim: &ObjectMeta) -> bool {
        self.policy.when_scaled && has_stale(claim, &self.pod)
    }
}

fn is_same_name(a: &OwnerReference, b: &OwnerReference) -> bool {
    a.api_version == b.api_version && a.kind == b.kind && a.name == b.name
}

fn has(claim: &ObjectMeta, owner: &OwnerReference) -> bool {
    owners(claim).iter().any(|reference| reference.uid == owner.uid)
}

fn has_stale(claim: &ObjectMeta, owner: &OwnerReference) -> bool {
    let found = owners(claim).iter().find(|reference| is_same_name(reference, owner));
    found.is_some_and(|reference| reference.uid != owner.uid)
}

/// Returns the claim of a template for the pod with this ordinal.
pub(super) fn new_claim(
    set: &StatefulSet,
    template: &PersistentVolumeClaim,
    ordinal: i64,
) -> PersistentVolumeClaim {
    let given = &template.metadata;
    let selected = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone());
    let mut labels = given.labels.clone().unwrap_or_default();
    labels.extend(selected.unwrap_or_default());
    let set_owns = policy(set).when_deleted;
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(set, template, ordinal)),
            namespace: set.metadata.namespace.clone(),
            labels: (!labels.is_empty()).then_some(labels),
            annotations: given.annotations.clone(),
            finalizers: given.finalizers.clone(),
            owner_references: set_owns.then(|| vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}
