//! Pods as the scheduler stores them: the fields that scheduling reads, parsed once for all pods of a template.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use apiserver_client::slim::{FingerprintInterner, Meta, OptionalTime, shared_text};
use apiserver_client::{Labels, Metadata, ObjectKey, Projection, Unread};
use apiserver_meta::host_ports::{HostPort, host_ports};
use apiserver_meta::pods::{condition, is_finished};
use apiserver_meta::resources::pod_requests;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::{
    self, Container, NodeSelector, NodeSelectorTerm, PodExtendedResourceClaimStatus, PodResourceClaimStatus,
    PreferredSchedulingTerm, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use crate::resources::{Resources, Scored};

mod reduce;
mod terms;
#[cfg(test)]
mod tests;
mod unread;

pub use self::terms::{Listed, PodTerm, PodTerms, SpreadConstraint, TermNamespaces};

/// The `schedulerName` of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

static SPECS: FingerprintInterner<PodSpec> = FingerprintInterner::new();
static VOLUMES: FingerprintInterner<Vec<Volume>> = FingerprintInterner::new();
static IDS: AtomicU64 = AtomicU64::new(0);

/// Identifies a [`PodSpec`] within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpecId(u64);

/// The part of a pod's specification that scheduling reads. Pods of one template share it: what differs between them (node, volumes,
/// the node that a pod of a DaemonSet is for) is in [`PodInfo`].
#[derive(Debug, Serialize)]
pub struct PodSpec {
    /// The fields that are read, and no others.
    pub source: v1::PodSpec,
    /// The reason for which pods of the template get no node: they ask for more than an attempt may cost. The terms and
    /// constraints that are too many are not in `source`.
    pub excess: Option<Box<str>>,
    #[serde(skip)]
    parsed: OnceLock<Parsed>,
}

impl PartialEq for PodSpec {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.excess == other.excess
    }
}

impl Deref for PodSpec {
    type Target = Parsed;

    fn deref(&self) -> &Parsed {
        self.parsed.get_or_init(|| Parsed::of(&self.source))
    }
}

/// The parsed form of a [`PodSpec`].
#[derive(Debug)]
pub struct Parsed {
    pub id: SpecId,
    pub scheduler: Arc<str>,
    pub priority: i32,
    /// `preemptionPolicy` is `Never`.
    pub never_preempts: bool,
    /// Requests that must fit (KEP-753, KEP-2837), overhead included.
    pub requests: Resources,
    /// Requests of a pod on a node, as the scores of other pods count them.
    pub scored: Scored,
    /// Requests of a pod to be placed, as the scores of NodeResourcesFit count them.
    pub fit_scored: Resources,
    pub host_ports: Vec<HostPort>,
    /// Images of init containers and containers, with their tags.
    pub images: Vec<String>,
    pub node_affinity: Option<NodeSelector>,
    pub preferred_nodes: Vec<PreferredSchedulingTerm>,
    pub affinity: PodTerms,
    pub anti_affinity: PodTerms,
    /// Constraints of topology spreading, in their order.
    pub spread: Vec<SpreadConstraint>,
}

impl Parsed {
    fn of(spec: &v1::PodSpec) -> Self {
        let affinity = spec.affinity.clone().unwrap_or_default();
        let nodes = affinity.node_affinity.unwrap_or_default();
        let (with, without) =
            (affinity.pod_affinity.unwrap_or_default(), affinity.pod_anti_affinity.unwrap_or_default());
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        Self {
            id: SpecId(IDS.fetch_add(1, Ordering::Relaxed)),
            scheduler: shared_text(spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER)),
            priority: spec.priority.unwrap_or_default(),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            requests: Resources::collect(pod_requests(spec)),
            scored: reduce::scored(spec, None, &pod_requests(spec)),
            fit_scored: reduce::fit_scored(spec),
            host_ports: host_ports(spec).collect(),
            images: containers
                .map(|container| reduce::with_tag(container.image.as_deref().unwrap_or_default()))
                .collect(),
            node_affinity: nodes.required_during_scheduling_ignored_during_execution,
            preferred_nodes: nodes.preferred_during_scheduling_ignored_during_execution.unwrap_or_default(),
            affinity: PodTerms::parse(
                with.required_during_scheduling_ignored_during_execution.as_ref(),
                with.preferred_during_scheduling_ignored_during_execution.as_ref(),
            ),
            anti_affinity: PodTerms::parse(
                without.required_during_scheduling_ignored_during_execution.as_ref(),
                without.preferred_during_scheduling_ignored_during_execution.as_ref(),
            ),
            spread: spec.topology_spread_constraints.iter().flatten().map(SpreadConstraint::parse).collect(),
        }
    }
}

/// Requests of a pod whose containers are being resized.
#[derive(Clone, Debug, PartialEq)]
pub struct Resized {
    pub requests: Resources,
    pub scored: Scored,
}

/// Device claims in the status of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimStatuses {
    pub claims: Vec<PodResourceClaimStatus>,
    pub extended: Option<PodExtendedResourceClaimStatus>,
}

