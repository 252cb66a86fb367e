//! Pods as the controllers store them.
//!
//! All pods of a ReplicaSet usually have one specification and one status, once what differs between them is kept apart:
//! node, host name, addresses and times. So a pod takes some 500 bytes. A field can be read only by a method, and what
//! [`reduced`](super::reduced) clears is not there.

use std::sync::Arc;

use apiserver_client::slim::{FingerprintInterner, Meta, OptionalTime, shared_text};
use apiserver_client::{Metadata, Object, Projection, Unread};
use apiserver_meta::pods::is_final;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    self, ContainerStatus, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PodCondition, PodIP, PodResourceClaimStatus, PodSpec, PodStatus,
};

use super::reduced;

/// The field of a node by which pods of a DaemonSet are pinned to it.
pub(crate) const NAME_FIELD: &str = "metadata.name";

static SPECS: FingerprintInterner<PodSpec> = FingerprintInterner::new();
static STATUSES: FingerprintInterner<PodStatus> = FingerprintInterner::new();

/// A pod with what the controllers read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pod {
    pub metadata: Meta,
    /// Without node, host name and node affinity.
    spec: Arc<PodSpec>,
    /// The node that the pod is bound to.
    node: Option<Arc<str>>,
    hostname: Option<Box<str>>,
    /// The node that a pod of a DaemonSet is for.
    pinned_to: Option<Arc<str>>,
    /// Without addresses and times.
    status: Arc<PodStatus>,
    addresses: Box<[Box<str>]>,
    started: OptionalTime,
    /// Times of the last transitions of the conditions, in their order.
    transitions: Box<[OptionalTime]>,
}

/// A condition of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition<'a> {
    shape: &'a PodCondition,
    pub last_transition_time: Option<Timestamp>,
}

impl Condition<'_> {
    pub fn status(&self) -> &str {
        &self.shape.status
    }

    pub fn reason(&self) -> Option<&str> {
        self.shape.reason.as_deref()
    }

    pub fn is_true(&self) -> bool {
        self.shape.status == "True"
    }
}

/// Takes the node out of the affinity that pins a pod to it, and clears what else is required of nodes.
fn take_pin(spec: &mut PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_mut()?.node_affinity.take()?;
    if spec.affinity.as_ref().is_some_and(|rest| *rest == v1::Affinity::default()) {
        spec.affinity = None;
    }
    let terms = affinity.required_during_scheduling_ignored_during_execution?.node_selector_terms;
    let mut fields = terms.into_iter().flat_map(|term| term.match_fields.into_iter().flatten());
    let names = fields.find(|field| field.key == NAME_FIELD && field.operator == "In")?;
    match names.values?.as_mut_slice() {
        [name] => Some(std::mem::take(name)),
        _ => None,
    }
}

/// Returns the node affinity that only this node meets.
pub(crate) fn pin(node: &str) -> NodeSelector {
    let requirement = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() };
    NodeSelector { node_selector_terms: vec![term] }
}

/// Takes the addresses out of a status, the primary one first.
fn take_addresses(status: &mut PodStatus) -> Box<[Box<str>]> {
    let all = status.pod_ips.take().into_iter().flatten().map(|ip| ip.ip);
    let mut addresses: Vec<Box<str>> = all.map(String::into_boxed_str).collect();
    if let Some(primary) = status.pod_ip.take().map(String::into_boxed_str) {
        addresses.retain(|address| *address != primary);
        addresses.insert(0, primary);
    }
    addresses.into_boxed_slice()
}

impl From<v1::Pod> for Pod {
    fn from(pod: v1::Pod) -> Self {
        let (mut spec, mut status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        reduced::spec(&mut spec);
        reduced::status(&mut status);
        let share = |name: &String| shared_text(name);
        let node = spec.node_name.take().filter(|name| !name.is_empty()).as_ref().map(share);
        let hostname = spec.hostname.take().map(String::into_boxed_str);
        let pinned_to = take_pin(&mut spec).as_ref().map(share);
        let addresses = take_addresses(&mut status);
        let started = status.start_time.take().into();
        let conditions = status.conditions.iter_mut().flatten();
        let transitions = conditions.map(|condition| condition.last_transition_time.take().into()).collect();
        Self {
            metadata: pod.metadata.into(),
            spec: SPECS.share(spec),
            node,
            hostname,
            pinned_to,
            status: STATUSES.share(status),
            addresses,
            started,
            transitions,
        }
    }
}

impl Object for Pod {
    type Kind = v1::Pod;
    type Meta = Meta;

    fn metadata(&self) -> &Meta {
        &self.metadata
    }