/// A pod with what scheduling reads.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// Without annotations and finalizers.
    pub metadata: Meta,
    pub uid: Uid,
    pub spec: Arc<PodSpec>,
    /// The node that the pod is bound to.
    pub node: Option<Arc<str>>,
    /// The only node that the pod may run on, by a node affinity for the field `metadata.name`, as pods of DaemonSets
    /// have it.
    pub pinned_to: Option<Arc<str>>,
    /// Name of the PodGroup that the pod is scheduled with.
    pub group: Option<Arc<str>>,
    /// Volumes that scheduling depends on: claims, ephemeral and CSI volumes, images, and disks that only one node can
    /// attach.
    pub volumes: Arc<Vec<Volume>>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<Arc<str>>,
    /// The pod has succeeded or failed, so that it uses nothing any more.
    pub is_finished: bool,
    /// The condition `DisruptionTarget` says that the scheduler has preempted the pod.
    pub is_preempted: bool,
    /// `status.startTime`.
    pub started: OptionalTime,
    /// Reason and message of the condition `PodScheduled`, if it is `False`.
    pub refusal: Option<Box<(String, String)>>,
    pub resized: Option<Box<Resized>>,
    pub claims: Option<Box<ClaimStatuses>>,
}

impl PodInfo {
    pub fn parse(pod: v1::Pod) -> Self {
        let finished = is_finished(&pod);
        let resized = reduce::resized(&pod).map(Box::new);
        let refusal = condition(&pod, "PodScheduled")
            .filter(|condition| condition.status == "False")
            .map(|c| Box::new((c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default())));
        let is_preempted = condition(&pod, "DisruptionTarget").is_some_and(|condition| {
            condition.status == "True" && condition.reason.as_deref() == Some("PreemptionByScheduler")
        });
        let (mut spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let text = |name: Option<String>| name.filter(|name| !name.is_empty()).as_deref().map(shared_text);
        let node = text(spec.node_name.take());
        let pinned_to = reduce::take_pin(&mut spec).as_deref().map(shared_text);
        let group = text(spec.scheduling_group.take().and_then(|group| group.pod_group_name));
        let excess = reduce::take_excess(&mut spec);
        let volumes = reduce::volumes(spec.volumes.take().unwrap_or_default());
        let claims = ClaimStatuses {
            claims: status.resource_claim_statuses.unwrap_or_default(),
            extended: status.extended_resource_claim_status,
        };
        let uid = Uid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        Self {
            uid,
            metadata: reduce::metadata(pod.metadata).into(),
            spec: SPECS.share(PodSpec { source: reduce::spec(spec), excess, parsed: OnceLock::new() }),
            // A pod that is bound is refused no more.
            refusal: refusal.filter(|_| node.is_none()),
            node,
            pinned_to,
            group,
            volumes: VOLUMES.share(volumes),
            nominated: text(status.nominated_node_name),
            is_finished: finished,
            is_preempted,
            started: status.start_time.into(),
            resized,
            claims: (claims != ClaimStatuses::default()).then(|| Box::new(claims)),
        }
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    pub fn name(&self) -> &str {
        self.metadata.name()
    }

    pub fn namespace(&self) -> &str {
        self.metadata.namespace()
    }

    pub fn labels(&self) -> &Labels {
        static NONE: Labels = Labels::new();
        self.metadata.labels().unwrap_or(&NONE)
    }

    /// Returns the pod as it would be if it were bound to a node.
    pub fn on(&self, node: &Arc<str>) -> Self {
        Self { node: Some(Arc::clone(node)), ..self.clone() }
    }

    /// Returns the images of containers and volumes, with their tags.
    pub fn images(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let containers = self.spec.images.iter().map(|image| Cow::Borrowed(image.as_str()));
        let volumes = self.volumes.iter().filter_map(|volume| volume.image.as_ref());
        containers.chain(
            volumes.map(|image| Cow::Owned(reduce::with_tag(image.reference.as_deref().unwrap_or_default()))),
        )
    }

    /// Returns the labels, which pods of a template share.
    pub fn shared_labels(&self) -> Arc<Labels> {
        static NONE: LazyLock<Arc<Labels>> = LazyLock::new(Arc::default);
        Arc::clone(self.metadata.shared_labels().unwrap_or(&NONE))
    }

    /// Returns the namespace, which its pods share.
    pub fn shared_namespace(&self) -> &Arc<str> {
        self.metadata.shared_namespace()
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deleted().is_some()
    }

    /// Returns the requests that must fit, those of a resize in progress included (KEP-1287).
    pub fn requests(&self) -> &Resources {
        self.resized.as_ref().map_or(&self.spec.requests, |resized| &resized.requests)
    }

    pub fn scored(&self) -> Scored {
        self.resized.as_ref().map_or(self.spec.scored, |resized| resized.scored)
    }
}

impl Projection for PodInfo {
    type Object = v1::Pod;

    fn project(pod: v1::Pod) -> Self {
        Self::parse(pod)
    }

    fn names(&self) -> (&str, &str) {
        (self.namespace(), self.name())
    }

    fn is_version_of(&self, other: &Self) -> bool {
        let version = self.metadata.resource_version();
        !version.is_empty() && version == other.metadata.resource_version()
    }

    fn unread() -> Option<&'static Unread> {
        Some(&unread::UNREAD)
    }
}