    fn to_api(&self) -> v1::Pod {
        let mut spec = PodSpec::clone(&self.spec);
        spec.node_name = self.node.as_deref().map(str::to_owned);
        spec.hostname = self.hostname.as_deref().map(str::to_owned);
        if let Some(node) = self.pinned_to() {
            let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
            affinity.required_during_scheduling_ignored_during_execution = Some(pin(node));
        }
        let mut status = PodStatus::clone(&self.status);
        for (condition, time) in status.conditions.iter_mut().flatten().zip(&self.transitions) {
            condition.last_transition_time = time.to_api();
        }
        status.start_time = self.started.to_api();
        status.pod_ip = self.addresses().next().map(str::to_owned);
        let addresses = self.addresses().map(|address| PodIP { ip: address.to_owned() });
        status.pod_ips = (!self.addresses.is_empty()).then(|| addresses.collect());
        let status = (status != PodStatus::default()).then_some(status);
        v1::Pod { metadata: self.metadata.to_api(), spec: Some(spec), status }
    }
}

impl Projection for Pod {
    type Object = v1::Pod;

    fn project(pod: v1::Pod) -> Self {
        pod.into()
    }

    fn names(&self) -> (&str, &str) {
        (self.metadata.namespace(), self.metadata.name())
    }

    fn is_version_of(&self, other: &Self) -> bool {
        let version = self.metadata.resource_version();
        !version.is_empty() && version == other.metadata.resource_version()
    }

    fn unread() -> Option<&'static Unread> {
        Some(&reduced::UNREAD)
    }
}

impl Pod {
    /// Returns the specification without node, host name and node affinity.
    pub fn spec(&self) -> &PodSpec {
        &self.spec
    }

    /// Returns the node that the pod is bound to; empty if none.
    pub fn node_name(&self) -> &str {
        self.node.as_deref().unwrap_or_default()
    }

    pub fn hostname(&self) -> Option<&str> {
        self.hostname.as_deref()
    }

    /// Returns the node that a pod of a DaemonSet is for.
    pub fn pinned_to(&self) -> Option<&str> {
        self.pinned_to.as_deref()
    }

    /// Returns the phase; `Pending` if it is not set.
    pub fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap_or("Pending")
    }

    pub fn reason(&self) -> Option<&str> {
        self.status.reason.as_deref()
    }

    /// Returns `true` if the pod has ended for good and no longer uses resources.
    pub fn is_finished(&self) -> bool {
        is_final(self.phase())
    }

    /// Returns when the kubelet took the pod.
    pub fn start_time(&self) -> Option<Timestamp> {
        self.started.get()
    }

    pub fn conditions(&self) -> impl Iterator<Item = (&str, Condition<'_>)> {
        let shapes = self.status.conditions.iter().flatten();
        shapes.zip(&self.transitions).map(|(shape, time)| {
            (shape.type_.as_str(), Condition { shape, last_transition_time: time.get() })
        })
    }

    /// Returns the condition of a type.
    pub fn condition(&self, kind: &str) -> Option<Condition<'_>> {
        self.conditions().find(|(known, _)| *known == kind).map(|(_, condition)| condition)
    }

    /// Returns `true` if the condition `Ready` is `True`.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.is_true())
    }

    /// Returns the addresses, the primary one first. Nodes can write any text.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.addresses.iter().map(|address| &**address)
    }

    /// Returns the states of the containers, without those of init and ephemeral ones.
    pub fn container_statuses(&self) -> &[ContainerStatus] {
        self.status.container_statuses.as_deref().unwrap_or_default()
    }

    pub fn init_container_statuses(&self) -> &[ContainerStatus] {
        self.status.init_container_statuses.as_deref().unwrap_or_default()
    }

    pub fn ephemeral_container_statuses(&self) -> &[ContainerStatus] {
        self.status.ephemeral_container_statuses.as_deref().unwrap_or_default()
    }

    /// Returns the claims that were generated for entries of `spec.resourceClaims`; `None` if none was so far.
    pub fn resource_claim_statuses(&self) -> Option<&[PodResourceClaimStatus]> {
        self.status.resource_claim_statuses.as_deref()
    }

    /// Returns the claim that was generated for extended resources.
    pub fn extended_resource_claim(&self) -> Option<&str> {
        let status = self.status.extended_resource_claim_status.as_ref()?;
        Some(&status.resource_claim_name)
    }

    /// Returns a reference to the pod as endpoints have it.
    pub fn target_reference(&self) -> ObjectReference {
        let set = |text: &str| Some(text.to_owned());
        ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: set(self.metadata.namespace()),
            name: set(self.metadata.name()),
            uid: set(self.metadata.uid()),
            ..ObjectReference::default()
        }
    }
}

#[cfg(test)]
#[path = "slim_tests.rs"]
mod tests;
